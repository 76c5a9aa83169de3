//! Sends the samples without a result, several at a time, and retries transient failures. It does not validate answers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use indicatif::ProgressBar;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

use super::answer::{self, ModelAnswer};
use super::record::{Problem, ProblemKind, Record, ResponseMode, Status};
use super::sample::Sample;
use super::store::{ResultStore, Settings};
use super::validate::validate;
use super::{VerifyError, VerifyOptions};
use crate::client::{Endpoint, Failure, ReusedConnection};

/// The pause before the first retry. It doubles with each retry.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Upper limit for Retry-After.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);

/// Sends the samples without a result. Fails only if a result cannot be written.
pub async fn run(
    endpoint: &Endpoint,
    options: &VerifyOptions,
    settings: &Settings,
    samples: &[Sample],
    store: &RefCell<ResultStore>,
    bar: &ProgressBar,
) -> Result<(), VerifyError> {
    let open = samples.iter().flat_map(|s| options.stream.modes().iter().map(move |m| (s, *m)));
    let open: VecDeque<_> = open.filter(|(s, m)| !store.borrow().answered(s.index, *m)).collect();
    bar.set_length(open.len() as u64);
    let clients = (options.concurrency as usize).min(open.len());
    let open = RefCell::new(open);
    let failed = RefCell::new(0);
    let client = async || -> Result<(), VerifyError> {
        let mut connection = ReusedConnection::new(endpoint);
        loop {
            // A separate statement, so that the borrow ends before the next await.
            let next = open.borrow_mut().pop_front();
            let Some((sample, mode)) = next else { return Ok(()) };
            let record = request(&mut connection, options, settings, sample, mode).await;
            *failed.borrow_mut() += u64::from(!record.answered());
            store.borrow_mut().add(record)?;
            bar.inc(1);
            bar.set_message(format!("{} failed", failed.borrow()));
        }
    };
    join_all((0..clients).map(|_| client())).await.into_iter().collect()
}

/// The body of the request, without the fields about streaming.
pub fn body(sample: &Sample, settings: &Settings) -> Map<String, Value> {
    let mut body = sample.request.clone();
    for name in ["stream", "stream_options"] {
        body.shift_remove(name);
    }
    body.insert("model".into(), settings.model.clone().into());
    if let Some(temperature) = settings.temperature {
        body.insert("temperature".into(), temperature.into());
    }
    if let Some(limit) = settings.max_tokens {
        body.shift_remove("max_completion_tokens");
        body.insert("max_tokens".into(), limit.into());
    }
    body.extend(settings.extra_body.clone().unwrap_or_default());
    body
}

async fn request(
    connection: &mut ReusedConnection<'_>,
    options: &VerifyOptions,
    settings: &Settings,
    sample: &Sample,
    mode: ResponseMode,
) -> Record {
    let sent = body(sample, settings);
    let mut body = sent.clone();
    body.insert("stream".into(), (mode == ResponseMode::Stream).into());
    if mode == ResponseMode::Stream {
        body.insert("stream_options".into(), json!({ "include_usage": true }));
    }
    let body = Bytes::from(Value::Object(body).to_string());
    let mut attempts = 0;
    loop {
        attempts += 1;
        let start = Instant::now();
        let read = async |response, start| answer::read(response, start, mode).await;
        let result = connection.ask("/chat/completions", body.clone(), read).await;
        let failure = match result {
            Ok(answer) => return answered(sample, &sent, mode, attempts, answer),
            Err(failure) => failure,
        };
        if attempts > options.retries || !is_transient(&failure) {
            return failed(sample, mode, attempts, start.elapsed(), &failure);
        }
        tokio::time::sleep(pause(&failure, attempts, sample.index)).await;
    }
}

/// Whether a retry may succeed. Broken streams are not retried, because they are among the measured problems.
fn is_transient(failure: &Failure) -> bool {
    match failure {
        Failure::Connect(_) | Failure::NoResponse(_) | Failure::Timeout => true,
        Failure::Status { code, .. } => matches!(code, 408 | 409 | 425 | 429 | 500..),
        Failure::InStream(_) | Failure::Broken(_) | Failure::BadResponse(_) | Failure::BadRequest(_) => false,
    }
}

fn pause(failure: &Failure, attempts: u32, seed: u64) -> Duration {
    if let Failure::Status { retry_after: Some(wanted), .. } = failure {
        return (*wanted).min(LONGEST_RETRY_AFTER);
    }
    let doubled = FIRST_PAUSE.saturating_mul(1 << (attempts - 1).min(10)).min(LONGEST_PAUSE);
    // Jitter, so that clients that failed at the same time do not retry at the same time.
    doubled.mul_f64(StdRng::seed_from_u64(seed).random_range(0.5..1.0))
}

fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn answered(
    sample: &Sample,
    sent: &Map<String, Value>,
    mode: ResponseMode,
    attempts: u32,
    answer: ModelAnswer,
) -> Record {
    Record {
        sample: sample.index,
        hash: sample.hash.clone(),
        mode,
        status: Status::Ok,
        failure: None,
        attempts,
        latency_ms: millis(answer.total),
        ttft_ms: answer.first_token.map(millis),
        problems: validate(sample, sent, &answer),
        finish_reason: answer.finish_reason,
        calls: answer.calls,
        content: answer.content,
        reasoning: answer.reasoning,
        usage: answer.usage,
    }
}

fn failed(sample: &Sample, mode: ResponseMode, attempts: u32, latency: Duration, failure: &Failure) -> Record {
    let kind = match failure {
        Failure::Connect(_) | Failure::NoResponse(_) | Failure::Status { .. } | Failure::BadRequest(_) => {
            ProblemKind::HttpError
        }
        Failure::InStream(_) | Failure::Broken(_) => ProblemKind::BrokenStream,
        Failure::BadResponse(_) => ProblemKind::BadResponse,
        Failure::Timeout => ProblemKind::Timeout,
    };
    Record {
        sample: sample.index,
        hash: sample.hash.clone(),
        mode,
        status: Status::Failed,
        failure: Some(failure.kind()),
        attempts,
        latency_ms: millis(latency),
        ttft_ms: None,
        finish_reason: None,
        calls: Vec::new(),
        content: None,
        reasoning: None,
        usage: None,
        problems: vec![Problem::new(kind, failure.to_string())],
    }
}
