//! Patterns of property names. Each is compiled once and kept in a cache of the process, because schemas ask about
//! every name, and parsers about every key of a call.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};

use super::pattern::{SchemaPattern, within_budget};
use super::regex_size::compiled_bytes;
use crate::cache::Cache;
use crate::limits::{
    MAX_CACHED_NAME_PATTERNS_BYTES, MAX_NAME_PATTERN_BYTES, MAX_QUICK_REGEX_WORK, REGEX_BYTES_PER_STEP,
};

struct Compiled {
    cache: Cache<Option<Arc<SchemaPattern>>>,
    /// Two hashers, so that clients cannot predict the 128 bits of a key.
    hashers: [RandomState; 2],
}

static COMPILED: LazyLock<Compiled> = LazyLock::new(|| Compiled {
    cache: Cache::new(MAX_CACHED_NAME_PATTERNS_BYTES),
    hashers: [RandomState::new(), RandomState::new()],
});

/// Whether a pattern matches somewhere in a name. A pattern that cannot be compiled, or only to more than
/// [`MAX_NAME_PATTERN_BYTES`], matches nothing; so does one that takes too long.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let key = COMPILED.hashers.each_ref().map(|state| state.hash_one(pattern));
    let compiled = COMPILED.cache.get(key).unwrap_or_else(|| {
        let bytes = compiled_bytes(pattern);
        let compiled =
            (bytes <= MAX_NAME_PATTERN_BYTES).then(|| SchemaPattern::new(pattern).ok().map(Arc::new)).flatten();
        let kept = pattern.len() + compiled.as_ref().map_or(0, |_| bytes as usize);
        COMPILED.cache.keep(key, compiled.clone(), kept);
        compiled
    });
    compiled.is_some_and(|pattern| within_budget(MAX_QUICK_REGEX_WORK, || pattern.matches(name)).unwrap_or(false))
}

/// Steps of the budget for compiling a pattern, if it is compiled at all.
pub(crate) fn steps(pattern: &str) -> u64 {
    match compiled_bytes(pattern) {
        bytes if bytes <= MAX_NAME_PATTERN_BYTES => 1 + bytes / REGEX_BYTES_PER_STEP as u64,
        _ => 1,
    }
}

#[cfg(test)]
mod tests;
