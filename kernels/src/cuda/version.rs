//! Versions of CUDA and of devices, and the oldest that do.

use std::fmt;

/// The version of CUDA that compiles the kernels. A driver runs kernels that were compiled with its own version of CUDA
/// or an older one.
pub const MINIMUM_CUDA: Version = Version { major: 13, minor: 0 };
/// The first driver that supports [`MINIMUM_CUDA`].
pub const MINIMUM_DRIVER: u32 = 580;
pub const MINIMUM_CAPABILITY: Version = Version { major: 8, minor: 0 };

/// A version of CUDA, or a compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
