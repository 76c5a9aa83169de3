//! The content hash of a KV block, which workers report and routers look for: a pure function of the cache salt and of
//! all tokens up to the block's end.
//!
//! Version 1, with XXH3 of 64 bits (xxHash 0.8) over little-endian bytes:
//! - `root = xxh3(salt as UTF-8, seed 0)`;
//! - `hash = xxh3(parent as u64, then each token as u32, seed 1)`, where the parent is the hash of the block before, or
//!   `root` for the first one.
//!
//! It decides where a sequence goes and nothing else: engines compare the tokens themselves before they share a block,
//! so two contents with one hash cost a worse choice, never a wrong answer.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Changes with the function. Hashes of different versions have nothing to do with each other.
pub const VERSION: u32 = 1;

const ROOT_SEED: u64 = 0;
const BLOCK_SEED: u64 = 1;
/// Tokens of the blocks that are hashed without an allocation.
const INLINE_TOKENS: usize = 128;

/// What stands before the first block of sequences with this salt.
pub fn root(salt: &str) -> u64 {
    xxh3_64_with_seed(salt.as_bytes(), ROOT_SEED)
}

/// The hash of the block of these tokens after `parent`.
pub fn after(parent: u64, tokens: &[u32]) -> u64 {
    let mut inline = [0; 8 + INLINE_TOKENS * 4];
    let mut allocated = Vec::new();
    let length = 8 + tokens.len() * 4;
    let bytes = match inline.get_mut(..length) {
        Some(bytes) => bytes,
        None => {
            allocated.resize(length, 0);
            &mut allocated[..]
        }
    };
    bytes[..8].copy_from_slice(&parent.to_le_bytes());
    for (to, token) in bytes[8..].chunks_exact_mut(4).zip(tokens) {
        to.copy_from_slice(&token.to_le_bytes());
    }
    xxh3_64_with_seed(bytes, BLOCK_SEED)
}

/// The hashes of all full blocks of a sequence, in order.
///
/// # Panics
/// If `block_size` is 0.
pub fn chain(salt: &str, tokens: &[u32], block_size: usize) -> impl Iterator<Item = u64> {
    tokens.chunks_exact(block_size).scan(root(salt), |parent, block| {
        *parent = after(*parent, block);
        Some(*parent)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with the reference implementation (Python's xxhash), as any other reader of the definition would.
    #[test]
    fn the_function_is_what_version_1_says() {
        assert_eq!(VERSION, 1);
        assert_eq!(root(""), 0x2D06_8005_38D3_94C2);
        assert_eq!(chain("", &[1, 2, 3, 4, 5], 2).collect::<Vec<_>>(), [0xCECE_D13F_A2EC_D5F5, 0x9B62_CD63_5F4E_1898]);
        let long: Vec<u32> = (0..300).collect();
        assert_eq!(chain("tenant", &long, 150).collect::<Vec<_>>(), [0xB347_ABB9_2B94_F662, 0x7C30_6E29_E297_3CE2]);
    }

    #[test]
    fn a_hash_stands_for_salt_order_and_the_whole_past() {
        let of = |salt: &str, tokens: &[u32]| chain(salt, tokens, 2).last();
        let tokens = [1, 2, 3, 4];
        assert_ne!(of("", &tokens), of("tenant", &tokens));
        assert_ne!(of("", &tokens), of("", &[2, 1, 3, 4]));
        assert_ne!(of("", &tokens), of("", &tokens[2..]));
        assert_ne!(chain("", &tokens, 4).last(), of("", &tokens));
        assert_eq!(of("", &tokens), of("", &[1, 2, 3, 4, 9]), "what does not fill a block is left out");
        assert_eq!(of("", &[1]), None);
    }
}
