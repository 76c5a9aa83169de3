//! The router's end of a sequence: hears tokens, knows which of them count, and steers.

mod hedge;
mod progress;

use std::{pin::pin, sync::Arc};

use bytes::Bytes;
use futures::FutureExt;
use hedge::{Hedge, Turn};
use progress::SequenceProgress;
use rein_proto::{
    internal::{Admitted, Finish, FinishReason, FromEngine, Start, ToEngine, TokenLogprob, from_engine, to_engine},
    trace,
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};
use tracing::{Instrument, Span};

use crate::{
    client_state::{ClientState, becomes},
    error::{Error, Kind},
    fleet::{
        breaker::Fault,
        metrics::FleetMetrics,
        pool::{EngineLease, EnginePool, EngineRequest},
        retry_budget::{CountGuard, RetryBudget},
    },
    limits,
};

/// A token that was drawn under the current epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct DrawnToken {
    pub id: u32,
    pub logprob: Option<TokenLogprob>,
}

#[derive(Debug)]
pub enum EngineOutput {
    /// The prompt has been computed. At most once, before any token.
    Admitted(Admitted),
    /// At least one token, in order, after those heard before.
    Tokens(Vec<DrawnToken>),
    /// The engine's last word, unless the sequence is steered on.
    Finish(Finish),
}

/// What to tell the engine: keep so many generated tokens, append these, and so on. See `Steer` in engine.proto.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Steering {
    pub(crate) keep: usize,
    pub(crate) append: Vec<u32>,
    pub(crate) mask: Option<Bytes>,
    pub(crate) hold: bool,
    pub(crate) stop: bool,
}

impl Steering {
    pub fn keep(keep: usize) -> Self {
        Steering { keep, ..Steering::default() }
    }

    pub fn append(mut self, ids: impl IntoIterator<Item = u32>) -> Self {
        self.append.extend(ids);
        self
    }

    /// One bit per token id for the position after what is kept and appended.
    pub fn mask(mut self, mask: Bytes) -> Self {
        self.mask = Some(mask);
        self
    }

    pub fn hold(mut self) -> Self {
        self.hold = true;
        self
    }

    pub fn stop(mut self) -> Self {
        self.stop = true;
        self
    }
}

/// One sequence. Dropping it frees its slot. When its engine is lost, it continues on another, from the tokens that
/// count: what is drawn is a function of these, so that nobody can tell.
pub struct EngineStream {
    /// None: it has no engine, because its client does not read.
    link: Option<Link>,
    /// Of the engine that it has or had.
    kind: Arc<str>,
    progress: SequenceProgress,
    common: SequenceContext,
    /// As it began.
    start: Start,
    /// Another engine that has it, too, until the first answer.
    hedge: Hedge,
    /// An answer that came before the sequence was open here.
    answer: Option<FromEngine>,
    _counted: CountGuard,
    admitted: bool,
    finished: bool,
    /// Engines lost since the last token.
    resumes: u32,
    /// The request's.
    span: Span,
}

/// What all attempts at a sequence share.
pub struct SequenceContext {
    pub pool: Arc<EnginePool>,
    pub session: Option<u64>,
    pub deadline: Instant,
    pub metrics: Arc<FleetMetrics>,
    pub retry_budget: Arc<RetryBudget>,
    pub client: watch::Receiver<ClientState>,
}

/// A sequence's present engine.
struct Link {
    to: mpsc::Sender<ToEngine>,
    from: Streaming<FromEngine>,
    lease: EngineLease,
}

/// Where a sequence is tried first.
enum On<'a> {
    Lease(EngineLease),
    /// An engine of this kind, if any is there in time.
    Any(Option<&'a str>),
}

/// How a call to an engine failed.
enum Failure {
    /// Nobody was there to be asked.
    Unreached(Error),
    /// The sequence may go on elsewhere. The fault is the engine's; none if it was only full.
    Lost(Option<Fault>, Error),
    Final(Error),
}

impl Failure {
    fn gone(cause: impl std::fmt::Display) -> Self {
        Failure::Lost(Some(Fault::Gone), Error::capacity_lost(cause))
    }

    fn of(status: &Status) -> Self {
        let error = Error::from_engine(status);
        match status.code() {
            Code::InvalidArgument
            | Code::DeadlineExceeded
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::PermissionDenied
            | Code::Unauthenticated => Failure::Final(error),
            _ if unconnected(status) => Failure::Unreached(error),
            Code::ResourceExhausted => Failure::Lost(None, error),
            // An engine that has stopped says so; a broken connection says what broke it.
            Code::Unavailable => Failure::Lost(Some(Fault::Gone), error),
            _ if std::error::Error::source(status).is_some() => Failure::gone(status),
            _ => Failure::Lost(Some(Fault::Erred), error),
        }
    }
}

/// The error of a request that lost its engine, where the last attempt at it failed with this one: engines that are
/// gone, or full because others are, mean that the cluster has lost capacity.
fn without_engine(error: Error) -> Error {
    match error.kind {
        Kind::Unavailable | Kind::Full => Error::capacity_lost(error.cause.as_deref().unwrap_or(&error.message)),
        _ => error,
    }
}

/// Whether there was no connection on which to ask.
fn unconnected(status: &Status) -> bool {
    let first: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(status);
    std::iter::successors(first, |error| error.source()).any(|error| error.is::<tonic::ConnectError>())
}

impl Link {
    /// Returns when the engine has taken the sequence into its queue, or refused it.
    async fn open(mut lease: EngineLease, start: Start, deadline: Instant, span: &Span) -> Result<Self, Failure> {
        let (to, queue) = mpsc::channel(limits::STEER_QUEUE);
        // An empty queue takes it.
        to.try_send(ToEngine { kind: Some(to_engine::Kind::Start(start)) })
            .map_err(|error| Failure::Final(Error::internal("the request could not be sent to the engine", error)))?;
        let mut request = tonic::Request::new(ReceiverStream::new(queue));
        request.set_timeout(deadline.saturating_duration_since(Instant::now()));
        trace::inject(span, request.metadata_mut());
        let mut client = lease.engine().client();
        let call = async move { client.generate(request).await }.boxed();
        match timeout_at(deadline, call).await {
            Ok(Ok(response)) => Ok(Link { to, from: response.into_inner(), lease }),
            Ok(Err(status)) => {
                let failure = Failure::of(&status);
                match failure {
                    Failure::Unreached(_) => lease.failed(Fault::Gone),
                    Failure::Lost(Some(fault), _) => lease.failed(fault),
                    Failure::Lost(None, _) | Failure::Final(_) => {}
                }
                Err(failure)
            }
            Err(_) => Err(Failure::Final(Error::deadline())),
        }
    }
}

/// Of the request, and of its time in queues.
pub struct Spans {
    pub span: Span,
    pub queue: Span,
}

impl EngineStream {
    /// Returns when an engine, at first that of the lease, has taken the sequence into its queue, or all have refused
    /// it. `span` is the request's, `queue` the part of it that ends here.
    pub async fn open(common: SequenceContext, lease: EngineLease, start: Start, spans: Spans) -> Result<Self, Error> {
        let counted = common.retry_budget.begin();
        let Spans { span, queue } = spans;
        let (mut resumes, mut hedge, first) = (0, Hedge::new(&common), lease.engine().clone());
        let mut progress =
            SequenceProgress { accepted: start.resume.clone(), held: start.hold, ..SequenceProgress::default() };
        let mut answer = None;
        let link = {
            let opening = common.open(On::Lease(lease), &start, &mut resumes, &span).instrument(queue.clone());
            let mut opening = pin!(opening);
            loop {
                tokio::select! {
                    biased;
                    opened = &mut opening => match opened {
                        Ok(link) => break link,
                        Err(error) => match hedge.instead().await {
                            Some((link, of_it)) => {
                                common.retry_budget.won();
                                progress = of_it;
                                break link;
                            }
                            None => return Err(error),
                        },
                    },
                    turn = hedge.next() => match turn {
                        Turn::Due => hedge = Hedge::begin(&common, &start, &progress, &first, &span),
                        Turn::Won(won) => {
                            common.retry_budget.won();
                            (progress, answer) = (won.progress, Some(won.answer));
                            break won.link;
                        }
                    },
                }
            }
        };
        queue.record("engine", &link.lease.engine().group);
        let (admitted, finished) = (false, false);
        let (_counted, kind, link) = (counted, link.lease.engine().kind.clone(), Some(link));
        Ok(EngineStream {
            link,
            kind,
            progress,
            common,
            start,
            hedge,
            answer,
            _counted,
            admitted,
            finished,
            resumes,
            span,
        })
    }

    pub fn lease(&self) -> Option<&EngineLease> {
        self.link.as_ref().map(|link| &link.lease)
    }

    /// Of the engine that it has or had.
    pub fn kind(&self) -> &Arc<str> {
        &self.kind
    }

    /// The generated tokens that count, resumed and appended ones included.
    pub fn accepted(&self) -> &[u32] {
        &self.progress.accepted
    }

    /// What the engine says next under the current epoch. Cancel-safe.
    pub async fn next_output(&mut self) -> Result<EngineOutput, Error> {
        let mut client = self.common.client.clone();
        loop {
            if *client.borrow() == ClientState::Away {
                self.leave();
            }
            if self.link.is_none() {
                self.come_back(&mut client).await?;
            }
            let heard = tokio::select! {
                biased;
                () = becomes(&mut client, ClientState::Away) => continue,
                heard = self.next_from_engine() => heard,
            };
            let (fault, error) = match heard {
                Ok(Some(heard)) => return Ok(heard),
                Ok(None) => continue,
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Lost(fault, error)) => (fault, error),
                Err(Failure::Unreached(error)) => (Some(Fault::Gone), error),
            };
            if let (Some(fault), Some(link)) = (fault, &mut self.link) {
                link.lease.failed(fault);
            }
            match self.hedge.promote() {
                Some((link, progress)) => {
                    tracing::warn!(parent: &self.span, sequence = self.start.request_id, %error, "the second engine has it");
                    self.common.retry_budget.won();
                    (self.kind, self.progress, self.finished) = (link.lease.engine().kind.clone(), progress, false);
                    self.link = Some(link);
                }
                None => self.resume(error).await?,
            }
        }
    }

    /// The engine's next message; the first one of all, of whichever engine answers first. Cancel-safe.
    async fn message(&mut self) -> Result<Option<FromEngine>, Status> {
        if let Some(answer) = self.answer.take() {
            return Ok(Some(answer));
        }
        let Some(link) = &mut self.link else { return Ok(None) };
        loop {
            tokio::select! {
                biased;
                message = link.from.message() => {
                    if let Ok(Some(FromEngine { kind: Some(kind) })) = &message
                        && !matches!(kind, from_engine::Kind::Finish(finish) if finish.reason() == FinishReason::Lost)
                    {
                        self.hedge = Hedge::Settled;
                    }
                    return message;
                }
                turn = self.hedge.next() => match turn {
                    Turn::Due => {
                        let engine = link.lease.engine();
                        self.hedge = Hedge::begin(&self.common, &self.start, &self.progress, engine, &self.span);
                    }
                    Turn::Won(won) => {
                        self.common.retry_budget.won();
                        (self.kind, self.progress) = (won.link.lease.engine().kind.clone(), won.progress);
                        *link = won.link;
                        return Ok(Some(won.answer));
                    }
                },
            }
        }
    }

    /// The engine's next message, if it counts.
    async fn next_from_engine(&mut self) -> Result<Option<EngineOutput>, Failure> {
        let message = match timeout_at(self.common.deadline, self.message()).await {
            Ok(Ok(Some(message))) => message,
            Ok(Ok(None)) => {
                let cause = if self.finished { "read past the finish" } else { "the stream ended with no finish" };
                return Err(Failure::gone(cause));
            }
            Ok(Err(status)) => return Err(Failure::of(&status)),
            Err(_) => return Err(Failure::Final(Error::deadline())),
        };
        Ok(match message.kind {
            Some(from_engine::Kind::Admitted(admitted)) => {
                if let Some(link) = &mut self.link {
                    link.lease.succeeded();
                }
                let first = !std::mem::replace(&mut self.admitted, true);
                first.then_some(EngineOutput::Admitted(admitted))
            }
            Some(from_engine::Kind::Tokens(tokens)) => {
                let drawn = self.progress.receive(tokens).map_err(Failure::Final)?;
                if !drawn.is_empty() {
                    self.resumes = 0;
                }
                (!drawn.is_empty()).then_some(EngineOutput::Tokens(drawn))
            }
            // Whatever its epoch.
            Some(from_engine::Kind::Finish(finish)) if finish.reason() == FinishReason::Lost => {
                return Err(Failure::gone(finish.error));
            }
            Some(from_engine::Kind::Finish(finish)) if finish.epoch == self.progress.epoch => {
                self.finished = true;
                Some(EngineOutput::Finish(finish))
            }
            // Of an older epoch, or of a newer protocol.
            Some(from_engine::Kind::Finish(_)) | None => None,
        })
    }

    /// Goes on where the tokens that count end, on another engine if there is one.
    async fn resume(&mut self, lost: Error) -> Result<(), Error> {
        let accepted = self.progress.accepted.len();
        tracing::warn!(parent: &self.span, sequence = self.start.request_id, accepted, error = %lost, "resuming");
        // The first time is free: what was lost has to be computed somewhere.
        let again = self.resumes > 0;
        if self.resumes >= limits::RESUMES || again && !self.common.retry_budget.retry(Instant::now()) {
            self.common.metrics.resume_failed.inc();
            return Err(without_engine(lost));
        }
        self.resumes += 1;
        let reason = lost.cause.as_deref().unwrap_or(&lost.message);
        self.reopen(reason).await.map_err(|error| {
            self.common.metrics.resume_failed.inc();
            without_engine(error)
        })?;
        self.common.metrics.resumed.inc();
        Ok(())
    }

    /// Gives up the engine's slot and blocks: nobody reads what it computes.
    fn leave(&mut self) {
        (self.hedge, self.answer) = (Hedge::Settled, None);
        if self.link.take().is_some() {
            let accepted = self.progress.accepted.len();
            tracing::info!(parent: &self.span, sequence = self.start.request_id, accepted, "parked: its client does not read");
            self.common.metrics.parked.inc();
        }
    }

    /// Waits for the client, and goes on.
    async fn come_back(&mut self, client: &mut watch::Receiver<ClientState>) -> Result<(), Error> {
        let back = timeout_at(self.common.deadline, becomes(client, ClientState::Reads)).await;
        back.map_err(|_| Error::deadline())?;
        self.reopen("its client reads again").await.map_err(without_engine)
    }

    /// Goes on where the tokens that count end, on whatever engine there is.
    async fn reopen(&mut self, reason: &str) -> Result<(), Error> {
        let accepted = self.progress.accepted.len();
        let span = crate::trace::resume(&self.span, reason, accepted);
        let (resumed, steering) = self.progress.resume(&self.start, self.admitted);
        // What has drawn nothing yet may begin anywhere.
        let kind = (accepted > self.start.resume.len()).then(|| self.kind.clone());
        let opening = self.common.open(On::Any(kind.as_deref()), &resumed, &mut self.resumes, &span);
        let link = opening.instrument(span.clone()).await?;
        let engine = link.lease.engine();
        if kind.is_some_and(|kind| kind != engine.kind) {
            let why = "no engine of the kind that it had is left: from here on it may go on otherwise";
            tracing::warn!(parent: &self.span, sequence = self.start.request_id, engine = engine.group, "{why}");
        }
        span.record("engine", &engine.group);
        (self.kind, self.finished) = (engine.kind.clone(), false);
        self.link = Some(link);
        match steering {
            Some(steering) => self.steer(steering).await,
            None => Ok(()),
        }
    }

    /// From here on, only what the engine says after this counts.
    pub async fn steer(&mut self, steering: Steering) -> Result<(), Error> {
        self.hedge.withdraw();
        let steer = self.progress.steer(steering);
        self.finished = false;
        // Without an engine, the next one hears of it.
        let Some(link) = &self.link else { return Ok(()) };
        let sent = link.to.send(ToEngine { kind: Some(to_engine::Kind::Steer(steer)) });
        match timeout_at(self.common.deadline, sent).await {
            // An engine that hung up says why on its own stream.
            Ok(_) => Ok(()),
            Err(_) => Err(Error::deadline()),
        }
    }

    /// Ends the sequence after `keep` tokens. What comes back is of no interest; if even the queue is full, dropping
    /// the stream does the same.
    pub fn stop(mut self, keep: usize) {
        let steer = self.progress.steer(Steering::keep(keep).stop());
        if let Some(link) = &self.link {
            let _ = link.to.try_send(ToEngine { kind: Some(to_engine::Kind::Steer(steer)) });
        }
    }
}

impl SequenceContext {
    /// On the engine of the lease, then on others, as often as `tries` and the router's budget leave to try. Where
    /// others may join, one that cannot be reached costs no try: no engine had the sequence, and each one's breaker
    /// says when it is asked again.
    async fn open(&self, on: On<'_>, start: &Start, tries: &mut u32, span: &Span) -> Result<Link, Error> {
        let now = Instant::now();
        let (mut lease, kind, wait) = match on {
            On::Lease(lease) => (Some(lease), None, limits::ENGINE_WAIT),
            On::Any(kind) => (None, kind, limits::RESUME_WAIT),
        };
        // However many are tried.
        let (kind, until) = (kind.map(|kind| (kind, now + limits::KIND_WAIT)), now + wait);
        let mut refused = Vec::new();
        loop {
            let lease = match lease.take() {
                Some(lease) => lease,
                None => {
                    let tokens = [start.prompt.as_slice(), start.resume.as_slice()].concat();
                    let (salt, session) = (start.cache_salt.as_str(), self.session);
                    let wanted = EngineRequest { salt, tokens: &tokens, session, kind, refused: &refused };
                    self.pool.lease(&wanted, until, self.deadline).await?
                }
            };
            let engine = lease.engine().clone();
            let (error, had) = match Link::open(lease, start.clone(), self.deadline, span).await {
                Ok(link) => return Ok(link),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Lost(_, error)) => (error, true),
                Err(Failure::Unreached(error)) => (error, false),
            };
            tracing::warn!(parent: span, sequence = start.request_id, %error, "an engine did not take a sequence");
            let fixed = self.pool.is_fixed();
            if !had && !fixed && Instant::now() < until {
                continue;
            }
            let alone = fixed && self.pool.engines().len() == 1;
            if *tries >= limits::RESUMES || alone || !self.retry_budget.retry(Instant::now()) {
                return Err(error);
            }
            *tries += 1;
            refused.push(engine);
        }
    }
}

#[cfg(test)]
mod tests;
