//! Collective operations between the ranks of a group. This module does not know what is computed.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;

pub mod tcp;
#[cfg(test)]
mod tests;
pub mod threads;

pub use threads::Threads;

/// One rank's end of a group: steps, small facts and the end of the group. Every rank calls the same operations in the
/// same order. A call returns when it has what it needs from the others. After an abort, every blocked and every new
/// call returns `KernelError::Aborted`.
pub trait ControlLink: Send {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    /// Sends the bytes of the rank `root` to all ranks, which need not know their number.
    fn share(&self, root: usize, bytes: &mut Vec<u8>) -> Result<()>;
    /// The bytes of each rank, in rank order; lengths may differ.
    fn gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// Ends the group: from now on all calls of all ranks fail with this reason. The first reason stays.
    fn abort(&self, reason: &str);
    /// Aborts from another thread while this rank is blocked.
    fn abort_handle(&self) -> AbortHandle;
    /// The same, blaming the rank that this one waits for, if that is known.
    fn give_up_handle(&self) -> AbortHandle;
    /// Tells other threads whether the group has ended.
    fn abort_watch(&self) -> AbortWatch;
}

/// Also moves numbers between the ranks, in host memory: what a CPU group computes with. A device has its own way to do
/// that, and uses only the control link.
pub trait Collective: ControlLink {
    /// Replaces x by the sum over ranks, added in rank order, with the same bits on every rank.
    fn all_reduce(&self, x: &mut [f32]) -> Result<()>;
    /// The input of each rank, in rank order; lengths may differ.
    fn all_gather(&self, x: &[f32]) -> Result<Vec<Vec<f32>>>;
    /// The same on the rank `root`; nothing on the others.
    fn gather(&self, root: usize, x: &[f32]) -> Result<Vec<Vec<f32>>>;
    /// `parts[r]` goes to rank r (one part per rank). Returns what each rank sent to this one, in rank order.
    fn all_to_all(&self, parts: Vec<Vec<f32>>) -> Result<Vec<Vec<f32>>>;
    /// Sends x of the rank `root` to all ranks; lengths must be equal.
    fn broadcast(&self, root: usize, x: &mut [f32]) -> Result<()>;
}

/// Aborts a group from any thread.
#[derive(Clone)]
pub struct AbortHandle(Arc<dyn Fn(&str) + Send + Sync>);

impl AbortHandle {
    pub fn new(abort: impl Fn(&str) + Send + Sync + 'static) -> AbortHandle {
        AbortHandle(Arc::new(abort))
    }

    pub fn abort(&self, reason: &str) {
        (self.0)(reason);
    }
}

/// Why a group has ended, for any thread.
#[derive(Clone)]
pub struct AbortWatch(Arc<dyn Fn() -> Option<String> + Send + Sync>);

impl fmt::Debug for AbortWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AbortWatch").field(&self.reason()).finish()
    }
}

impl AbortWatch {
    pub fn new(reason: impl Fn() -> Option<String> + Send + Sync + 'static) -> AbortWatch {
        AbortWatch(Arc::new(reason))
    }

    /// None: the group has not ended.
    pub fn reason(&self) -> Option<String> {
        (self.0)()
    }
}
