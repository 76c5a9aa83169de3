//! The course of one sequence over an engine that knows no Steer: which requests are opened and closed, and what the
//! router is told. It is pure: no clock, no I/O. It does not know how requests are written or sent.
//!
//! A Steer closes the open request and opens another one with the prompt and all kept and appended tokens. A mask is
//! one request for one token; the tokens after it are a request without a mask. Each drawn token is checked against the
//! mask, whatever the engine did. A refused one is excluded and the position is drawn again: drawing without
//! replacement until an allowed token appears gives each allowed token `t` the probability `p(t)/Z`.

use std::collections::{BTreeMap, HashSet, VecDeque};

use rein_proto::checks::{self, InvalidStart, StartBounds};
use rein_proto::internal::{
    Admitted, Finish, FinishReason, FromEngine, Limits, Sampling, Start, Steer, Tokens, from_engine,
};

use crate::draw::{DrawEnd, DrawReason, DrawRequest, DrawnId, EngineTraits};
use crate::limits;
use crate::mask::AllowedTokens;
use crate::seed;

/// What the engine's model allows.
#[derive(Debug, Clone)]
pub struct CourseShape {
    pub vocab_size: usize,
    /// Prompt and generated tokens together.
    pub context: usize,
    pub traits: EngineTraits,
}

/// What to do next, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum CourseAction {
    Open(DrawRequest),
    /// The request with this number is over: what it still sends is ignored. If it is complete, the engine ends it by
    /// itself; else the engine must be told.
    Close {
        number: u64,
        complete: bool,
    },
    Send(FromEngine),
}

/// What happened so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CourseStats {
    pub steers: u64,
    /// Drawn tokens that a Steer did not keep.
    pub rewound: u64,
    /// Draws that were repeated because the token was not allowed.
    pub redraws: u64,
    /// Tokens that were appended because the mask allowed no other.
    pub undrawn: u64,
    pub generated: u64,
}

/// The request that is open now.
#[derive(Debug)]
struct OpenDraw {
    number: u64,
    most: u32,
    received: u32,
    /// It has all its tokens, or has ended.
    complete: bool,
    /// The engine was told that no other id may be drawn.
    narrowed: bool,
    /// Ids that the engine was told not to draw.
    excluded: HashSet<u32>,
    /// Ids that bear a presence penalty as bias: the engine would count them again.
    recounted: HashSet<u32>,
}

pub struct Course {
    shape: CourseShape,
    prompt: Vec<u32>,
    generated: Vec<u32>,
    /// Tokens that another engine has generated.
    resumed: usize,
    sampling: Sampling,
    limits: Limits,
    logprobs: i32,
    cache_salt: String,
    proposes: bool,
    epoch: u64,
    /// For the next draw.
    mask: Option<AllowedTokens>,
    /// Ids that were drawn at this position and are not allowed.
    refused: Vec<u32>,
    /// Positions from here on are not drawn before the next Steer.
    barrier: Option<usize>,
    /// A finish was proposed; only a Steer resumes the sequence.
    proposed: bool,
    ended: bool,
    admitted: bool,
    open: Option<OpenDraw>,
    /// Requests so far.
    requests: u64,
    /// How often this position was drawn before.
    draws: u32,
    /// The position of the last Steer with a mask.
    masked_at: Option<usize>,
    ignored: u32,
    empty: u32,
    actions: VecDeque<CourseAction>,
    stats: CourseStats,
}

/// Checks a Start before it reaches an engine.
pub fn check(start: &Start, shape: &CourseShape) -> Result<(), InvalidStart> {
    let bounds = StartBounds {
        vocab_size: shape.vocab_size,
        context: shape.context,
        embeds: false,
        scripted: false,
        most_logit_bias: limits::MAX_LOGIT_BIAS,
        most_stop_tokens: limits::MAX_STOP_TOKENS,
        most_request_id_bytes: limits::MAX_REQUEST_ID_BYTES,
        most_cache_salt_bytes: limits::MAX_CACHE_SALT_BYTES,
        most_logprobs: limits::MAX_LOGPROBS,
    };
    checks::start(start, &bounds)?;
    checks::require("prompt_logprobs", start.prompt_logprobs < 0, || {
        format!("must be -1: an engine behind an adapter does not report them, got {}", start.prompt_logprobs)
    })?;
    let sampling = start.sampling.clone().unwrap_or_default();
    let most = limits::MAX_TEMPERATURE;
    checks::require("sampling.temperature", sampling.temperature <= most, || {
        format!("must be from 0 to {most}, got {}", sampling.temperature)
    })?;
    let penalized = sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0;
    let distinct = if penalized { start.resume.iter().collect::<HashSet<_>>().len() } else { 0 };
    checks::require("sampling.presence_penalty", distinct + sampling.logit_bias.len() <= limits::MAX_LOGIT_BIAS, || {
        format!(
            "and frequency_penalty are sent as logit_bias for tokens that are resumed, at most {} with those of \
             logit_bias, got {}",
            limits::MAX_LOGIT_BIAS,
            distinct + sampling.logit_bias.len()
        )
    })
}

impl Course {
    /// The Start has been checked.
    pub fn new(start: Start, shape: CourseShape) -> Self {
        let resumed = start.resume.len();
        let mut course = Course {
            shape,
            prompt: start.prompt,
            generated: start.resume,
            resumed,
            sampling: start.sampling.unwrap_or_default(),
            limits: start.limits.unwrap_or_default(),
            logprobs: start.logprobs,
            cache_salt: start.cache_salt,
            proposes: start.finish_is_proposal,
            epoch: 0,
            mask: None,
            refused: Vec::new(),
            barrier: start.hold.then_some(resumed),
            proposed: false,
            ended: false,
            admitted: false,
            open: None,
            requests: 0,
            draws: 0,
            masked_at: None,
            ignored: 0,
            empty: 0,
            actions: VecDeque::new(),
            stats: CourseStats::default(),
        };
        let full = course.generated.len() >= course.limits.max_tokens as usize;
        if full || (course.room() == 0 && !start.hold) {
            course.finish(FinishReason::Length, String::new());
        } else if start.hold {
            // Nothing is sent to the engine before the first Steer, which needs this message.
            course.admit(0);
        } else {
            course.advance();
        }
        course
    }

    /// The next action. None: nothing to do before an event.
    pub fn next_action(&mut self) -> Option<CourseAction> {
        self.actions.pop_front()
    }

    /// The last message has been given out, or will be.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    pub fn stats(&self) -> CourseStats {
        self.stats
    }

    /// Positions that the context and `max_tokens` leave.
    fn room(&self) -> usize {
        let context = self.shape.context.saturating_sub(self.prompt.len() + self.generated.len());
        context.min((self.limits.max_tokens as usize).saturating_sub(self.generated.len()))
    }

    fn is_stop(&self, id: u32) -> bool {
        !self.limits.ignore_eos && self.limits.stop_token_ids.contains(&id)
    }

    /// Stop tokens that may not be drawn yet.
    fn banned(&self) -> &[u32] {
        let early = self.generated.len() < self.limits.min_tokens as usize && !self.limits.ignore_eos;
        if early { &self.limits.stop_token_ids } else { &[] }
    }

    /// The router corrects the sequence.
    pub fn steer(&mut self, steer: Steer) {
        if self.ended {
            return;
        }
        if let Err(error) = checks::steer(&steer, self.epoch, self.generated.len(), self.shape.vocab_size) {
            return self.finish(FinishReason::Error, error.to_string());
        }
        self.close();
        self.stats.steers += 1;
        self.epoch = steer.epoch;
        self.proposed = false;
        let keep = steer.keep as usize;
        let dropped = self.generated.get(keep).copied();
        self.stats.rewound += (self.generated.len() - keep) as u64;
        self.generated.truncate(keep);
        let room = self.room();
        self.generated.extend(steer.append.iter().take(room));
        self.mask = steer.mask.map(|mask| AllowedTokens::new(&mask, self.shape.vocab_size));
        self.barrier = steer.hold.then(|| self.generated.len() + 1);
        self.refused.clear();
        if let (Some(id), Some(mask), true) = (dropped, &self.mask, steer.append.is_empty())
            && !mask.contains(id)
        {
            self.refused.push(id);
        }
        // A position that is masked again must not draw the same token again.
        let masked_at = self.mask.as_ref().map(|_| self.generated.len());
        let again = masked_at.is_some() && masked_at == self.masked_at;
        (self.draws, self.masked_at) = (if again { self.draws + 1 } else { 0 }, masked_at);
        if steer.stop {
            return self.finish(FinishReason::Steered, String::new());
        }
        self.advance();
    }

    /// The router broke the protocol.
    pub fn fail(&mut self, error: String) {
        if !self.ended {
            self.finish(FinishReason::Error, error);
        }
    }

    /// The engine is lost, whatever its open request says.
    pub fn lost(&mut self, why: String) {
        if !self.ended {
            self.finish(FinishReason::Lost, why);
        }
    }

    /// The engine has computed the prompt.
    pub fn admit(&mut self, cached_tokens: u32) {
        if !self.ended && !std::mem::replace(&mut self.admitted, true) {
            let prompt_tokens = self.prompt.len() as u32;
            let cached_tokens = cached_tokens.min(prompt_tokens);
            self.send(from_engine::Kind::Admitted(Admitted { prompt_tokens, cached_tokens, ..Admitted::default() }));
        }
    }

    /// A request has drawn these tokens. Those of a request that is closed are dropped.
    pub fn drawn(&mut self, number: u64, drawn: Vec<DrawnId>) {
        if self.open.as_ref().is_some_and(|open| open.number == number) {
            self.admit(0);
        }
        let position = self.generated.len();
        let mut accepted: Vec<DrawnId> = Vec::new();
        for drawn in drawn {
            let Some(open) = self.open.as_mut().filter(|open| open.number == number) else { break };
            let id = drawn.id;
            if id as usize >= self.shape.vocab_size {
                self.emit(position, accepted);
                let size = self.shape.vocab_size;
                return self
                    .finish(FinishReason::Error, format!("the engine drew token {id}; the vocabulary has {size}"));
            }
            open.received += 1;
            let recounts = open.recounted.contains(&id);
            open.complete = open.received == open.most;
            let complete = open.complete;
            if !self.allows(id) {
                self.emit(position, accepted);
                return self.draw_again(id);
            }
            self.generated.push(id);
            accepted.push(drawn);
            (self.mask, self.draws, self.ignored, self.empty) = (None, 0, 0, 0);
            self.refused.clear();
            if self.is_stop(id) {
                if let Some(open) = &mut self.open {
                    open.complete = true;
                }
                self.emit(position, accepted);
                return self.finish(FinishReason::Stop, String::new());
            }
            if complete || recounts {
                self.emit(position, accepted);
                self.close();
                return self.advance();
            }
        }
        self.emit(position, accepted);
    }

    /// Whether this token may be drawn at the current position.
    fn allows(&self, id: u32) -> bool {
        match &self.mask {
            Some(mask) => mask.clone().without(self.banned()).contains(id),
            None => !self.banned().contains(&id),
        }
    }

    /// A token that is not allowed was drawn: it is excluded, and the position drawn again.
    fn draw_again(&mut self, id: u32) {
        let position = self.generated.len();
        let told = self.open.as_ref().is_some_and(|open| open.narrowed || open.excluded.contains(&id));
        self.close();
        self.stats.redraws += 1;
        self.draws += 1;
        self.ignored = if told { self.ignored + 1 } else { 0 };
        if !self.refused.contains(&id) {
            self.refused.push(id);
        }
        if self.ignored >= limits::IGNORED_MASKS {
            let times = self.ignored;
            let error = format!(
                "the engine ignored the mask of position {position} {times} times in a row: it drew token {id}, which \
                 the request excludes"
            );
            return self.finish(FinishReason::Error, error);
        }
        if self.draws >= limits::WIDE_DRAWS {
            let draws = self.draws;
            let error = format!("none of {draws} tokens drawn at position {position} is one that its mask allows");
            return self.finish(FinishReason::Error, error);
        }
        self.advance();
    }

    /// A request has ended. The end of a request that is closed means nothing.
    pub fn drawing_ended(&mut self, number: u64, end: DrawEnd) {
        let Some(open) = self.open.as_mut().filter(|open| open.number == number) else { return };
        open.complete = true;
        let empty = open.received == 0;
        match end {
            DrawEnd::Lost(why) => return self.finish(FinishReason::Lost, why),
            DrawEnd::Failed(why) => return self.finish(FinishReason::Error, why),
            // Some engines do not report the stop token among the ids.
            DrawEnd::Stop(Some(id)) if self.is_stop(id) => {
                self.drawn(number, vec![DrawnId { id, logprob: None }]);
            }
            DrawEnd::Stop(_) | DrawEnd::Length => {}
        }
        if self.open.as_ref().is_none_or(|open| open.number != number) {
            return;
        }
        self.close();
        self.empty = if empty { self.empty + 1 } else { 0 };
        if self.empty >= limits::EMPTY_REQUESTS {
            let times = self.empty;
            let error = format!("the engine ended {times} requests in a row without a token");
            return self.finish(FinishReason::Error, error);
        }
        self.draws += 1;
        self.advance();
    }

    /// Opens the next request, unless the sequence waits or has ended.
    fn advance(&mut self) {
        while !self.ended && !self.proposed && self.open.is_none() {
            if self.room() == 0 {
                return self.finish(FinishReason::Length, String::new());
            }
            let position = self.generated.len();
            if self.barrier.is_some_and(|barrier| position >= barrier) {
                return;
            }
            let mask = self.mask.clone().map(|mask| mask.without(self.banned()));
            let (Some(only), true) =
                (mask.as_ref().and_then(|mask| mask.ids().next()), width(mask.as_ref()) == Some(1))
            else {
                return self.open(mask);
            };
            self.admit(0);
            self.generated.push(only);
            self.stats.undrawn += 1;
            self.mask = None;
            self.refused.clear();
            self.emit(position, vec![DrawnId { id: only, logprob: None }]);
            if self.is_stop(only) {
                return self.finish(FinishReason::Stop, String::new());
            }
        }
    }

    /// Opens a request for the next tokens, with this mask for the first one.
    fn open(&mut self, mask: Option<AllowedTokens>) {
        let (position, traits) = (self.generated.len(), self.shape.traits.clone());
        let width = width(mask.as_ref());
        if width == Some(0) {
            let error = format!("no token can be drawn at position {position}: the mask allows none");
            return self.finish(FinishReason::Error, error);
        }
        let mut bias: BTreeMap<u32, f32> =
            self.sampling.logit_bias.iter().map(|bias| (bias.token, bias.bias)).collect();
        let penalties = self.penalties();
        let (presence, frequency) = (self.sampling.presence_penalty, self.sampling.frequency_penalty);
        for (id, penalty) in &penalties {
            *bias.entry(*id).or_default() -= penalty;
        }
        let used = bias.len();
        let (mut allow, mut exclude) = (Vec::new(), self.refused.clone());
        let can_allow = !traits.allow_is_penalized || self.sampling.repetition_penalty == 1.0;
        match &mask {
            None => exclude.extend(self.banned()),
            Some(mask) if can_allow && mask.count() <= traits.allow_limit => allow.extend(mask.ids()),
            Some(mask) => {
                let most = if self.draws == 0 { traits.exclude_first } else { traits.bias_limit };
                if mask.vocab_size() - mask.count() <= most.saturating_sub(used) {
                    exclude = mask.excluded().collect();
                }
            }
        }
        exclude.sort_unstable();
        exclude.dedup();
        if used + exclude.len() > traits.bias_limit {
            let (limit, count) = (traits.bias_limit, used + exclude.len());
            let error = format!(
                "the engine changes at most {limit} logits in one request; logit_bias, penalties of generated tokens \
                 and excluded tokens need {count}"
            );
            return self.finish(FinishReason::Error, error);
        }
        let mut most = self.room();
        if mask.is_some() || self.barrier.is_some() || (!traits.counts_generated && (presence, frequency) != (0.0, 0.0))
        {
            most = 1;
        }
        if let Some(chunk) = traits.chunk {
            most = most.min(chunk as usize);
        }
        if !self.banned().is_empty() {
            most = most.min(self.limits.min_tokens as usize - position);
        }
        let why = match (self.requests, self.barrier, &mask) {
            (0, None, None) if self.resumed == 0 => DrawReason::Start,
            (0, None, None) => DrawReason::Resume,
            (_, Some(_), _) => DrawReason::Held,
            (_, None, Some(_)) => DrawReason::Masked,
            (_, None, None) => DrawReason::Free,
        };
        self.requests += 1;
        self.open = Some(OpenDraw {
            number: self.requests,
            most: most as u32,
            received: 0,
            complete: false,
            narrowed: !allow.is_empty(),
            excluded: exclude.iter().copied().collect(),
            recounted: if presence == 0.0 { HashSet::new() } else { penalties.keys().copied().collect() },
        });
        let counts = traits.counts_generated;
        let request = DrawRequest {
            number: self.requests,
            why,
            prompt: [self.prompt.as_slice(), self.generated.as_slice()].concat(),
            max_tokens: most as u32,
            sampling: Sampling {
                presence_penalty: if counts { presence } else { 0.0 },
                frequency_penalty: if counts { frequency } else { 0.0 },
                logit_bias: Vec::new(),
                seed: 0,
                ..self.sampling.clone()
            },
            seed: seed::derive(self.sampling.seed, position, mask.is_some(), self.draws, traits.seed_bits),
            allow,
            exclude,
            bias: bias.into_iter().collect(),
            stop_token_ids: if self.limits.ignore_eos { Vec::new() } else { self.limits.stop_token_ids.clone() },
            logprobs: self.logprobs,
            cache_salt: self.cache_salt.clone(),
            width,
        };
        self.actions.push_back(CourseAction::Open(request));
    }

    /// What presence and frequency penalties take from the logits of generated tokens: to the engine they are prompt.
    fn penalties(&self) -> BTreeMap<u32, f32> {
        let (presence, frequency) = (self.sampling.presence_penalty, self.sampling.frequency_penalty);
        let mut penalties = BTreeMap::new();
        if presence != 0.0 || frequency != 0.0 {
            for &id in &self.generated {
                *penalties.entry(id).or_insert(presence) += frequency;
            }
        }
        penalties
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            self.actions.push_back(CourseAction::Close { number: open.number, complete: open.complete });
        }
    }

    fn emit(&mut self, position: usize, drawn: Vec<DrawnId>) {
        if drawn.is_empty() {
            return;
        }
        self.stats.generated += drawn.len() as u64;
        let ids = drawn.iter().map(|drawn| drawn.id).collect();
        let logprobs: Option<Vec<_>> = drawn.into_iter().map(|drawn| drawn.logprob).collect();
        let logprobs = logprobs.filter(|_| self.logprobs >= 0).unwrap_or_default();
        self.send(from_engine::Kind::Tokens(Tokens { epoch: self.epoch, position: position as u32, ids, logprobs }));
    }

    fn finish(&mut self, reason: FinishReason, error: String) {
        self.close();
        let last = !(self.proposes && matches!(reason, FinishReason::Stop | FinishReason::Length));
        (self.proposed, self.ended) = (!last, last);
        let generated = self.generated.len() as u32;
        self.send(from_engine::Kind::Finish(Finish { epoch: self.epoch, reason: reason.into(), generated, error }));
    }

    fn send(&mut self, kind: from_engine::Kind) {
        self.actions.push_back(CourseAction::Send(FromEngine { kind: Some(kind) }));
    }
}

fn width(mask: Option<&AllowedTokens>) -> Option<usize> {
    mask.map(AllowedTokens::count)
}

#[cfg(test)]
mod tests;
