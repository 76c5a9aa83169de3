//! The tools of a request, and their conversion to the types of the grammar and the parser.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use rein_grammar::{Tool, Tools};
use serde_json::Value;

/// The tools of a request in OpenAI's format. Copies share them, and what is made of them.
#[derive(Debug, Clone, Default)]
pub struct ToolSet(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    declared: Vec<Value>,
    exact: Option<Vec<Value>>,
    callable: OnceLock<Tools>,
    template_value: OnceLock<minijinja::Value>,
}

impl ToolSet {
    /// `exact`: the same tools for rendering, if a JSON number needs more than 64 bits (see `template::lossless`).
    pub fn new(declared: Vec<Value>, exact: Option<Vec<Value>>) -> Self {
        ToolSet(Arc::new(Inner { declared, exact, ..Inner::default() }))
    }

    /// With the numbers as the client wrote them.
    pub fn exact(&self) -> &[Value] {
        self.0.exact.as_ref().unwrap_or(&self.0.declared)
    }

    /// What the grammar and the parser need to know of them. Tools without a name are left out.
    pub fn callable(&self) -> &Tools {
        self.0.callable.get_or_init(|| self.iter().filter_map(tool).collect())
    }

    /// What a template gets: what `make` makes of the exact tools.
    pub(crate) fn template_value(&self, make: impl FnOnce(&[Value]) -> minijinja::Value) -> minijinja::Value {
        self.0.template_value.get_or_init(|| make(self.exact())).clone()
    }
}

impl PartialEq for ToolSet {
    fn eq(&self, other: &Self) -> bool {
        (&self.0.declared, &self.0.exact) == (&other.0.declared, &other.0.exact)
    }
}

impl Deref for ToolSet {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.0.declared
    }
}

impl From<Vec<Value>> for ToolSet {
    fn from(declared: Vec<Value>) -> Self {
        ToolSet::new(declared, None)
    }
}

/// Converts a tool in the OpenAI shape; `None` if it has no name.
pub fn tool(tool: &Value) -> Option<Tool> {
    let function = tool.get("function")?;
    let name = function.get("name")?.as_str()?.to_owned();
    let strict = function.get("strict").and_then(Value::as_bool).unwrap_or(false);
    Some(Tool::declared(name, function.get("parameters").cloned(), strict))
}
