//! The description of the HTTP API, checked against what is served.

pub const DOCUMENT: &str = include_str!("openapi.json");
