//! One choice of one request: reads its engine stream, checks drawn tokens, steers the engine and feeds the transcript.

use std::sync::Arc;

use futures::FutureExt;
use rein_grammar::MatcherError;
use rein_proto::{
    internal::{self, FinishReason as EngineFinish},
    v1,
};
use tokio::time::Instant;

use super::RequestContext;
use crate::{
    admission::keys::{self, ApiCaller},
    error::Error,
    fleet::{
        engine_stream::{DrawnToken, EngineOutput, EngineStream},
        tool_holds::ToolHolds,
    },
    memory::MemoryCharge,
    request::{
        demand::CountedRequest,
        grammar_session::{DrawOutcome, GrammarSession, GrammarSessionError, Refusal, TokenDecision, TokenOrigin},
        metrics::RequestMetrics,
        transcript::{Flow, Transcript},
    },
};

/// The grammar session of a choice, with its limits on tokens.
pub struct SteeredOutput {
    pub session: GrammarSession,
    pub max_tokens: u32,
    pub thinking: Option<ThinkingBudget>,
    /// The answer is JSON, which is led to its end if it repeats itself, and if it is to be finished in time.
    pub json: bool,
    pub finishes: bool,
    /// The memory that the grammar's state takes beyond that of its start. None: there is no grammar.
    pub growth: Option<MemoryCharge>,
}

/// Maximum number of reasoning tokens, and the markers around reasoning.
#[derive(Debug, Clone)]
pub struct ThinkingBudget {
    pub tokens: u32,
    /// The token that opens reasoning, if the marker is a single token.
    pub open: Option<u32>,
    /// The tokens that close reasoning.
    pub close: Vec<u32>,
}

impl SteeredOutput {
    /// Checks drawn tokens; None before the first draw. At most `room` more tokens fit.
    fn check(&mut self, drawn: Option<&[u32]>, room: usize) -> Result<DrawOutcome, GrammarSessionError> {
        match drawn {
            Some(drawn) => self.session.check(drawn, room),
            None => self.session.begin(room),
        }
    }

    /// Whether its budgets are checked after each token, so that batching does not change the output.
    fn ends_in_time(&self) -> bool {
        self.thinking.is_some() || self.json
    }

    /// Charges the memory that the grammar's state takes by now.
    fn charge(&mut self) -> Result<(), Error> {
        let bytes = self.session.grammar_bytes();
        self.growth.as_mut().map_or(Ok(()), |growth| growth.try_resize(bytes))
    }
}

/// A transcript and the engine stream that feeds it. Dropping it frees the engine slot.
pub struct Choice {
    transcript: Transcript,
    steered: Option<SteeredOutput>,
    /// The session was moved to a blocking thread and has not been returned: the thread still works, or has panicked.
    offloaded: bool,
    /// None: the choice has ended.
    engine: Option<EngineStream>,
    metrics: Arc<RequestMetrics>,
    counted: Option<Arc<CountedRequest>>,
    tool_holds: Arc<ToolHolds>,
    caller: Option<ApiCaller>,
    began: Instant,
    deadline: Instant,
    last_token: Option<Instant>,
}

impl Choice {
    pub fn new(
        transcript: Transcript,
        engine: EngineStream,
        steered: Option<SteeredOutput>,
        context: &RequestContext,
    ) -> Self {
        Choice {
            transcript,
            steered,
            offloaded: false,
            engine: Some(engine),
            metrics: context.metrics.clone(),
            counted: Some(context.counted.clone()),
            tool_holds: context.tool_holds.clone(),
            caller: context.caller.clone(),
            began: context.began,
            deadline: context.deadline,
            last_token: None,
        }
    }

    /// Steers to the tokens that the grammar forces before the first draw. If they are the whole output, the choice
    /// ends here.
    pub async fn begin(&mut self) -> Result<(), Error> {
        if self.steered.is_some() {
            let outcome = self.check(None).await?;
            self.apply(Vec::new(), outcome).await?;
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

    /// Waits until the engine has computed the prompt. Must be called before [`Self::begin`], which may end the choice.
    pub async fn admitted(&mut self) -> Result<internal::Admitted, Error> {
        let missing = || Error::internal("the engine did not report the prompt", "tokens or Finish before Admitted");
        match self.engine.as_mut().ok_or_else(missing)?.next_output().await? {
            EngineOutput::Admitted(admitted) => {
                self.admit(&admitted);
                Ok(admitted)
            }
            EngineOutput::Finish(finish) if finish.reason() == EngineFinish::Error => Err(engine_error(finish)),
            EngineOutput::Tokens(_) | EngineOutput::Finish(_) => Err(missing()),
        }
    }

    /// Ends the choice without tokens, as if it had reached its maximum length.
    pub fn end_without_tokens(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.stop(0);
            self.transcript.finish(true);
        }
    }

    /// The next event; None after `Done` or an error. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<v1::ChatEvent, Error>> {
        loop {
            if let Some(event) = self.transcript.next_event() {
                return Some(Ok(event));
            }
            let output = self.engine.as_mut()?.next_output().await;
            if let Err(error) = self.handle(output).await {
                self.engine = None;
                return Some(Err(error));
            }
        }
    }

    async fn handle(&mut self, output: Result<EngineOutput, Error>) -> Result<(), Error> {
        match output? {
            EngineOutput::Admitted(admitted) => self.admit(&admitted),
            EngineOutput::Tokens(drawn) if self.steered.as_ref().is_some_and(SteeredOutput::ends_in_time) => {
                for drawn in drawn {
                    let id = drawn.id;
                    let steered = self.check_and_apply(vec![drawn]).await?;
                    let ended = self.end_reasoning(Some(id)).await? || self.lead_to_end().await?;
                    if ended || steered || self.engine.is_none() {
                        break;
                    }
                }
            }
            EngineOutput::Tokens(drawn) => {
                self.check_and_apply(drawn).await?;
            }
            EngineOutput::Finish(finish) => {
                let engine = self.engine.take();
                match finish.reason() {
                    EngineFinish::Stop | EngineFinish::Steered => {
                        self.end(false);
                        if let Some(engine) = engine.filter(|_| self.transcript.ends_in_calls()) {
                            engine.stop_for_tools(finish.generated as usize, &self.tool_holds);
                        }
                    }
                    EngineFinish::Length => self.end(true),
                    EngineFinish::Error | EngineFinish::Lost | EngineFinish::Unspecified => {
                        return Err(engine_error(finish));
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks and applies drawn tokens. Returns whether the engine was steered, so that later draws do not count.
    async fn check_and_apply(&mut self, drawn: Vec<DrawnToken>) -> Result<bool, Error> {
        let ids = drawn.iter().map(|drawn| drawn.id).collect();
        let outcome = self.check(Some(ids)).await?;
        let steered = outcome.steering.is_some();
        self.apply(drawn, outcome).await?;
        Ok(steered)
    }

    /// Checks drawn tokens; None before the first draw. A slow session works off the async threads.
    async fn check(&mut self, drawn: Option<Vec<u32>>) -> Result<DrawOutcome, Error> {
        if self.offloaded {
            return Err(Error::internal("the grammar of this request failed", "the work of its session was cancelled"));
        }
        let room = self.room();
        let Some(mut steered) = self.steered.take() else {
            let accepted = drawn.map_or(0, |drawn| drawn.len());
            return Ok(DrawOutcome { accepted, ..DrawOutcome::default() });
        };
        let checked = if steered.session.is_slow() {
            self.offloaded = true;
            let work = move || {
                let checked = steered.check(drawn.as_deref(), room);
                (steered, checked)
            };
            let requester = keys::requester(self.caller.as_ref(), self.deadline);
            let model = self.transcript.model.clone();
            let (steered, checked) = model.run_slow_match(&requester, work).boxed().await?;
            self.offloaded = false;
            self.steered = Some(steered);
            checked
        } else {
            let checked = steered.check(drawn.as_deref(), room);
            self.steered = Some(steered);
            checked
        };
        let outcome = match checked {
            Err(GrammarSessionError::Matcher(MatcherError::Limit(limit)))
                if !self.transcript.follows_clients_grammar() =>
            {
                self.transcript.ended_by_grammar(&limit);
                return Ok(DrawOutcome { ended: true, ..DrawOutcome::default() });
            }
            checked => checked.map_err(Error::from_session)?,
        };
        self.steered.as_mut().map_or(Ok(()), SteeredOutput::charge)?;
        Ok(outcome)
    }

    /// How many more tokens may be generated.
    fn room(&self) -> usize {
        let most = self.steered.as_ref().map_or(0, |steered| steered.max_tokens);
        most.saturating_sub(self.transcript.completion_tokens) as usize
    }

    /// Ends reasoning whose budget is spent; `last` is the latest token. Returns whether it did: if reasoning cannot
    /// end here, this is called again after the next token.
    async fn end_reasoning(&mut self, last: Option<u32>) -> Result<bool, Error> {
        let room = self.room();
        let Some(SteeredOutput { session, thinking: Some(ThinkingBudget { tokens, open, close }), .. }) =
            &mut self.steered
        else {
            return Ok(false);
        };
        // Reasoning begins with its first token. With a budget of 0, it ends directly after its opening marker.
        let opened = *tokens == 0 && last.is_some() && last == *open;
        if self.engine.is_none() || !(opened || self.transcript.has_reasoned(*tokens)) {
            return Ok(false);
        }
        match session.force(close, room) {
            Ok(None) => Ok(false),
            Ok(Some(outcome)) => self.apply(Vec::new(), outcome).await.map(|()| true),
            Err(error) => Err(Error::from_session(error)),
        }
    }

    /// Leads a JSON answer to its end where the request wants it, or where the answer does nothing but repeat itself.
    /// Returns whether that began now.
    async fn lead_to_end(&mut self) -> Result<bool, Error> {
        let Some(SteeredOutput { session, max_tokens, json: true, finishes, .. }) = &mut self.steered else {
            return Ok(false);
        };
        let within = finishes.then_some(*max_tokens);
        if session.is_led_to_end() || self.engine.is_none() || !self.transcript.leads_to_end(within) {
            return Ok(false);
        }
        session.lead_to_end();
        let outcome = self.check(Some(Vec::new())).await?;
        self.apply(Vec::new(), outcome).await.map(|()| true)
    }

    /// Emits the accepted tokens and those that are forced after them, and steers the engine.
    async fn apply(&mut self, mut drawn: Vec<DrawnToken>, outcome: DrawOutcome) -> Result<(), Error> {
        let DrawOutcome { accepted, forced, steering, ended } = outcome;
        drawn.truncate(accepted);
        drawn.extend(forced.into_iter().map(|id| DrawnToken { id, logprob: None }));
        if !drawn.is_empty() {
            self.record_tokens(drawn.len());
        }
        self.report_grammar();
        for drawn in drawn {
            if self.transcript.push(drawn) == Flow::Ended {
                self.release();
                return Ok(());
            }
        }
        if ended {
            self.end(self.transcript.is_ended_by_grammar());
            self.release();
        } else if let (Some(steering), Some(engine)) = (steering, &mut self.engine) {
            engine.steer(steering).await?;
        }
        Ok(())
    }

    /// Frees the engine slot: the choice needs no more tokens.
    fn release(&mut self) {
        if let Some(engine) = self.engine.take() {
            let keep = self.transcript.completion_tokens as usize;
            match self.transcript.ends_in_calls() {
                true => engine.stop_for_tools(keep, &self.tool_holds),
                false => engine.stop(keep),
            }
        }
    }

    fn end(&mut self, length: bool) {
        self.report_grammar();
        if let Some(SteeredOutput { session, .. }) = &self.steered {
            self.transcript.grammar_relaxed = session.relaxed().to_owned();
        }
        self.transcript.finish(length);
    }

    /// Updates the report that `Done` carries, if the request asks for it.
    fn report_grammar(&mut self) {
        let Some(SteeredOutput { session, .. }) =
            self.steered.as_mut().filter(|_| self.transcript.options.report.grammar)
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
        if let Some(counted) = self.counted.take() {
            counted.run();
        }
        self.transcript.cached_tokens = admitted.cached_tokens;
        self.metrics.prompt_tokens.inc_by(admitted.prompt_tokens.into());
        self.metrics.cached_tokens.inc_by(admitted.cached_tokens.into());
    }

    fn record_tokens(&mut self, tokens: usize) {
        let now = Instant::now();
        match self.last_token.replace(now) {
            None => self.metrics.first_token.observe(now - self.began),
            Some(last) => self.metrics.inter_token.observe((now - last) / tokens.max(1) as u32),
        }
        self.metrics.generated_tokens.inc_by(tokens as u64);
        // Charged as they come, so that tokens also count if the client disconnects.
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
        self.metrics.grammar.invalid_calls.inc_by(report.withheld);
        let model = &self.transcript.model;
        self.metrics.outcomes.count_calls(model.name(), model.format.name, report);
        self.metrics.outcomes.tell_of_lost_calls(model.name(), model.format.name, report, Instant::now());
        let invalid = u64::from(self.transcript.invalid_response.is_some());
        self.metrics.grammar.invalid_responses.inc_by(invalid);
    }
}

fn engine_error(finish: internal::Finish) -> Error {
    Error::internal("the engine ended this request with an error", finish.error)
}
