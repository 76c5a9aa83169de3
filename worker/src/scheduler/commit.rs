//! What the results of a step change: sequences advance, tokens go out, blocks that came back count as computed.

use rein_proto::internal::{
    Admitted, After, Drawn, FinishReason, FromEngine, RowResult, StepResult, TokenLogprob, Tokens, from_engine,
};

use super::planned::{Planned, PlannedLoad, PlannedStep};
use super::{Output, Scheduler};
use crate::blocks::PlaceId;

impl Scheduler {
    /// Applies the result of the oldest step that was not committed.
    pub fn commit(&mut self, result: StepResult) {
        let step = self.running_steps.front().map(|step| &step.rows[..]).unwrap_or_default();
        let expected = step.iter().filter(|row| row.answers()).map(|row| (row.slot, row.draws()));
        if !expected.eq(result.rows.iter().map(|row| (row.slot, row.drawn.len()))) {
            return self.fail("the executor returned results for other rows than it was given", false);
        }
        self.slots.dropped();
        let mut results = result.rows.into_iter();
        let PlannedStep { rows, loads, .. } = self.running_steps.pop_front().unwrap_or_default();
        loads.into_iter().for_each(|load| self.commit_load(load, &result.lost_places));
        for planned in rows {
            let result = match planned.answers() {
                true => results.next(),
                false => None,
            };
            self.commit_row(planned, result.unwrap_or_default());
        }
    }

    /// The first blocks of a sequence that came whole count as computed.
    fn commit_load(&mut self, PlannedLoad { seq: id, rows_of, places }: PlannedLoad, lost: &[PlaceId]) {
        let whole = places.iter().take_while(|place| !lost.contains(place)).count();
        // What it registers now has the number that the place knows.
        if let Some(seq) = self.seqs.get_mut(&id).filter(|seq| seq.ahead.rows_of == rows_of) {
            seq.ahead.loads = 0;
            let tokens = whole * self.blocks.block_size();
            seq.advance(tokens, &mut self.blocks);
            self.stats.cached_tokens += tokens as u64;
            self.stats.restored_tokens += tokens as u64;
            if !seq.admitted {
                seq.cached_tokens = seq.computed.min(seq.prompt_len);
            }
        }
        for place in places {
            let damaged = lost.contains(&place);
            self.stats.damaged_blocks += u64::from(damaged);
            self.blocks.let_go(place, damaged);
        }
    }

    fn commit_row(&mut self, planned: Planned, result: RowResult) {
        let id = planned.seq;
        let Some(seq) = self.seqs.get_mut(&id).filter(|seq| planned.rows_of == seq.ahead.rows_of) else {
            return self.return_cells(&planned);
        };
        // Scores cover tokens 1..=computed; tokens that moved to a fresh block were scored again.
        seq.scores.truncate(seq.computed);
        seq.ahead.count -= planned.count;
        seq.advance(planned.count, &mut self.blocks);
        for (position, cell) in planned.checkpoints() {
            seq.keep_checkpoint(position, cell, &mut self.blocks);
        }
        if !seq.admitted || planned.count > 1 {
            self.stats.prefill_tokens += planned.count as u64;
        }
        seq.scores.extend(result.scores);
        if planned.after == After::Nothing {
            return;
        }
        // Not after a Steer has ended it meanwhile: it is told when the sequence goes on.
        if !seq.admitted && !seq.proposed {
            seq.admitted = true;
            let mut scores = std::mem::take(&mut seq.scores);
            if seq.prompt_logprobs >= 0 {
                scores.insert(0, TokenLogprob { id: seq.tokens[0], ..TokenLogprob::default() });
            }
            let kind = from_engine::Kind::Admitted(Admitted {
                prompt_tokens: seq.prompt_len as u32,
                cached_tokens: seq.cached_tokens as u32,
                prompt_logprobs: scores,
                embedding: result.state,
            });
            self.outputs.push(Output { seq: id, message: FromEngine { kind: Some(kind) }, last: false });
        }
        if planned.after == After::Embed {
            return self.finish(id, FinishReason::Stop, String::new());
        }
        if planned.after == After::Stash {
            self.stats.held_steps += 1;
            return;
        }
        if planned.draws_of != seq.ahead.draws_of {
            return;
        }
        seq.ahead.draws -= 1;
        seq.ahead.drafts = 0;
        let mut tokens = Tokens { epoch: seq.epoch, position: seq.generated() as u32, ..Tokens::default() };
        let mut end = None;
        let mut drafts = planned.drafts.iter();
        for Drawn { token, logprob } in result.drawn {
            let Some(token) = token else {
                let position = seq.generated();
                let error = format!("no token can be drawn at position {position}: mask and bans exclude all tokens");
                end = Some((FinishReason::Error, error));
                break;
            };
            seq.push(token);
            tokens.ids.push(token);
            tokens.logprobs.extend(logprob);
            end = seq.end_after(token, self.context).map(|reason| (reason, String::new()));
            if end.is_some() || drafts.next() != Some(&token) {
                break;
            }
            // It is the draft, which is computed.
            seq.advance(1, &mut self.blocks);
        }
        if !planned.drafts.is_empty() {
            // Nothing else is under way.
            seq.states.forget_after(seq.computed);
        }
        let accepted = tokens.ids.len().saturating_sub(1);
        seq.lookup.learn(&tokens.ids);
        match end.is_none() && self.options.draft_tokens > 0 && !seq.is_steered() {
            true => seq.lookup.find(&seq.tokens),
            false => seq.lookup.clear(),
        }
        self.stats.generated_tokens += tokens.ids.len() as u64;
        self.stats.draft_tokens += planned.drafts.len() as u64;
        self.stats.accepted_tokens += accepted as u64;
        if !tokens.ids.is_empty() {
            let message = FromEngine { kind: Some(from_engine::Kind::Tokens(tokens)) };
            self.outputs.push(Output { seq: id, message, last: false });
        }
        if let Some((reason, error)) = end {
            self.finish(id, reason, error);
        }
    }
}
