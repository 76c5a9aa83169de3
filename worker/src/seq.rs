//! One sequence: its tokens, what the router asked of it, and the KV blocks that hold its past.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rein_proto::internal::{Draw, Limits, Sampling, Start, Steer, TokenLogprob};

use crate::blocks::{BlockId, Blocks, Parent};
use crate::error::SteerError;

/// Number of a sequence within its engine, counting up in order of arrival.
pub type SeqId = u64;

/// What a sequence could do in the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Nothing until its router steers or reads.
    Parked,
    /// Draw from the stashed logits.
    Draw,
    /// Compute this many tokens, at least one.
    Compute(usize),
}

#[derive(Debug)]
pub struct Seq {
    /// Prompt, then generated tokens.
    pub tokens: Vec<u32>,
    pub prompt_len: usize,
    pub sampling: Sampling,
    pub limits: Limits,
    pub salt: Arc<str>,
    pub logprobs: i32,
    pub prompt_logprobs: i32,
    pub proposes: bool,
    script: Vec<u32>,

    pub epoch: u64,
    /// The mask of one generated position.
    mask: Option<(usize, Bytes)>,
    /// Generated positions from here on are not sampled before the next Steer.
    barrier: Option<usize>,
    /// A finish was proposed; only a Steer revives the sequence.
    pub proposed: bool,
    /// Its router does not read; nothing may be emitted.
    pub paused: bool,

    pub table: Vec<BlockId>,
    /// Leading blocks of the table that are registered, and so never written.
    pub registered: usize,
    /// KV entries of tokens[..computed] are in the table's blocks.
    pub computed: usize,
    /// The executor holds the logits that follow the last token.
    pub stashed: bool,

    /// Admitted was sent.
    pub admitted: bool,
    pub cached_tokens: usize,
    /// Logprobs of tokens[1..=scores.len()], when asked for.
    pub scores: Vec<TokenLogprob>,
    pub preempted: bool,
    pub parked_since: Option<Duration>,
}

impl Seq {
    pub fn new(start: Start) -> Self {
        let prompt_len = start.prompt.len();
        let mut tokens = start.prompt;
        tokens.extend_from_slice(&start.resume);
        Self {
            barrier: start.hold.then_some(tokens.len() - prompt_len),
            tokens,
            prompt_len,
            sampling: start.sampling.unwrap_or_default(),
            limits: start.limits.unwrap_or_default(),
            salt: start.cache_salt.into(),
            logprobs: start.logprobs,
            prompt_logprobs: start.prompt_logprobs,
            proposes: start.finish_is_proposal,
            script: start.script,
            epoch: 0,
            mask: None,
            proposed: false,
            paused: false,
            table: Vec::new(),
            registered: 0,
            computed: 0,
            stashed: false,
            admitted: false,
            cached_tokens: 0,
            scores: Vec::new(),
            preempted: false,
            parked_since: None,
        }
    }

    pub fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    pub fn max_tokens(&self) -> usize {
        self.limits.max_tokens as usize
    }

    /// The next position may be sampled.
    pub fn may_draw(&self) -> bool {
        self.barrier.is_none_or(|barrier| self.generated() < barrier)
    }

    /// Prompt logprobs are still to be computed, so no part of the prompt may come from the cache.
    pub fn scoring(&self) -> bool {
        self.prompt_logprobs >= 0 && !self.admitted
    }

    pub fn work(&self) -> Work {
        if self.paused || self.proposed {
            return Work::Parked;
        }
        match self.tokens.len() - self.computed {
            0 if !self.stashed => Work::Compute(1),
            0 if self.may_draw() => Work::Draw,
            0 => Work::Parked,
            missing => Work::Compute(missing),
        }
    }

    /// It would wait for its router even if it had a slot.
    pub fn is_parked(&self) -> bool {
        self.paused || self.proposed || (self.preempted && !self.may_draw())
    }

    pub fn is_stop(&self, token: u32) -> bool {
        !self.limits.ignore_eos && self.limits.stop_token_ids.contains(&token)
    }

    /// Check all of a Steer before anything changes.
    pub fn check(&self, steer: &Steer, vocab_size: usize) -> Result<(), SteerError> {
        let generated = self.generated();
        if steer.epoch <= self.epoch {
            return Err(SteerError::Epoch { epoch: steer.epoch, current: self.epoch });
        }
        if steer.keep as usize > generated {
            return Err(SteerError::Keep { keep: steer.keep, generated });
        }
        if let Some(&token) = steer.append.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(SteerError::Append { token, vocab_size });
        }
        let want = vocab_size.div_ceil(8);
        match &steer.mask {
            Some(mask) if mask.len() != want => Err(SteerError::Mask { len: mask.len(), want, vocab_size }),
            _ => Ok(()),
        }
    }

    /// Apply a checked Steer. Appended tokens beyond `room` positions of the sequence are dropped.
    /// Returns how many generated tokens were rewound.
    pub fn steer(&mut self, steer: Steer, room: usize, blocks: &mut Blocks) -> usize {
        let rewound = self.generated() - steer.keep as usize;
        self.epoch = steer.epoch;
        self.proposed = false;
        if rewound > 0 {
            self.tokens.truncate(self.prompt_len + steer.keep as usize);
            self.rewind(self.computed.min(self.tokens.len()), blocks);
        }
        let longest = room.min(self.prompt_len + self.max_tokens());
        let fits = longest.saturating_sub(self.tokens.len()).min(steer.append.len());
        self.tokens.extend_from_slice(&steer.append[..fits]);
        self.mask = steer.mask.map(|mask| (self.generated(), mask));
        self.barrier = steer.hold.then(|| self.generated() + 1);
        rewound
    }

    /// Forget KV entries from position `computed` on, so that they can be written again. A registered block that would
    /// be written is taken back if nobody else reads it; otherwise its tokens move to a fresh block later.
    pub fn rewind(&mut self, computed: usize, blocks: &mut Blocks) {
        let size = blocks.block_size();
        self.truncate_table(self.tokens.len().div_ceil(size), blocks);
        if computed >= self.computed {
            return;
        }
        self.computed = computed;
        let full = computed / size;
        self.truncate_table(computed.div_ceil(size), blocks);
        if self.registered > full {
            if !blocks.reclaim(self.table[full]) {
                self.truncate_table(full, blocks);
                self.computed = full * size;
            }
            self.registered = full;
        }
    }

    fn truncate_table(&mut self, len: usize, blocks: &mut Blocks) {
        while self.table.len() > len {
            if let Some(block) = self.table.pop() {
                blocks.release(block);
            }
        }
        self.registered = self.registered.min(self.table.len());
    }

    /// Give every block back. The tokens stay.
    pub fn release(&mut self, blocks: &mut Blocks) {
        self.truncate_table(0, blocks);
        self.computed = 0;
    }

    /// `count` more tokens are computed: register the blocks that are full now.
    pub fn advance(&mut self, count: usize, blocks: &mut Blocks) {
        self.computed += count;
        let size = blocks.block_size();
        while blocks.caches() && (self.registered + 1) * size <= self.computed {
            let index = self.registered;
            let parent = match index.checked_sub(1) {
                None => Some(Parent::Root(self.salt.clone())),
                Some(before) => blocks.content(self.table[before]),
            };
            debug_assert!(parent.is_some(), "leading blocks are registered");
            let Some(parent) = parent else { return };
            let tokens = &self.tokens[index * size..(index + 1) * size];
            self.table[index] = blocks.register(self.table[index], parent, tokens);
            self.registered += 1;
        }
    }

    /// How to draw the next token.
    pub fn draw(&self) -> Draw {
        let position = self.generated();
        let mask = self.mask.as_ref().filter(|(at, _)| *at == position).map(|(_, mask)| mask.clone());
        let mut banned: &[u32] = &[];
        if position < self.limits.min_tokens as usize && !self.limits.ignore_eos {
            banned = &self.limits.stop_token_ids;
            // A grammar that can only end here outranks min_tokens.
            if mask.as_ref().is_some_and(|mask| allows_only(mask, banned)) {
                banned = &[];
            }
        }
        let sampling = &self.sampling;
        let repetition = sampling.repetition_penalty != 1.0;
        let penalties = repetition || sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0;
        let scripted = match self.script.is_empty() {
            true => None,
            false => self.script.get(position).or(self.limits.stop_token_ids.first()).copied(),
        };
        Draw {
            sampling: Some(sampling.clone()),
            position: position as u32,
            mask,
            banned: banned.to_vec(),
            prompt: if repetition { self.tokens[..self.prompt_len].to_vec() } else { Vec::new() },
            generated: if penalties { self.tokens[self.prompt_len..].to_vec() } else { Vec::new() },
            logprobs: self.logprobs,
            scripted,
        }
    }

    /// Append a drawn token.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.mask = None;
        self.stashed = false;
    }
}

/// The mask has no bit outside `tokens`.
fn allows_only(mask: &[u8], tokens: &[u32]) -> bool {
    mask.iter().enumerate().all(|(index, &byte)| {
        byte == 0 || (0..8).filter(|bit| byte >> bit & 1 == 1).all(|bit| tokens.contains(&(index as u32 * 8 + bit)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(sampling: Sampling, limits: Limits) -> Seq {
        let (sampling, limits) = (Some(sampling), Some(limits));
        Seq::new(Start { prompt: vec![1, 2, 3], resume: vec![4, 5], sampling, limits, logprobs: 3, ..Start::default() })
    }

    fn neutral() -> Sampling {
        Sampling { repetition_penalty: 1.0, ..Sampling::default() }
    }

    #[test]
    fn histories_travel_only_with_the_penalty_that_needs_them() {
        let plain = seq(neutral(), Limits::default()).draw();
        assert_eq!((plain.position, plain.logprobs), (2, 3));
        assert!(plain.prompt.is_empty() && plain.generated.is_empty());
        let presence = seq(Sampling { presence_penalty: 0.5, ..neutral() }, Limits::default()).draw();
        assert_eq!((&presence.prompt[..], &presence.generated[..]), (&[][..], &[4, 5][..]));
        let repetition = seq(Sampling { repetition_penalty: 1.1, ..neutral() }, Limits::default()).draw();
        assert_eq!((&repetition.prompt[..], &repetition.generated[..]), (&[1, 2, 3][..], &[4, 5][..]));
    }

    #[test]
    fn stop_tokens_are_banned_before_min_tokens_unless_the_mask_leaves_only_them() {
        let limits = Limits { max_tokens: 9, min_tokens: 3, stop_token_ids: vec![7], ignore_eos: false };
        let mut seq = seq(neutral(), limits);
        let mut blocks = Blocks::new(4, 4, true);
        assert_eq!(seq.draw().banned, [7]);
        let steer = |epoch, keep, bits: u8| Steer { epoch, keep, mask: Some(vec![bits].into()), ..Steer::default() };
        seq.steer(steer(1, 2, 0b1000_0001), 100, &mut blocks);
        assert_eq!(seq.draw().banned, [7]);
        seq.steer(steer(2, 2, 0b1000_0000), 100, &mut blocks);
        assert!(seq.draw().banned.is_empty());
        seq.push(7);
        assert_eq!((seq.draw().mask, seq.draw().banned), (None, vec![]));
    }
}
