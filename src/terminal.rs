//! Lines on the process's standard streams. That nobody reads them any more is no reason for the process to end, so
//! write errors are ignored.

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
