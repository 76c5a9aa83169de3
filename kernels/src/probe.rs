//! What this machine can do, measured: the bound that decode speed is compared with.

/// Memory read bandwidth in GB/s (10^9 bytes): the best of repeated reads of a 512 MiB buffer by `threads` threads over
/// about `seconds` (at least one read). 0 where that buffer cannot be allocated.
pub fn memory_bandwidth(threads: usize, seconds: f64) -> f64 {
    crate::cpu::probe::memory_bandwidth(threads, seconds)
}

#[cfg(test)]
mod tests {
    #[test]
    fn bandwidth_is_a_plausible_number() {
        let found = super::memory_bandwidth(2, 0.0);
        assert!(found > 0.05 && found < 1e5, "{found} GB/s");
    }
}
