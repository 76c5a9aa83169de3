//! The OpenAPI description of the HTTP API. Tests compare it with the code.

pub const DOCUMENT: &str = include_str!("openapi.json");
