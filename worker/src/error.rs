//! What can be wrong with a request, in words that name the field and what would be right.

/// A Start, or another request, that no engine of this shape can serve.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidStart {
    pub field: &'static str,
    pub problem: String,
}

/// A Steer that breaks the protocol. It ends its own sequence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SteerError {
    #[error("steer.epoch: {epoch} does not follow {current}; epochs count up")]
    Epoch { epoch: u64, current: u64 },
    #[error("steer.keep: {keep} exceeds the {generated} generated tokens")]
    Keep { keep: u32, generated: usize },
    #[error("steer.append: token {token} is outside the vocabulary of {vocab_size}")]
    Append { token: u32, vocab_size: usize },
    #[error("steer.mask: {len} bytes; a vocabulary of {vocab_size} takes {want}")]
    Mask { len: usize, want: usize, vocab_size: usize },
}

/// Why a valid Start is not taken now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    #[error("{waiting} sequences are waiting already; try again later")]
    QueueFull { waiting: usize },
    #[error("the engine is draining and takes no new sequences")]
    Draining,
    #[error("the engine cannot execute: {0}")]
    Lost(String),
}
