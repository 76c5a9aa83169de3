//! Collective operations that link the ranks of a group.

use std::sync::Arc;

use crate::error::Result;

pub mod tcp;
#[cfg(test)]
mod tests;
pub mod threads;

pub use threads::Threads;

/// One rank's end of a group. Every rank calls the same operations in the same order; a call returns when what it needs
/// of the others is there. After an abort every call, blocked or new, returns `Error::Aborted`.
pub trait Collective: Send {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    /// x becomes the sum over ranks, added in rank order, with the same bits on every rank.
    fn all_reduce(&self, x: &mut [f32]) -> Result<()>;
    /// What each rank gave, in rank order; lengths may differ.
    fn all_gather(&self, x: &[f32]) -> Result<Vec<Vec<f32>>>;
    /// `parts[r]` goes to rank r (one part for each rank); returns what each rank sent here, in rank order.
    fn all_to_all(&self, parts: Vec<Vec<f32>>) -> Result<Vec<Vec<f32>>>;
    /// x of the rank `root` to all; lengths must agree.
    fn broadcast(&self, root: usize, x: &mut [f32]) -> Result<()>;
    /// The bytes of the rank `root` to all, which need not know how many there are.
    fn share(&self, root: usize, bytes: &mut Vec<u8>) -> Result<()>;
    /// Ends the group: all ranks' calls fail with this reason from now on. The first reason stays.
    fn abort(&self, reason: &str);
    /// To abort from elsewhere while this rank is blocked.
    fn abort_handle(&self) -> AbortHandle;
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
