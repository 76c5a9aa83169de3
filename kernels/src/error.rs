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

impl KernelError {
    pub(crate) fn expert_added_twice(op: &'static str, id: u32) -> KernelError {
        KernelError::Shape { op, what: format!("expert {id} is added twice; a rank holds each expert once") }
    }
}

pub type Result<T> = std::result::Result<T, KernelError>;
