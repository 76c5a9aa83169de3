//! Drafts the tokens that may come next: those that followed the same tokens earlier in the sequence (prompt lookup
//! decoding, as transformers' `prompt_lookup_num_tokens`). A draw decides about each of them, so no answer changes.

/// Tokens that must be equal before a draft.
const SHORTEST_MATCH: usize = 3;
/// A longer match counts as this one.
const LONGEST_MATCH: usize = 16;
/// How far back matches are sought.
const LOOKBACK: usize = 1 << 16;
/// Draft tokens of a sequence in a step.
const MOST_DRAFTS: usize = 32;
/// How much the newest token counts in the rate of right drafts, and that rate at first.
const NEWEST: f32 = 0.2;
const FIRST_RATE: f32 = 0.5;

#[derive(Debug)]
pub struct PromptLookup {
    next: Vec<u32>,
    /// How often the token is drawn that was the next one, whether it was computed ahead or not.
    rate: f32,
}

/// What a step costs: as much as `fixed` rows, and each of its rows.
#[derive(Debug, Clone, Copy)]
pub struct StepCost {
    pub fixed: usize,
    pub rows: usize,
    /// Sequences that it draws for.
    pub sequences: usize,
}

impl Default for PromptLookup {
    fn default() -> Self {
        Self { next: Vec::new(), rate: FIRST_RATE }
    }
}

impl PromptLookup {
    /// What to compute ahead beside a step: one more row must give tokens at the rate at which the others do, by the
    /// chance that all drafts up to it are right.
    pub fn drafts(&self, StepCost { fixed, rows, sequences }: StepCost) -> &[u32] {
        let worth = |at: &usize| {
            let chance = self.rate.powi(*at as i32 + 1);
            chance * (fixed + rows + at) as f32 >= sequences as f32
        };
        &self.next[..(0..self.next.len()).take_while(worth).count()]
    }

    /// The sequence goes on otherwise.
    pub fn clear(&mut self) {
        self.next.clear();
    }

    /// These tokens were drawn.
    pub fn learn(&mut self, drawn: &[u32]) {
        for (next, drawn) in self.next.drain(..).zip(drawn) {
            let right = next == *drawn;
            self.rate += NEWEST * (f32::from(u8::from(right)) - self.rate);
            if !right {
                return;
            }
        }
    }

    /// Finds what may follow `tokens`, all of the sequence.
    pub fn find(&mut self, tokens: &[u32]) {
        self.next.clear();
        self.next.extend_from_slice(follows(tokens, MOST_DRAFTS));
    }
}

/// What followed the longest earlier match of the last tokens, at most `most` tokens. Of equal matches, the latest that
/// is followed by as many.
fn follows(tokens: &[u32], most: usize) -> &[u32] {
    let tokens = &tokens[tokens.len().saturating_sub(LOOKBACK)..];
    let Some((&last, before)) = tokens.split_last() else { return &[] };
    let matched = |end: usize| {
        let pairs = tokens[..end].iter().rev().zip(tokens.iter().rev());
        pairs.take(LONGEST_MATCH).take_while(|(a, b)| a == b).count()
    };
    let mut best = (SHORTEST_MATCH, 0);
    let mut found = tokens.len();
    let mut end = before.len();
    // Most parts do not have the last token; to see that takes a few instructions.
    for part in before.rchunks(64) {
        let first = end - part.len();
        if part.iter().fold(false, |any, &token| any | (token == last)) {
            for at in (first..end).rev().filter(|&at| tokens[at] == last) {
                let match_here = (matched(at + 1), (tokens.len() - at - 1).min(most));
                if match_here > best {
                    (best, found) = (match_here, at + 1);
                }
            }
            if best == (LONGEST_MATCH, most) {
                break;
            }
        }
        end = first;
    }
    &tokens[found..tokens.len().min(found + most)]
}

#[cfg(test)]
mod tests;
