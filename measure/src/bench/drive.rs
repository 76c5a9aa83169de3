//! Sends requests at a given concurrency. It does not know what they contain.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use indicatif::ProgressBar;

use super::BenchError;
use super::answer::{self, BenchAnswer};
use super::prompt::BenchRequests;
use crate::client::{Endpoint, Failure, ReusedConnection};

/// Pause after a failed request, so that an endpoint that fails at once is not sent requests in a busy loop.
const BACK_OFF: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy)]
pub enum StopCondition {
    Sent(usize),
    /// No request starts after this time. Open requests finish.
    Elapsed(Duration),
}

/// The results at one concurrency.
#[derive(Debug)]
pub struct Run {
    pub answers: Vec<BenchAnswer>,
    pub failures: Vec<Failure>,
    /// Time from the first request to the end of the last answer.
    pub elapsed: Duration,
}

/// Sends requests that are not measured. They warm the endpoint's caches, report early that it does not answer, and
/// calibrate the length of the prompts.
pub async fn warm_up(endpoint: &Endpoint, requests: &mut BenchRequests, n: u32, wanted: u32) -> Result<(), BenchError> {
    let mut connection = ReusedConnection::new(endpoint);
    for i in 0..n {
        let body = requests.body(u64::MAX - u64::from(i));
        match send(&mut connection, requests, body).await {
            Ok(answer) => {
                if let Some(measured) = answer.prompt_tokens
                    && measured != u64::from(wanted)
                {
                    requests.calibrate(measured);
                }
            }
            Err(failure) => return Err(BenchError::AllFailed { sent: i as usize + 1, last: failure.to_string() }),
        }
    }
    Ok(())
}

async fn send(
    connection: &mut ReusedConnection<'_>,
    requests: &BenchRequests,
    body: Bytes,
) -> Result<BenchAnswer, Failure> {
    connection
        .ask(requests.path(), body, async |response, start| answer::read(response, start, requests.stream()).await)
        .await
}

pub async fn run(
    endpoint: &Endpoint,
    requests: &BenchRequests,
    concurrency: u32,
    until: StopCondition,
    bar: &ProgressBar,
) -> Run {
    let start = Instant::now();
    let sent = AtomicUsize::new(0);
    let failed = AtomicUsize::new(0);
    let client = async || {
        let mut connection = ReusedConnection::new(endpoint);
        let (mut answers, mut failures) = (Vec::new(), Vec::new());
        loop {
            let more = match until {
                StopCondition::Sent(n) => sent.fetch_add(1, Ordering::Relaxed) < n,
                StopCondition::Elapsed(limit) => start.elapsed() < limit,
            };
            if !more {
                return (answers, failures);
            }
            let body = requests.next_body();
            match send(&mut connection, requests, body).await {
                Ok(answer) => answers.push(answer),
                Err(failure) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(BACK_OFF).await;
                    failures.push(failure);
                }
            }
            bar.inc(1);
            bar.set_message(format!("{} failed", failed.load(Ordering::Relaxed)));
        }
    };
    let parts = join_all((0..concurrency).map(|_| client())).await;
    let elapsed = start.elapsed();
    let mut run = Run { answers: Vec::new(), failures: Vec::new(), elapsed };
    for (answers, failures) in parts {
        run.answers.extend(answers);
        run.failures.extend(failures);
    }
    run
}
