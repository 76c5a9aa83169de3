//! Numbers of bytes as people read them.

use std::fmt;

const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];

/// Displayed in the largest unit of which it has at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteCount(pub u64);

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = UNITS[0];
        for larger in &UNITS[1..] {
            if value < 1024.0 {
                break;
            }
            (value, unit) = (value / 1024.0, larger);
        }
        write!(f, "{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests;
