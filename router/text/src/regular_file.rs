//! Reads whole files that a model or an option names. Only regular files are read, because opening a FIFO would block
//! until a writer opens it, and only up to a size.

use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

/// The bytes of a regular file of at most `most` bytes. A longer one is an error of the kind `FileTooLarge` that calls
/// it `what`, such as "a chat template".
pub fn read(path: &Path, what: &str, most: u64) -> Result<Vec<u8>> {
    let meta = fs::metadata(path)?;
    if !meta.is_file() {
        return Err(Error::other("not a regular file"));
    }
    if meta.len() > most {
        let message = format!("{what} may have at most {most} bytes, got {}", meta.len());
        return Err(Error::new(ErrorKind::FileTooLarge, message));
    }
    fs::read(path)
}

/// The same, as text.
pub fn read_text(path: &Path, what: &str, most: u64) -> Result<String> {
    String::from_utf8(read(path, what, most)?).map_err(|error| Error::new(ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests;
