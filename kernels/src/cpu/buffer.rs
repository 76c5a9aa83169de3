//! Memory of activations. The thread that drops a large buffer keeps it for reuse: fresh pages from the system cost
//! more than the smaller ops themselves.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// Smaller buffers come from the allocator, which is as fast for them.
const SMALL: usize = 4096;
/// Buffers kept per thread.
const KEPT: usize = 32;

thread_local! {
    static FREE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// `len` numbers.
#[derive(Debug)]
pub struct Buffer {
    /// At least `len` long.
    store: Vec<f32>,
    len: usize,
}

impl Buffer {
    /// Contains old numbers: for callers that overwrite all of it.
    pub fn stale(len: usize) -> Buffer {
        if len < SMALL {
            return Buffer { store: vec![0.0; len], len };
        }
        let kept = FREE.with_borrow_mut(|free| {
            let fits = |b: &Vec<f32>| b.len() >= len && b.len() / 4 <= len;
            let best = (0..free.len()).filter(|&i| fits(&free[i])).min_by_key(|&i| free[i].len())?;
            Some(free.swap_remove(best))
        });
        Buffer { store: kept.unwrap_or_else(|| vec![0.0; len]), len }
    }

    pub fn copy(from: &[f32]) -> Buffer {
        let mut buffer = Buffer::stale(from.len());
        buffer.copy_from_slice(from);
        buffer
    }

    pub fn zeroed(len: usize) -> Buffer {
        let mut buffer = Buffer::stale(len);
        buffer.fill(0.0);
        buffer
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.store[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.store[..self.len]
    }
}

impl From<Vec<f32>> for Buffer {
    fn from(store: Vec<f32>) -> Buffer {
        Buffer { len: store.len(), store }
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Buffer {
        Buffer::copy(self)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.store.len() < SMALL {
            return;
        }
        let store = std::mem::take(&mut self.store);
        // A thread that is exiting has no list any more.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() == KEPT {
                // Roughly the longest unused: new ones are appended.
                free.remove(0);
            }
            free.push(store);
        });
    }
}

#[cfg(test)]
mod tests;
