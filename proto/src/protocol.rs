//! The number of the protocol that the processes of a cluster speak. It tells releases apart where that matters:
//! - Ranks of one group are of one number: the controller seats no others together, and the mesh links no others.
//! - A router and an engine talk to each other if their numbers differ by at most one. The newer side speaks the older one's
//!   protocol.
//!
//! Raise [`NUMBER`] by one, once per release at most, when a change
//! - of `ranks.proto`, of the mesh or of a collective keeps ranks of the last release from working with this one's,
//! - of the model code or the kernels changes a bit of what ranks compute, so that a sequence would go on differently, or
//! - of `engine.proto`, or of a record in the store, means something else to the last release than to this one.
//!
//! Of the last two kinds, the release that raises it must still understand the number before.

/// Of this release. 0: releases from before there was a number.
pub const NUMBER: u32 = 1;

/// Whether two processes of these numbers can exchange messages, such as a router and an engine. Ranks of one group need equal
/// numbers.
pub fn understands(one: u32, other: u32) -> bool {
    one.abs_diff(other) <= 1
}

/// What a process says of the other that it does not understand.
pub fn refusal(who: &str, number: u32, version: &str) -> String {
    let version = if version.is_empty() { "unknown version" } else { version };
    format!(
        "{who} speaks protocol {number} ({version}), this process protocol {NUMBER} ({VERSION}); \
         the numbers may differ by one: upgrade the older process"
    )
}

/// The release that this process is of.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_understand_each_other_in_both_directions() {
        for (one, other, expected) in
            [(1, 1, true), (1, 0, true), (0, 1, true), (1, 2, true), (1, 3, false), (3, 1, false)]
        {
            assert_eq!(understands(one, other), expected, "{one} and {other}");
        }
    }
}
