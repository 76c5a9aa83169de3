//! Reads the header of GGUF files as if they were Hugging Face model directories: config.json, the tokenizer's files,
//! templates and tensor names. It knows neither weights nor how Rein computes.

mod config;
mod container;
mod error;
mod families;
mod fields;
mod files;
mod names;
mod rope;
mod split;
#[cfg(test)]
mod tests;
mod tokenizer;

pub use config::MAX_LAYERS;
pub use container::{Gguf, MetadataArray, MetadataValue, TensorInfo};
pub use error::GgufError;
pub use files::hf_files;
pub use names::{Change, ExpertPart, InTurn, NamedTensor, RowOrder, hf_tensors};
pub use rope::{FACTOR_TENSORS, RopeFactors};
pub use split::{join_headers, split_files};
