//! Inference-level ops behind one trait, and the collectives that link ranks.
//! No tokio, no protobuf, no model names.

pub mod backend;
pub mod error;

pub use backend::*;
pub use error::{Error, Result};
