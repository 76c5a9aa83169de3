//! What a sequence would get alone, for tests that compare.

use bytes::Bytes;
use rein_proto::internal::Limits;

use super::ledger::{VOCAB, draw, score};
use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Open,
    Proposed,
    Done,
}

/// What a sequence would get alone, implemented as simply as possible.
#[derive(Debug)]
pub struct Oracle {
    pub start: Start,
    pub tokens: Vec<u32>,
    pub epoch: u64,
    mask: Option<(usize, Bytes)>,
    hold: Option<usize>,
    pub state: State,
    pub admitted: bool,
    /// What the next Finish must say because of a Steer.
    pub expect: Option<FinishReason>,
    context: usize,
}

impl Oracle {
    pub fn new(start: Start, context: usize) -> Self {
        let tokens: Vec<u32> = start.prompt.iter().chain(&start.resume).copied().collect();
        let hold = start.hold.then_some(start.resume.len());
        let mut oracle = Self {
            start,
            tokens,
            epoch: 0,
            mask: None,
            hold,
            state: State::Open,
            admitted: false,
            expect: None,
            context,
        };
        // A held sequence as long as the context is computed and waits, so that its prompt can be scored.
        let waits = oracle.start.hold && oracle.generated() < oracle.limits().max_tokens as usize;
        oracle.expect = oracle.full().filter(|_| !waits);
        oracle
    }

    fn limits(&self) -> &Limits {
        self.start.limits.as_ref().expect("set")
    }

    pub fn generated(&self) -> usize {
        self.tokens.len() - self.start.prompt.len()
    }

    fn full(&self) -> Option<FinishReason> {
        let full = self.generated() >= self.limits().max_tokens as usize || self.tokens.len() >= self.context;
        full.then_some(FinishReason::Length)
    }

    pub fn steer(&mut self, steer: &Steer) {
        let valid = steer.epoch > self.epoch
            && steer.keep as usize <= self.generated()
            && steer.append.iter().all(|&token| token < VOCAB)
            && steer.mask.as_ref().is_none_or(|mask| mask.len() == 4);
        self.state = State::Open;
        if !valid {
            self.expect = Some(FinishReason::Error);
            return;
        }
        self.epoch = steer.epoch;
        self.tokens.truncate(self.start.prompt.len() + steer.keep as usize);
        for &token in &steer.append {
            if self.full().is_none() {
                self.tokens.push(token);
            }
        }
        self.mask = steer.mask.clone().map(|mask| (self.generated(), mask));
        self.hold = steer.hold.then_some(self.generated() + 1);
        self.expect = if steer.stop { Some(FinishReason::Steered) } else { self.full() };
    }

    /// None: the mask leaves no token.
    fn next(&self) -> Option<u32> {
        let position = self.generated();
        let mask = self.mask.as_ref().filter(|(at, _)| *at == position).map(|(_, mask)| &mask[..]);
        let stops = &self.limits().stop_token_ids;
        let refuse = position < self.limits().min_tokens as usize && !self.limits().ignore_eos;
        let seed = self.start.sampling.as_ref().expect("set").seed;
        let only_stops = mask.is_some_and(|mask| {
            (0..VOCAB + 3).filter(|t| mask[*t as usize / 8] >> (t % 8) & 1 == 1).all(|t| stops.contains(&t))
        });
        let banned = if refuse && !only_stops { &stops[..] } else { &[] };
        draw(&self.tokens, position as u32, seed, mask, banned)
    }

    pub fn output(&mut self, kind: from_engine::Kind, last: bool) {
        assert_eq!(self.state, State::Open, "an output after Finish: {kind:?}");
        match kind {
            from_engine::Kind::Admitted(admitted) => {
                assert!(!std::mem::replace(&mut self.admitted, true) && self.expect.is_none() && !last);
                assert_eq!(admitted.prompt_tokens as usize, self.start.prompt.len());
                let prompt = &self.start.prompt;
                let want: Vec<_> = match self.start.prompt_logprobs {
                    -1 => Vec::new(),
                    _ => (0..prompt.len())
                        .map(|i| (prompt[i], (i > 0).then(|| score(&prompt[..i], prompt[i]))))
                        .collect(),
                };
                let got: Vec<_> = admitted.prompt_logprobs.iter().map(|entry| (entry.id, entry.logprob)).collect();
                assert_eq!(got, want, "prompt logprobs");
            }
            from_engine::Kind::Tokens(tokens) => {
                assert!(self.admitted && self.expect.is_none() && !last);
                assert!(self.hold.is_none_or(|hold| self.generated() < hold), "drew beyond a hold");
                assert_eq!((tokens.epoch, tokens.position as usize), (self.epoch, self.generated()));
                assert!(!tokens.ids.is_empty(), "a message without tokens");
                for token in tokens.ids {
                    assert!(self.expect.is_none(), "a token behind the last");
                    assert_eq!(self.next(), Some(token), "not the token it gets alone");
                    self.tokens.push(token);
                    let stop = !self.limits().ignore_eos && self.limits().stop_token_ids.contains(&token);
                    self.expect = if stop { Some(FinishReason::Stop) } else { self.full() };
                }
            }
            from_engine::Kind::Finish(finish) => {
                let reason = match self.expect.take() {
                    Some(reason) => reason,
                    None => {
                        assert_eq!(self.next(), None, "{finish:?} without a cause");
                        FinishReason::Error
                    }
                };
                assert_eq!((finish.reason(), finish.generated as usize), (reason, self.generated()), "{finish:?}");
                assert_eq!(finish.epoch, self.epoch);
                assert_eq!(finish.error.is_empty(), reason != FinishReason::Error);
                let proposal =
                    self.start.finish_is_proposal && matches!(reason, FinishReason::Stop | FinishReason::Length);
                assert_eq!(last, !proposal);
                self.state = if proposal { State::Proposed } else { State::Done };
            }
        }
    }
}
