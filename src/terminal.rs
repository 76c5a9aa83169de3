//! Lines for the person who started the process. Errors while writing are ignored: the reader may have gone.

use std::fmt::Display;
use std::io::Write;

/// On standard output.
pub fn out(line: impl Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// On standard error.
pub fn err(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
