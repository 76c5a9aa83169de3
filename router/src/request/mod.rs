//! Runs a decoded request: renders and tokenizes it, plans and generates the choices, and emits typed events.
//! It must not know HTTP, gRPC or status codes.

pub mod chat;
mod compile_queue;
pub mod completion;
pub mod delivery;
pub mod demand;
pub mod embed;
pub mod generate;
mod grammar_session;
pub mod job;
pub mod loras;
pub mod metrics;
pub mod model;
pub mod outcomes;
mod slots;
mod transcript;
