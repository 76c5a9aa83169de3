//! The APIs: OpenAI and Anthropic over HTTP, and gRPC. Only this folder knows status codes. It must not know engines or
//! name chat templates.

pub mod anthropic;
pub mod authenticate;
mod body;
pub mod frames;
pub mod grpc;
mod headers;
pub mod http;
mod incoming;
pub mod known_tools;
pub mod openai;
pub mod openapi;
pub mod responses;
mod status;
mod unread;

#[cfg(test)]
mod tests;

/// The text of an answer or event of our own types.
fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain data with strings as keys is JSON")
}
