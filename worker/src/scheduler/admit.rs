//! Gives slots, blocks and prefill tokens to sequences, so that every caller gets its share of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Scheduler;
use super::planned::PlannedLoad;
use crate::blocks::{ByClass, Prefix};
use crate::limits;
use crate::seq::{CallerHash, NextWork, SeqId};

impl Scheduler {
    /// Gives slots and blocks to waiting sequences.
    pub(super) fn admit(&mut self, budget: &mut usize, now: Duration) {
        while *budget > 0 {
            let may_run = |id| !self.seqs[&id].is_parked();
            if !self.waiting.any(may_run) {
                return;
            }
            let newcomers: Vec<SeqId> = self.waiting.newcomers(may_run).take(limits::NEWCOMERS).collect();
            let next = newcomers.first().copied().or_else(|| self.waiting.next(may_run));
            let has_slot = self.running.len() < self.options.max_sequences;
            let seated = match next.filter(|&id| has_slot && self.seat(id)) {
                Some(id) => Some(id),
                None => self.seat_newcomer(&newcomers),
            };
            if let Some(id) = seated {
                self.waiting.run(self.seqs[&id].caller, id);
                self.running.insert(id);
                self.plan_tokens(id, usize::MAX, budget);
                continue;
            }
            // A sequence whose router does not answer must not block others.
            let grace = self.options.park_grace;
            let parked = || {
                self.running
                    .iter()
                    .rev()
                    .filter_map(|id| Some((*id, self.seqs[id].parked_since?.saturating_add(grace))))
            };
            let Some((victim, _)) = parked().find(|(_, until)| *until <= now) else {
                self.wake_at = parked().map(|(_, until)| until).min();
                return;
            };
            self.preempt(victim);
        }
    }

    /// How many tokens of these running sequences, of at least two tokens each, are computed next. While several
    /// callers have some, each gets an equal part of the budget, and so does one that waits without a slot. The rest
    /// goes to those that arrived first.
    pub(super) fn prefill_shares(&self, prefill: &[SeqId], mut budget: usize) -> BTreeMap<SeqId, usize> {
        let wanted = prefill.iter().filter(|id| self.running.contains(id)).filter_map(|&id| {
            let seq = self.seqs.get(&id)?;
            let NextWork::Compute(count) = seq.work() else { return None };
            Some((id, seq.caller, count))
        });
        let wanted: Vec<(SeqId, CallerHash, usize)> = wanted.collect();
        let newcomer = self.waiting.newcomers(|id| !self.seqs[&id].is_parked()).next();
        let callers: BTreeSet<CallerHash> = wanted.iter().map(|(_, caller, _)| *caller).collect();
        let share = budget / (callers.len() + usize::from(newcomer.is_some())).max(1);
        let mut left: BTreeMap<CallerHash, usize> = callers.into_iter().map(|caller| (caller, share)).collect();
        if newcomer.is_some() {
            budget -= share;
        }
        let mut shares = BTreeMap::new();
        for &(id, caller, count) in &wanted {
            let left = left.entry(caller).or_default();
            let count = count.min(*left);
            *left -= count;
            budget -= count;
            shares.insert(id, count);
        }
        for (id, _, count) in wanted {
            let given = shares.entry(id).or_default();
            let more = (count - *given).min(budget);
            *given += more;
            budget -= more;
        }
        shares
    }

    /// Blocks for all tokens of a waiting sequence: its longest cached prefix, the number of blocks beyond it, and how
    /// many must be available.
    fn blocks_for(&mut self, id: SeqId) -> Option<(Prefix, usize, ByClass)> {
        let reserve = match self.running.is_empty() {
            true => 0,
            false => (self.blocks.total() / limits::RESERVE_DIVISOR).max(1).div_ceil(self.blocks.classes()),
        };
        let seq = self.seqs.get(&id)?;
        let want = seq.tokens.len().div_ceil(self.blocks.block_size());
        let prefix = match seq.scoring() {
            true => Prefix::default(),
            // The last token is always computed: its logits are needed.
            false => self.blocks.lookup(&seq.salt, &seq.tokens[..seq.tokens.len() - 1]),
        };
        let unreferenced = self.blocks.unreferenced(&prefix.blocks);
        let available = self.blocks.count_places(prefix.blocks.len()..want).plus(&unreferenced);
        let fresh = want - prefix.blocks.len();
        Some((prefix, fresh, available.plus_each(reserve)))
    }

    /// Allocates blocks for all tokens of a waiting sequence. False: there is no room.
    fn seat(&mut self, id: SeqId) -> bool {
        let Some((prefix, fresh, available)) = self.blocks_for(id) else { return false };
        let Some(seq) = self.seqs.get_mut(&id) else { return false };
        if !self.blocks.has(&available) {
            return false;
        }
        let Prefix { blocks, places } = prefix;
        blocks.iter().for_each(|&block| self.blocks.retain(block));
        self.blocks.hold_places(&places);
        seq.registered = blocks.len();
        seq.computed = blocks.len() * self.blocks.block_size();
        seq.table = blocks;
        let rest = seq.registered..seq.registered + fresh;
        seq.table.extend(rest.map_while(|place| self.blocks.allocate(place)));
        debug_assert_eq!(seq.table.len(), seq.registered + fresh, "there was room for all");
        if !places.is_empty() {
            seq.ahead.loads = places.len();
            places.iter().zip(&seq.table[seq.registered..]).for_each(|(&place, &block)| self.blocks.load(place, block));
            self.planned_loads.push(PlannedLoad { seq: id, rows_of: seq.ahead.rows_of, places });
        }
        self.stats.cached_tokens += seq.computed as u64;
        if !seq.admitted {
            seq.cached_tokens = seq.computed.min(seq.prompt_len);
        }
        true
    }

    /// Seats the first of these sequences for which there is room, at the cost of callers that hold several slots. Only
    /// the first may take free blocks: it waits for them.
    fn seat_newcomer(&mut self, newcomers: &[SeqId]) -> Option<SeqId> {
        let mut first = true;
        let seated = newcomers.iter().find(|&&id| {
            let takes_free = std::mem::take(&mut first);
            self.make_room(id, takes_free) && self.seat(id)
        });
        seated.copied()
    }

    /// Preempts sequences of callers that have several, those with the most first, until there is a slot and blocks for
    /// a waiting sequence of a caller that has none. `takes_free`: free blocks serve too. False: it needs more than
    /// an equal share of the blocks, or there is not enough.
    fn make_room(&mut self, id: SeqId, takes_free: bool) -> bool {
        let mut slots: BTreeMap<CallerHash, usize> = BTreeMap::new();
        for other in &self.running {
            *slots.entry(self.seqs[other].caller).or_default() += 1;
        }
        // Before the prefix is looked up, which takes long for a long prompt.
        let want = self.seqs[&id].tokens.len().div_ceil(self.blocks.block_size());
        if want * (slots.len() + 1) > self.blocks.total() || slots.values().all(|&held| held < 2) {
            return false;
        }
        let Some((prefix, _, mut available)) = self.blocks_for(id) else { return false };
        let oldest = self.oldest();
        let mut others: Vec<SeqId> = self.running.iter().copied().filter(|&other| Some(other) != oldest).collect();
        let mut victims = Vec::new();
        let lacks = |available: &ByClass| if takes_free { !self.blocks.has(available) } else { available.most() > 0 };
        while lacks(&available) || self.running.len() - victims.len() >= self.options.max_sequences {
            let of = |other: &SeqId| self.seqs[other].caller;
            let busiest = others.iter().enumerate().filter(|(_, other)| slots[&of(other)] > 1);
            let Some((at, _)) = busiest.max_by_key(|(_, other)| (slots[&of(other)], **other)) else { return false };
            let victim = others.remove(at);
            *slots.entry(of(&victim)).or_default() -= 1;
            let freed = self.seqs[&victim]
                .table
                .iter()
                .filter(|block| self.blocks.sole(**block) && !prefix.blocks.contains(block));
            available = available.minus(&self.blocks.count_blocks(freed));
            victims.push(victim);
        }
        for victim in victims {
            self.planned.retain(|row| row.seq != victim);
            self.preempt(victim);
        }
        true
    }
}
