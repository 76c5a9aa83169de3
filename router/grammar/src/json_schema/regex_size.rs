//! The size of a compiled pattern, estimated without compiling it.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Repetition};

use super::case_folding::folded_characters;
use crate::limits::MAX_PATTERN_FOLDS;

/// A regular expression of whole texts. None: it is invalid.
pub(crate) fn whole(regex: &str) -> Option<Hir> {
    ParserBuilder::new().unicode(true).utf8(true).build().parse(regex).ok()
}

/// About how many bytes a pattern takes once it is compiled, told without compiling it. One that costs too much to read
/// is infinitely large.
pub(crate) fn compiled_bytes(pattern: &str) -> u64 {
    /// Of one state of the automaton.
    const STATE: u64 = 32;
    let regex = jsonschema_regex::to_rust_regex(pattern).unwrap_or(pattern.into());
    if folded_characters(&regex, false) > MAX_PATTERN_FOLDS {
        return u64::MAX;
    }
    let states = match whole(&regex) {
        Some(hir) => states(&hir),
        // Lookaround and back references: by its letters and counts.
        None => (pattern.len() as u64).saturating_mul(counts(pattern)),
    };
    states.saturating_mul(STATE)
}

/// Whether a pattern has lookaround or back references. Also true of one that is invalid, or costs too much to read.
pub(crate) fn backtracks(pattern: &str) -> bool {
    let regex = jsonschema_regex::to_rust_regex(pattern).unwrap_or(pattern.into());
    folded_characters(&regex, false) > MAX_PATTERN_FOLDS || whole(&regex).is_none()
}

fn states(hir: &Hir) -> u64 {
    let all = |parts: &[Hir]| parts.iter().map(states).fold(1, u64::saturating_add);
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => 1,
        HirKind::Literal(literal) => literal.0.len() as u64,
        // A range takes up to four bytes of UTF-8, and is split where their number changes.
        HirKind::Class(Class::Unicode(class)) => 4 * class.ranges().len() as u64,
        HirKind::Class(Class::Bytes(class)) => class.ranges().len() as u64,
        HirKind::Repetition(Repetition { min, max, sub, .. }) => {
            let times = u64::from(max.unwrap_or(*min).max(1));
            states(sub).saturating_add(1).saturating_mul(times)
        }
        HirKind::Capture(group) => 2 + states(&group.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => all(parts),
    }
}

/// The numbers in braces, multiplied.
fn counts(pattern: &str) -> u64 {
    let within = pattern.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(inner, _)| inner);
    let largest = |inner: &str| inner.split(',').filter_map(|number| number.trim().parse::<u64>().ok()).max();
    within.filter_map(largest).fold(1, |all, count| all.saturating_mul(count.max(1)))
}

#[cfg(test)]
mod tests;
