//! Generates one request: opens its choices on engines and merges their events into one stream.

mod choice;
mod plan;
mod unfinished;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::{
    FutureExt, StreamExt,
    stream::{self, BoxStream, SelectAll},
};
use rein_grammar::{CallValidator, Compiled, Parser, ParserOptions, Region, Relaxation, Tools};
use rein_proto::{
    block_hash,
    internal::Start,
    v1::{self, chat_event},
};
use tokio::{sync::watch, time::Instant};
use tracing::{Instrument, Span};

use crate::{
    admission::{
        InFlightPermit,
        keys::{self, ApiCaller},
    },
    client_state::ClientState,
    error::Error,
    fair::Requester,
    fleet::{
        engine_stream::{EngineStream, SequenceContext, Spans},
        metrics::FleetMetrics,
        pool::{EngineLease, EngineRequest},
        retry_budget::RetryBudget,
        route,
        tool_holds::ToolHolds,
    },
    limits,
    memory::{MatcherMemory, MemoryCharge},
    request::{
        delivery::ChatEvents,
        demand::CountedRequest,
        metrics::RequestMetrics,
        model::{ServedModel, now},
        slots::{Gone, SlotsWhileRead},
        transcript::{Reader, TokenDetails, Transcript, TranscriptOptions},
    },
    request_trace::Trace,
};

use choice::Choice;
pub use plan::{Defaults, Plan, restrictions, truncate};
pub use unfinished::UnfinishedChoices;

/// What the API layer knows about a request besides its content.
pub struct RequestContext {
    pub trace: Trace,
    pub began: Instant,
    pub deadline: Instant,
    pub permit: InFlightPermit,
    /// Counts as a request of its model.
    pub counted: Arc<CountedRequest>,
    pub metrics: Arc<RequestMetrics>,
    pub fleet_metrics: Arc<FleetMetrics>,
    pub tool_holds: Arc<ToolHolds>,
    pub retry_budget: Arc<RetryBudget>,
    /// The owner of the request's API key, if the server has keys.
    pub caller: Option<ApiCaller>,
    /// Requests of one session are routed to the same engine if possible.
    pub session: Option<u64>,
    /// The memory that is charged to the request: its body until it is tokenized, then the state of its grammars.
    pub memory_charge: Option<Arc<MemoryCharge>>,
    /// The memory for the grammar state of its choices.
    pub matcher_memory: MatcherMemory,
    /// How long the client may leave its answer unread before the request ends.
    pub stall_timeout: Duration,
}

impl RequestContext {
    /// Whose request it is, and when it must be finished.
    pub fn requester(&self) -> Requester {
        keys::requester(self.caller.as_ref(), self.deadline)
    }

    /// The salt of the request's cached prefixes, given the one that it asks for. One that is not allowed stays, and is
    /// refused.
    pub fn cache_salt(&self, asked: Option<String>) -> Option<String> {
        let refused = |salt: &&String| salt.is_empty() || salt.len() > limits::CACHE_SALT_BYTES;
        match (&self.caller, asked.as_ref().filter(refused)) {
            (Some(caller), None) => caller.cache_salt(asked.as_deref()),
            _ => asked,
        }
    }
}

/// How the output is parsed.
#[derive(Debug, Clone)]
pub enum OutputMode {
    Regions {
        start: Region,
        /// The prompt ends in the middle of the region, not at its start.
        resumed: bool,
        tools: Tools,
        parse_tools: bool,
        calls_before: usize,
        skip_special_tokens: bool,
        /// The grammar that constrains the output, if any.
        grammar: Option<Grammar>,
        /// Validates finished calls whose arguments are not enforced, for the metrics.
        call_validator: Option<Arc<CallValidator>>,
    },
    Plain {
        skip_special_tokens: bool,
        grammar: Option<Grammar>,
    },
}

/// A compiled grammar, and when it computes masks.
#[derive(Debug, Clone)]
pub struct Grammar {
    pub compiled: Compiled,
    /// Compute a mask at every step, for comparison.
    pub always_mask: bool,
}

impl Grammar {
    pub fn new(compiled: Option<Compiled>, model: &ServedModel) -> Option<Self> {
        compiled.map(|compiled| Grammar { compiled, always_mask: model.mask_always })
    }

    /// Charges the state with which this many choices begin.
    async fn charge(&self, choices: u32, context: &RequestContext) -> Result<MemoryCharge, Error> {
        let MatcherMemory { budget, uncounted } = &context.matcher_memory;
        let each = self.compiled.matcher_bytes().saturating_sub(*uncounted);
        let bytes = each * choices as usize;
        let most = budget.most(&context.requester().caller);
        if bytes > most {
            let (found, limit) = (bytes >> 20, most >> 20);
            let message = format!("the grammar of {choices} choices takes {found} MiB of memory; the limit is {limit}");
            return Err(Error::invalid("n", message));
        }
        let mut charge = budget.open_charge(context.requester().caller, 0);
        charge.resize(bytes, context.deadline).await?;
        Ok(charge)
    }

    /// The charge for what the state of a choice grows by.
    fn growth(&self, context: &RequestContext) -> MemoryCharge {
        let MatcherMemory { budget, uncounted } = &context.matcher_memory;
        budget.open_charge(context.requester().caller, self.compiled.matcher_bytes().max(*uncounted))
    }

    /// Descriptions of the schema parts that the grammar does not enforce.
    pub fn relaxed(grammar: Option<&Self>) -> Vec<String> {
        grammar.iter().flat_map(|grammar| grammar.compiled.relaxations()).map(Relaxation::to_string).collect()
    }
}

impl OutputMode {
    fn grammar(&self) -> Option<&Grammar> {
        match self {
            OutputMode::Regions { grammar, .. } | OutputMode::Plain { grammar, .. } => grammar.as_ref(),
        }
    }

    fn reader(&self, model: &ServedModel) -> Reader {
        match self {
            OutputMode::Regions { start, tools, parse_tools, skip_special_tokens, .. } => {
                let options = ParserOptions { start: *start, tools: tools.clone(), parse_tools: *parse_tools };
                let parser = Box::new(Parser::new(model.format, options));
                Reader::Regions { parser, skip_special_tokens: *skip_special_tokens }
            }
            OutputMode::Plain { skip_special_tokens, .. } => {
                Reader::Plain { skip_special_tokens: *skip_special_tokens }
            }
        }
    }
}

/// One prompt, and the plan for its `n` choices.
pub struct PlannedPrompt {
    pub tokens: Vec<u32>,
    /// Text with which every choice begins.
    pub echo: Option<String>,
    pub plan: Plan,
}

/// Opens the first choice before it returns, so that an error comes before any event. The other choices and the
/// prompt's logprobs need the computed prompt of the first choice; the stream waits for it. The events have exactly one
/// terminal item: `Usage`, after the `Done` of every choice, or an error.
pub async fn generate(
    mut context: RequestContext,
    model: Arc<ServedModel>,
    output_mode: OutputMode,
    prompts: Vec<PlannedPrompt>,
) -> Result<ChatEvents, Error> {
    let prompt_tokens: u32 = prompts.iter().map(|prompt| prompt.tokens.len() as u32).sum();
    if let Some(caller) = &context.caller {
        caller.charge(prompt_tokens.into(), Instant::now());
    }
    let usage = v1::Usage { prompt_tokens, ..v1::Usage::default() };
    let n = prompts.first().map_or(1, |prompt| prompt.plan.n);
    let choices = prompts.iter().map(|prompt| prompt.plan.n).sum();
    if let Some(grammar) = output_mode.grammar() {
        context.memory_charge = Some(Arc::new(grammar.charge(choices, &context).await?));
    }
    let mut unfinished = UnfinishedChoices::new(context.metrics.clone(), model.name(), choices);
    let (client, state) = watch::channel(ClientState::Reading);
    let mut reader = SlotsWhileRead::new(state, context.permit.slots().clone(), context.deadline);
    let told = reader.told();
    let first = match prompts.first() {
        Some(prompt) => {
            let opener =
                ChoiceOpener { context: &context, client: &told, model: &model, output_mode: &output_mode, prompt };
            let opened = opener.lease_and_open(0).await.map_err(|error| context.permit.with_retry_after(error));
            Some(opened.inspect_err(|error| unfinished.failed(error))?)
        }
        None => None,
    };
    let stall_timeout = context.stall_timeout;
    let mut running = Running::new(context, unfinished, usage);
    let opening = async move {
        let opened = tokio::select! {
            biased;
            () = running.context.permit.when_aborted() => Err(Error::shutting_down()),
            gone = reader.follow() => Err(running.gone(gone)),
            opened = open_all(&running.context, &told, &model, &output_mode, &prompts, first) => opened,
        };
        let (starts, choices) = opened.inspect_err(|error| running.failed(error))?;
        let choices = choices.into_iter().map(|choice| {
            stream::unfold(choice, async |mut choice: Choice| choice.next().await.map(|event| (event, choice))).boxed()
        });
        Ok(Merged { starts, choices: stream::select_all(choices), usage, n, reader, running })
    };
    // Opening has a large state. It is boxed, so that it is freed when the choices are open and the stream continues.
    let events = stream::once(opening.boxed()).flat_map(|opened| match opened {
        Ok(merged) => stream::unfold(Some(merged), async |merged| merged?.next().await).boxed(),
        Err(error) => stream::once(std::future::ready(Err(error))).boxed(),
    });
    Ok(ChatEvents::new(events.boxed(), client, stall_timeout))
}

/// Opens every choice of every prompt. Returns the choices and their `Start` events.
async fn open_all(
    context: &RequestContext,
    client: &watch::Receiver<ClientState>,
    model: &Arc<ServedModel>,
    output_mode: &OutputMode,
    prompts: &[PlannedPrompt],
    mut first: Option<Choice>,
) -> Result<(VecDeque<v1::ChatEvent>, Vec<Choice>), Error> {
    let (mut starts, mut choices) = (VecDeque::new(), Vec::new());
    for prompt in prompts {
        let opener = ChoiceOpener { context, client, model, output_mode, prompt };
        let index = choices.len() as u32;
        let first = match first.take() {
            Some(first) => first,
            None => opener.lease_and_open(index).await?,
        };
        opener.open_others(index, first, &mut starts, &mut choices).await?;
    }
    Ok((starts, choices))
}

/// Opens the choices of one prompt.
struct ChoiceOpener<'a> {
    context: &'a RequestContext,
    client: &'a watch::Receiver<ClientState>,
    model: &'a Arc<ServedModel>,
    output_mode: &'a OutputMode,
    prompt: &'a PlannedPrompt,
}

impl ChoiceOpener<'_> {
    fn transcript(&self, index: u32) -> Transcript {
        let PlannedPrompt { tokens: prompt, plan, echo } = self.prompt;
        let (start, resumed, calls_before) = match self.output_mode {
            OutputMode::Regions { start, resumed, calls_before, .. } => (*start, *resumed, *calls_before),
            OutputMode::Plain { .. } => (Region::Text, false, 0),
        };
        let call_validator = match self.output_mode {
            OutputMode::Regions { call_validator, .. } => call_validator.clone(),
            OutputMode::Plain { .. } => None,
        };
        let tools = match self.output_mode {
            OutputMode::Regions { tools, parse_tools: true, .. } => tools.clone(),
            OutputMode::Regions { .. } | OutputMode::Plain { .. } => Tools::default(),
        };
        let grammar = self.output_mode.grammar().map(|grammar| grammar.compiled.clone());
        #[cfg(test)]
        let grammar = self.model.validator.get().cloned().or(grammar);
        let options = TranscriptOptions {
            index,
            span: self.context.trace.span.clone(),
            reader: self.output_mode.reader(self.model),
            stops: plan.stops.clone(),
            marker_stops: plan.marker_stops.clone(),
            min_tokens: plan.limits.min_tokens,
            stop_ids: plan.limits.stop_token_ids.clone(),
            named_stop_ids: plan.named_stop_ids.clone(),
            report: TokenDetails {
                token_ids: plan.token_ids,
                logprobs: plan.logprobs.is_some(),
                grammar: plan.grammar_report,
            },
            grammar,
            call_validator,
            tools,
            start,
            resumed,
            calls_before,
            prompt_tokens: prompt.len() as u32,
            echo: echo.clone().unwrap_or_default(),
            last_prompt_token: prompt.last().copied(),
        };
        Transcript::new(self.model.clone(), options)
    }

    /// Opens a choice on an engine that the pool selects.
    async fn lease_and_open(&self, index: u32) -> Result<Choice, Error> {
        let PlannedPrompt { tokens: prompt, plan, .. } = self.prompt;
        let context = self.context;
        let until = Instant::now() + limits::ENGINE_WAIT;
        let wanted = EngineRequest {
            salt: &plan.cache_salt,
            lora: self.model.lora_digest(),
            tokens: prompt,
            session: context.session,
            kind: None,
            refused: &[],
        };
        if index == 0 {
            let salt = block_hash::salt_of(&plan.cache_salt, self.model.lora_digest());
            context.tool_holds.arrived(&salt, prompt, Instant::now());
        }
        let queue = context.trace.queue_span();
        let lease = self.model.pool.lease(&wanted, until, context.deadline).instrument(queue.clone()).await?;
        self.open(index, lease, queue).await
    }

    async fn open(&self, index: u32, lease: EngineLease, queue: Span) -> Result<Choice, Error> {
        let (context, plan, grammar) = (self.context, &self.prompt.plan, self.output_mode.grammar());
        let start = plan.start(&context.trace.id, index, &self.prompt.tokens, grammar);
        let caller = keys::caller_name(context.caller.as_ref()).map_or(0, |name| route::key(&name));
        let start = self.model.named_start(Start { caller, ..start });
        let common = SequenceContext {
            pool: self.model.pool.clone(),
            session: context.session,
            deadline: context.deadline,
            metrics: context.fleet_metrics.clone(),
            retry_budget: context.retry_budget.clone(),
            client: self.client.clone(),
        };
        let spans = Spans { span: context.trace.span.clone(), queue };
        let engine = EngineStream::open(common, lease, start, spans).await?;
        let mut steered = match grammar {
            // Copying a large matcher would block the async thread.
            Some(grammar) if grammar.compiled.bytes() > limits::INLINE_MATCHER_BYTES => {
                let (plan, grammar) = (plan.clone(), grammar.clone());
                self.model.run_slow_match(&context.requester(), move || plan.steered_output(Some(&grammar))).await??
            }
            grammar => plan.steered_output(grammar)?,
        };
        if let (Some(steered), Some(grammar)) = (&mut steered, grammar) {
            steered.growth = Some(grammar.growth(context));
        }
        Ok(Choice::new(self.transcript(index), engine, steered, context))
    }

    /// Opens the choices after the first, on the same engine. They start when the first has computed the prompt, so
    /// that they find it in the prefix cache.
    async fn open_others(
        &self,
        index: u32,
        mut first: Choice,
        starts: &mut VecDeque<v1::ChatEvent>,
        choices: &mut Vec<Choice>,
    ) -> Result<(), Error> {
        let PlannedPrompt { tokens: prompt, echo, plan } = self.prompt;
        let kind = first.engine().map(|engine| engine.kind().clone()).unwrap_or_default();
        let system_fingerprint = self.model.system_fingerprint(&kind);
        let mut prompt_logprobs = Vec::new();
        if plan.n > 1 || plan.prompt_logprobs.is_some() || plan.score_only || plan.report_prompt {
            let admitted = first.admitted().await?;
            let logprobs = admitted.prompt_logprobs.into_iter();
            prompt_logprobs = logprobs.map(|logprob| self.model.logprob(logprob)).collect();
        }
        first.begin().await?;
        choices.push(first);
        for other in index + 1..index + plan.n {
            let lease =
                choices[index as usize].engine().and_then(EngineStream::lease).map(EngineLease::for_another_sequence);
            let mut choice = match lease {
                Some(lease) => self.open(other, lease, self.context.trace.queue_span()).await?,
                None => self.lease_and_open(other).await?,
            };
            choice.begin().await?;
            choices.push(choice);
        }
        for (choice, index) in choices[index as usize..].iter_mut().zip(index..) {
            if echo.is_some() && plan.logprobs.is_some() {
                choice.transcript().echo_logprobs(prompt_logprobs.clone());
            }
            if plan.score_only {
                choice.end_without_tokens();
            }
            let shown = index.is_multiple_of(plan.n);
            let usage = plan.report_prompt.then(|| choice.transcript().usage());
            starts.push_back(v1::ChatEvent {
                choice: index,
                event: Some(chat_event::Event::Start(v1::Started {
                    id: self.context.trace.id.clone(),
                    model: self.model.name().to_owned(),
                    created: now(),
                    prompt_token_ids: if shown && plan.token_ids { prompt.clone() } else { Vec::new() },
                    prompt_logprobs: if shown { prompt_logprobs.clone() } else { Vec::new() },
                    system_fingerprint: system_fingerprint.clone(),
                    // Tokens that the grammar forced before the first draw do not count yet.
                    usage: usage.map(|usage| v1::Usage { completion_tokens: 0, ..usage }),
                })),
                ..v1::ChatEvent::default()
            });
        }
        Ok(())
    }
}

/// The events of all choices, in the order in which they are ready.
struct Merged {
    starts: VecDeque<v1::ChatEvent>,
    choices: SelectAll<BoxStream<'static, Result<v1::ChatEvent, Error>>>,
    usage: v1::Usage,
    /// Choices per prompt.
    n: u32,
    reader: SlotsWhileRead,
    running: Running,
}

impl Merged {
    async fn next(mut self) -> Option<(Result<v1::ChatEvent, Error>, Option<Self>)> {
        if let Some(start) = self.starts.pop_front() {
            return Some((Ok(start), Some(self)));
        }
        let next = tokio::select! {
            biased;
            () = self.running.context.permit.aborted() => Some(Err(Error::shutting_down())),
            gone = self.reader.follow() => Some(Err(self.running.gone(gone))),
            next = self.choices.next() => next,
        };
        match next {
            Some(Ok(event)) => {
                if let Some(chat_event::Event::Done(v1::Done { usage: Some(usage), finish_reason, .. })) = &event.event
                {
                    self.running.finish = v1::FinishReason::try_from(*finish_reason).ok();
                    self.running.unfinished.finished(self.running.finish.unwrap_or_default());
                    self.usage.completion_tokens += usage.completion_tokens;
                    self.usage.reasoning_tokens += usage.reasoning_tokens;
                    // A prompt counts once for all its choices, and so do its cached tokens: those of its first choice.
                    if event.choice.is_multiple_of(self.n) {
                        self.usage.cached_tokens += usage.cached_tokens;
                    }
                }
                Some((Ok(event), Some(self)))
            }
            Some(Err(error)) => {
                self.running.failed(&error);
                Some((Err(error), None))
            }
            None => {
                self.running.ended = true;
                self.usage.total_tokens = self.usage.prompt_tokens + self.usage.completion_tokens;
                self.running.usage = self.usage;
                let event = chat_event::Event::Usage(v1::UsageEvent { usage: Some(self.usage) });
                Some((Ok(v1::ChatEvent { event: Some(event), ..v1::ChatEvent::default() }), None))
            }
        }
    }
}

/// A generation from its first engine stream to its end. Its drop records metrics, trace and log.
struct Running {
    context: RequestContext,
    unfinished: UnfinishedChoices,
    ended: bool,
    finish: Option<v1::FinishReason>,
    usage: v1::Usage,
}

impl Running {
    fn new(context: RequestContext, unfinished: UnfinishedChoices, usage: v1::Usage) -> Self {
        context.metrics.open_streams.inc();
        Running { context, unfinished, ended: false, finish: None, usage }
    }

    fn gone(&self, gone: Gone) -> Error {
        match gone {
            Gone::Failed(error) => error,
            Gone::TimedOut => {
                self.context.metrics.stalled.inc();
                Error::client_stalled(self.context.stall_timeout)
            }
        }
    }

    /// This error ends the generation.
    fn failed(&mut self, error: &Error) {
        self.context.trace.record_failure();
        self.unfinished.failed(error);
        self.ended = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let metrics = &self.context.metrics;
        metrics.open_streams.dec();
        metrics.duration.observe(self.context.began.elapsed());
        if !self.ended {
            metrics.abandoned.inc();
        }
        let trace = &self.context.trace;
        trace.record_end(&self.usage, self.finish);
        let seconds = self.context.began.elapsed().as_secs_f64();
        let key = self.context.caller.as_ref().map(ApiCaller::name);
        tracing::info!(parent: &trace.span, seconds, key, abandoned = !self.ended, "the request ended");
    }
}
