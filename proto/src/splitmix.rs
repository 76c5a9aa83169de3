//! Hashes and random numbers that are equal in every process and release, from the splitmix64 generator (Steele, Lea
//! and Flood, 2014). This module keeps no state.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

/// The increment of the generator's state per number.
pub const STRIDE: u64 = 0x9E37_79B9_7F4A_7C15;

/// The number that splitmix64 draws from this state. Neighbouring states give unrelated numbers.
pub fn mix(state: u64) -> u64 {
    SplitMix64::seed_from_u64(state).next_u64()
}

/// A number that depends on both values.
pub fn mix_both(state: u64, value: u64) -> u64 {
    mix(state ^ value.wrapping_mul(0xD6E8_FEB8_6659_FD93))
}

#[cfg(test)]
mod tests;
