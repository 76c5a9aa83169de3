//! Python literals, as far as models write them in calls.

use serde_json::{Map, Value};

/// Words that cannot name an argument; models write them with `_` behind.
const RESERVED: &[&str] = &[
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
    "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

/// `a="x", n=1`.
pub(crate) fn keywords(arguments: &Map<String, Value>) -> String {
    let mut out = String::new();
    for (key, value) in arguments {
        if !out.is_empty() {
            out.push_str(", ");
        }
        out.push_str(key);
        out.push_str(if RESERVED.contains(&key.as_str()) { "_=" } else { "=" });
        literal(value, &mut out);
    }
    out
}

/// A JSON string is a Python string: serde_json writes no escape that Python reads otherwise.
fn literal(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Number(_) | Value::String(_) => out.push_str(&value.to_string()),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                literal(item, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            for (i, (key, item)) in members.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push_str(": ");
                literal(item, out);
            }
            out.push('}');
        }
    }
}

/// How a keyword of this name may be spelled.
pub(crate) fn spellings(name: &str) -> Vec<String> {
    let mut all = vec![name.to_owned()];
    if RESERVED.contains(&name) {
        all.push(format!("{name}_"));
    }
    all
}
