//! Cuts a prompt into parts that can be encoded separately. It knows no cache.

use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

/// Parts are at least this long, except for the last one, so that short messages do not become one part each.
pub(super) const MIN_PART_BYTES: usize = 256;

/// The places where a prompt may be cut: before some added tokens.
///
/// A tokenizer finds added tokens in the raw text before it does anything else. It then normalizes, splits and encodes
/// the text between two of them without looking at its neighbours; only whether the text begins the prompt may matter.
/// So a part that begins with an added token has the same ids alone as in the prompt. Exceptions:
/// - A token marked `normalized` is found later, in the normalized text.
/// - A token marked `lstrip` or `rstrip` takes whitespace from its neighbours, and a token marked `single_word` depends
///   on them. Nothing is cut before these, nor before a token that begins with whitespace or a letter.
#[derive(Debug)]
pub(super) struct Cuts {
    /// Finds the same added tokens as the tokenizer.
    matcher: AhoCorasick,
    /// By pattern of the matcher: whether a prompt may be cut before the token.
    may_cut: Vec<bool>,
}

impl Cuts {
    /// `None`: the prompts of this tokenizer cannot be cut.
    pub fn new(tokenizer: &tokenizers::Tokenizer) -> Option<Self> {
        let tokens = tokenizer.get_added_tokens_decoder().into_values().filter(|token| !token.normalized);
        let tokens: Vec<tokenizers::AddedToken> = tokens.collect();
        let separates = |token: &tokenizers::AddedToken| {
            let context_free = !token.lstrip && !token.rstrip && !token.single_word;
            context_free && token.content.starts_with(|c: char| !c.is_whitespace() && !c.is_alphanumeric() && c != '_')
        };
        let may_cut: Vec<bool> = tokens.iter().map(separates).collect();
        if !may_cut.contains(&true) || tokens.iter().any(|token| token.content.is_empty()) {
            return None;
        }
        let mut builder = AhoCorasick::builder();
        builder.match_kind(MatchKind::LeftmostLongest).kind(Some(AhoCorasickKind::DFA));
        let matcher = builder.build(tokens.iter().map(|token| &token.content)).ok()?;
        Some(Cuts { matcher, may_cut })
    }

    /// The parts of a prompt, in order, each of at least `least` bytes except for the last. Each part but the first
    /// begins with an added token.
    pub fn parts<'a>(&'a self, prompt: &'a str, least: usize) -> impl Iterator<Item = Range<usize>> + 'a {
        let cuts = self.matcher.find_iter(prompt).filter(|found| self.may_cut[found.pattern().as_usize()]);
        let mut begin = 0;
        cuts.map(|found| found.start()).chain([prompt.len()]).filter_map(move |end| {
            let long_enough = end - begin >= least.max(1) || (end == prompt.len() && end > begin);
            long_enough.then(|| std::mem::replace(&mut begin, end)..end)
        })
    }
}

#[cfg(test)]
mod tests;
