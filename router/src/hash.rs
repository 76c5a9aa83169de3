//! Numbers without a pattern from numbers with one.

pub use rein_text::sha256_hex;

/// What splitmix64 (Steele, Lea and Flood, 2014) adds for each number that it draws.
pub const STRIDE: u64 = 0x9E37_79B9_7F4A_7C15;

/// The number that splitmix64 draws from this state: neighbours become strangers.
pub fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(STRIDE);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
