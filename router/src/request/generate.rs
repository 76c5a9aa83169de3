//! One request's sequences: planned, started on an engine, and merged into one stream of events.

mod plan;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::{
    StreamExt,
    stream::{self, BoxStream, SelectAll},
};
use rein_grammar::{Compiled, Parser, ParserOptions, Region, Relaxation, ToolDecl};
use rein_proto::v1::{self, chat_event};
use tokio::{sync::watch, time::Instant};
use tracing::{Instrument, Span};

use crate::{
    admission::{InFlightPermit, keys::ApiCaller},
    client_state::{ClientState, becomes},
    error::Error,
    fleet::{
        engine_stream::{EngineStream, SequenceContext, Spans},
        metrics::FleetMetrics,
        pool::{EngineLease, EngineRequest},
        retry_budget::RetryBudget,
    },
    limits,
    request::{
        choice::Choice,
        delivery::ChatEvents,
        memory::MemoryCharge,
        metrics::RequestMetrics,
        model::{ServedModel, now},
        outcomes::Unfinished,
        transcript::{Opening, Reader, TokenDetails, Transcript},
    },
    trace::Trace,
};

pub use plan::{Defaults, Plan, truncate};

/// What a surface knows of a request besides what is in it.
pub struct RequestContext {
    pub trace: Trace,
    pub began: Instant,
    pub deadline: Instant,
    pub permit: InFlightPermit,
    pub metrics: Arc<RequestMetrics>,
    pub fleet_metrics: Arc<FleetMetrics>,
    pub retry_budget: Arc<RetryBudget>,
    /// Whose request it is, if the server asks.
    pub caller: Option<ApiCaller>,
    /// Requests of one session are best answered by one engine.
    pub session: Option<u64>,
    /// What the request holds of the budget until it is tokens.
    pub held: Option<Arc<MemoryCharge>>,
    /// How long the client may leave its answer unread.
    pub stall: Duration,
}

/// How output is to be read.
#[derive(Debug, Clone)]
pub enum Reading {
    Regions {
        start: Region,
        /// The prompt ends in the middle of the region, not at its start.
        resumed: bool,
        tools: Vec<ToolDecl>,
        parse_tools: bool,
        calls_before: usize,
        skip_special_tokens: bool,
        /// What the output has to obey, if anything.
        grammar: Option<Grammar>,
    },
    Plain {
        skip_special_tokens: bool,
        grammar: Option<Grammar>,
    },
}

/// A compiled grammar, and how it steers.
#[derive(Debug, Clone)]
pub struct Grammar {
    pub compiled: Compiled,
    /// A mask at every step, for comparison.
    pub always: bool,
}

impl Grammar {
    pub fn new(compiled: Option<Compiled>, model: &ServedModel) -> Option<Self> {
        compiled.map(|compiled| Grammar { compiled, always: model.mask_always })
    }

    /// What of the request's schemas is not enforced to the letter, in words.
    pub fn relaxed(grammar: Option<&Self>) -> Vec<String> {
        grammar.iter().flat_map(|grammar| grammar.compiled.relaxations()).map(Relaxation::to_string).collect()
    }
}

impl Reading {
    fn grammar(&self) -> Option<&Grammar> {
        match self {
            Reading::Regions { grammar, .. } | Reading::Plain { grammar, .. } => grammar.as_ref(),
        }
    }

    fn reader(&self, model: &ServedModel) -> Reader {
        match self {
            Reading::Regions { start, tools, parse_tools, grammar, skip_special_tokens, .. } => {
                let options = ParserOptions {
                    start: *start,
                    tools: tools.clone(),
                    parse_tools: *parse_tools,
                    calls_in_text: grammar.is_none(),
                };
                let parser = Box::new(Parser::new(model.format, options));
                Reader::Regions { parser, skip_special_tokens: *skip_special_tokens }
            }
            Reading::Plain { skip_special_tokens, .. } => Reader::Plain { skip_special_tokens: *skip_special_tokens },
        }
    }
}

/// One prompt, of which `n` choices are generated.
pub struct Sequence {
    pub prompt: Vec<u32>,
    /// Text that every choice begins with.
    pub echo: Option<String>,
    pub plan: Plan,
}

/// Starts the first choice: an error here comes before any event. The other choices, and the prompt's logprobs, need
/// the first choice's prompt computed; the stream waits for that. The events have exactly one terminal item: `Usage`,
/// after each choice's `Done`, or an error.
pub async fn generate(
    call: RequestContext,
    model: Arc<ServedModel>,
    reading: Reading,
    sequences: Vec<Sequence>,
) -> Result<ChatEvents, Error> {
    let prompt_tokens: u32 = sequences.iter().map(|sequence| sequence.prompt.len() as u32).sum();
    if let Some(caller) = &call.caller {
        caller.charge(prompt_tokens.into(), Instant::now());
    }
    let usage = v1::Usage { prompt_tokens, ..v1::Usage::default() };
    let n = sequences.first().map_or(1, |sequence| sequence.plan.n);
    let choices = sequences.iter().map(|sequence| sequence.plan.n).sum();
    let mut unfinished = Unfinished::new(call.metrics.clone(), model.name(), choices);
    let (client, attention) = watch::channel(ClientState::Reads);
    let first = match sequences.first() {
        Some(sequence) => {
            let prompt = Prompt { call: &call, client: &attention, model: &model, reading: &reading, sequence };
            let opened = prompt.lease_and_open(0).await.map_err(|error| call.permit.in_line(error));
            Some(opened.inspect_err(|error| unfinished.failed(error))?)
        }
        None => None,
    };
    let stall = call.stall;
    let mut running = Running::new(call, unfinished, usage);
    let opening = async move {
        let mut gone = attention.clone();
        let opened = tokio::select! {
            biased;
            () = running.call.permit.when_aborted() => Err(Error::shutting_down()),
            () = becomes(&mut gone, ClientState::Gone) => Err(running.stalled()),
            opened = open_all(&running.call, &attention, &model, &reading, &sequences, first) => opened,
        };
        let (starts, choices) = opened.inspect_err(|error| running.failed(error))?;
        let choices = choices.into_iter().map(|choice| {
            stream::unfold(choice, async |mut choice: Choice| choice.next().await.map(|event| (event, choice))).boxed()
        });
        Ok(Merged { starts, choices: stream::select_all(choices), usage, n, client: gone, running })
    };
    let events = stream::once(opening).flat_map(|opened| match opened {
        Ok(merged) => stream::unfold(Some(merged), async |merged| merged?.next().await).boxed(),
        Err(error) => stream::once(std::future::ready(Err(error))).boxed(),
    });
    Ok(ChatEvents::new(events.boxed(), client, stall))
}

/// Every choice of every prompt, and how each begins.
async fn open_all(
    call: &RequestContext,
    client: &watch::Receiver<ClientState>,
    model: &Arc<ServedModel>,
    reading: &Reading,
    sequences: &[Sequence],
    mut first: Option<Choice>,
) -> Result<(VecDeque<v1::ChatEvent>, Vec<Choice>), Error> {
    let (mut starts, mut choices) = (VecDeque::new(), Vec::new());
    for sequence in sequences {
        let prompt = Prompt { call, client, model, reading, sequence };
        let index = choices.len() as u32;
        let first = match first.take() {
            Some(first) => first,
            None => prompt.lease_and_open(index).await?,
        };
        prompt.open_others(index, first, &mut starts, &mut choices).await?;
    }
    Ok((starts, choices))
}

/// A prompt, of which `n` choices are generated.
struct Prompt<'a> {
    call: &'a RequestContext,
    client: &'a watch::Receiver<ClientState>,
    model: &'a Arc<ServedModel>,
    reading: &'a Reading,
    sequence: &'a Sequence,
}

impl Prompt<'_> {
    fn transcript(&self, index: u32) -> Transcript {
        let Sequence { prompt, plan, echo } = self.sequence;
        let (start, resumed, calls_before) = match self.reading {
            Reading::Regions { start, resumed, calls_before, .. } => (*start, *resumed, *calls_before),
            Reading::Plain { .. } => (Region::Text, false, 0),
        };
        let grammar = self.reading.grammar().map(|grammar| grammar.compiled.clone());
        #[cfg(test)]
        let grammar = self.model.judge.get().cloned().or(grammar);
        let opening = Opening {
            index,
            span: self.call.trace.span.clone(),
            reader: self.reading.reader(self.model),
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
            start,
            resumed,
            calls_before,
            prompt_tokens: prompt.len() as u32,
            echo: echo.clone().unwrap_or_default(),
            last_prompt_token: prompt.last().copied(),
        };
        Transcript::new(self.model.clone(), opening)
    }

    /// A choice on an engine that the pool picks.
    async fn lease_and_open(&self, index: u32) -> Result<Choice, Error> {
        let Sequence { prompt, plan, .. } = self.sequence;
        let call = self.call;
        let until = Instant::now() + limits::ENGINE_WAIT;
        let wanted =
            EngineRequest { salt: &plan.cache_salt, tokens: prompt, session: call.session, kind: None, refused: &[] };
        let queue = call.trace.queue();
        let lease = self.model.pool.lease(&wanted, until, call.deadline).instrument(queue.clone()).await?;
        self.open(index, lease, queue).await
    }

    async fn open(&self, index: u32, lease: EngineLease, queue: Span) -> Result<Choice, Error> {
        let (call, plan, grammar) = (self.call, &self.sequence.plan, self.reading.grammar());
        let start = plan.start(&call.trace.id, index, &self.sequence.prompt, grammar);
        let common = SequenceContext {
            pool: self.model.pool.clone(),
            session: call.session,
            deadline: call.deadline,
            metrics: call.fleet_metrics.clone(),
            retry_budget: call.retry_budget.clone(),
            client: self.client.clone(),
        };
        let spans = Spans { span: call.trace.span.clone(), queue };
        let engine = EngineStream::open(common, lease, start, spans).await?;
        let steered = match grammar {
            // Its matcher takes long to copy.
            Some(grammar) if grammar.compiled.bytes() > limits::INLINE_MATCHER_BYTES => {
                let (plan, grammar) = (plan.clone(), grammar.clone());
                self.model.match_slowly(move || plan.steered(Some(&grammar))).await??
            }
            grammar => plan.steered(grammar)?,
        };
        let (metrics, caller) = (call.metrics.clone(), call.caller.clone());
        Ok(Choice::new(self.transcript(index), engine, steered, metrics, caller, call.began))
    }

    /// The choices after the first. They start when the first has computed the prompt, on the same engine, and find it
    /// cached.
    async fn open_others(
        &self,
        index: u32,
        mut first: Choice,
        starts: &mut VecDeque<v1::ChatEvent>,
        choices: &mut Vec<Choice>,
    ) -> Result<(), Error> {
        let Sequence { prompt, echo, plan } = self.sequence;
        let kind = first.engine().map(|engine| engine.kind().clone()).unwrap_or_default();
        let system_fingerprint = self.model.system_fingerprint(&kind);
        let mut prompt_logprobs = Vec::new();
        if plan.n > 1 || plan.prompt_logprobs.is_some() || plan.score_only {
            let admitted = first.admitted().await?;
            let logprobs = admitted.prompt_logprobs.into_iter();
            prompt_logprobs = logprobs.map(|logprob| self.model.logprob(logprob)).collect();
        }
        first.begin().await?;
        choices.push(first);
        for other in index + 1..index + plan.n {
            let lease = choices[index as usize].engine().and_then(EngineStream::lease).map(EngineLease::again);
            let mut choice = match lease {
                Some(lease) => self.open(other, lease, self.call.trace.queue()).await?,
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
                choice.end_at_once();
            }
            let shown = index.is_multiple_of(plan.n);
            starts.push_back(v1::ChatEvent {
                choice: index,
                event: Some(chat_event::Event::Start(v1::Started {
                    id: self.call.trace.id.clone(),
                    model: self.model.name().to_owned(),
                    created: now(),
                    prompt_token_ids: if shown && plan.token_ids { prompt.clone() } else { Vec::new() },
                    prompt_logprobs: if shown { prompt_logprobs.clone() } else { Vec::new() },
                    system_fingerprint: system_fingerprint.clone(),
                })),
                ..v1::ChatEvent::default()
            });
        }
        Ok(())
    }
}

struct Merged {
    starts: VecDeque<v1::ChatEvent>,
    choices: SelectAll<BoxStream<'static, Result<v1::ChatEvent, Error>>>,
    usage: v1::Usage,
    /// Choices per prompt.
    n: u32,
    client: watch::Receiver<ClientState>,
    running: Running,
}

impl Merged {
    async fn next(mut self) -> Option<(Result<v1::ChatEvent, Error>, Option<Self>)> {
        if let Some(start) = self.starts.pop_front() {
            return Some((Ok(start), Some(self)));
        }
        let next = tokio::select! {
            biased;
            () = self.running.call.permit.aborted() => Some(Err(Error::shutting_down())),
            () = becomes(&mut self.client, ClientState::Gone) => Some(Err(self.running.stalled())),
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
                    // A prompt counts once, and so does what of it was cached: for the choice that came first.
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

/// A generation from its first engine stream to its end, however it ends.
struct Running {
    call: RequestContext,
    unfinished: Unfinished,
    ended: bool,
    finish: Option<v1::FinishReason>,
    usage: v1::Usage,
}

impl Running {
    fn new(call: RequestContext, unfinished: Unfinished, usage: v1::Usage) -> Self {
        call.metrics.open_streams.inc();
        Running { call, unfinished, ended: false, finish: None, usage }
    }

    /// The client has not read for too long.
    fn stalled(&self) -> Error {
        self.call.metrics.stalled.inc();
        Error::client_stalled(self.call.stall)
    }

    /// Its last item is an error.
    fn failed(&mut self, error: &Error) {
        self.call.trace.failed();
        self.unfinished.failed(error);
        self.ended = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let metrics = &self.call.metrics;
        metrics.open_streams.dec();
        metrics.duration.observe(self.call.began.elapsed());
        if !self.ended {
            metrics.abandoned.inc();
        }
        let trace = &self.call.trace;
        trace.ended(&self.usage, self.finish);
        let seconds = self.call.began.elapsed().as_secs_f64();
        let key = self.call.caller.as_ref().map(ApiCaller::name);
        tracing::info!(parent: &trace.span, seconds, key, ended = self.ended, "generation over");
    }
}
