//! Rein's edge: OpenAI HTTP and gRPC in, one engine stream per sequence out.

pub mod template;
pub mod textmodel;
pub mod tokenize;
