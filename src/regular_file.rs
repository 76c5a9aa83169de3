//! Reads a file that an option names. Opening a FIFO would block until a writer opens it, so only regular files are
//! read.

use std::fs;
use std::io;
use std::path::Path;

/// The text of a regular file.
pub fn read(path: &Path) -> io::Result<String> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    fs::read_to_string(path)
}

#[cfg(test)]
mod tests;
