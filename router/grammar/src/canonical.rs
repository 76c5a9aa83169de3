//! Follows an output in the canonical form of its grammar: what the format itself, and a JSON writer, would write.
//! Draws are accepted by the tolerant form; what replaces a refused draw comes from this one. It does not decide what
//! is valid.

use crate::matcher::{Matcher, MatcherError};

/// A matcher of the canonical form, as far as the output has been followed in it.
pub struct Canonical {
    /// None: the output is in a form that only the tolerant grammar knows.
    matcher: Option<Matcher>,
    followed: usize,
}

impl Canonical {
    pub(crate) fn new(matcher: Matcher) -> Self {
        Self { matcher: Some(matcher), followed: 0 }
    }

    /// Follows an output, of which a prefix was followed before.
    pub fn follow(&mut self, output: &[u32]) {
        for &id in output.get(self.followed..).unwrap_or_default() {
            if self.matcher.as_mut().is_some_and(|matcher| !take(matcher, id).unwrap_or(false)) {
                self.matcher = None;
            }
        }
        self.followed = output.len();
    }

    /// The tokens that may come next, as in [`Matcher::mask`]. None: the output could not be followed.
    pub fn mask(&mut self) -> Option<Vec<u8>> {
        let mask = self.matcher.as_mut()?.mask();
        if mask.is_err() {
            self.matcher = None;
        }
        mask.ok()
    }

    /// Tokens that must come next.
    pub fn forced(&mut self) -> Vec<u32> {
        self.matcher.as_mut().map(Matcher::forced).unwrap_or_default()
    }

    /// Approximate memory.
    pub fn bytes(&self) -> usize {
        self.matcher.as_ref().map_or(0, Matcher::bytes)
    }
}

/// Accepts a token of the tolerant form. Blanks that have no place in the canonical form are left out.
fn take(matcher: &mut Matcher, id: u32) -> Result<bool, MatcherError> {
    if matcher.accept(id)? {
        return Ok(true);
    }
    let Some(text) = matcher.vocab().text(id) else { return Ok(false) };
    for run in text.as_bytes().chunk_by(|a, b| a.is_ascii_whitespace() == b.is_ascii_whitespace()) {
        let run = String::from_utf8_lossy(run);
        for part in matcher.vocab().encode(&run) {
            if !matcher.accept(part)? && !run.trim().is_empty() {
                return Ok(false);
            }
        }
    }
    Ok(true)
}
