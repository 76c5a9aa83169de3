//! What is wrong with a request, by field. It knows no status code.

use std::fmt;

use serde_json::Value;

/// A request that stays wrong when it is sent again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidRequest {
    /// The field that is wrong, as a path: `messages[0].role`.
    pub param: Option<String>,
    pub code: Option<&'static str>,
    pub message: String,
}

impl InvalidRequest {
    /// The request as a whole is wrong.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        InvalidRequest { param: None, code: Some(code), message: message.into() }
    }

    /// A field is wrong: its path, and what would be right.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        InvalidRequest { param: Some(param.into()), ..InvalidRequest::new("invalid_value", message) }
    }

    pub fn wrong_type(param: &str, expected: &str, got: &Value) -> Self {
        let got = match got {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "an array",
            Value::Object(_) => "an object",
        };
        let message = format!("'{param}' must be {expected}, got {got}");
        InvalidRequest { code: Some("invalid_type"), ..InvalidRequest::invalid(param, message) }
    }

    /// A required field is absent. `what`: what it must hold.
    pub fn missing(param: &str, what: &str) -> Self {
        let message = format!("'{param}' is required: {what}");
        InvalidRequest { code: Some("missing_required_parameter"), ..InvalidRequest::invalid(param, message) }
    }

    /// A field that would change the result, and that this server does not implement.
    pub fn unsupported(param: impl Into<String>, why: &str) -> Self {
        let param = param.into();
        let message = format!("'{param}' is not supported: {why}");
        InvalidRequest { code: Some("unsupported_parameter"), ..InvalidRequest::invalid(param, message) }
    }
}

impl fmt::Display for InvalidRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for InvalidRequest {}
