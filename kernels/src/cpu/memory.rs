//! Zeroed, 64-byte-aligned memory for weights and caches, on transparent huge pages where the system provides them.

use std::cell::RefCell;
use std::sync::Arc;

use crate::error::{KernelError, Result};

const HUGE_PAGE: usize = 2 << 20;
/// Size of the regions from which an arena allocates small weights. Pages that are never written use no memory.
const REGION: usize = 32 << 20;
const ALIGN: usize = 64;

/// An anonymous mapping: zero until written.
#[derive(Debug)]
pub struct Mapping {
    base: *mut libc::c_void,
    mapped: usize,
    start: *mut u8,
    len: usize,
}

// SAFETY: a Mapping is plain memory owned by one value; who may read or write which part of it is the business of
// the types built on it (`Block` below gives out disjoint parts).
unsafe impl Send for Mapping {}
// SAFETY: as above; no method of Mapping reads or writes the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub fn new(len: usize) -> Result<Mapping> {
        let mapped =
            len.max(1).checked_add(HUGE_PAGE).ok_or_else(|| KernelError::OutOfMemory(format!("{len} bytes")))?;
        // SAFETY: a fresh private anonymous mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(KernelError::OutOfMemory(format!("{mapped} bytes: {}", std::io::Error::last_os_error())));
        }
        let pad = base.align_offset(HUGE_PAGE).min(HUGE_PAGE);
        let start = base.cast::<u8>().wrapping_add(pad);
        #[cfg(target_os = "linux")]
        if len >= HUGE_PAGE {
            // SAFETY: the range lies inside the mapping made above; the advice changes no contents. A refusal costs
            // speed only, so the result is not looked at.
            unsafe { libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE) };
        }
        Ok(Mapping { base, mapped, start, len })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn ptr(&self) -> *mut u8 {
        self.start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that mmap returned, unmapped once; every Block keeps its Mapping alive.
        unsafe { libc::munmap(self.base, self.mapped) };
    }
}

/// A part of a mapping with a single owner.
#[derive(Debug, Clone)]
pub struct Block {
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
}

impl Block {
    /// Valid for reads and writes of `len` bytes while the block lives. It is written by the packing code before the
    /// block is shared, and by `KvCache`, which is borrowed mutably for writing.
    pub fn ptr(&self) -> *mut u8 {
        self.mapping.ptr().wrapping_add(self.offset)
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

/// Allocates blocks; a huge page holds many small ones.
#[derive(Debug, Default)]
pub struct Arena {
    current: RefCell<Option<(Arc<Mapping>, usize)>>,
}

impl Arena {
    pub fn take(&self, len: usize) -> Result<Block> {
        let padded = len.next_multiple_of(ALIGN);
        if padded > REGION / 2 {
            return Ok(Block { mapping: Arc::new(Mapping::new(padded)?), offset: 0, len });
        }
        let mut current = self.current.borrow_mut();
        if let Some((mapping, used)) = current.as_mut()
            && *used + padded <= mapping.len()
        {
            let offset = *used;
            *used += padded;
            return Ok(Block { mapping: Arc::clone(mapping), offset, len });
        }
        let mapping = Arc::new(Mapping::new(REGION)?);
        *current = Some((Arc::clone(&mapping), padded));
        Ok(Block { mapping, offset: 0, len })
    }
}

#[cfg(test)]
mod tests;
