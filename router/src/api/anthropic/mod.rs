//! The JSON of Anthropic's Messages API: decodes requests into chat jobs and encodes events. It must not know status
//! codes, engines or templates, and does no I/O.

mod body;
mod conversation;
mod frames;
mod origins;
mod refused;
mod request;
mod thinking;
mod tools;
mod wire;

pub use body::message_body;
pub use frames::MessageFrames;
#[cfg(test)]
pub(crate) use refused::IN_MESSAGES;
#[cfg(test)]
pub use request::asked as asked_by_messages;
pub use request::{MessagesRequest, count_tokens, messages};
pub use thinking::ThinkingSeal;
#[cfg(test)]
pub use thinking::signed_thinking;
pub use tools::DecodedTools;
pub use wire::counted;

#[cfg(test)]
mod tests;
