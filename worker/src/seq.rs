//! One sequence: its tokens, its router's Steers, and the KV blocks of its past. It does not know other sequences.

mod prompt_lookup;
mod states;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rein_proto::block_hash;
use rein_proto::checks::{self, SteerError};
use rein_proto::internal::{Draw, FinishReason, Limits, Sampling, Start, Steer, TokenLogprob};

use crate::blocks::{BlockId, BlockPool};
use prompt_lookup::PromptLookup;
pub use prompt_lookup::StepCost;
use states::SequenceStates;
pub use states::StateAt;

/// Number of a sequence within its engine, counting up in order of arrival.
pub type SeqId = u64;

/// The hash of an API key's name. 0: requests without a key.
pub type CallerHash = u64;

/// What a sequence could do in the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextWork {
    /// Nothing until its router steers or reads.
    Parked,
    /// Draw from the stashed logits.
    Draw,
    /// Compute this many tokens, at least one.
    Compute(usize),
}

/// The rows of steps that run. What they do counts as done where the next step is planned; it is void if the sequence
/// changes before they are committed.
#[derive(Debug, Default)]
pub struct UnderWay {
    /// Tokens that they compute.
    pub count: usize,
    /// Tokens that they draw, which nobody knows yet.
    pub draws: usize,
    /// Draft tokens that they compute beyond that.
    pub drafts: usize,
    /// Blocks that come from the host tier, the first of those that are not computed.
    pub loads: usize,
    /// Rows and draws planned under another number are void.
    pub rows_of: u64,
    pub draws_of: u64,
}

impl UnderWay {
    pub fn is_none(&self) -> bool {
        self.count == 0 && self.draws == 0 && self.loads == 0
    }

    fn void(&mut self) {
        *self = UnderWay { rows_of: self.rows_of + 1, draws_of: self.draws_of + 1, ..UnderWay::default() };
    }
}

#[derive(Debug)]
pub struct Seq {
    /// Prompt, then generated tokens.
    pub tokens: Vec<u32>,
    pub prompt_len: usize,
    pub sampling: Sampling,
    pub limits: Limits,
    pub salt: Arc<str>,
    /// The slot of its LoRA adapter.
    pub lora: Option<u32>,
    pub caller: CallerHash,
    pub logprobs: i32,
    pub prompt_logprobs: i32,
    pub proposes: bool,
    /// It ends with the embedding of its prompt.
    pub embeds: bool,
    script: Vec<u32>,

    pub epoch: u64,
    /// The mask for one generated position.
    mask: Option<(usize, Bytes)>,
    /// Generated positions from here on are not sampled before the next Steer.
    barrier: Option<usize>,
    /// A finish was proposed; only a Steer resumes the sequence.
    pub proposed: bool,
    /// Its router does not read, so nothing may be emitted.
    pub paused: bool,

    pub table: Vec<BlockId>,
    /// Where the executor keeps what it knows of this sequence. None: it knows nothing.
    pub slot: Option<u32>,
    /// How many leading blocks the executor's table shares with `table`.
    pub told: usize,
    /// How many leading tokens the executor's history shares with `tokens`, once what is under way is done.
    pub told_history: usize,
    /// Number of leading blocks that are registered and therefore never written.
    pub registered: usize,
    /// The table's blocks hold the KV entries of tokens[..computed].
    pub computed: usize,
    /// The executor holds the logits that follow the last token, once what is under way is done.
    pub stashed: bool,
    /// What steps that were not committed yet do for it.
    pub ahead: UnderWay,
    pub states: SequenceStates,
    pub lookup: PromptLookup,

    /// The Admitted message was sent.
    pub admitted: bool,
    pub cached_tokens: usize,
    /// Logprobs of tokens[1..=scores.len()], if requested.
    pub scores: Vec<TokenLogprob>,
    pub preempted: bool,
    pub parked_since: Option<Duration>,
}

impl Seq {
    pub fn new(start: Start, lora: Option<u32>) -> Self {
        let prompt_len = start.prompt.len();
        let mut tokens = start.prompt;
        tokens.extend_from_slice(&start.resume);
        Self {
            barrier: start.hold.then_some(tokens.len() - prompt_len),
            tokens,
            prompt_len,
            sampling: start.sampling.unwrap_or_default(),
            limits: start.limits.unwrap_or_default(),
            salt: block_hash::salt_of(&start.cache_salt, start.lora_digest),
            lora,
            caller: start.caller,
            logprobs: start.logprobs,
            prompt_logprobs: start.prompt_logprobs,
            proposes: start.finish_is_proposal,
            embeds: start.embed,
            script: start.script,
            epoch: 0,
            mask: None,
            proposed: false,
            paused: false,
            table: Vec::new(),
            slot: None,
            told: 0,
            told_history: 0,
            registered: 0,
            computed: 0,
            stashed: false,
            ahead: UnderWay::default(),
            states: SequenceStates::default(),
            lookup: PromptLookup::default(),
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

    /// The number of its tokens once what is under way is done.
    pub fn len_ahead(&self) -> usize {
        self.tokens.len() + self.ahead.draws
    }

    /// How many of them are computed then.
    pub fn computed_ahead(&self) -> usize {
        self.computed + self.ahead.count
    }

    /// Whether its router decides about each token, so that it must not miss a step.
    pub fn is_steered(&self) -> bool {
        self.barrier.is_some() || self.mask.is_some()
    }

    pub fn max_tokens(&self) -> usize {
        self.limits.max_tokens as usize
    }

    /// Whether the next position may be sampled.
    pub fn may_draw(&self) -> bool {
        self.barrier.is_none_or(|barrier| self.generated() + self.ahead.draws < barrier)
    }

    /// Whether prompt logprobs are still to be computed. Then no part of the prompt may come from the cache.
    pub fn scoring(&self) -> bool {
        self.prompt_logprobs >= 0 && !self.admitted
    }

    pub fn work(&self) -> NextWork {
        if self.paused || self.proposed || self.ahead.loads > 0 {
            return NextWork::Parked;
        }
        match self.len_ahead() - self.computed_ahead() {
            // The logits are gone, so the last token is computed again; not while it is under way.
            0 if !self.stashed && self.ahead.is_none() => NextWork::Compute(1),
            0 if !self.stashed => NextWork::Parked,
            0 if self.may_draw() => NextWork::Draw,
            0 => NextWork::Parked,
            missing => NextWork::Compute(missing),
        }
    }

    /// Whether nothing can be planned before what is under way is done, within a context of `most` tokens.
    pub fn must_land(&self, most: usize) -> bool {
        let last = self.generated() + self.ahead.draws >= self.max_tokens() || self.len_ahead() >= most;
        let waits = self.embeds || self.scoring() || self.ahead.drafts > 0 || (self.ahead.draws > 0 && last);
        waits && !self.ahead.is_none()
    }

    /// Whether it would wait for its router even with a slot.
    pub fn is_parked(&self) -> bool {
        self.paused || self.proposed || (self.preempted && !self.may_draw())
    }

    /// Whether it ends after this token, its last, within a context of `most` tokens.
    pub fn end_after(&self, token: u32, most: usize) -> Option<FinishReason> {
        if !self.limits.ignore_eos && self.limits.stop_token_ids.contains(&token) {
            return Some(FinishReason::Stop);
        }
        let full = self.generated() >= self.max_tokens() || self.tokens.len() >= most;
        full.then_some(FinishReason::Length)
    }

    /// Checks a whole Steer before anything changes.
    pub fn check(&self, steer: &Steer, vocab_size: usize) -> Result<(), SteerError> {
        checks::steer(steer, self.epoch, self.generated(), vocab_size)
    }

    /// Applies a checked Steer. Appended tokens beyond `room` positions are dropped. Returns the number of generated
    /// tokens that were rewound.
    pub fn steer(&mut self, steer: Steer, room: usize, blocks: &mut BlockPool) -> usize {
        let rewound = self.generated() - steer.keep as usize;
        self.epoch = steer.epoch;
        self.proposed = false;
        self.lookup.clear();
        self.void_draws();
        if rewound > 0 {
            self.ahead.void();
            self.stashed = false;
            self.tokens.truncate(self.prompt_len + steer.keep as usize);
            self.rewind(self.computed.min(self.tokens.len()), blocks);
        }
        self.told_history = self.told_history.min(self.tokens.len());
        let longest = room.min(self.prompt_len + self.max_tokens());
        let fits = longest.saturating_sub(self.tokens.len()).min(steer.append.len());
        self.tokens.extend_from_slice(&steer.append[..fits]);
        self.mask = steer.mask.map(|mask| (self.generated(), mask));
        self.barrier = steer.hold.then(|| self.generated() + 1);
        rewound
    }

    /// Forgets KV entries from position `computed` on, so that they can be written again; with recurrent layers, from
    /// the last position before it of which a state was kept. A registered block to be written is unregistered if no
    /// other sequence reads it; otherwise its tokens move to a fresh block later.
    pub fn rewind(&mut self, computed: usize, blocks: &mut BlockPool) {
        let size = blocks.block_size();
        self.truncate_table(self.tokens.len().div_ceil(size), blocks);
        if computed >= self.computed {
            return self.states.forget_after(self.computed);
        }
        let mut point = computed;
        loop {
            self.computed = self.restore_point(point, blocks);
            let full = self.computed / size;
            self.truncate_table(self.computed.div_ceil(size), blocks);
            if self.registered <= full || blocks.reclaim(self.table[full]) {
                self.registered = self.registered.min(full);
                break;
            }
            self.truncate_table(full, blocks);
            point = full * size;
        }
        self.states.forget_after(self.computed);
    }

    fn truncate_table(&mut self, len: usize, blocks: &mut BlockPool) {
        while self.table.len() > len {
            if let Some(block) = self.table.pop() {
                blocks.release(block);
            }
        }
        self.registered = self.registered.min(self.table.len());
        self.differs_from(len);
    }

    /// The table changes from this index on.
    fn differs_from(&mut self, index: usize) {
        self.told = self.told.min(index);
    }

    /// The change that makes the executor's table the first `len` blocks of this one: the number of blocks to keep, and
    /// those that follow.
    pub fn tell_table(&mut self, len: usize) -> (usize, Vec<BlockId>) {
        let kept = std::mem::replace(&mut self.told, len).min(len);
        (kept, self.table[kept..len].to_vec())
    }

    /// The sequence has ended, perhaps only by proposal: what is under way draws beyond the end.
    pub fn end(&mut self) {
        self.void_draws();
    }

    /// What is under way draws in vain: another token may follow. What it computes of known tokens stays.
    fn void_draws(&mut self) {
        if self.ahead.draws > 0 {
            (self.ahead.draws, self.ahead.drafts) = (0, 0);
            self.ahead.draws_of += 1;
            self.states.forget_after(self.computed_ahead());
        }
    }

    /// Releases all blocks. The tokens stay.
    pub fn release(&mut self, blocks: &mut BlockPool) {
        self.ahead.void();
        self.stashed = false;
        self.truncate_table(0, blocks);
        self.computed = 0;
        self.states = SequenceStates::default();
    }

    /// Records that `count` more tokens are computed, and registers the blocks that are now full.
    pub fn advance(&mut self, count: usize, blocks: &mut BlockPool) {
        self.computed += count;
        let size = blocks.block_size();
        while blocks.caches() && (self.registered + 1) * size <= self.computed {
            let index = self.registered;
            let before = index.checked_sub(1).map(|before| self.table[before]);
            let tokens = &self.tokens[index * size..(index + 1) * size];
            let block = blocks.register(self.table[index], before, &self.salt, tokens);
            debug_assert!(block.is_some(), "leading blocks are registered");
            let Some(block) = block else { return };
            if std::mem::replace(&mut self.table[index], block) != block {
                self.differs_from(index);
            }
            self.registered += 1;
        }
    }

    /// The change that makes the executor's history the tokens at the next draw. One that is under way is added there.
    fn tell_history(&mut self) -> (usize, Vec<u32>) {
        let kept = self.told_history.min(self.tokens.len());
        self.told_history = self.tokens.len() + self.ahead.draws;
        (kept, self.tokens[kept..].to_vec())
    }

    /// The parameters of the next draw, and of one behind each of so many draft tokens.
    pub fn draws(&mut self, drafts: usize) -> Vec<Draw> {
        let position = self.generated() + self.ahead.draws;
        let penalized = penalizes(&self.sampling);
        let (kept, history) = if penalized { self.tell_history() } else { (0, Vec::new()) };
        let mut draws: Vec<Draw> = (position..=position + drafts).map(|position| self.draw(position, kept)).collect();
        draws[0].history = history;
        draws
    }

    fn draw(&self, position: usize, kept_history: usize) -> Draw {
        let mask = self.mask.as_ref().filter(|(at, _)| *at == position).map(|(_, mask)| mask.clone());
        let mut banned: &[u32] = &[];
        if position < self.limits.min_tokens as usize && !self.limits.ignore_eos {
            banned = &self.limits.stop_token_ids;
            // A grammar that can only end here takes precedence over min_tokens.
            if mask.as_ref().is_some_and(|mask| allows_only(mask, banned)) {
                banned = &[];
            }
        }
        let banned = banned.to_vec();
        let scripted = match self.script.is_empty() {
            true => None,
            false => self.script.get(position).or(self.limits.stop_token_ids.first()).copied(),
        };
        Draw {
            sampling: Some(self.sampling.clone()),
            position: position as u32,
            mask,
            banned,
            kept_history: kept_history as u32,
            history: Vec::new(),
            prompt_length: if penalizes(&self.sampling) { self.prompt_len as u32 } else { 0 },
            logprobs: self.logprobs,
            scripted,
        }
    }

    /// Appends a drawn token.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.mask = None;
    }
}

/// Whether a draw depends on the tokens before it.
pub fn penalizes(sampling: &Sampling) -> bool {
    sampling.repetition_penalty != 1.0 || sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0
}

/// Whether the mask has no bit outside `tokens`.
fn allows_only(mask: &[u8], tokens: &[u32]) -> bool {
    mask.iter().enumerate().all(|(index, &byte)| {
        byte == 0 || (0..8).filter(|bit| byte >> bit & 1 == 1).all(|bit| tokens.contains(&(index as u32 * 8 + bit)))
    })
}

#[cfg(test)]
mod tests;
