//! Request errors. Each names the field and the valid values.

/// A Start, or another request, that no engine of this shape can serve.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct InvalidStart {
    pub field: &'static str,
    pub problem: String,
}

/// A Steer that breaks the protocol. It ends its own sequence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SteerError {
    #[error("steer.epoch: must be above {current}, got {epoch}")]
    Epoch { epoch: u64, current: u64 },
    #[error("steer.keep: must be at most {generated}, the number of generated tokens, got {keep}")]
    Keep { keep: u32, generated: usize },
    #[error("steer.append: tokens must be below the vocabulary size {vocab_size}, got {token}")]
    Append { token: u32, vocab_size: usize },
    #[error("steer.mask: must have {want} bytes for a vocabulary of {vocab_size}, got {len}")]
    Mask { len: usize, want: usize, vocab_size: usize },
}

/// Why a valid Start is not accepted now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    #[error("the queue is full with {waiting} waiting sequences; retry later")]
    QueueFull { waiting: usize },
    #[error("the engine is draining and accepts no new sequences")]
    Draining,
    #[error("the engine cannot execute: {0}")]
    Lost(String),
}
