//! Leads a JSON answer to its end: which of the tokens that the grammar allows are on the shortest way there. It ranks
//! tokens by their text alone, and knows no schema: the grammar has excluded what is not valid.

use crate::mask;

/// Ranks of tokens outside of strings: the lowest rank that the grammar allows is on the shortest way to the end.
mod rank {
    /// Only closing brackets.
    pub const CLOSES: u8 = 0;
    /// A quote: a string can be empty.
    pub const QUOTE: u8 = 1;
    /// Commas and colons.
    pub const SEPARATES: u8 = 2;
    /// The beginning of a number or a literal, or more digits.
    pub const SCALAR: u8 = 3;
    pub const LIST: u8 = 4;
    pub const OBJECT: u8 = 5;
    pub const OTHER: u8 = 6;
    pub const BLANK: u8 = 7;
}
/// The token begins with a letter that begins no value: where it is allowed, the answer is inside a string.
const LETTER: u8 = 0x80;
const LETTERS: &[u8] = b"qxzQXZ";
/// The token ends a string, alone or with what closes its parents.
const ENDS: u8 = 0x40;
/// The token ends a key.
const ENDS_KEY: u8 = 0x20;
const RANK: u8 = 0x0F;

/// The rank of each token of a vocabulary.
pub(crate) struct Ranks(Vec<u8>);

impl Ranks {
    /// The texts in the order of the ids. None: a control token.
    pub(crate) fn new(texts: impl Iterator<Item = Option<String>>) -> Self {
        Self(texts.map(|text| text.map_or(rank::OTHER, |text| of(&text))).collect())
    }

    /// Removes the tokens from a mask that are not on the shortest way to the end, as far as their texts tell.
    /// `opened`: the last token has opened a string. Returns whether texts alone do not tell, among names or constants.
    pub(crate) fn narrow(&self, stops: &[u32], opened: bool, mask: &mut [u8]) -> bool {
        let ids: Vec<u32> = mask::ids(mask).collect();
        let of = |id: &u32| self.0.get(*id as usize).copied().unwrap_or(rank::BLANK);
        let is_stop = |id: &u32| stops.contains(id);
        let best = ids.iter().map(|id| of(id) & RANK).min();
        let any = |flag: u8| ids.iter().any(|id| of(id) & flag != 0);
        let (in_string, in_key) = (any(LETTER), any(ENDS_KEY));
        let keep: Vec<u32> = if ids.iter().any(is_stop) {
            ids.into_iter().filter(is_stop).collect()
        } else if in_string && in_key && opened {
            // A name of its own has at least one letter, or names would be equal.
            ids.into_iter().filter(|id| of(id) & (ENDS | ENDS_KEY) == 0).collect()
        } else if in_string {
            // Without a quote, the string has to go on: with what, the model knows best.
            ids.into_iter().filter(|id| of(id) & ENDS != 0).collect()
        } else {
            ids.into_iter().filter(|id| Some(of(id) & RANK) == best).collect()
        };
        if keep.is_empty() {
            return false;
        }
        mask.fill(0);
        mask::set(mask, &keep);
        !in_string && best == Some(rank::OTHER)
    }
}

fn of(text: &str) -> u8 {
    let bytes = text.trim_ascii().as_bytes();
    let only = |bytes: &[u8], these: &[u8]| bytes.iter().all(|byte| these.contains(byte));
    match bytes {
        [] => rank::BLANK,
        _ if only(bytes, b"}]") => rank::CLOSES,
        // In a string, a blank before the quote would be text.
        [b'"'] if text.starts_with('"') => rank::QUOTE | ENDS,
        [b'"', rest @ ..] if only(rest, b"}]") && text.starts_with('"') => rank::OTHER | ENDS,
        [b'"', b':', ..] if text.starts_with('"') => rank::OTHER | ENDS_KEY,
        _ if only(bytes, b",:") => rank::SEPARATES,
        [b'n' | b't' | b'f' | b'-' | b'0'..=b'9', ..] => rank::SCALAR,
        b"[" | b"[]" => rank::LIST,
        b"{" | b"{}" => rank::OBJECT,
        [first, ..] if LETTERS.contains(first) && !text.starts_with(' ') => rank::OTHER | LETTER,
        _ => rank::OTHER,
    }
}

#[cfg(test)]
mod tests;
