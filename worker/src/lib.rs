//! Rein's engine: a pure scheduler over paged KV blocks, the thread that drives it, and the executors of its steps.
//!
//! `start` turns an [`executor::Executor`] into an [`EngineService`], the gRPC service of engine.proto. This crate
//! knows token ids; it must not know text, tools or grammars.

pub mod blocks;
pub mod bytes;
pub mod cells;
pub mod checkpoint;
mod engine;
pub mod error;
mod events;
pub mod executor;
pub mod limits;
mod load_log;
mod lora;
pub mod metrics;
pub mod model;
pub mod node;
pub mod rank;
mod request;
pub mod scheduler;
pub mod score;
pub mod seq;
mod sequence_trace;
mod service;
pub mod sim;
mod tables;

pub use load_log::LoadLog;
pub use scheduler::EngineOptions;
pub use service::{EngineService, start};
