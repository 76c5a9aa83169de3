//! One request's sequences: planned, started on an engine, and merged into one stream of events.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
};

use futures::{
    Stream, StreamExt,
    stream::{self, BoxStream, SelectAll},
};
use rein_grammar::{Compiled, Parser, ParserOptions, Region, Relaxation, ToolDecl};
use rein_proto::{
    internal::{self, Start},
    protocol,
    v1::{self, chat_event},
};
use tokio::time::Instant;
use tracing::Instrument;

use crate::{
    admit::Permit,
    choice::{Choice, Guided},
    effort::Effort,
    error::Error,
    guide::Guide,
    hash::{STRIDE, mix},
    job::Generation,
    keys::Caller,
    limits,
    metrics::Metrics,
    model::{Bounds, Model, now},
    outcomes::Unfinished,
    pool::Wanted,
    steer::{Common, EngineStream, Spans},
    stop::StopStrings,
    stream::{Opening, Reader, Report, Transcript},
    trace::Trace,
};

/// Exactly one terminal item: `Usage`, after each choice's `Done`, or an error. Dropping it frees all slots.
pub type ChatEvents = Pin<Box<dyn Stream<Item = Result<v1::ChatEvent, Error>> + Send>>;

/// What a surface knows of a request besides what is in it.
pub struct Call {
    pub trace: Trace,
    pub began: Instant,
    pub deadline: Instant,
    pub permit: Permit,
    pub metrics: Arc<Metrics>,
    pub effort: Arc<Effort>,
    /// Whose request it is, if the server asks.
    pub caller: Option<Caller>,
    /// Requests of one session are best answered by one engine.
    pub session: Option<u64>,
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
    pub fn new(compiled: Option<Compiled>, model: &Model) -> Option<Self> {
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

    fn reader(&self, model: &Model) -> Reader {
        match self {
            Reading::Regions { start, tools, parse_tools, grammar, .. } => {
                let options = ParserOptions {
                    start: *start,
                    tools: tools.clone(),
                    parse_tools: *parse_tools,
                    calls_in_text: grammar.is_none(),
                };
                Reader::Regions(Box::new(Parser::new(model.format, options)))
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

/// A request's generation with every default filled in, for one prompt.
#[derive(Debug, Clone)]
pub struct Plan {
    sampling: internal::Sampling,
    limits: internal::Limits,
    named_stop_ids: Vec<u32>,
    stops: StopStrings,
    n: u32,
    logprobs: Option<u32>,
    prompt_logprobs: Option<u32>,
    token_ids: bool,
    grammar_report: bool,
    cache_salt: String,
    script: Vec<u32>,
    /// Compute the prompt and generate nothing.
    score_only: bool,
}

/// What depends on the surface and not on the request.
#[derive(Debug, Clone, Copy)]
pub struct Defaults {
    /// The request field that holds the prompt.
    pub prompt: &'static str,
    /// None: the model's generation_config, then as many as the context takes.
    pub max_tokens: Option<u32>,
}

impl Plan {
    pub fn new(
        generation: &Generation,
        model: &Model,
        bounds: Bounds,
        prompt: usize,
        defaults: Defaults,
        seed: u64,
    ) -> Result<Self, Error> {
        let asked = &generation.limits;
        let score_only = asked.max_tokens == Some(0);
        let defaults =
            Defaults { max_tokens: defaults.max_tokens.or(model.text.generation.max_new_tokens), ..defaults };
        let max_tokens = max_tokens(generation, bounds, prompt, defaults)?;
        let eos: &[u32] = if asked.ignore_eos { &[] } else { &model.text.stop_token_ids };
        let mut stop_token_ids = [eos, &asked.stop_token_ids].concat();
        stop_token_ids.sort_unstable();
        stop_token_ids.dedup();
        if !generation.script.is_empty() && !bounds.scripted {
            return Err(Error::unsupported("script", "only the sim engine takes one"));
        }
        Ok(Plan {
            sampling: sampling(&generation.sampling, model, seed),
            limits: internal::Limits {
                max_tokens,
                min_tokens: asked.min_tokens.unwrap_or(0),
                ignore_eos: stop_token_ids.is_empty(),
                stop_token_ids,
            },
            named_stop_ids: asked.stop_token_ids.clone(),
            stops: StopStrings::new(asked.stop.clone(), asked.include_stop),
            n: generation.choices(),
            logprobs: generation.logprobs,
            prompt_logprobs: generation.prompt_logprobs,
            token_ids: generation.return_token_ids,
            grammar_report: generation.return_grammar,
            cache_salt: generation.cache_salt.clone().unwrap_or_default(),
            script: generation.script.clone(),
            score_only,
        })
    }

    fn start(&self, request_id: &str, choice: u32, prompt: &[u32], grammar: Option<&Grammar>) -> Start {
        let width = |wanted: Option<u32>| wanted.map_or(-1, |n| n as i32);
        Start {
            request_id: format!("{request_id}-{choice}"),
            prompt: prompt.to_vec(),
            resume: Vec::new(),
            sampling: Some(internal::Sampling {
                seed: derived_seed(self.sampling.seed, choice % self.n),
                ..self.sampling.clone()
            }),
            limits: Some(self.limits.clone()),
            hold: self.score_only || grammar.is_some_and(|grammar| grammar.always),
            cache_salt: self.cache_salt.clone(),
            logprobs: width(self.logprobs),
            // The choices of a prompt share its logprobs.
            prompt_logprobs: if choice.is_multiple_of(self.n) { width(self.prompt_logprobs) } else { -1 },
            finish_is_proposal: grammar.is_some(),
            script: self.script.clone(),
            protocol: protocol::NUMBER,
            version: protocol::VERSION.into(),
        }
    }
}

fn max_tokens(generation: &Generation, bounds: Bounds, prompt: usize, defaults: Defaults) -> Result<u32, Error> {
    let (context, asked) = (bounds.context, generation.limits.max_tokens);
    if prompt == 0 {
        return Err(Error::invalid(defaults.prompt, format!("'{}' gives a prompt of no tokens", defaults.prompt)));
    }
    // A default gives way to what the request says; a limit of its own is not below 'min_tokens'.
    let least = generation.limits.min_tokens.unwrap_or(0).max(1);
    let wanted = match asked {
        Some(asked) => format!("'{}' asks for {asked} more", generation.max_tokens_param()),
        None if least > 1 => format!("'min_tokens' asks for {least} more"),
        None => "at least 1 more is to be generated".to_owned(),
    };
    let room = (context as usize).saturating_sub(prompt);
    if (context as usize) < prompt || (asked.unwrap_or(least) as usize) > room {
        let message =
            format!("the prompt has {prompt} tokens and {wanted}, but this model's context is {context} tokens");
        return Err(Error { code: Some("context_length_exceeded"), ..Error::invalid(defaults.prompt, message) });
    }
    // `room` is below `context`, so it fits. An engine is asked for at least one token, also if it is stopped before.
    Ok(asked.or(defaults.max_tokens.map(|default| default.max(least))).unwrap_or(u32::MAX).min(room as u32).max(1))
}

/// The request's word, then the model's generation_config, then the API's default.
fn sampling(asked: &v1::Sampling, model: &Model, seed: u64) -> internal::Sampling {
    let model = &model.text.generation;
    let greedy = (model.do_sample == Some(false)).then_some(0.0);
    let mut logit_bias: Vec<_> =
        asked.logit_bias.iter().map(|(&token, &bias)| internal::LogitBias { token, bias }).collect();
    logit_bias.sort_unstable_by_key(|bias| bias.token);
    internal::Sampling {
        temperature: asked.temperature.or(greedy).or(model.temperature).unwrap_or(1.0),
        top_p: asked.top_p.or(model.top_p).unwrap_or(1.0),
        top_k: asked.top_k.or(model.top_k).unwrap_or(0),
        min_p: asked.min_p.or(model.min_p).unwrap_or(0.0),
        repetition_penalty: asked.repetition_penalty.or(model.repetition_penalty).unwrap_or(1.0),
        presence_penalty: asked.presence_penalty.unwrap_or(0.0),
        frequency_penalty: asked.frequency_penalty.unwrap_or(0.0),
        logit_bias,
        seed,
    }
}

/// The first choice draws with the request's seed, so that it is the same whatever `n` is.
fn derived_seed(seed: u64, choice: u32) -> u64 {
    if choice == 0 {
        return seed;
    }
    mix(seed.wrapping_add(u64::from(choice - 1).wrapping_mul(STRIDE)))
}

/// Starts everything, or nothing: an error here comes before any event.
pub async fn generate(
    call: Call,
    model: Arc<Model>,
    reading: Reading,
    sequences: Vec<Sequence>,
) -> Result<ChatEvents, Error> {
    let count = sequences.iter().map(|sequence| sequence.plan.n).sum();
    let mut unfinished = Unfinished::new(call.metrics.clone(), model.name(), count);
    let mut starts = VecDeque::new();
    let mut choices = Vec::new();
    let mut usage = v1::Usage::default();
    let n = sequences.first().map_or(1, |sequence| sequence.plan.n);
    for sequence in sequences {
        usage.prompt_tokens += sequence.prompt.len() as u32;
        if let Some(caller) = &call.caller {
            caller.charge(sequence.prompt.len() as u64, Instant::now());
        }
        let opened = open(&call, &model, &reading, sequence, &mut starts, &mut choices).await;
        opened.inspect_err(|error| unfinished.failed(error))?;
    }
    let choices = choices.into_iter().map(|choice| {
        stream::unfold(choice, async |mut choice: Choice| choice.next().await.map(|event| (event, choice))).boxed()
    });
    let running = Running::new(call, unfinished, usage);
    let merged = Merged { starts, choices: stream::select_all(choices), usage, n, running };
    Ok(stream::unfold(Some(merged), async |merged| merged?.next().await).boxed())
}

/// All choices of one prompt. With more than one, the others start when the first has computed the prompt, on the same
/// engine, and find it cached.
async fn open(
    call: &Call,
    model: &Arc<Model>,
    reading: &Reading,
    sequence: Sequence,
    starts: &mut VecDeque<v1::ChatEvent>,
    choices: &mut Vec<Choice>,
) -> Result<(), Error> {
    let Sequence { prompt, echo, plan } = sequence;
    let first = choices.len() as u32;
    let transcript = |index: u32| {
        let (start, resumed, calls_before) = match reading {
            Reading::Regions { start, resumed, calls_before, .. } => (*start, *resumed, *calls_before),
            Reading::Plain { .. } => (Region::Text, false, 0),
        };
        let opening = Opening {
            index,
            span: call.trace.span.clone(),
            reader: reading.reader(model),
            stops: plan.stops.clone(),
            min_tokens: plan.limits.min_tokens,
            stop_ids: plan.limits.stop_token_ids.clone(),
            named_stop_ids: plan.named_stop_ids.clone(),
            report: Report {
                token_ids: plan.token_ids,
                logprobs: plan.logprobs.is_some(),
                grammar: plan.grammar_report,
            },
            grammar: reading.grammar().map(|grammar| grammar.compiled.clone()),
            start,
            resumed,
            calls_before,
            prompt_tokens: prompt.len() as u32,
            last_prompt_token: prompt.last().copied(),
        };
        Transcript::new(model.clone(), opening)
    };
    let grammar = reading.grammar();
    let choice = async |index: u32, lease, queue| {
        let start = plan.start(&call.trace.id, index, &prompt, grammar);
        let common = Common {
            pool: model.pool.clone(),
            session: call.session,
            deadline: call.deadline,
            metrics: call.metrics.clone(),
            effort: call.effort.clone(),
        };
        let spans = Spans { span: call.trace.span.clone(), queue };
        let engine = EngineStream::open(common, lease, start, spans).await?;
        let guide = |grammar: &Grammar| match grammar.compiled.matcher() {
            Ok(matcher) => Ok(Guided {
                guide: Guide::new(matcher, grammar.compiled.opening(), &plan.limits.stop_token_ids, grammar.always),
                max_tokens: plan.limits.max_tokens,
            }),
            Err(error) => Err(Error::from_matcher(error)),
        };
        let guided = grammar.map(guide).transpose()?;
        Choice::open(transcript(index), engine, guided, call.metrics.clone(), call.caller.clone(), call.began).await
    };
    let until = Instant::now() + limits::ENGINE_WAIT;
    let wanted = Wanted { salt: &plan.cache_salt, tokens: &prompt, session: call.session, kind: None, refused: &[] };
    let queue = call.trace.queue();
    let lease = model.pool.lease(&wanted, until, call.deadline).instrument(queue.clone()).await?;
    choices.push(choice(first, lease, queue).await?);
    let mut prompt_logprobs = Vec::new();
    if plan.n > 1 || plan.prompt_logprobs.is_some() || plan.score_only {
        let admitted = choices[first as usize].admitted().await?;
        prompt_logprobs = admitted.prompt_logprobs.into_iter().map(|logprob| model.logprob(logprob)).collect();
    }
    for index in first + 1..first + plan.n {
        let lease = choices[first as usize].engine().map(|engine| engine.lease().again());
        let queue = call.trace.queue();
        let lease = match lease {
            Some(lease) => lease,
            None => model.pool.lease(&wanted, until, call.deadline).instrument(queue.clone()).await?,
        };
        choices.push(choice(index, lease, queue).await?);
    }
    for index in first..first + plan.n {
        let choice = &mut choices[index as usize];
        if let Some(text) = &echo {
            let logprobs = if plan.logprobs.is_some() { prompt_logprobs.clone() } else { Vec::new() };
            choice.transcript().echo(text.clone(), logprobs);
        }
        if plan.score_only {
            choice.end_at_once();
        }
        let shown = index == first;
        starts.push_back(v1::ChatEvent {
            choice: index,
            event: Some(chat_event::Event::Start(v1::Started {
                id: call.trace.id.clone(),
                model: model.name().to_owned(),
                created: now(),
                prompt_token_ids: if shown && plan.token_ids { prompt.clone() } else { Vec::new() },
                prompt_logprobs: if shown { prompt_logprobs.clone() } else { Vec::new() },
            })),
            ..v1::ChatEvent::default()
        });
    }
    Ok(())
}

struct Merged {
    starts: VecDeque<v1::ChatEvent>,
    choices: SelectAll<BoxStream<'static, Result<v1::ChatEvent, Error>>>,
    usage: v1::Usage,
    /// Choices per prompt.
    n: u32,
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
                self.running.call.trace.failed();
                self.running.unfinished.failed(&error);
                self.running.ended = true;
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
    call: Call,
    unfinished: Unfinished,
    ended: bool,
    finish: Option<v1::FinishReason>,
    usage: v1::Usage,
}

impl Running {
    fn new(call: Call, unfinished: Unfinished, usage: v1::Usage) -> Self {
        call.metrics.open_streams.fetch_add(1, Ordering::Relaxed);
        Running { call, unfinished, ended: false, finish: None, usage }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let metrics = &self.call.metrics;
        metrics.open_streams.fetch_sub(1, Ordering::Relaxed);
        metrics.duration.observe(self.call.began.elapsed());
        if !self.ended {
            metrics.abandoned.fetch_add(1, Ordering::Relaxed);
        }
        let trace = &self.call.trace;
        trace.ended(&self.usage, self.finish);
        let seconds = self.call.began.elapsed().as_secs_f64();
        let key = self.call.caller.as_ref().map(Caller::name);
        tracing::info!(parent: &trace.span, seconds, key, ended = self.ended, "generation over");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_draw_with_different_seeds_and_the_first_with_the_given_one() {
        let seeds: std::collections::HashSet<u64> = (0..64).map(|choice| derived_seed(7, choice)).collect();
        assert_eq!((seeds.len(), derived_seed(7, 0)), (64, 7));
    }
}
