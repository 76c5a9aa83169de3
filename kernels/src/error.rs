//! Errors of ops and collectives. This module does not know sequences.

use thiserror::Error;

#[derive(Debug, Error)]
pub enum KernelError {
    /// The arguments do not fit the op.
    #[error("{op}: {what}")]
    Shape { op: &'static str, what: String },
    /// A rank was lost or called `abort`; every blocked rank gets this.
    #[error("collective aborted: {0}")]
    Aborted(String),
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    /// The device of this rank cannot compute, now or any more.
    #[error("{0}")]
    Device(String),
}

pub type Result<T> = std::result::Result<T, KernelError>;
