//! Rein's engine: a pure scheduler over paged KV blocks, the thread that drives it, and what executes its steps.
//!
//! `start` turns an [`executor::Executor`] into an [`EngineService`], the gRPC service of engine.proto.

pub mod blocks;
mod engine;
pub mod error;
pub mod executor;
pub mod limits;
pub mod metrics;
mod request;
pub mod scheduler;
pub mod seq;
mod service;
pub mod sim;

pub use scheduler::EngineOptions;
pub use service::{EngineService, start};
