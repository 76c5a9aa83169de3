//! Memory of activations. Large buffers are kept by the thread that drops them and used again: fresh pages from the
//! system cost more than the smaller ops themselves.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// Numbers below which the allocator is as good.
const SMALL: usize = 4096;
/// Buffers kept by a thread.
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
    /// With numbers left over from earlier use: for those who write all of it.
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
        let mut copy = Buffer::stale(self.len);
        copy.copy_from_slice(self);
        copy
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.store.len() < SMALL {
            return;
        }
        let store = std::mem::take(&mut self.store);
        // A thread on its way out has no list any more.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() == KEPT {
                // The longest unused, roughly: new ones are added at the end.
                free.remove(0);
            }
            free.push(store);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_is_used_again() {
        let mut first = Buffer::zeroed(10_000);
        first[9_999] = 7.0;
        let address = first.as_ptr();
        drop(first);
        let second = Buffer::stale(9_000);
        assert_eq!((second.as_ptr(), second.len()), (address, 9_000));
        assert_eq!(second.clone().len(), 9_000);
        drop(second);
        assert!(Buffer::zeroed(9_999).iter().all(|&x| x == 0.0));
        for _ in 0..3 * KEPT {
            let many: Vec<Buffer> = (0..2 * KEPT).map(|_| Buffer::stale(SMALL)).collect();
            drop(many);
        }
        assert!(FREE.with_borrow(Vec::len) <= KEPT);
    }
}
