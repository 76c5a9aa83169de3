//! Checkpoint directories as published on the Hugging Face Hub: `config.json` and safetensors, sharded or not.

mod config;
mod error;
mod quant;
mod safetensors;
mod weights;

pub use config::{Fields, read_config};
pub use error::LoadError;
pub use quant::Quantization;
pub use safetensors::{Dtype as StoredDtype, Shards};
pub use weights::{Form, Weights};
