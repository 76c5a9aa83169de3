//! The seed of each request: an engine restarts its noise with each request, so no two requests may share a seed.

use rein_proto::splitmix::mix_both;

/// A function of the sequence's seed, the position, whether a mask applies and how often this position was drawn
/// before. It has at most `bits` bits.
pub fn derive(seed: u64, position: usize, masked: bool, draws: u32, bits: u32) -> u64 {
    let place = mix_both(mix_both(seed, position as u64), u64::from(masked) << 32 | u64::from(draws));
    let derived = place >> (64 - bits.clamp(1, 64));
    // llama-server takes the largest 32-bit number as "any seed".
    if bits == 32 && derived == u64::from(u32::MAX) { derived - 1 } else { derived }
}

#[cfg(test)]
mod tests;
