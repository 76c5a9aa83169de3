//! The grammar state of one sequence: accepts or refuses drawn tokens, and decides how to steer the engine.
//!
//! Its decisions depend on the tokens alone, never on time or on the number of tokens that arrive together, so that the
//! same seed gives the same tokens at any latency and after any failover. It must not do I/O.

use std::{collections::VecDeque, time::Instant};

use bytes::Bytes;
use rein_grammar::{Canonical, Compiled, Matcher, MatcherError};

pub use decisions::{TokenDecision, TokenOrigin};
pub use restrictions::Restrictions;

use crate::{
    error::{Error, ErrorKind},
    fleet::engine_stream::Steering,
    limits,
};
use decisions::Decisions;

mod decisions;
mod restrictions;

/// What was checked and what it cost, for metrics and for the request's grammar report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GrammarStats {
    /// Drawn tokens that were checked.
    pub checked: u64,
    /// Checked tokens that were refused.
    pub refused: u64,
    /// Tokens that the grammar forced, so the engine did not draw them.
    pub forced: u64,
    /// Steers that made the engine wait for a mask at every step.
    pub held: u64,
    pub masks: u64,
    /// Time spent in the grammar.
    pub nanos: u64,
}

/// A drawn token that the grammar refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Index among the generated tokens.
    pub position: u32,
    pub id: u32,
}

/// The result of checking some drawn tokens.
#[derive(Debug, Default)]
pub struct DrawOutcome {
    /// How many of them were accepted, from the first.
    pub accepted: usize,
    /// Forced tokens that follow the accepted ones.
    pub forced: Vec<u32>,
    /// How to steer the engine. None: it continues as it is.
    pub steering: Option<Steering>,
    /// The output is complete: nothing but a stop token may follow.
    pub ended: bool,
}

/// Decides whether the engine waits for a mask at every step. Waiting costs latency, and pays off after frequent
/// refusals. The decision depends on the history of refusals alone.
#[derive(Debug, Default)]
struct Hold {
    /// One bit per checked token, the latest lowest; 1: refused.
    history: u32,
    /// Tokens that are still drawn under masks.
    remaining: u32,
}

impl Hold {
    fn accepted(&mut self) {
        self.history <<= 1;
        self.remaining = self.remaining.saturating_sub(1);
    }

    fn refused(&mut self) {
        self.history = self.history << 1 | 1;
        let recent = self.history & ((1 << limits::HOLD_WINDOW) - 1);
        if recent.count_ones() >= limits::HOLD_REFUSALS {
            self.history = 0;
            self.remaining = limits::HOLD_TOKENS;
        }
    }

    fn is_active(&self) -> bool {
        self.remaining > 0
    }
}

/// Why a sequence cannot continue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarSessionError {
    #[error(transparent)]
    Matcher(#[from] MatcherError),
    /// No token satisfies both the request's restrictions and its grammar.
    #[error("no token is left: 'allowed_token_ids' and 'bad_words' exclude every token that could follow")]
    NothingLeft,
}

/// What a session enforces.
pub struct SessionRules {
    /// None: every token that is not restricted is allowed.
    pub matcher: Option<Matcher>,
    /// Refused draws are replaced from this grammar's canonical form. None: from the matcher.
    pub canonical: Option<Compiled>,
    /// Where a limit is met, this grammar goes on without the constraints of strings and numbers.
    pub loosened: Option<Compiled>,
    pub restrictions: Restrictions,
    /// Tokens that begin a call: they follow when the model draws a stop token but must call a tool.
    pub call_opening: Vec<u32>,
    pub stop_ids: Vec<u32>,
    pub vocab: usize,
    /// Compute a mask at every step from the first.
    pub always_mask: bool,
}

pub struct GrammarSession {
    matcher: Option<Matcher>,
    canonical: Replacement,
    loosened: Option<Compiled>,
    /// The limit after which the grammar is the loosened one. Empty: none was met.
    relaxed: String,
    /// Accepted tokens, for the canonical form and the loosened grammar.
    output: Vec<u32>,
    restrictions: Restrictions,
    /// The latest accepted tokens, as many as the restrictions need.
    recent: Vec<u32>,
    vocab: usize,
    /// Tokens that begin a call: they follow when the model draws a stop token but must call a tool.
    call_opening: Vec<u32>,
    stop_ids: Vec<u32>,
    /// Number of accepted and forced tokens.
    position: usize,
    /// Draws rejected since the last accepted token.
    consecutive_refusals: u32,
    /// The only continuation that the grammar allows: a draw that differs from it is overruled.
    pending_forced: VecDeque<u32>,
    hold: Hold,
    /// Only tokens on the shortest way to the answer's end are drawn.
    ending: bool,
    /// Compute a mask at every step from the first, as a baseline for optimistic drawing.
    always_mask: bool,
    /// The engine waits for a steer.
    engine_waits: bool,
    stats: GrammarStats,
    /// The last check took longer than [`limits::INLINE_MATCH`], which delays other tasks of its thread.
    slow: bool,
    refusals: Vec<Refusal>,
    /// None: the request does not ask for them.
    decisions: Option<Box<Decisions>>,
}

impl GrammarSession {
    pub fn new(rules: SessionRules) -> Self {
        let SessionRules { matcher, canonical, loosened, restrictions, call_opening, stop_ids, vocab, always_mask } =
            rules;
        GrammarSession {
            matcher,
            canonical: canonical.map_or(Replacement::Same, Replacement::Source),
            loosened,
            relaxed: String::new(),
            output: Vec::new(),
            restrictions,
            recent: Vec::new(),
            vocab,
            call_opening,
            stop_ids,
            position: 0,
            consecutive_refusals: 0,
            pending_forced: VecDeque::new(),
            hold: Hold::default(),
            ending: false,
            always_mask,
            engine_waits: always_mask,
            stats: GrammarStats::default(),
            slow: false,
            refusals: Vec::new(),
            decisions: None,
        }
    }

    /// Records the decision about each token.
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

    /// Whether the next check should run off the async threads. Its result is the same.
    pub fn is_slow(&self) -> bool {
        self.slow || matches!(&self.canonical, Replacement::Source(compiled) if compiled.owes_canonical())
    }

    /// Approximate memory of the grammar's state.
    pub fn grammar_bytes(&self) -> usize {
        let canonical = if let Replacement::Form(canonical) = &self.canonical { canonical.bytes() } else { 0 };
        self.matcher.as_ref().map_or(0, Matcher::bytes) + canonical
    }

    /// The first refused tokens, at most [`limits::MAX_REPORTED_REFUSALS`].
    pub fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }

    /// Decides before the first draw. If masks are computed at every step, the engine was started with `hold`.
    pub fn begin(&mut self, room: usize) -> Result<DrawOutcome, GrammarSessionError> {
        self.timed(|session| {
            session.look_ahead()?;
            session.check_draws(&[], room)
        })
    }

    /// Checks tokens drawn at the current position. At most `room` more tokens fit after those accepted before.
    pub fn check(&mut self, drawn: &[u32], room: usize) -> Result<DrawOutcome, GrammarSessionError> {
        self.timed(|session| session.check_draws(drawn, room))
    }

    /// Forces these tokens, such as the end of reasoning. None: the grammar does not allow them here, for example in
    /// the middle of a character.
    pub fn force(&mut self, ids: &[u32], room: usize) -> Result<Option<DrawOutcome>, GrammarSessionError> {
        if ids.len() > room || !self.can_follow(ids)? {
            return Ok(None);
        }
        self.pending_forced = ids.iter().copied().collect();
        self.timed(|session| session.append_and_steer(DrawOutcome::default(), true, room)).map(Some)
    }

    /// From the next check on, only tokens on the shortest way to the end of a JSON answer are drawn.
    pub fn lead_to_end(&mut self) {
        self.ending = true;
    }

    pub fn is_led_to_end(&self) -> bool {
        self.ending
    }

    fn timed<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let began = Instant::now();
        let done = work(self);
        let took = began.elapsed();
        self.stats.nanos += took.as_nanos() as u64;
        self.slow = took > limits::INLINE_MATCH;
        done
    }

    fn check_draws(&mut self, drawn: &[u32], room: usize) -> Result<DrawOutcome, GrammarSessionError> {
        let mut outcome = DrawOutcome::default();
        let mut overruled = false;
        for &id in drawn {
            self.stats.checked += 1;
            let accepted = match self.pending_forced.front() {
                Some(&forced) => forced == id && self.accept(id)?,
                None => self.accept(id)?,
            };
            if !accepted {
                // A draw in place of forced tokens is not counted as refused: whether it arrived depends on timing.
                if self.pending_forced.is_empty() {
                    self.refuse(id);
                    if self.stop_ids.contains(&id) && self.stop_begins_call()? {
                        self.pending_forced.extend(&self.call_opening);
                    } else {
                        let forced = self.replacing(id)?;
                        self.pending_forced.extend(forced);
                    }
                }
                self.consecutive_refusals += 1;
                if self.consecutive_refusals >= limits::REFUSALS_IN_A_ROW {
                    return Err(MatcherError::NoProgress(self.consecutive_refusals).into());
                }
                overruled = true;
                break;
            }
            outcome.accepted += 1;
            self.position += 1;
            if let Some(decisions) = &mut self.decisions {
                decisions.drawn(id);
            }
            self.consecutive_refusals = 0;
            self.hold.accepted();
            if self.pending_forced.pop_front().is_none() || self.pending_forced.is_empty() {
                self.look_ahead()?;
            }
            if self.is_stopped() {
                outcome.ended = true;
                return Ok(outcome);
            }
        }
        self.append_and_steer(outcome, overruled, room)
    }

    /// Appends forced tokens, and decides how to steer the engine.
    fn append_and_steer(
        &mut self,
        mut outcome: DrawOutcome,
        overruled: bool,
        room: usize,
    ) -> Result<DrawOutcome, GrammarSessionError> {
        let keep = self.position;
        if overruled || self.pending_forced.len() >= limits::FORCED_TOKENS {
            let room = room.saturating_sub(outcome.accepted);
            while outcome.forced.len() < room
                && let Some(id) = self.pending_forced.pop_front()
            {
                // The matcher itself forced this token: refusing it is a defect, which ends this request alone.
                if !self.accept(id)? {
                    return Err(MatcherError::Internal(format!("token {id} was forced and then refused")).into());
                }
                outcome.forced.push(id);
                self.position += 1;
                if let Some(decisions) = &mut self.decisions {
                    decisions.forced(id);
                }
                self.consecutive_refusals = 0;
                self.hold.accepted();
                if self.pending_forced.is_empty() {
                    self.look_ahead()?;
                }
            }
            self.stats.forced += outcome.forced.len() as u64;
            outcome.ended = !outcome.forced.is_empty() && self.is_stopped();
        }
        let hold = self.always_mask || self.ending || self.hold.is_active();
        if outcome.ended || !(overruled || hold || self.engine_waits || !outcome.forced.is_empty()) {
            return Ok(outcome);
        }
        self.engine_waits = hold;
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

    /// Accepts the token if the restrictions and the grammar allow it.
    fn accept(&mut self, id: u32) -> Result<bool, GrammarSessionError> {
        if self.restrictions.refuses(&self.recent, id) {
            return Ok(false);
        }
        let accepted = self.within_limits(|matcher| matcher.accept(id))?.unwrap_or(true);
        if accepted && (self.loosened.is_some() || !matches!(self.canonical, Replacement::Same)) {
            self.output.push(id);
        }
        if accepted && self.restrictions.lookback() > 0 {
            self.recent.push(id);
            let surplus = self.recent.len().saturating_sub(self.restrictions.lookback());
            self.recent.drain(..surplus);
        }
        Ok(accepted)
    }

    /// Asks the matcher. If it meets a limit, the rest of the output is matched without the constraints of strings and
    /// numbers. None: there is no matcher.
    fn within_limits<T>(
        &mut self,
        ask: impl Fn(&mut Matcher) -> Result<T, MatcherError>,
    ) -> Result<Option<T>, GrammarSessionError> {
        match self.matcher.as_mut().map(&ask).transpose() {
            Err(MatcherError::Limit(limit)) if self.loosen() => {
                tracing::warn!(%limit, "the grammar met a limit; it goes on without constraints of strings and numbers");
                self.relaxed = limit;
                Ok(self.matcher.as_mut().map(ask).transpose()?)
            }
            asked => Ok(asked?),
        }
    }

    /// The limit that the grammar has met. Empty: none.
    pub fn relaxed(&self) -> &str {
        &self.relaxed
    }

    fn loosen(&mut self) -> bool {
        let Some(mut matcher) = self.loosened.take().and_then(|compiled| compiled.loosened()) else { return false };
        let follows = self.output.iter().all(|id| matcher.accept(*id).is_ok_and(|accepted| accepted));
        if follows {
            self.matcher = Some(matcher);
            self.canonical = Replacement::Same;
        }
        follows
    }

    fn is_stopped(&self) -> bool {
        self.matcher.as_ref().is_some_and(Matcher::is_stopped)
    }

    /// Whether these tokens may follow.
    fn can_follow(&self, ids: &[u32]) -> Result<bool, GrammarSessionError> {
        let (mut matcher, mut recent) = (self.matcher.clone(), self.recent.clone());
        for &id in ids {
            let accepted = match matcher.as_mut().map_or(Ok(true), |matcher| matcher.accept(id)) {
                // What it may cost to go on shows when it does.
                Err(MatcherError::Limit(_)) => return Ok(false),
                accepted => accepted?,
            };
            if !accepted || self.restrictions.refuses(&recent, id) {
                return Ok(false);
            }
            recent.push(id);
        }
        Ok(true)
    }

    /// Whether a stop token begins a call here: the model wants to end its output, but must call a tool first.
    fn stop_begins_call(&self) -> Result<bool, GrammarSessionError> {
        Ok(!self.call_opening.is_empty() && self.pending_forced.is_empty() && self.can_follow(&self.call_opening)?)
    }

    /// The canonical form at the current position.
    fn canonical(&mut self) -> Option<&mut Canonical> {
        if let Replacement::Source(compiled) = &self.canonical {
            self.canonical = match compiled.canonical() {
                Some(canonical) => Replacement::Form(Box::new(canonical)),
                None => Replacement::Same,
            };
        }
        let Replacement::Form(canonical) = &mut self.canonical else { return None };
        canonical.follow(&self.output);
        Some(canonical)
    }

    /// Tokens that follow in place of a refused draw: the punctuation with which it begins, or what comes next in the
    /// canonical form, if there is one way only.
    fn replacing(&mut self, refused: u32) -> Result<Vec<u32>, GrammarSessionError> {
        if !self.restrictions.is_empty() || matches!(self.canonical, Replacement::Same) {
            return Ok(Vec::new());
        }
        let kept = match self.matcher.as_ref().map_or(Ok(Vec::new()), |matcher| matcher.kept(refused)) {
            Err(MatcherError::Limit(_)) => Vec::new(),
            kept => kept?,
        };
        if !kept.is_empty() {
            return Ok(kept);
        }
        let forced = self.canonical().map(Canonical::forced).unwrap_or_default();
        Ok(if self.can_follow(&forced)? { forced } else { Vec::new() })
    }

    /// The tokens that may be drawn where a draw was refused or may be: of the canonical form, if the output can be
    /// followed in it. Stop tokens are included where they begin a call, as in draws without a mask.
    fn mask(&mut self) -> Result<Bytes, GrammarSessionError> {
        let mut mask = self.within_limits(Matcher::mask)?.unwrap_or_else(|| full_mask(self.vocab));
        self.restrictions.apply(&self.recent, &mut mask);
        if let Some(canonical) = self.canonical().and_then(Canonical::mask) {
            let both: Vec<u8> = mask.iter().zip(canonical).map(|(a, b)| a & b).collect();
            if both.iter().any(|&byte| byte != 0) {
                mask = both;
            }
        }
        if let Some(matcher) = self.matcher.as_ref().filter(|_| self.ending) {
            matcher.lead_to_end(self.output.last().copied(), &mut mask);
        }
        self.stats.masks += 1;
        if !self.restrictions.is_empty() && mask.iter().all(|&byte| byte == 0) {
            return Err(GrammarSessionError::NothingLeft);
        }
        // `stop_begins_call` copies the matcher. Nearly everywhere the mask excludes a call's first token already.
        let allowed = |id: u32| mask.get(id as usize / 8).is_some_and(|byte| byte >> (id % 8) & 1 == 1);
        if self.call_opening.first().is_some_and(|&id| allowed(id)) && self.stop_begins_call()? {
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
        if self.refusals.len() < limits::MAX_REPORTED_REFUSALS {
            self.refusals.push(refusal);
        }
    }

    /// Looks for forced tokens. A run that is worth a rewind is forced even if the engine has already drawn beyond it.
    fn look_ahead(&mut self) -> Result<(), GrammarSessionError> {
        // With restrictions, a forced token could be one that they refuse.
        if self.pending_forced.is_empty()
            && self.restrictions.is_empty()
            && let Some(matcher) = self.matcher.as_mut().filter(|matcher| !matcher.is_stopped())
        {
            let forced = matcher.forced();
            if forced.len() >= limits::FORCED_TOKENS {
                self.pending_forced.extend(forced);
            }
        }
        Ok(())
    }
}

/// Where the tokens come from that replace refused draws.
enum Replacement {
    /// The matcher.
    Same,
    /// The canonical form of this grammar, which no draw has needed so far.
    Source(Compiled),
    Form(Box<Canonical>),
}

/// A mask that allows every id.
fn full_mask(vocab: usize) -> Vec<u8> {
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
        // The client's grammar exceeds a limit or contradicts itself.
        let code = match error {
            Limit(_) => "grammar_limit_exceeded",
            DeadEnd => "grammar_dead_end",
            Internal(_) | NoProgress(_) => {
                let failed = Error::internal("the grammar of this request failed", error);
                return Error { code: Some("grammar_failed"), ..failed };
            }
        };
        Error { code: Some(code), ..Error::new(ErrorKind::Invalid, error.to_string()) }
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
