//! The surfaces: OpenAI over HTTP, and gRPC. The only code that knows a status code.

pub mod authenticate;
mod body;
pub mod grpc;
mod headers;
pub mod http;
mod incoming;
pub mod openai;
pub mod openapi;
mod status;
