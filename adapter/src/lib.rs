//! Engines that are already there (vLLM, SGLang, llama-server) as engines of Rein's protocol: an `Engine` service whose
//! sequences are HTTP requests elsewhere. It knows token ids, and must not know text, tools or grammars.
//!
//! Modules import only from those above them in this list:
//!
//! 1. `limits`, `mask`, `seed`, `draw`, `sse`, `client_tls`: values without I/O.
//! 2. [`course`]: one sequence as a pure state machine. [`dialect`]: what differs between engines.
//! 3. [`connection`], `events`, `feed`, `metrics`, `clock`: one engine. [`join`], `identity`: what it is.
//! 4. `exchange`: one request. `health`: whether the engine answers.
//! 5. `sequence`: a course carried out. [`service`]: the gRPC service.

mod client_tls;
mod clock;
pub mod connection;
pub mod course;
pub mod dialect;
pub mod draw;
mod driven;
mod events;
mod exchange;
mod feed;
pub mod health;
mod identity;
pub mod join;
pub mod limits;
mod mask;
pub mod metrics;
mod seed;
mod sequence;
pub mod service;
pub mod sse;
mod verdict;

pub use client_tls::client_config;
pub use connection::{EngineHttp, EngineUrl, InvalidUrl};
pub use dialect::EngineDialect;
pub use join::{Deployment, EngineJoinError, Joined, join};
pub use service::{AdapterOptions, AdapterService};
