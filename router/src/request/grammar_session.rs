//! One sequence's grammar: which drawn tokens stand, and what to tell the engine about the others. No clock of its own,
//! no I/O: what it decides depends on the tokens alone, never on how many came at once, so that the same seed gives the
//! same tokens at any latency and after any failover.

use std::{collections::VecDeque, time::Instant};

use bytes::Bytes;
use rein_grammar::{Matcher, MatcherError};

pub use decisions::{TokenDecision, TokenOrigin};
pub use restrictions::Restrictions;

use crate::{
    error::{Error, Kind},
    fleet::engine_stream::Steering,
    limits,
};
use decisions::Decisions;

mod decisions;
mod restrictions;

/// What was checked and what it cost, for /metrics and for whoever asks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GrammarStats {
    /// Drawn tokens that the grammar judged.
    pub checked: u64,
    /// Of these, refused.
    pub refused: u64,
    /// Tokens that the grammar left no choice about and the engine did not have to draw.
    pub forced: u64,
    /// Steers that made the engine wait for a mask at every step.
    pub held: u64,
    pub masks: u64,
    /// Time in the grammar.
    pub nanos: u64,
}

/// A drawn token that the grammar refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Among the generated tokens.
    pub position: u32,
    pub id: u32,
}

/// The result of some drawn tokens.
#[derive(Debug, Default)]
pub struct DrawOutcome {
    /// How many of them stand, from the first.
    pub stand: usize,
    /// Tokens that follow those, undrawn.
    pub forced: Vec<u32>,
    /// What the engine is to be told.
    pub steering: Option<Steering>,
    /// Nothing may follow but a stop token.
    pub ended: bool,
}

/// Whether the engine waits for a mask at every step: worth its latency once a model is refused often. A function of
/// the history of acceptance alone.
#[derive(Debug, Default)]
struct Hold {
    /// One bit per judged token, the latest lowest; 1: refused.
    history: u32,
    /// Tokens left to be drawn under masks.
    left: u32,
}

impl Hold {
    fn accepted(&mut self) {
        self.history <<= 1;
        self.left = self.left.saturating_sub(1);
    }

    fn refused(&mut self) {
        self.history = self.history << 1 | 1;
        let recent = self.history & ((1 << limits::HOLD_WINDOW) - 1);
        if recent.count_ones() >= limits::HOLD_REFUSALS {
            self.history = 0;
            self.left = limits::HOLD_TOKENS;
        }
    }

    fn on(&self) -> bool {
        self.left > 0
    }
}

/// Why a sequence cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarSessionError {
    #[error(transparent)]
    Matcher(#[from] MatcherError),
    /// Between them, the request's restrictions and its grammar allow nothing.
    #[error("no token is left to draw: 'allowed_token_ids' and 'bad_words' refuse all that could follow")]
    NothingLeft,
}

/// What a guide goes by.
pub struct SessionRules {
    /// None: everything is allowed that is not restricted.
    pub matcher: Option<Matcher>,
    pub restrictions: Restrictions,
    /// How the output goes on when the model wants to end it and must not: with a call.
    pub opening: Vec<u32>,
    pub stop_ids: Vec<u32>,
    pub vocab: usize,
    /// Masks at every step from the first on.
    pub always: bool,
}

pub struct GrammarSession {
    matcher: Option<Matcher>,
    restrictions: Restrictions,
    /// The latest tokens, as far as the restrictions look back.
    latest: Vec<u32>,
    vocab: usize,
    /// How the output goes on when the model wants to end it and must not: with a call.
    opening: Vec<u32>,
    stop_ids: Vec<u32>,
    /// Tokens that stand.
    position: usize,
    /// Draws refused since the last token that stands.
    in_a_row: u32,
    /// The only continuation that the grammar leaves: what is drawn instead is overruled.
    due: VecDeque<u32>,
    hold: Hold,
    /// Masks at every step from the first on: what optimism is compared with.
    always: bool,
    /// The engine waits for a steer.
    waiting: bool,
    stats: GrammarStats,
    /// The last judgement took so long that it held up whatever else the thread had to do.
    slow: bool,
    refusals: Vec<Refusal>,
    /// None: nobody asks for them.
    decisions: Option<Box<Decisions>>,
}

impl GrammarSession {
    pub fn new(rules: SessionRules) -> Self {
        let SessionRules { matcher, restrictions, opening, stop_ids, vocab, always } = rules;
        GrammarSession {
            matcher,
            restrictions,
            latest: Vec::new(),
            vocab,
            opening,
            stop_ids,
            position: 0,
            in_a_row: 0,
            due: VecDeque::new(),
            hold: Hold::default(),
            always,
            waiting: always,
            stats: GrammarStats::default(),
            slow: false,
            refusals: Vec::new(),
            decisions: None,
        }
    }

    /// Records what is decided about each token.
    pub fn with_decisions(mut self) -> Self {
        self.decisions = Some(Box::default());
        self
    }

    /// The decisions since the last call. Empty without [`GrammarSession::with_decisions`].
    pub fn take_decisions(&mut self) -> Vec<TokenDecision> {
        self.decisions.as_mut().map(|decisions| decisions.take()).unwrap_or_default()
    }

    pub fn stats(&self) -> GrammarStats {
        self.stats
    }

    /// Whether the next judgement is better made off the async threads. What it decides does not depend on it.
    pub fn is_slow(&self) -> bool {
        self.slow
    }

    /// The first refused tokens, at most [`limits::REFUSALS_TOLD`].
    pub fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }

    /// Before anything was drawn. The engine has been told to hold if masks come at every step.
    pub fn begin(&mut self, room: usize) -> Result<DrawOutcome, GrammarSessionError> {
        self.timed(|session| {
            session.look_ahead()?;
            session.judge(&[], room)
        })
    }

    /// Judges tokens drawn at the current position. At most `room` more tokens fit after those that stand already.
    pub fn take(&mut self, drawn: &[u32], room: usize) -> Result<DrawOutcome, GrammarSessionError> {
        self.timed(|session| session.judge(drawn, room))
    }

    /// Ends reasoning, or whatever is open, with these tokens. None: they cannot stand here, such as within a
    /// character.
    pub fn force(&mut self, ids: &[u32], room: usize) -> Result<Option<DrawOutcome>, GrammarSessionError> {
        if ids.len() > room || !self.can_follow(ids)? {
            return Ok(None);
        }
        self.due = ids.iter().copied().collect();
        self.timed(|session| session.settle(DrawOutcome::default(), true, room)).map(Some)
    }

    fn timed<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let began = Instant::now();
        let done = work(self);
        let took = began.elapsed();
        self.stats.nanos += took.as_nanos() as u64;
        self.slow = took > limits::INLINE_MATCH;
        done
    }

    fn judge(&mut self, drawn: &[u32], room: usize) -> Result<DrawOutcome, GrammarSessionError> {
        let mut outcome = DrawOutcome::default();
        let mut overruled = false;
        for &id in drawn {
            self.stats.checked += 1;
            let stands = match self.due.front() {
                Some(&due) => due == id && self.accept(id)?,
                None => self.accept(id)?,
            };
            if !stands {
                // Where nothing was left to choose, whether anything was drawn is a matter of timing: it is not held
                // against the model.
                if self.due.is_empty() {
                    self.refuse(id);
                    if self.stop_ids.contains(&id) && self.stop_opens_call()? {
                        self.due.extend(&self.opening);
                    }
                }
                self.in_a_row += 1;
                if self.in_a_row >= limits::REFUSALS_IN_A_ROW {
                    return Err(MatcherError::NoProgress(self.in_a_row).into());
                }
                overruled = true;
                break;
            }
            outcome.stand += 1;
            self.position += 1;
            if let Some(decisions) = &mut self.decisions {
                decisions.drawn(id);
            }
            self.in_a_row = 0;
            self.hold.accepted();
            if self.due.pop_front().is_none() || self.due.is_empty() {
                self.look_ahead()?;
            }
            if self.is_stopped() {
                outcome.ended = true;
                return Ok(outcome);
            }
        }
        self.settle(outcome, overruled, room)
    }

    /// Appends what is due, and says what the engine is to be told.
    fn settle(
        &mut self,
        mut outcome: DrawOutcome,
        overruled: bool,
        room: usize,
    ) -> Result<DrawOutcome, GrammarSessionError> {
        let keep = self.position;
        if overruled || self.due.len() >= limits::FORCED_TOKENS {
            let room = room.saturating_sub(outcome.stand);
            while outcome.forced.len() < room
                && let Some(id) = self.due.pop_front()
            {
                // Its own forecast; a matcher that goes back on it has a defect, which is this request's alone.
                if !self.accept(id)? {
                    return Err(MatcherError::Internal(format!("token {id} was forced and then refused")).into());
                }
                outcome.forced.push(id);
                self.position += 1;
                if let Some(decisions) = &mut self.decisions {
                    decisions.forced(id);
                }
                self.in_a_row = 0;
                self.hold.accepted();
                if self.due.is_empty() {
                    self.look_ahead()?;
                }
            }
            self.stats.forced += outcome.forced.len() as u64;
            outcome.ended = !outcome.forced.is_empty() && self.is_stopped();
        }
        let hold = self.always || self.hold.on();
        if outcome.ended || !(overruled || hold || self.waiting || !outcome.forced.is_empty()) {
            return Ok(outcome);
        }
        self.waiting = hold;
        let mut steering = Steering::keep(keep).append(outcome.forced.iter().copied());
        let masked = hold || (overruled && outcome.forced.is_empty());
        if let Some(decisions) = &mut self.decisions {
            decisions.steered(masked);
        }
        if masked {
            steering = steering.mask(self.mask()?);
        }
        if hold {
            steering = steering.hold();
            self.stats.held += 1;
        }
        outcome.steering = Some(steering);
        Ok(outcome)
    }

    /// Takes a token, if it may stand.
    fn accept(&mut self, id: u32) -> Result<bool, GrammarSessionError> {
        if self.restrictions.refuse(&self.latest, id) {
            return Ok(false);
        }
        let stands = self.matcher.as_mut().map_or(Ok(true), |matcher| matcher.accept(id))?;
        if stands && self.restrictions.looks_back() > 0 {
            self.latest.push(id);
            let surplus = self.latest.len().saturating_sub(self.restrictions.looks_back());
            self.latest.drain(..surplus);
        }
        Ok(stands)
    }

    fn is_stopped(&self) -> bool {
        self.matcher.as_ref().is_some_and(Matcher::is_stopped)
    }

    /// Whether these tokens may come next.
    fn can_follow(&self, ids: &[u32]) -> Result<bool, GrammarSessionError> {
        let (mut matcher, mut latest) = (self.matcher.clone(), self.latest.clone());
        for &id in ids {
            let stands = matcher.as_mut().map_or(Ok(true), |matcher| matcher.accept(id))?;
            if !stands || self.restrictions.refuse(&latest, id) {
                return Ok(false);
            }
            latest.push(id);
        }
        Ok(true)
    }

    /// Whether a stop token means a call here: a model that has said all it wants to say, but has to call a tool, does
    /// so now.
    fn stop_opens_call(&self) -> Result<bool, GrammarSessionError> {
        Ok(!self.opening.is_empty() && self.due.is_empty() && self.can_follow(&self.opening)?)
    }

    /// What may be drawn, stop tokens included where they mean a call: without a mask they could be drawn as well.
    fn mask(&mut self) -> Result<Bytes, GrammarSessionError> {
        let mut mask = match &mut self.matcher {
            Some(matcher) => matcher.mask()?,
            None => all(self.vocab),
        };
        self.restrictions.narrow(&self.latest, &mut mask);
        self.stats.masks += 1;
        if !self.restrictions.is_empty() && mask.iter().all(|&byte| byte == 0) {
            return Err(GrammarSessionError::NothingLeft);
        }
        // Where the mask already refuses a call's first token, which is nearly everywhere, no matcher needs to be
        // copied.
        let allowed = |id: u32| mask.get(id as usize / 8).is_some_and(|byte| byte >> (id % 8) & 1 == 1);
        if self.opening.first().is_some_and(|&id| allowed(id)) && self.stop_opens_call()? {
            for &id in &self.stop_ids {
                if let Some(byte) = mask.get_mut(id as usize / 8) {
                    *byte |= 1 << (id % 8);
                }
            }
        }
        Ok(mask.into())
    }

    fn refuse(&mut self, id: u32) {
        self.stats.refused += 1;
        self.hold.refused();
        let refusal = Refusal { position: self.position as u32, id };
        if let Some(decisions) = &mut self.decisions {
            decisions.refused(refusal);
        }
        if self.refusals.len() < limits::REFUSALS_TOLD {
            self.refusals.push(refusal);
        }
    }

    /// A forecast that is worth a rewind binds, whether the engine has drawn beyond it already or not.
    fn look_ahead(&mut self) -> Result<(), GrammarSessionError> {
        // Where tokens are restricted, a forecast could name one that is refused.
        if self.due.is_empty()
            && self.restrictions.is_empty()
            && let Some(matcher) = self.matcher.as_mut().filter(|matcher| !matcher.is_stopped())
        {
            let forced = matcher.forced();
            if forced.len() >= limits::FORCED_TOKENS {
                self.due.extend(forced);
            }
        }
        Ok(())
    }
}

/// A mask that allows every id.
fn all(vocab: usize) -> Vec<u8> {
    let mut mask = vec![0xFF; vocab.div_ceil(8)];
    if let Some(last) = mask.last_mut().filter(|_| !vocab.is_multiple_of(8)) {
        *last = (1 << (vocab % 8)) - 1;
    }
    mask
}

impl Error {
    /// The request's own grammar ended it; no other request is affected.
    pub fn from_matcher(error: rein_grammar::MatcherError) -> Self {
        use rein_grammar::MatcherError::{DeadEnd, Internal, Limit, NoProgress};
        // What the client constrains the answer by exceeds a limit or contradicts itself.
        let code = match error {
            Limit(_) => "grammar_limit_exceeded",
            DeadEnd => "grammar_dead_end",
            Internal(_) | NoProgress(_) => {
                let failed = Error::internal("the grammar of this request failed", error);
                return Error { code: Some("grammar_failed"), ..failed };
            }
        };
        Error { code: Some(code), ..Error::new(Kind::Invalid, error.to_string()) }
    }

    pub fn from_session(error: GrammarSessionError) -> Self {
        match error {
            GrammarSessionError::Matcher(error) => Error::from_matcher(error),
            GrammarSessionError::NothingLeft => {
                Error { code: Some("nothing_left"), ..Error::invalid("allowed_token_ids", error.to_string()) }
            }
        }
    }
}

#[cfg(test)]
mod tests;
