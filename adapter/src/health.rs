//! Whether an engine answers, and is the one that joined, asked at intervals. It does not know sequences.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::connection::EngineHttp;
use crate::dialect::{EngineDialect, error_text};
use crate::identity::{Identity, Unproven};
use crate::limits;

/// How often an engine is asked.
const INTERVAL: Duration = Duration::from_secs(1);
/// Failures in a row after which an engine counts as lost.
const FAILURES: u32 = 3;

/// None: the engine answers. Some: why it is lost.
pub type Lost = Option<Arc<str>>;

/// Asks until the receivers are gone.
pub async fn watch_engine(
    http: Arc<EngineHttp>,
    dialect: EngineDialect,
    identity: Arc<Identity>,
    lost: watch::Sender<Lost>,
) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut failures, mut proven) = (0, Some(Instant::now()));
    loop {
        tokio::select! {
            () = lost.closed() => return,
            () = identity.doubted() => proven = None,
            _ = ticks.tick() => {}
        }
        let mut asked = ask(&http, dialect).await;
        // One that was lost may be another one when it answers again.
        let is_proven =
            proven.is_some_and(|proven| proven.elapsed() < limits::PROOF_INTERVAL) && lost.borrow().is_none();
        if asked.is_ok() && !is_proven {
            asked = match identity.prove().await {
                Ok(()) => Ok(()),
                Err(Unproven::Silent(why)) => Err((false, why)),
                Err(Unproven::Other(why)) => Err((true, why)),
            };
            proven = asked.is_ok().then(Instant::now);
        }
        let (gone, why) = match asked {
            Ok(()) => {
                failures = 0;
                if lost.send_replace(None).is_some() {
                    tracing::info!(engine = http.url(), "the engine answers again");
                }
                continue;
            }
            Err(found) => found,
        };
        failures = if gone { FAILURES } else { failures + 1 };
        if failures >= FAILURES && lost.borrow().as_deref() != Some(&*why) {
            if lost.borrow().is_none() {
                tracing::warn!(engine = http.url(), error = why, "the engine is lost: its sequences resume on others");
            } else {
                tracing::warn!(engine = http.url(), error = why, "the engine is still lost");
            }
            lost.send_replace(Some(why.into()));
        }
    }
}

/// Err: the reason, and whether the engine itself said so or does not listen.
async fn ask(http: &EngineHttp, dialect: EngineDialect) -> Result<(), (bool, String)> {
    match http.get(dialect.probes().health).await {
        Ok((StatusCode::OK, _)) => Ok(()),
        Ok((status, body)) => {
            let why = format!("the engine's health is {}: {}", status.as_u16(), error_text(&body));
            Err((status == StatusCode::SERVICE_UNAVAILABLE, why))
        }
        Err(error) => Err((error.0.contains("refused"), error.0)),
    }
}
