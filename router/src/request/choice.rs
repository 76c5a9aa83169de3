//! One choice of one request: the engine stream that feeds it, and the guide that says what stands.

use std::sync::Arc;

use rein_proto::{
    internal::{self, FinishReason as EngineFinish},
    v1,
};
use tokio::time::Instant;

use crate::{
    admission::keys::ApiCaller,
    error::Error,
    fleet::engine_stream::{DrawnToken, EngineOutput, EngineStream},
    request::{
        grammar_session::{DrawOutcome, GrammarSession, GrammarSessionError, Refusal, TokenDecision, TokenOrigin},
        metrics::RequestMetrics,
        transcript::{Flow, Outcome, Transcript},
    },
};

/// A grammar's guide, and how many tokens there may be in all.
pub struct SteeredOutput {
    pub session: GrammarSession,
    pub max_tokens: u32,
    pub thinking: Option<ThinkingBudget>,
}

/// Most tokens of reasoning, and what ends it.
#[derive(Debug, Clone)]
pub struct ThinkingBudget {
    pub tokens: u32,
    /// The token that opens it, where one does.
    pub open: Option<u32>,
    pub close: Vec<u32>,
}

impl SteeredOutput {
    /// Judges drawn tokens; none: before the first. At most `room` more fit.
    fn judge(&mut self, drawn: Option<&[u32]>, room: usize) -> Result<DrawOutcome, GrammarSessionError> {
        match drawn {
            Some(drawn) => self.session.take(drawn, room),
            None => self.session.begin(room),
        }
    }
}

/// A transcript and the engine stream that feeds it. Dropping it frees the slot.
pub struct Choice {
    transcript: Transcript,
    steered: Option<SteeredOutput>,
    /// The guide is at work on another thread.
    away: bool,
    /// None: ended.
    engine: Option<EngineStream>,
    metrics: Arc<RequestMetrics>,
    caller: Option<ApiCaller>,
    began: Instant,
    last_token: Option<Instant>,
}

impl Choice {
    pub fn new(
        transcript: Transcript,
        engine: EngineStream,
        steered: Option<SteeredOutput>,
        metrics: Arc<RequestMetrics>,
        caller: Option<ApiCaller>,
        began: Instant,
    ) -> Self {
        let (engine, away) = (Some(engine), false);
        Choice { transcript, steered, away, engine, metrics, caller, began, last_token: None }
    }

    /// Steers to what the grammar forces before the first drawn token. That may be the whole output, which ends the
    /// choice: what the engine tells of the prompt is read before.
    pub async fn begin(&mut self) -> Result<(), Error> {
        if self.steered.is_some() {
            let outcome = self.judge(None).await?;
            self.follow(Vec::new(), outcome).await?;
            self.end_reasoning(None).await?;
        }
        Ok(())
    }

    pub fn transcript(&mut self) -> &mut Transcript {
        &mut self.transcript
    }

    pub fn engine(&self) -> Option<&EngineStream> {
        self.engine.as_ref()
    }

    /// Waits until the engine has computed the prompt. Must be called before [`Self::begin`], if at all.
    pub async fn admitted(&mut self) -> Result<internal::Admitted, Error> {
        let missing = || Error::internal("the engine ended this request", "no Admitted before tokens or finish");
        match self.engine.as_mut().ok_or_else(missing)?.next_output().await? {
            EngineOutput::Admitted(admitted) => {
                self.admit(&admitted);
                Ok(admitted)
            }
            EngineOutput::Finish(finish) if finish.reason() == EngineFinish::Error => Err(failed(finish)),
            EngineOutput::Tokens(_) | EngineOutput::Finish(_) => Err(missing()),
        }
    }

    /// Ends the choice before any token, as if its length were reached.
    pub fn end_at_once(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.stop(0);
            self.transcript.finish(true);
        }
    }

    /// The next event; after `Done` or an error, None. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<v1::ChatEvent, Error>> {
        loop {
            if let Some(event) = self.transcript.next_event() {
                return Some(Ok(event));
            }
            let heard = self.engine.as_mut()?.next_output().await;
            if let Err(error) = self.take_in(heard).await {
                self.engine = None;
                return Some(Err(error));
            }
        }
    }

    async fn take_in(&mut self, heard: Result<EngineOutput, Error>) -> Result<(), Error> {
        match heard? {
            EngineOutput::Admitted(admitted) => self.admit(&admitted),
            // Whether reasoning ends is decided after each token, however many come at once.
            EngineOutput::Tokens(drawn) if self.steered.as_ref().is_some_and(|steered| steered.thinking.is_some()) => {
                for drawn in drawn {
                    let id = drawn.id;
                    let steered = self.take(vec![drawn]).await?;
                    if self.end_reasoning(Some(id)).await? || steered || self.engine.is_none() {
                        break;
                    }
                }
            }
            EngineOutput::Tokens(drawn) => {
                self.take(drawn).await?;
            }
            EngineOutput::Finish(finish) => {
                self.engine = None;
                match finish.reason() {
                    EngineFinish::Stop | EngineFinish::Steered => self.end(false),
                    EngineFinish::Length => self.end(true),
                    EngineFinish::Error | EngineFinish::Lost | EngineFinish::Unspecified => return Err(failed(finish)),
                }
            }
        }
        Ok(())
    }

    /// Judges drawn tokens. Whether the engine was steered: it has drawn nothing after them that counts.
    async fn take(&mut self, drawn: Vec<DrawnToken>) -> Result<bool, Error> {
        let ids = drawn.iter().map(|drawn| drawn.id).collect();
        let outcome = self.judge(Some(ids)).await?;
        let steered = outcome.steering.is_some();
        self.follow(drawn, outcome).await?;
        Ok(steered)
    }

    /// What stands of drawn tokens; none: before the first. A guide that was slow works off the async threads.
    async fn judge(&mut self, drawn: Option<Vec<u32>>) -> Result<DrawOutcome, Error> {
        if self.away {
            return Err(Error::internal("the grammar of this request failed", "its guide was lost"));
        }
        let room = self.room();
        let Some(mut steered) = self.steered.take() else {
            let stand = drawn.map_or(0, |drawn| drawn.len());
            return Ok(DrawOutcome { stand, ..DrawOutcome::default() });
        };
        let judged = if steered.session.is_slow() {
            self.away = true;
            let work = move || {
                let judged = steered.judge(drawn.as_deref(), room);
                (steered, judged)
            };
            let (steered, judged) = self.transcript.model.clone().match_slowly(work).await?;
            self.away = false;
            self.steered = Some(steered);
            judged
        } else {
            let judged = steered.judge(drawn.as_deref(), room);
            self.steered = Some(steered);
            judged
        };
        judged.map_err(Error::from_session)
    }

    /// How many more tokens there may be.
    fn room(&self) -> usize {
        let most = self.steered.as_ref().map_or(0, |steered| steered.max_tokens);
        most.saturating_sub(self.transcript.completion_tokens) as usize
    }

    /// Ends reasoning whose budget is spent; `last` is the latest token. Whether it did: where it cannot be ended, the
    /// next token is waited for.
    async fn end_reasoning(&mut self, last: Option<u32>) -> Result<bool, Error> {
        let room = self.room();
        let Some(SteeredOutput { session, thinking: Some(ThinkingBudget { tokens, open, close }), .. }) =
            &mut self.steered
        else {
            return Ok(false);
        };
        // Reasoning begins with its first token; where there may be none, it ends with the marker that opens it.
        let opened = *tokens == 0 && last.is_some() && last == *open;
        if self.engine.is_none() || !(opened || self.transcript.has_reasoned(*tokens)) {
            return Ok(false);
        }
        match session.force(close, room) {
            Ok(None) => Ok(false),
            Ok(Some(outcome)) => self.follow(Vec::new(), outcome).await.map(|()| true),
            Err(error) => Err(Error::from_session(error)),
        }
    }

    /// Tells what stands of the drawn tokens and what was forced after them, and steers.
    async fn follow(&mut self, mut drawn: Vec<DrawnToken>, outcome: DrawOutcome) -> Result<(), Error> {
        let DrawOutcome { stand, forced, steering, ended } = outcome;
        drawn.truncate(stand);
        drawn.extend(forced.into_iter().map(|id| DrawnToken { id, logprob: None }));
        if !drawn.is_empty() {
            self.clock(drawn.len());
        }
        self.report_grammar();
        for drawn in drawn {
            if self.transcript.push(drawn) == Flow::Ended {
                self.release();
                return Ok(());
            }
        }
        if ended {
            self.end(false);
            self.release();
        } else if let (Some(steering), Some(engine)) = (steering, &mut self.engine) {
            engine.steer(steering).await?;
        }
        Ok(())
    }

    /// Frees the engine's slot: nothing more is wanted.
    fn release(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.stop(self.transcript.completion_tokens as usize);
        }
    }

    fn end(&mut self, length: bool) {
        self.report_grammar();
        self.transcript.finish(length);
    }

    /// For whoever asked: `Done` tells it.
    fn report_grammar(&mut self) {
        let Some(SteeredOutput { session, .. }) =
            self.steered.as_mut().filter(|_| self.transcript.opening.report.grammar)
        else {
            return;
        };
        let stats = session.stats();
        let model = &self.transcript.model;
        let refusal = |refusal: &Refusal| v1::Refusal {
            position: refusal.position,
            id: refusal.id,
            token: model.token_bytes(refusal.id),
        };
        let decision = |TokenDecision { id, origin, refused }| {
            let kind = match origin {
                TokenOrigin::Drawn => v1::DecisionKind::Drawn,
                TokenOrigin::Masked => v1::DecisionKind::Masked,
                TokenOrigin::Forced => v1::DecisionKind::Forced,
            };
            let refused = refused.iter().map(refusal).collect();
            v1::Decision { id, token: model.token_bytes(id), kind: kind.into(), refused }
        };
        self.transcript.decisions.extend(session.take_decisions().into_iter().map(decision));
        self.transcript.grammar_report = Some(v1::GrammarReport {
            checked: stats.checked,
            refused: stats.refused,
            forced: stats.forced,
            held: stats.held,
            masks: stats.masks,
            nanos: stats.nanos,
            refusals: session.refusals().iter().map(refusal).collect(),
            decisions: Vec::new(),
        });
    }

    fn admit(&mut self, admitted: &internal::Admitted) {
        self.transcript.cached_tokens = admitted.cached_tokens;
        self.metrics.prompt_tokens.inc_by(admitted.prompt_tokens.into());
        self.metrics.cached_tokens.inc_by(admitted.cached_tokens.into());
    }

    fn clock(&mut self, tokens: usize) {
        let now = Instant::now();
        match self.last_token.replace(now) {
            None => self.metrics.first_token.observe(now - self.began),
            Some(last) => self.metrics.inter_token.observe((now - last) / tokens.max(1) as u32),
        }
        self.metrics.generated_tokens.inc_by(tokens as u64);
        // As they come: a client that leaves has had them.
        if let Some(caller) = &self.caller {
            caller.charge(tokens as u64, now);
        }
    }
}

impl Drop for Choice {
    fn drop(&mut self) {
        if let Some(SteeredOutput { session, .. }) = &self.steered {
            self.metrics.grammar.add(&session.stats());
        }
        let report = &self.transcript.report;
        let invalid = report.outcomes[Outcome::Invalid as usize];
        self.metrics.grammar.invalid_calls.inc_by(invalid);
        let model = &self.transcript.model;
        self.metrics.outcomes.calls(model.name(), model.format.name, report);
        let invalid = u64::from(self.transcript.invalid_response.is_some());
        self.metrics.grammar.invalid_responses.inc_by(invalid);
    }
}

fn failed(finish: internal::Finish) -> Error {
    Error::internal("the engine ended this request with an error", finish.error)
}
