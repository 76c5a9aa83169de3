//! Lines on the process's standard streams. Write errors are ignored, because a server must not exit when the reader of
//! its output has closed the pipe.

use std::fmt::Display;
use std::io::Write;

/// Writes a line to standard output.
pub fn out(line: impl Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Writes a line to standard error.
pub fn err(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
