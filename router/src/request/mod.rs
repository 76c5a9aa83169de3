//! A request from its decoded form to its last event: rendered, encoded, planned, generated and read as typed events.
//! It knows neither HTTP nor status codes.

pub mod chat;
mod choice;
mod compile_queue;
pub mod completion;
pub mod delivery;
pub mod generate;
mod grammar_session;
pub mod job;
pub mod memory;
pub mod metrics;
pub mod model;
pub mod outcomes;
mod transcript;
