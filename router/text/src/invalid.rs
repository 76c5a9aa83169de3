//! The error of an invalid request, which names the field. It knows no status codes.

use std::fmt;

use serde_json::Value;

/// A request that is invalid; sending it again cannot succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidRequest {
    /// Path of the invalid field, such as `messages[0].role`.
    pub param: Option<String>,
    pub code: Option<&'static str>,
    pub message: String,
}

impl InvalidRequest {
    /// The request as a whole is invalid.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        InvalidRequest { param: None, code: Some(code), message: message.into() }
    }

    /// A field is invalid. The message says what would be valid.
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

    /// A required field is absent; `what` says what it must contain.
    pub fn missing(param: &str, what: &str) -> Self {
        let message = format!("'{param}' is required: {what}");
        InvalidRequest { code: Some("missing_required_parameter"), ..InvalidRequest::invalid(param, message) }
    }

    /// A field would change the result, but this server does not implement it.
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
