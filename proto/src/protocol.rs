//! The protocol number of a cluster's processes, which separates releases where they are incompatible:
//! - All ranks of a group have the same number: the controller groups only workers with equal numbers, and ranks link
//!   only with equal numbers.
//! - A router and an engine communicate if their numbers differ by at most one. The newer side uses the older one's
//!   protocol.
//!
//! Raise [`NUMBER`] by one, at most once per release, when a change
//! - of `ranks.proto`, of the links between ranks or of a collective makes ranks of two releases incompatible,
//! - of the model code or the kernels changes a bit of the results, so that a resumed sequence would continue
//!   differently, or
//! - of `engine.proto`, or of a record in the store, has another meaning for the last release.
//!
//! In the last two cases, the new release must still support the number before.

/// The number of this release. 0: releases without protocol numbers.
pub const NUMBER: u32 = 1;

/// Whether processes with these numbers can exchange messages, such as a router and an engine. Ranks of one group need
/// equal numbers.
pub fn understands(one: u32, other: u32) -> bool {
    one.abs_diff(other) <= 1
}

/// The error for a process whose protocol is not supported.
pub fn refusal(who: &str, number: u32, version: &str) -> String {
    let version = if version.is_empty() { "unknown version" } else { version };
    format!(
        "{who} speaks protocol {number} ({version}), this process protocol {NUMBER} ({VERSION}); \
         the numbers may differ by one: upgrade the older process"
    )
}

/// The release of this process.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

#[cfg(test)]
mod tests;
