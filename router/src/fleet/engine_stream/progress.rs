//! Tracks which tokens of a sequence are accepted, and the last steer. It has no I/O.

use bytes::Bytes;
use rein_proto::internal::{Start, Steer, Tokens};

use super::{DrawnToken, Steering};
use crate::error::Error;

/// The accepted tokens of a sequence, and the state of its last steer.
#[derive(Debug, Clone, Default)]
pub(super) struct SequenceProgress {
    pub epoch: u64,
    pub accepted: Vec<u32>,
    /// The mask of the next draw.
    pub mask: Option<Bytes>,
    /// Whether the engine waits for a steer, after the masked draw if there is a mask.
    pub held: bool,
    /// A steer was sent, and no token of its epoch has arrived.
    pub unanswered: bool,
}

impl SequenceProgress {
    /// Accepts the tokens of a message, and returns those that are new. Tokens of older epochs are ignored.
    pub fn receive(&mut self, tokens: Tokens) -> Result<Vec<DrawnToken>, Error> {
        if tokens.epoch < self.epoch {
            return Ok(Vec::new());
        }
        let position = tokens.position as usize;
        let known =
            self.accepted.len().checked_sub(position).filter(|_| tokens.epoch == self.epoch).ok_or_else(|| {
                let cause = format!(
                    "expected tokens of epoch {} from position {} or before, got epoch {} and position {position}",
                    self.epoch,
                    self.accepted.len(),
                    tokens.epoch
                );
                Error::internal("the engine sent tokens out of order", cause)
            })?;
        if !tokens.logprobs.is_empty() && tokens.logprobs.len() != tokens.ids.len() {
            let cause = format!("expected {} logprobs, got {}", tokens.ids.len(), tokens.logprobs.len());
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

    /// The start message with which another engine resumes the sequence, and the steer that must follow it.
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

    /// Applies a steer and returns its message.
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
