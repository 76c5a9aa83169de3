//! Measured limits of this machine, to compare decode speed with.

/// Memory read bandwidth in GB/s (10^9 bytes): the best of repeated reads of a 512 MiB buffer by `threads` threads over
/// about `seconds` (at least one read). 0 if that buffer cannot be allocated.
pub fn memory_bandwidth(threads: usize, seconds: f64) -> f64 {
    crate::cpu::probe::memory_bandwidth(threads, seconds)
}

#[cfg(test)]
mod tests;
