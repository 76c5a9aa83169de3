//! A file mapped read-only: how weights are read without holding them twice.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;

use memmap2::{Mmap, UncheckedAdvice};

/// The bytes of a file. They must not be changed by anybody while they are mapped.
pub struct Mapped(Mmap);

impl Mapped {
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: the mapping is read-only and private. Checkpoint files are immutable by contract: replacing one means
        // writing a new file, and cutting one short under a running process is a fault that no reader can survive.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self(map))
    }

    /// Lets the kernel take back the pages that lie wholly within `range`; reading them again reads the file again.
    pub fn release(&self, range: Range<usize>) {
        const PAGE: usize = 4096;
        let (from, to) = (range.start.next_multiple_of(PAGE), range.end.min(self.0.len()) / PAGE * PAGE);
        if from < to {
            // SAFETY: the mapping is read-only and backed by the file, so that a dropped page is read back unchanged.
            // A failure costs memory only.
            let _ = unsafe { self.0.unchecked_advise_range(UncheckedAdvice::DontNeed, from, to - from) };
        }
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
