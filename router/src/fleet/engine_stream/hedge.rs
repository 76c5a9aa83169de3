//! A second engine for a sequence whose first one keeps silent: the one that answers first has it, the other is let go.
//!
//! Nothing has been heard of the sequence then, so the two have the same start and a progress each; with the engine,
//! the winner brings its progress. What is drawn is a function of the start, so that nobody can tell who won.

use futures::{FutureExt, future::BoxFuture};
use rein_proto::internal::{FinishReason, FromEngine, ToEngine, from_engine, to_engine};
use tokio::time::{Instant, sleep_until};

use super::{Failure, Link, SequenceContext, SequenceProgress, Start};
use crate::fleet::{
    pool::{EngineHandle, EngineRequest},
    retry_budget::CountGuard,
};

#[derive(Default)]
pub(super) enum Hedge {
    /// There is none, and there will be none.
    #[default]
    Settled,
    Due(Instant),
    Opening {
        attempt: BoxFuture<'static, Result<Link, Failure>>,
        progress: SequenceProgress,
        /// For the engine once it has the start.
        steer: Option<ToEngine>,
        counted: CountGuard,
    },
    Open {
        link: Link,
        progress: SequenceProgress,
        _counted: CountGuard,
    },
}

pub(super) enum Turn {
    /// It is time to ask a second engine.
    Due,
    Won(Box<Winner>),
}

pub(super) struct Winner {
    pub link: Link,
    pub progress: SequenceProgress,
    pub answer: FromEngine,
}

impl Hedge {
    pub fn new(common: &SequenceContext) -> Self {
        common
            .retry_budget
            .hedge_after
            .and_then(|after| Instant::now().checked_add(after))
            .map_or(Hedge::Settled, Hedge::Due)
    }

    /// Asks another engine than `engine`, if there is one that is in good health, and few sequences are hedged.
    pub fn begin(
        common: &SequenceContext,
        start: &Start,
        progress: &SequenceProgress,
        engine: &EngineHandle,
        span: &tracing::Span,
    ) -> Self {
        let Some(counted) = common.retry_budget.hedge() else { return Hedge::Settled };
        let mut progress = progress.clone();
        let (start, steering) = progress.resume(start, false);
        let tokens = [start.prompt.as_slice(), start.resume.as_slice()].concat();
        let session = common.session;
        let kind = Some((&*engine.kind, Instant::now()));
        let wanted = EngineRequest { salt: &start.cache_salt, tokens: &tokens, session, kind, refused: &[] };
        let Some(lease) = common.pool.another(&wanted, &engine.group) else { return Hedge::Settled };
        common.retry_budget.hedges();
        tracing::info!(parent: span, sequence = start.request_id, other = lease.engine().group, "hedging");
        let steer = steering.map(|steering| ToEngine { kind: Some(to_engine::Kind::Steer(progress.steer(steering))) });
        let (deadline, span) = (common.deadline, span.clone());
        let attempt = async move { Link::open(lease, start, deadline, &span).await }.boxed();
        Hedge::Opening { attempt, progress, steer, counted }
    }

    /// Never returns if no more events follow. Cancel-safe.
    pub async fn next(&mut self) -> Turn {
        loop {
            match self {
                Hedge::Settled => return std::future::pending().await,
                Hedge::Due(at) => {
                    sleep_until(*at).await;
                    return Turn::Due;
                }
                Hedge::Opening { .. } => self.opened().await,
                Hedge::Open { link, .. } => {
                    let heard = link.from.message().await;
                    let (Hedge::Open { link, progress, .. }, Ok(Some(answer))) = (std::mem::take(self), heard) else {
                        continue;
                    };
                    let failed = matches!(&answer.kind, Some(from_engine::Kind::Finish(finish))
                        if matches!(finish.reason(), FinishReason::Lost | FinishReason::Error));
                    if !failed {
                        return Turn::Won(Box::new(Winner { link, progress, answer }));
                    }
                }
            }
        }
    }

    /// Waits for the answer of the second engine. Cancel-safe.
    async fn opened(&mut self) {
        let Hedge::Opening { attempt, .. } = self else { return };
        let opened = attempt.await;
        *self = match (std::mem::take(self), opened) {
            (Hedge::Opening { progress, steer, counted, .. }, Ok(link)) => {
                // The queue is empty: the engine has taken the start from it.
                let told = steer.is_none_or(|steer| link.to.try_send(steer).is_ok());
                if told { Hedge::Open { link, progress, _counted: counted } } else { Hedge::Settled }
            }
            _ => Hedge::Settled,
        };
    }

    /// The second engine, where it has taken the sequence, in place of one that is lost.
    pub fn promote(&mut self) -> Option<(Link, SequenceProgress)> {
        match std::mem::take(self) {
            Hedge::Open { link, progress, .. } => Some((link, progress)),
            _ => None,
        }
    }

    /// The same where the first engine never took the sequence: one that is still being asked is worth waiting for.
    pub async fn instead(&mut self) -> Option<(Link, SequenceProgress)> {
        while let Hedge::Opening { .. } = self {
            self.opened().await;
        }
        self.promote()
    }

    /// The sequence is steered before anything was heard of it: a second engine would know nothing of that.
    pub fn withdraw(&mut self) {
        if !matches!(self, Hedge::Due(_)) {
            *self = Hedge::Settled;
        }
    }
}
