//! What a process tells whoever started it. Nobody may be listening any more, which is no reason to end.

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
