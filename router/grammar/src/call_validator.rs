//! Validates finished calls against their declarations when the server does not enforce the arguments.

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::rules::{Enforcement, Rules, Violation};
use crate::schema;
use crate::tools::{Tool, Tools};
use crate::validate::{self, Validators};

/// The declared tools of a request; their validators are made on first use.
#[derive(Debug)]
pub struct CallValidator {
    tools: Tools,
    validators: OnceLock<Validators>,
}

impl CallValidator {
    /// None: no tool is declared, or the grammar enforces the arguments of all.
    #[must_use]
    pub fn new(rules: &Rules) -> Option<Self> {
        let left = rules.enforcement != Enforcement::NamesAndArguments && !rules.tools.is_empty();
        left.then(|| Self { tools: rules.tools.clone(), validators: OnceLock::new() })
    }

    /// Whether this many bytes of a tool's arguments are validated in less than a millisecond.
    #[must_use]
    pub fn validates_quickly(&self, name: &str, bytes: usize) -> bool {
        self.validators.get().is_some_and(|validators| validators.is_quick(Some(name), bytes))
    }

    /// Validates complete arguments. An undeclared tool is a violation.
    ///
    /// # Errors
    /// The first violation.
    pub fn validate(&self, name: &str, arguments: &str) -> Result<(), Violation> {
        self.validators.get_or_init(|| self.validators()).call(name, arguments)
    }

    fn validators(&self) -> Validators {
        let tools = self.tools.iter().map(|tool| Tool { parameters: Some(schema_of(tool)), ..tool.clone() }).collect();
        Validators::new(&Rules { tools, enforcement: Enforcement::NamesAndArguments, ..Rules::default() })
    }
}

/// The schema that arguments are validated against. Nobody has checked the declaration: if it is no valid schema, or
/// a larger one than a grammar may have, the arguments may be any object.
fn schema_of(tool: &Tool) -> Value {
    match &tool.parameters {
        Some(schema) if !schema.is_null() => {
            let valid = schema::check(schema, "").is_ok() && validate::check(schema, "").is_ok();
            if valid { schema.clone() } else { json!({"type": "object"}) }
        }
        _ => Value::Null,
    }
}
