//! Hedging: gives a sequence to a second engine when the first one sends nothing for a while. The engine that answers
//! first keeps the sequence, and the other one is released.
//!
//! Both engines get the same start, and each has its own progress. Draws are a function of the start, so the answer
//! does not depend on the winner.

use futures::{FutureExt, future::BoxFuture};
use rein_proto::internal::{FinishReason, FromEngine, ToEngine, from_engine, to_engine};
use tokio::time::{Instant, sleep_until};

use super::{Failure, Link, SequenceContext, SequenceProgress, Start};
use crate::fleet::{
    pool::{EngineHandle, EngineRequest},
    retry_budget::CountGuard,
};

/// The second engine of a sequence.
#[derive(Default)]
pub(super) enum Hedge {
    /// There is no second engine, and there will be none.
    #[default]
    Settled,
    /// A second engine is asked at this time.
    Due(Instant),
    /// A second engine is asked.
    Opening {
        attempt: BoxFuture<'static, Result<Link, Failure>>,
        progress: SequenceProgress,
        /// The steer that follows the start.
        steer: Option<ToEngine>,
        counted: CountGuard,
    },
    /// A second engine has accepted the sequence.
    Open { link: Link, progress: SequenceProgress, _counted: CountGuard },
}

pub(super) enum HedgeEvent {
    /// It is time to ask a second engine.
    Due,
    /// The second engine answered first.
    Won(Box<Winner>),
}

pub(super) struct Winner {
    pub link: Link,
    pub progress: SequenceProgress,
    pub answer: FromEngine,
}

impl Hedge {
    pub fn new(context: &SequenceContext) -> Self {
        context
            .retry_budget
            .hedge_after
            .and_then(|after| Instant::now().checked_add(after))
            .map_or(Hedge::Settled, Hedge::Due)
    }

    /// Asks a second engine, if a healthy one exists and few sequences are hedged. `engine` is the first one.
    pub fn begin(
        context: &SequenceContext,
        start: &Start,
        progress: &SequenceProgress,
        engine: &EngineHandle,
        span: &tracing::Span,
    ) -> Self {
        let Some(counted) = context.retry_budget.try_hedge() else { return Hedge::Settled };
        let mut progress = progress.clone();
        let (start, steering) = progress.resume(start, false);
        let tokens = [start.prompt.as_slice(), start.resume.as_slice()].concat();
        let session = context.session;
        let kind = Some((&*engine.kind, Instant::now()));
        let (salt, lora) = (start.cache_salt.as_str(), start.lora_digest);
        let wanted = EngineRequest { salt, lora, tokens: &tokens, session, kind, refused: &[] };
        let Some(lease) = context.pool.lease_elsewhere(&wanted, &engine.group) else { return Hedge::Settled };
        context.retry_budget.count_hedge();
        tracing::info!(parent: span, sequence = start.request_id, other = lease.engine().group, "the engine is silent; also starting the sequence on a second engine");
        let steer = steering.map(|steering| ToEngine { kind: Some(to_engine::Kind::Steer(progress.steer(steering))) });
        let (deadline, span) = (context.deadline, span.clone());
        let attempt = async move { Link::open(lease, start, deadline, &span).await }.boxed();
        Hedge::Opening { attempt, progress, steer, counted }
    }

    /// The next event. Never returns if there is none. Cancel-safe.
    pub async fn next(&mut self) -> HedgeEvent {
        loop {
            match self {
                Hedge::Settled => return std::future::pending().await,
                Hedge::Due(at) => {
                    sleep_until(*at).await;
                    return HedgeEvent::Due;
                }
                Hedge::Opening { .. } => self.finish_opening().await,
                Hedge::Open { link, .. } => {
                    let message = link.from.message().await;
                    let (Hedge::Open { link, progress, .. }, Ok(Some(answer))) = (std::mem::take(self), message) else {
                        continue;
                    };
                    let failed = matches!(&answer.kind, Some(from_engine::Kind::Finish(finish))
                        if matches!(finish.reason(), FinishReason::Lost | FinishReason::Error));
                    if !failed {
                        return HedgeEvent::Won(Box::new(Winner { link, progress, answer }));
                    }
                }
            }
        }
    }

    /// Waits until the second engine has accepted or refused the sequence. Cancel-safe.
    async fn finish_opening(&mut self) {
        let Hedge::Opening { attempt, .. } = self else { return };
        let opened = attempt.await;
        *self = match (std::mem::take(self), opened) {
            (Hedge::Opening { progress, steer, counted, .. }, Ok(link)) => {
                // The queue is empty, because the engine has read the start.
                let sent = steer.is_none_or(|steer| link.to.try_send(steer).is_ok());
                if sent { Hedge::Open { link, progress, _counted: counted } } else { Hedge::Settled }
            }
            _ => Hedge::Settled,
        };
    }

    /// The second engine, if it has accepted the sequence, to replace the first one that was lost.
    pub fn promote(&mut self) -> Option<(Link, SequenceProgress)> {
        match std::mem::take(self) {
            Hedge::Open { link, progress, .. } => Some((link, progress)),
            _ => None,
        }
    }

    /// The same after the first engine has refused the sequence. Waits for the second one if it is still being asked.
    pub async fn wait_for_second(&mut self) -> Option<(Link, SequenceProgress)> {
        while let Hedge::Opening { .. } = self {
            self.finish_opening().await;
        }
        self.promote()
    }

    /// Releases a second engine when the sequence is steered before any answer, because that engine does not get
    /// steers.
    pub fn withdraw(&mut self) {
        if !matches!(self, Hedge::Due(_)) {
            *self = Hedge::Settled;
        }
    }
}
