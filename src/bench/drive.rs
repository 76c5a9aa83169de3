//! Keeps a number of requests open until enough were sent.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use indicatif::ProgressBar;

use super::BenchError;
use super::answer::{self, BenchAnswer};
use super::prompt::BenchRequests;
use crate::client::{Endpoint, Failure, ReusedConnection};

/// Pause of a client after a failed request.
const BACK_OFF: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy)]
pub enum Until {
    Sent(usize),
    /// No request starts later than this; those that are open are waited for.
    Elapsed(Duration),
}

/// The results of the requests at one concurrency.
#[derive(Debug)]
pub struct Run {
    pub answers: Vec<BenchAnswer>,
    pub failures: Vec<Failure>,
    /// From the first request to the last answer.
    pub elapsed: Duration,
}

/// Requests that do not count. They bring the endpoint's caches into their usual state, show early that it answers at
/// all, and tell how long the prompts are.
pub async fn warm_up(endpoint: &Endpoint, work: &mut BenchRequests, n: u32, wanted: u32) -> Result<(), BenchError> {
    let mut connection = ReusedConnection::new(endpoint);
    for i in 0..n {
        let body = work.body(u64::MAX - u64::from(i));
        match ask(&mut connection, work, body).await {
            Ok(answer) => {
                if let Some(measured) = answer.prompt_tokens
                    && measured != u64::from(wanted)
                {
                    work.calibrate(measured);
                }
            }
            Err(failure) => return Err(BenchError::AllFailed { sent: i as usize + 1, last: failure.to_string() }),
        }
    }
    Ok(())
}

async fn ask(connection: &mut ReusedConnection<'_>, work: &BenchRequests, body: Bytes) -> Result<BenchAnswer, Failure> {
    connection.ask(work.path(), body, async |response, start| answer::read(response, start, work.stream()).await).await
}

pub async fn run(endpoint: &Endpoint, work: &BenchRequests, concurrency: u32, until: Until, bar: &ProgressBar) -> Run {
    let start = Instant::now();
    let sent = AtomicUsize::new(0);
    let failed = AtomicUsize::new(0);
    let client = async || {
        let mut connection = ReusedConnection::new(endpoint);
        let (mut answers, mut failures) = (Vec::new(), Vec::new());
        loop {
            let more = match until {
                Until::Sent(n) => sent.fetch_add(1, Ordering::Relaxed) < n,
                Until::Elapsed(limit) => start.elapsed() < limit,
            };
            if !more {
                return (answers, failures);
            }
            let body = work.next_body();
            match ask(&mut connection, work, body).await {
                Ok(answer) => answers.push(answer),
                Err(failure) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                    // An endpoint that refuses at once must not turn this into a busy loop.
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
