//! Reads LoRA adapters of a group's model from PEFT's files, and keeps memory for them. It does not know steps.

mod config;
mod files;
mod room;

pub use files::LoraReader;
pub use room::LoraLimits;
