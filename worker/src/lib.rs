//! Rein's engine: a pure scheduler over paged KV blocks, the thread that drives it, and what executes its steps.
//!
//! `start` turns an [`executor::Executor`] into an [`EngineService`], the gRPC service of engine.proto.

pub mod executor;
