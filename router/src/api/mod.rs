//! The APIs: OpenAI and Anthropic over HTTP, and gRPC. Only this folder knows status codes. It must not know engines or
//! name chat templates.

pub mod anthropic;
pub mod authenticate;
mod body;
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
