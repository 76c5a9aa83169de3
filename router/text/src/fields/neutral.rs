//! Fields of other servers that are rejected unless their value has no effect.

use serde_json::Value;

/// The values with which a field has no effect. Null is always one of them.
#[derive(Debug, Clone, Copy)]
pub enum NeutralValues {
    None,
    /// `false`, `0`, `""`, `[]` or `{}`.
    Empty,
    /// One of these numbers.
    Numbers(&'static [f64]),
    True,
    /// One of these strings.
    Texts(&'static [&'static str]),
}

impl NeutralValues {
    pub fn allows(self, value: &Value) -> bool {
        match (self, value) {
            (_, Value::Null) => true,
            (NeutralValues::Empty, Value::Bool(on)) => !on,
            (NeutralValues::Empty, Value::Number(number)) => number.as_f64() == Some(0.0),
            (NeutralValues::Empty, Value::String(text)) => text.is_empty(),
            (NeutralValues::Empty, Value::Array(items)) => items.is_empty(),
            (NeutralValues::Empty, Value::Object(map)) => map.is_empty(),
            (NeutralValues::Numbers(numbers), Value::Number(number)) => {
                number.as_f64().is_some_and(|number| numbers.contains(&number))
            }
            (NeutralValues::True, Value::Bool(on)) => *on,
            (NeutralValues::Texts(texts), Value::String(text)) => texts.contains(&text.as_str()),
            _ => false,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Refused {
    pub name: &'static str,
    pub neutral: NeutralValues,
    pub why: &'static str,
}

/// A row of a table of refused fields.
pub const fn refused(name: &'static str, neutral: NeutralValues, why: &'static str) -> Refused {
    Refused { name, neutral, why }
}
