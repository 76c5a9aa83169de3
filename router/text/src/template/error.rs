//! The error of rendering a conversation. It knows no status codes.

/// Kind of the failure; the API maps it to a status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The model has no template, or none with the requested name.
    Missing,
    /// The template's source does not parse.
    Syntax,
    /// The messages or other inputs have an invalid shape.
    Input,
    /// The template rejected the conversation (`raise_exception`).
    Raised,
    /// The template failed on this conversation.
    Failed,
    /// The template exceeded its instruction limit.
    Fuel,
    /// The template exceeded its limit of CPU time.
    CpuTime,
    /// The template source or the prompt exceeds a size limit.
    TooLarge,
}

/// Why a conversation cannot be rendered. The message is meant for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TemplateError {
    pub reason: Reason,
    pub message: String,
    /// Path of the invalid input, such as `messages[1].content`.
    pub param: Option<String>,
}

impl TemplateError {
    pub(super) fn new(reason: Reason, message: impl Into<String>) -> Self {
        TemplateError { reason, message: message.into(), param: None }
    }

    pub(super) fn input(param: &str, message: impl Into<String>) -> Self {
        TemplateError { reason: Reason::Input, message: message.into(), param: Some(param.to_owned()) }
    }
}
