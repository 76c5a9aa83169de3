//! Why the engine does not accept a request now.

/// Why a valid Start is not accepted now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    #[error("the queue is full with {waiting} waiting sequences; retry later")]
    QueueFull { waiting: usize },
    #[error("the engine is draining and accepts no new sequences")]
    Draining,
    #[error("the engine cannot execute: {0}")]
    Lost(String),
    #[error("the LoRA adapter '{0}' is not loaded here")]
    NoLora(String),
}
