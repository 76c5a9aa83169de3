//! The content hash of a KV block, with which workers report blocks and routers look them up: a pure function of the
//! cache salt, the LoRA adapter and all tokens up to the block's end.
//!
//! Version 1 uses XXH3 with 64 bits (xxHash 0.8) over little-endian bytes:
//! - `root = xxh3(salt as UTF-8, seed 0)`;
//! - `hash = xxh3(parent as u64, then each token as u32, seed 1)`, where the parent is the hash of the previous block,
//!   or `root` for the first one.
//!
//! The hash only decides where a sequence is routed. Engines compare the tokens themselves before they share a block,
//! so a collision costs a worse choice, never a wrong answer.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Changes with the function. Hashes of different versions are unrelated.
pub const VERSION: u32 = 1;

/// Before the digest of a LoRA adapter in a salt.
const LORA_MARK: char = '\u{0}';
const ROOT_SEED: u64 = 0;
const BLOCK_SEED: u64 = 1;
/// Blocks of up to this many tokens are hashed without an allocation.
const INLINE_TOKENS: usize = 128;

/// The salt of sequences with a LoRA adapter of this digest (0: without): whatever the request's salt is, their blocks
/// are shared only with sequences of the same adapter.
pub fn salt_of(salt: &str, lora_digest: u64) -> Arc<str> {
    match lora_digest {
        0 if !salt.starts_with(LORA_MARK) => salt.into(),
        // No request's salt is taken for that of an adapter, which has a digit here.
        0 => format!("{LORA_MARK}{LORA_MARK}{salt}").into(),
        digest => format!("{LORA_MARK}{digest:016x}{salt}").into(),
    }
}

/// The parent of the first block of sequences with this salt.
pub fn root(salt: &str) -> u64 {
    xxh3_64_with_seed(salt.as_bytes(), ROOT_SEED)
}

/// The hash of the block with these tokens after `parent`.
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
mod tests;
