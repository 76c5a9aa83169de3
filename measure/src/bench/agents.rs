//! Agents: conversations that call a tool at each turn, wait for it, and come back with its result. Every prompt begins
//! with the last one, so what counts is how much of it an endpoint computes again.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use indicatif::ProgressBar;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use serde_json::{Value, json};

use super::prompt::{tool, words};
use super::{BenchError, BenchOptions};
use crate::client::{ApiResponse, Endpoint, Failure, ReusedConnection, error_text, read_events};
use crate::quantiles::Quantiles;

/// Tools that each agent has.
const TOOLS: u32 = 4;

/// What all agents of a benchmark did.
#[derive(Debug, Serialize)]
pub struct AgentsReport {
    pub sessions: u32,
    pub turns: u32,
    pub seconds: f64,
    pub answered: usize,
    pub failed: usize,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub tool_calls: u64,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    /// Prompt tokens that the endpoint says it had cached.
    pub cached_tokens: u64,
    /// Prompt tokens of the turns after the first that the endpoint had computed before: the prompt before.
    pub known_tokens: u64,
    /// The part of them that was computed again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recomputed: Option<f64>,
    /// Of the turns after the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<Quantiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_ttft_ms: Option<Quantiles>,
}

/// One answer of an endpoint.
#[derive(Debug, Default)]
struct Turn {
    first_token: Option<Duration>,
    prompt_tokens: u64,
    output_tokens: u64,
    cached_tokens: u64,
    content: String,
    /// Their ids, names and arguments.
    calls: Vec<[String; 3]>,
}

impl Turn {
    fn add(&mut self, chunk: &Value, at: Duration) {
        if let Some(usage) = chunk.get("usage").filter(|usage| usage.is_object()) {
            let of = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
            self.prompt_tokens = of("/prompt_tokens");
            self.output_tokens = of("/completion_tokens");
            self.cached_tokens = of("/prompt_tokens_details/cached_tokens");
        }
        let Some(delta) = chunk.pointer("/choices/0/delta") else { return };
        let text = |value: &Value, pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let reasons = ["/reasoning_content", "/reasoning"].iter().any(|at| text(delta, at).is_some());
        if let Some(content) = text(delta, "/content") {
            self.content += &content;
        }
        let calls = delta["tool_calls"].as_array();
        for call in calls.into_iter().flatten() {
            let index = call["index"].as_u64().unwrap_or(0) as usize;
            if self.calls.len() <= index {
                self.calls.resize_with(index + 1, Default::default);
            }
            for (part, pointer) in self.calls[index].iter_mut().zip(["/id", "/function/name", "/function/arguments"]) {
                *part += &text(call, pointer).unwrap_or_default();
            }
        }
        if reasons || !self.content.is_empty() || !self.calls.is_empty() {
            self.first_token.get_or_insert(at);
        }
    }

    /// The answer as a message of the history, and what follows it.
    fn messages(self, result: String) -> Vec<Value> {
        if self.calls.is_empty() {
            return vec![
                json!({"role": "assistant", "content": self.content}),
                json!({"role": "user", "content": result}),
            ];
        }
        let function = |[id, name, arguments]: &[String; 3]| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let calls: Vec<Value> = self.calls.iter().map(function).collect();
        let content = if self.content.is_empty() { Value::Null } else { self.content.into() };
        let mut messages = vec![json!({"role": "assistant", "content": content, "tool_calls": calls})];
        let mut result = Some(result);
        for [id, ..] in self.calls {
            let content = result.take().unwrap_or_else(|| "the same".into());
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
        }
        messages
    }
}

async fn read(response: ApiResponse, start: Instant) -> Result<Turn, Failure> {
    let (mut turn, mut failure) = (Turn::default(), None);
    read_events(response, start, |data, at| match serde_json::from_slice::<Value>(data) {
        Ok(chunk) if chunk.get("error").is_some_and(|error| !error.is_null()) => {
            failure.get_or_insert(Failure::InStream(error_text(data)));
        }
        Ok(chunk) => turn.add(&chunk, at),
        Err(error) => {
            failure.get_or_insert(Failure::BadResponse(error.to_string()));
        }
    })
    .await?;
    failure.map_or(Ok(turn), Err)
}

/// The measurements of one agent.
#[derive(Debug, Default)]
struct Session {
    turns: Vec<(Duration, Turn)>,
    /// Prompt tokens that were known at each turn after the first.
    known: Vec<u64>,
    failure: Option<Failure>,
}

struct Agents<'a> {
    options: &'a BenchOptions,
    endpoint: &'a Endpoint,
    model: &'a str,
    bar: &'a ProgressBar,
}

impl Agents<'_> {
    fn body(&self, messages: &[Value]) -> Bytes {
        let mut body = json!({
            "model": self.model,
            "messages": messages,
            "tools": (0..TOOLS).map(tool).collect::<Vec<_>>(),
            "tool_choice": "required",
            "parallel_tool_calls": false,
            "max_tokens": self.options.output_tokens,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if let Some(temperature) = self.options.temperature {
            body["temperature"] = json!(temperature);
        }
        for (key, value) in self.options.extra.iter().flatten() {
            body[key] = value.clone();
        }
        body.to_string().into()
    }

    async fn session(&self, number: u32) -> Session {
        let options = self.options;
        let mut rng = StdRng::seed_from_u64(options.seed.wrapping_mul(0x9E37_79B9).wrapping_add(number.into()));
        let mut connection = ReusedConnection::new(self.endpoint);
        let mut session = Session::default();
        let each = options.trace_tokens / options.turns.max(1);
        let system = format!("You are agent {number}. Call one tool at each turn.");
        let question = words(&mut rng, each as usize / 2);
        let mut messages =
            vec![json!({"role": "system", "content": system}), json!({"role": "user", "content": question})];
        // Those of the last result, and how many make a token.
        let (mut sent, mut words_per_token) = (0, 1.0);
        // Agents do not begin in step.
        tokio::time::sleep(self.tool_time(&mut rng)).await;
        for turn in 1..=options.turns {
            let asked = connection
                .ask("/chat/completions", self.body(&messages), async |response, start| read(response, start).await);
            let answer = match asked.await {
                Ok(answer) => answer,
                Err(failure) => {
                    session.failure = Some(failure);
                    return session;
                }
            };
            self.bar.inc(1);
            if let Some((_, before)) = session.turns.last() {
                let grown = answer.prompt_tokens.saturating_sub(before.prompt_tokens + before.output_tokens);
                words_per_token = f64::from(sent) / grown.max(1) as f64;
                session.known.push(before.prompt_tokens);
            }
            let wanted = u64::from(options.trace_tokens) * u64::from(turn + 1) / u64::from(options.turns);
            let missing = wanted.saturating_sub(answer.prompt_tokens + answer.output_tokens);
            sent = (missing as f64 * words_per_token.clamp(0.2, 2.0)) as u32;
            let (content, calls) = (answer.content.clone(), answer.calls.clone());
            let said = Turn { content, calls, ..Turn::default() };
            messages.extend(said.messages(words(&mut rng, sent as usize)));
            session.turns.push((answer.first_token.unwrap_or_default(), answer));
            if turn < options.turns {
                tokio::time::sleep(self.tool_time(&mut rng)).await;
            }
        }
        session
    }

    /// How long a tool runs.
    fn tool_time(&self, rng: &mut StdRng) -> Duration {
        Duration::from_secs_f64(self.options.tool_time * rng.random_range(0.5..1.5))
    }
}

/// Runs all agents at the same time.
pub async fn run(
    endpoint: &Endpoint,
    options: &BenchOptions,
    model: &str,
    bar: &ProgressBar,
) -> Result<AgentsReport, BenchError> {
    let agents = Agents { options, endpoint, model, bar };
    let began = Instant::now();
    let sessions = join_all((0..options.sessions).map(|number| agents.session(number))).await;
    let seconds = began.elapsed().as_secs_f64();
    let failures: Vec<&Failure> = sessions.iter().filter_map(|session| session.failure.as_ref()).collect();
    let all = || sessions.iter().flat_map(|session| &session.turns);
    let answered = all().count();
    if answered == 0 {
        let last = failures.last().map_or_else(|| "no request was sent".into(), ToString::to_string);
        return Err(BenchError::AllFailed { sent: failures.len(), last });
    }
    let later = || sessions.iter().flat_map(|session| session.turns.iter().skip(1).zip(&session.known));
    let known: u64 = later().map(|(_, known)| known).sum();
    let again: u64 = later().map(|((_, turn), known)| known.saturating_sub(turn.cached_tokens)).sum();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(AgentsReport {
        sessions: options.sessions,
        turns: options.turns,
        seconds,
        answered,
        failed: failures.len(),
        error: failures.last().map(ToString::to_string),
        tool_calls: all().map(|(_, turn)| turn.calls.len() as u64).sum(),
        prompt_tokens: all().map(|(_, turn)| turn.prompt_tokens).sum(),
        output_tokens: all().map(|(_, turn)| turn.output_tokens).sum(),
        cached_tokens: all().map(|(_, turn)| turn.cached_tokens).sum(),
        known_tokens: known,
        recomputed: (known > 0).then(|| again as f64 / known as f64),
        ttft_ms: Quantiles::of(later().map(|((first, _), _)| ms(*first)).collect()),
        first_ttft_ms: Quantiles::of(
            sessions.iter().filter_map(|session| session.turns.first()).map(|(first, _)| ms(*first)).collect(),
        ),
    })
}

impl AgentsReport {
    pub fn table(&self) -> String {
        let quantiles = |times: &Option<Quantiles>| match times {
            Some(times) => format!("p50 {:.1}, p90 {:.1}, p99 {:.1}", times.p50, times.p90, times.p99),
            None => "-".into(),
        };
        let percent = self.recomputed.map_or("-".into(), |part| format!("{:.1} %", part * 100.0));
        let computed = self.prompt_tokens.saturating_sub(self.cached_tokens);
        let rows = [
            ("turns", format!("{} of {}", self.answered, self.sessions * self.turns)),
            ("seconds", format!("{:.2}", self.seconds)),
            ("tool calls", self.tool_calls.to_string()),
            ("prompt tokens", self.prompt_tokens.to_string()),
            ("    computed", computed.to_string()),
            ("    computed again", percent),
            ("output tokens", self.output_tokens.to_string()),
            ("time to first token, ms", quantiles(&self.ttft_ms)),
            ("    of first turns", quantiles(&self.first_ttft_ms)),
        ];
        let mut out = String::new();
        for (name, value) in rows {
            out += &format!("{name:26}{value}\n");
        }
        if let Some(error) = &self.error {
            out += &format!("{} agents failed; the last error: {error}\n", self.failed);
        }
        out
    }
}
