//! Why a conversation could not be rendered.

/// What kind of failure it is; the edge maps it to a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The model has no template (or none of that name).
    Missing,
    /// The template's source does not parse.
    Syntax,
    /// The messages or other inputs have a wrong shape.
    Input,
    /// The template itself refused the conversation (`raise_exception`).
    Raised,
    /// The template failed on this conversation.
    Failed,
    /// The template ran longer than its limit.
    Fuel,
    /// Source or prompt exceed a size limit.
    TooLarge,
}

/// A conversation that cannot be rendered, in words for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TemplateError {
    pub reason: Reason,
    pub message: String,
    /// The input at fault, such as `messages[1].content`.
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
