//! Validation of what is finished, by a JSON-Schema validator that shares nothing with the grammar.

use std::collections::HashMap;
use std::sync::OnceLock;

use jsonschema::Validator;
use serde_json::Value;

use crate::rules::{Enforcement, RuleError, Rules, Tool, Violation};

/// The validators of a request's schemas (Draft 2020-12), compiled when they are first needed.
#[derive(Debug, Default)]
pub struct Validators {
    tools: HashMap<String, Lazy>,
}

#[derive(Debug, Default)]
struct Lazy {
    schema: Value,
    validator: OnceLock<Option<Validator>>,
}

impl Lazy {
    fn new(schema: Value) -> Self {
        Self { schema, validator: OnceLock::new() }
    }

    /// None: the schema itself is broken, which the request was told when it was compiled.
    fn validator(&self) -> Option<&Validator> {
        self.validator.get_or_init(|| build(&self.schema).ok()).as_ref()
    }

    fn check(&self, instance: &Value) -> Result<(), Violation> {
        match self.validator().map(|v| v.validate(instance)) {
            Some(Err(e)) => Err(Violation { path: e.instance_path().to_string(), message: e.to_string() }),
            _ => Ok(()),
        }
    }
}

fn build(schema: &Value) -> Result<Validator, String> {
    jsonschema::draft202012::new(schema).map_err(|e| format!("at {}: {e}", e.instance_path()))
}

impl Validators {
    pub fn new(rules: &Rules) -> Self {
        let none = || serde_json::json!({"type": "object", "maxProperties": 0});
        let schema = |t: &Tool| match rules.enforced(t) {
            Enforcement::NamesAndArguments => t.parameters.clone().filter(|p| !p.is_null()).unwrap_or_else(none),
            // Arguments are the client's business then.
            Enforcement::Off | Enforcement::Names => serde_json::json!({"type": "object"}),
        };
        let tools = rules.tools.iter().map(|t| (t.name.clone(), Lazy::new(schema(t)))).collect();
        Self { tools }
    }

    /// Finished arguments against their tool's schema. A tool that is not declared violates everything.
    pub fn call(&self, name: &str, arguments: &str) -> Result<(), Violation> {
        let Some(tool) = self.tools.get(name) else {
            return Err(Violation { path: String::new(), message: format!("no tool {name:?} is declared") });
        };
        let value = parse(arguments)?;
        if !value.is_object() {
            return Err(Violation { path: String::new(), message: "arguments are a JSON object".into() });
        }
        tool.check(&value)
    }
}

fn parse(text: &str) -> Result<Value, Violation> {
    serde_json::from_str(text).map_err(|e| Violation { path: String::new(), message: format!("not JSON: {e}") })
}

/// Refuses schemas that are none, by the draft that they name.
pub(crate) fn check(schema: &Value, field: &str) -> Result<(), RuleError> {
    let draft = schema.get("$schema").and_then(Value::as_str).unwrap_or_default();
    let result = match draft {
        d if d.contains("draft-04") => jsonschema::draft4::meta::validate(schema),
        d if d.contains("draft-06") => jsonschema::draft6::meta::validate(schema),
        d if d.contains("draft-07") => jsonschema::draft7::meta::validate(schema),
        d if d.contains("2019-09") => jsonschema::draft201909::meta::validate(schema),
        _ => jsonschema::draft202012::meta::validate(schema),
    };
    result.map_err(|e| {
        let path = e.instance_path().to_string();
        RuleError::Unenforceable {
            field: field.to_owned(),
            keyword: path.rsplit('/').next().unwrap_or_default().to_owned(),
            path,
            reason: e.to_string(),
        }
    })
}
