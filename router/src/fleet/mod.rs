//! Engines: which ones exist, which one gets a sequence, and the stream to it. It knows tokens, but not text, grammars
//! or chats.

mod breaker;
mod engine_error;
pub mod engine_stream;
mod handle;
mod loras;
pub mod membership;
pub mod metrics;
pub mod pool;
pub mod retry_budget;
pub mod route;
pub mod tool_holds;
pub mod transport;
