//! Follows an output in the canonical form of its grammar: what the format itself, and a JSON writer, would write.
//! Draws are accepted by the tolerant form; what replaces a refused draw comes from this one. It does not decide what
//! is valid.

use crate::matcher::{Matcher, MatcherError};

/// Matchers of the canonical form, as far as the output has been followed in them.
pub struct Canonical {
    /// The closest to what a writer would write comes first. Those that could not follow the output are gone; if none
    /// is left, the output is in a form that only the tolerant grammar knows.
    forms: Vec<Matcher>,
    followed: usize,
}

impl Canonical {
    pub(crate) fn new(forms: Vec<Matcher>) -> Self {
        Self { forms, followed: 0 }
    }

    /// Follows an output, of which a prefix was followed before.
    pub fn follow(&mut self, output: &[u32]) {
        let more = output.get(self.followed..).unwrap_or_default();
        self.forms.retain_mut(|form| more.iter().all(|id| take(form, *id).unwrap_or(false)));
        self.followed = output.len();
    }

    /// The tokens that may come next, as in [`Matcher::mask`]. None: the output could not be followed.
    pub fn mask(&mut self) -> Option<Vec<u8>> {
        while let Some(form) = self.forms.first_mut() {
            match form.mask() {
                Ok(mask) => return Some(mask),
                Err(_) => drop(self.forms.remove(0)),
            }
        }
        None
    }

    /// Tokens that must come next.
    pub fn forced(&mut self) -> Vec<u32> {
        self.forms.first_mut().map(Matcher::forced).unwrap_or_default()
    }

    /// Approximate memory.
    pub fn bytes(&self) -> usize {
        self.forms.iter().map(Matcher::bytes).sum()
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
