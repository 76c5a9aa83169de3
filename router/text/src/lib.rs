//! The text side of a model: chat templates, tokenizers, call ids, stop strings, and the checks of a request's fields
//! and conversation. It knows no engine, no network and no async runtime.

pub mod call_ids;
pub mod check;
pub mod conversation;
mod digest;
pub mod fields;
mod invalid;
mod json_text;
pub mod limits;
pub mod model_text;
pub mod pieces;
pub mod regular_file;
pub mod results;
pub mod stop_strings;
pub mod surrogates;
pub mod template;
#[cfg(test)]
mod tests;
pub mod tokenize;
pub mod tools;
mod vocabulary;

pub use digest::sha256_hex;
pub use invalid::InvalidRequest;
