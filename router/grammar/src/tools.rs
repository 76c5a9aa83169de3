//! The declared tools of a request, which everything that is made of them shares.

use std::io::Write as _;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use crate::cache::{Key, key_of};
use crate::json_schema::{Mended, mended};

/// A declared tool. The name decides how an ambiguous header is split; the schema decides which raw values are strings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tool {
    pub name: String,
    /// The JSON Schema of its arguments. None: the tool takes no arguments.
    pub parameters: Option<Value>,
    /// The schema must be enforced completely, whatever the server's policy is.
    pub strict: bool,
    /// What in the schema was given another meaning than its author wrote: JSON pointers.
    pub mended: Vec<String>,
}

impl Tool {
    /// As a client declares it. Unless the schema is strict, what has no meaning in it is relaxed.
    #[must_use]
    pub fn declared(name: String, parameters: Option<Value>, strict: bool) -> Self {
        let parameters = parameters.filter(|schema| !schema.is_null());
        let (parameters, mended) = match parameters {
            Some(schema) if !strict => {
                let Mended { schema, relaxed } = mended(schema);
                (Some(schema), relaxed)
            }
            parameters => (parameters, Vec::new()),
        };
        Tool { name, parameters, strict, mended }
    }
}

/// Declared tools. Copies share them.
#[derive(Debug, Clone, Default)]
pub struct Tools(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    list: Vec<Tool>,
    key: OnceLock<Key>,
}

impl Tools {
    /// Equal for equal tools, and only for these as far as 128 bits can tell.
    pub(crate) fn key(&self) -> Key {
        *self.0.key.get_or_init(|| {
            let mut text = Vec::new();
            // Writing to memory does not fail, and neither does JSON with text as keys.
            for Tool { name, parameters, strict, mended } in &self.0.list {
                let _ = write!(text, " {name:?} {strict} {mended:?} ");
                if let Some(parameters) = parameters {
                    let _ = serde_json::to_writer(&mut text, parameters);
                }
            }
            key_of(&text)
        })
    }
}

impl Deref for Tools {
    type Target = [Tool];

    fn deref(&self) -> &[Tool] {
        &self.0.list
    }
}

impl<'a> IntoIterator for &'a Tools {
    type Item = &'a Tool;
    type IntoIter = std::slice::Iter<'a, Tool>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl From<Vec<Tool>> for Tools {
    fn from(list: Vec<Tool>) -> Self {
        Tools(Arc::new(Inner { list, key: OnceLock::new() }))
    }
}

impl FromIterator<Tool> for Tools {
    fn from_iter<I: IntoIterator<Item = Tool>>(tools: I) -> Self {
        tools.into_iter().collect::<Vec<_>>().into()
    }
}
