//! Checkpoint directories as on the Hugging Face Hub: `config.json` and safetensors, sharded or not, or the files of a
//! GGUF model. It does not know how weights are used.

mod config;
mod error;
mod forms;
mod gguf;
mod native;
mod parts;
mod quant;
mod reads;
mod safetensors;
mod source;
mod stored;
mod weights;

pub use config::{ConfigFields, parse_config, parse_json, read_config};
pub use error::LoadError;
pub use native::{PARAMS, config_of};
pub use quant::{Quantization, StatedForms};
pub use reads::Reads;
pub use source::read_file;
pub use stored::StoredDtype;
pub use weights::CheckpointWeights;
pub use xxhash_rust::xxh3::xxh3_64 as content_hash;
