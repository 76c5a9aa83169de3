//! Random numbers that are the same on every machine, for tests and the selftest.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::backend::{HostData, HostMatrix};

pub(crate) struct Random(SplitMix64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(SplitMix64::seed_from_u64(seed))
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.0.next_u64() >> 33) as usize % n
    }

    /// Roughly normal, with this deviation.
    pub fn numbers(&mut self, n: usize, deviation: f32) -> Vec<f32> {
        let mut uniform = || (self.0.next_u64() >> 40) as f32 / (1u64 << 24) as f32;
        (0..n).map(|_| (uniform() + uniform() + uniform() + uniform() - 2.0) * 1.732 * deviation).collect()
    }

    pub fn matrix(&mut self, rows: usize, cols: usize, deviation: f32) -> HostMatrix {
        HostMatrix { rows, cols, data: HostData::F32(self.numbers(rows * cols, deviation)) }
    }
}
