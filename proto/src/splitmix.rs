//! The splitmix64 generator (Steele, Lea and Flood, 2014), for hashes and for draws that must be the same everywhere.
//! This module keeps no state.

/// The increment of the state for each number.
pub const STRIDE: u64 = 0x9E37_79B9_7F4A_7C15;

/// The number that splitmix64 draws from this state. Neighbouring states give unrelated numbers.
pub fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(STRIDE);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A number that depends on both values.
pub fn mix_both(state: u64, value: u64) -> u64 {
    mix(state ^ value.wrapping_mul(0xD6E8_FEB8_6659_FD93))
}

#[cfg(test)]
mod tests;
