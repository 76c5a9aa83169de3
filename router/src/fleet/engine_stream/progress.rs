//! Which tokens of a sequence count, and what its engine was last told. No I/O.

use bytes::Bytes;
use rein_proto::internal::{Start, Steer, Tokens};

use super::{DrawnToken, Steering};
use crate::error::Error;

/// Which tokens of the engine count: pure bookkeeping of epoch and position.
#[derive(Debug, Clone, Default)]
pub(super) struct SequenceProgress {
    pub epoch: u64,
    pub accepted: Vec<u32>,
    /// The mask under which the next token is drawn.
    pub mask: Option<Bytes>,
    /// Whether the engine, after that or at once, waits for a steer.
    pub held: bool,
    /// A steer was sent, and no token of its epoch has come.
    pub unanswered: bool,
}

impl SequenceProgress {
    /// The tokens of this message that are new under the current epoch.
    pub fn receive(&mut self, tokens: Tokens) -> Result<Vec<DrawnToken>, Error> {
        if tokens.epoch < self.epoch {
            return Ok(Vec::new());
        }
        let position = tokens.position as usize;
        let known =
            self.accepted.len().checked_sub(position).filter(|_| tokens.epoch == self.epoch).ok_or_else(|| {
                let cause = format!(
                    "tokens of epoch {} at {position}, but {} are known under epoch {}",
                    tokens.epoch,
                    self.accepted.len(),
                    self.epoch
                );
                Error::internal("the engine's tokens came out of order", cause)
            })?;
        if !tokens.logprobs.is_empty() && tokens.logprobs.len() != tokens.ids.len() {
            let cause = format!("{} ids with {} logprobs", tokens.ids.len(), tokens.logprobs.len());
            return Err(Error::internal("the engine's logprobs do not match its tokens", cause));
        }
        let mut logprobs = tokens.logprobs.into_iter();
        let drawn = tokens.ids.into_iter().map(|id| DrawnToken { id, logprob: logprobs.next() });
        let drawn: Vec<DrawnToken> = drawn.skip(known).collect();
        self.accepted.extend(drawn.iter().map(|drawn| drawn.id));
        if !drawn.is_empty() {
            (self.mask, self.unanswered) = (None, false);
        }
        Ok(drawn)
    }

    /// The same sequence from here on, for an engine that knows nothing of it, and what that one is to be told then.
    pub fn resume(&mut self, start: &Start, admitted: bool) -> (Start, Option<Steering>) {
        let steering = (self.unanswered && (self.mask.is_some() || self.held)).then(|| Steering {
            keep: self.accepted.len(),
            mask: self.mask.clone(),
            hold: self.held,
            ..Steering::default()
        });
        let start = Start {
            resume: self.accepted.clone(),
            hold: self.held || steering.is_some(),
            prompt_logprobs: if admitted { -1 } else { start.prompt_logprobs },
            ..start.clone()
        };
        self.epoch = 0;
        (start, steering)
    }

    pub fn steer(&mut self, steering: Steering) -> Steer {
        self.epoch += 1;
        self.accepted.truncate(steering.keep);
        let keep = self.accepted.len() as u32;
        self.accepted.extend(&steering.append);
        (self.mask, self.held, self.unanswered) = (steering.mask.clone(), steering.hold, true);
        Steer {
            epoch: self.epoch,
            keep,
            append: steering.append,
            mask: steering.mask,
            hold: steering.hold,
            stop: steering.stop,
        }
    }
}
