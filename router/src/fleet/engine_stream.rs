//! The router's end of a sequence: receives tokens, steers, and resumes on another engine when the sequence's engine is
//! lost. It does not know text or grammars.

mod hedge;
mod progress;

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::FutureExt;
use hedge::{Hedge, HedgeEvent};
use progress::SequenceProgress;
use rein_proto::{
    block_hash,
    internal::{Admitted, Finish, FinishReason, FromEngine, Start, ToEngine, TokenLogprob, from_engine, to_engine},
    packed_ids, trace_context,
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};
use tracing::{Instrument, Span};

use crate::{
    client_state::{ClientState, wait_for_state},
    error::{Error, ErrorKind},
    fleet::{
        breaker::Fault,
        engine_error::status_text,
        metrics::FleetMetrics,
        pool::{EngineHandle, EngineLease, EnginePool, EngineRequest},
        retry_budget::{CountGuard, RetryBudget},
        tool_holds::{ToolHolds, TurnPrompt},
    },
    limits,
};

/// A token that the engine drew in the current epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct DrawnToken {
    pub id: u32,
    pub logprob: Option<TokenLogprob>,
}

/// What an engine sends for a sequence.
#[derive(Debug)]
pub enum EngineOutput {
    /// The prompt has been computed. Sent at most once, before any token.
    Admitted(Admitted),
    /// At least one new token, in order.
    Tokens(Vec<DrawnToken>),
    /// The engine has finished, unless the router steers the sequence afterwards.
    Finish(Finish),
}

/// A correction of the sequence: how many generated tokens to keep, which to append, and more. See `Steer` in
/// engine.proto.
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

    /// Sets the mask for the position after the kept and appended tokens, with one bit per token id.
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

/// One sequence on an engine. Dropping it frees its slot. When its engine is lost, it resumes on another one from the
/// accepted tokens. Draws are a function of these tokens, so the answer is the same.
pub struct EngineStream {
    /// None: the sequence is parked, because its client does not read.
    link: Option<Link>,
    /// The kind of its current or last engine.
    kind: Arc<str>,
    progress: SequenceProgress,
    context: SequenceContext,
    /// The first start message.
    start: Start,
    /// The second engine, until one of the two has answered.
    hedge: Hedge,
    /// The second engine's answer, if it arrived before the first engine accepted the sequence.
    answer: Option<FromEngine>,
    _counted: CountGuard,
    admitted: bool,
    finished: bool,
    /// Resumes and retries since the last token.
    resumes: u32,
    /// The request's span.
    span: Span,
}

/// What all attempts of a sequence share.
pub struct SequenceContext {
    pub pool: Arc<EnginePool>,
    pub session: Option<u64>,
    pub deadline: Instant,
    pub metrics: Arc<FleetMetrics>,
    pub retry_budget: Arc<RetryBudget>,
    pub client: watch::Receiver<ClientState>,
}

/// The stream to a sequence's current engine.
struct Link {
    to: mpsc::Sender<ToEngine>,
    from: Streaming<FromEngine>,
    lease: EngineLease,
}

/// The engine that is tried first.
enum FirstEngine<'a> {
    Leased(EngineLease),
    /// Any engine, but one of this kind if there is one in time.
    Any(Option<&'a str>),
}

/// How a call to an engine failed.
enum Failure {
    /// The engine never had the sequence: there was no connection, or it takes none now.
    NotStarted(Error),
    /// The sequence may resume on another engine. No fault: the engine was only full.
    Lost(Option<Fault>, Error),
    /// The request fails.
    Final(Error),
}

impl Failure {
    fn engine_gone(cause: impl std::fmt::Display) -> Self {
        Failure::Lost(Some(Fault::Gone), Error::capacity_lost(cause))
    }

    fn from_status(status: &Status) -> Self {
        let error = Error::from_engine(status);
        match status.code() {
            Code::InvalidArgument
            | Code::DeadlineExceeded
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::PermissionDenied
            | Code::Unauthenticated => Failure::Final(error),
            _ if is_connect_error(status) => Failure::NotStarted(error),
            // NotFound: it does not have the LoRA adapter any more.
            Code::ResourceExhausted | Code::NotFound => Failure::Lost(None, error),
            // The engine sent it because it stops or has lost the sequence; statuses with a source come from a broken
            // connection.
            Code::Unavailable | Code::Aborted => Failure::Lost(Some(Fault::Gone), error),
            _ if std::error::Error::source(status).is_some() => Failure::engine_gone(status_text(status)),
            _ => Failure::Lost(Some(Fault::Failed), error),
        }
    }

    /// The failure of the call that starts a sequence. With a plain UNAVAILABLE the engine says that it takes none now.
    fn from_start(status: &Status) -> Self {
        match Failure::from_status(status) {
            Failure::Lost(Some(Fault::Gone), error)
                if status.code() == Code::Unavailable && std::error::Error::source(status).is_none() =>
            {
                Failure::NotStarted(error)
            }
            failure => failure,
        }
    }
}

/// The error of a request that lost its engine, and whose last attempt failed with `error`. If that engine was gone, or
/// full because others are gone, the cluster has lost capacity.
fn to_capacity_lost(error: Error) -> Error {
    match error.kind {
        ErrorKind::Unavailable | ErrorKind::Full => Error::capacity_lost(error.reason()),
        _ => error,
    }
}

/// Whether there was no connection to the engine.
fn is_connect_error(status: &Status) -> bool {
    let first: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(status);
    std::iter::successors(first, |error| error.source()).any(|error| error.is::<tonic::ConnectError>())
}

impl Link {
    /// Returns when the engine has accepted the sequence into its queue, or refused it.
    async fn open(mut lease: EngineLease, mut start: Start, deadline: Instant, span: &Span) -> Result<Self, Failure> {
        let (to, queue) = mpsc::channel(limits::STEER_QUEUE);
        if lease.engine().takes_packed_prompt() {
            start.packed_prompt = packed_ids::pack(std::mem::take(&mut start.prompt));
        }
        // The queue is empty, so this does not fail.
        to.try_send(ToEngine { kind: Some(to_engine::Kind::Start(start)) })
            .map_err(|error| Failure::Final(Error::internal("the request could not be sent to the engine", error)))?;
        let mut request = tonic::Request::new(ReceiverStream::new(queue));
        request.set_timeout(deadline.saturating_duration_since(Instant::now()));
        trace_context::inject(span, request.metadata_mut());
        let mut client = lease.engine().client();
        let call = async move { client.generate(request).await }.boxed();
        match timeout_at(deadline, call).await {
            Ok(Ok(response)) => Ok(Link { to, from: response.into_inner(), lease }),
            Ok(Err(status)) => {
                let failure = Failure::from_start(&status);
                match failure {
                    Failure::NotStarted(_) => lease.failed(Fault::Gone),
                    Failure::Lost(Some(fault), _) => lease.failed(fault),
                    Failure::Lost(None, _) | Failure::Final(_) => {}
                }
                Err(failure)
            }
            Err(_) => Err(Failure::Final(Error::deadline())),
        }
    }
}

/// The span of the request, and that of its time in queues.
pub struct Spans {
    pub span: Span,
    pub queue: Span,
}

impl EngineStream {
    /// Returns when an engine has accepted the sequence into its queue, or all have refused it. The engine of the lease
    /// is tried first.
    pub async fn open(context: SequenceContext, lease: EngineLease, start: Start, spans: Spans) -> Result<Self, Error> {
        let counted = context.retry_budget.count_sequence();
        let Spans { span, queue } = spans;
        let (mut resumes, mut hedge, first) = (0, Hedge::new(&context), lease.engine().clone());
        let mut progress =
            SequenceProgress { accepted: start.resume.clone(), held: start.hold, ..SequenceProgress::default() };
        let mut answer = None;
        let link = {
            let opening =
                context.open(FirstEngine::Leased(lease), &start, &mut resumes, &span).instrument(queue.clone());
            let mut opening = pin!(opening);
            loop {
                tokio::select! {
                    biased;
                    opened = &mut opening => match opened {
                        Ok(link) => break link,
                        Err(error) => match hedge.wait_for_second().await {
                            Some((link, its_progress)) => {
                                context.retry_budget.count_won();
                                progress = its_progress;
                                break link;
                            }
                            None => return Err(error),
                        },
                    },
                    event = hedge.next() => match event {
                        HedgeEvent::Due => hedge = Hedge::begin(&context, &start, &progress, &first, &span),
                        HedgeEvent::Won(won) => {
                            context.retry_budget.count_won();
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
            context,
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

    /// The kind of its current or last engine.
    pub fn kind(&self) -> &Arc<str> {
        &self.kind
    }

    /// The generated tokens that are accepted so far, including resumed and appended ones.
    pub fn accepted(&self) -> &[u32] {
        &self.progress.accepted
    }

    /// The engine's next output in the current epoch. Resumes on another engine when this one is lost. Cancel-safe.
    pub async fn next_output(&mut self) -> Result<EngineOutput, Error> {
        let mut client = self.context.client.clone();
        loop {
            if *client.borrow() == ClientState::Stalled {
                self.park();
            }
            // The future is large and rarely needed, so it is boxed: otherwise every stream would hold its memory.
            if self.link.is_none() {
                self.unpark(&mut client).boxed().await?;
            }
            let output = tokio::select! {
                biased;
                () = wait_for_state(&mut client, ClientState::Stalled) => continue,
                output = self.next_from_engine() => output,
            };
            let (fault, error) = match output {
                Ok(Some(output)) => return Ok(output),
                Ok(None) => continue,
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Lost(fault, error)) => (fault, error),
                Err(Failure::NotStarted(error)) => (Some(Fault::Gone), error),
            };
            if let (Some(fault), Some(link)) = (fault, &mut self.link) {
                link.lease.failed(fault);
            }
            match self.hedge.promote() {
                Some((link, progress)) => {
                    tracing::warn!(parent: &self.span, sequence = self.start.request_id, error = error.reason(), "lost the engine; continuing on the second engine");
                    self.context.retry_budget.count_won();
                    (self.kind, self.progress, self.finished) = (link.lease.engine().kind.clone(), progress, false);
                    self.link = Some(link);
                }
                None => self.resume(error).boxed().await?,
            }
        }
    }

    /// The engine's next message. The first message is from whichever of two hedged engines answers first. Cancel-safe.
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
                event = self.hedge.next() => match event {
                    HedgeEvent::Due => {
                        let engine = link.lease.engine();
                        self.hedge = Hedge::begin(&self.context, &self.start, &self.progress, engine, &self.span);
                    }
                    HedgeEvent::Won(won) => {
                        self.context.retry_budget.count_won();
                        (self.kind, self.progress) = (won.link.lease.engine().kind.clone(), won.progress);
                        *link = won.link;
                        return Ok(Some(won.answer));
                    }
                },
            }
        }
    }

    /// The engine's next message. None: it has nothing new, for example because it is of an older epoch.
    async fn next_from_engine(&mut self) -> Result<Option<EngineOutput>, Failure> {
        let message = match timeout_at(self.context.deadline, self.message()).await {
            Ok(Ok(Some(message))) => message,
            Ok(Ok(None)) => {
                let cause =
                    if self.finished { "the stream was read after Finish" } else { "the stream ended without Finish" };
                return Err(Failure::engine_gone(cause));
            }
            Ok(Err(status)) => return Err(Failure::from_status(&status)),
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
            // The reason Lost counts in any epoch.
            Some(from_engine::Kind::Finish(finish)) if finish.reason() == FinishReason::Lost => {
                return Err(Failure::engine_gone(finish.error));
            }
            Some(from_engine::Kind::Finish(finish)) if finish.epoch == self.progress.epoch => {
                self.finished = true;
                Some(EngineOutput::Finish(finish))
            }
            // Of an older epoch, or of a newer protocol.
            Some(from_engine::Kind::Finish(_)) | None => None,
        })
    }

    /// Resumes on another engine after a loss, within the limits for resumes and retries.
    async fn resume(&mut self, lost: Error) -> Result<(), Error> {
        let accepted = self.progress.accepted.len();
        let reason = lost.reason();
        tracing::warn!(parent: &self.span, sequence = self.start.request_id, accepted, error = reason, "lost the engine; resuming");
        // The first resume costs no budget, because it replaces work that was lost.
        let again = self.resumes > 0;
        if self.resumes >= limits::RESUMES || again && !self.context.retry_budget.try_retry(Instant::now()) {
            self.context.metrics.resume_failed.inc();
            return Err(to_capacity_lost(lost));
        }
        self.resumes += 1;
        self.reopen(reason).await.map_err(|error| {
            self.context.metrics.resume_failed.inc();
            to_capacity_lost(error)
        })?;
        self.context.metrics.resumed.inc();
        Ok(())
    }

    /// Parks the sequence: gives up the engine's slot and KV blocks while the client does not read.
    fn park(&mut self) {
        (self.hedge, self.answer) = (Hedge::Settled, None);
        if self.link.take().is_some() {
            let accepted = self.progress.accepted.len();
            tracing::info!(parent: &self.span, sequence = self.start.request_id, accepted, "the client does not read; the sequence gives up its engine slot");
            self.context.metrics.parked.inc();
        }
    }

    /// Waits until the client reads, and resumes.
    async fn unpark(&mut self, client: &mut watch::Receiver<ClientState>) -> Result<(), Error> {
        let back = timeout_at(self.context.deadline, wait_for_state(client, ClientState::Reading)).await;
        back.map_err(|_| Error::deadline())?;
        self.reopen("the client reads again").await.map_err(to_capacity_lost)
    }

    /// Resumes after the accepted tokens, on any engine.
    async fn reopen(&mut self, reason: &str) -> Result<(), Error> {
        let accepted = self.progress.accepted.len();
        let span = crate::request_trace::resume_span(&self.span, reason, accepted);
        let (resumed, steering) = self.progress.resume(&self.start, self.admitted);
        // Without a drawn token, engines of other kinds are as good.
        let kind = (accepted > self.start.resume.len()).then(|| self.kind.clone());
        let opening = self.context.open(FirstEngine::Any(kind.as_deref()), &resumed, &mut self.resumes, &span);
        let link = opening.instrument(span.clone()).await?;
        let engine = link.lease.engine();
        if kind.is_some_and(|kind| kind != engine.kind) {
            let why = "resuming on an engine with another checkpoint, data type or group size";
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

    /// Steers the sequence. Output of the engine from before this is ignored.
    pub async fn steer(&mut self, steering: Steering) -> Result<(), Error> {
        self.hedge.withdraw();
        let steer = self.progress.steer(steering);
        self.finished = false;
        // A parked sequence sends this when it resumes.
        let Some(link) = &self.link else { return Ok(()) };
        let sent = link.to.send(ToEngine { kind: Some(to_engine::Kind::Steer(steer)) });
        match timeout_at(self.context.deadline, sent).await {
            // If the engine has closed the stream, `next_output` returns the reason.
            Ok(_) => Ok(()),
            Err(_) => Err(Error::deadline()),
        }
    }

    /// Ends the sequence after `keep` tokens, as `stop` does. Its answer ended in tool calls, so its conversation comes
    /// back: the engine is asked to hold its blocks while they are in use, for others may wait for them.
    pub fn stop_for_tools(self, keep: usize, holds: &ToolHolds) {
        let Some((engine, hashes, time)) = self.to_hold(holds) else { return self.stop(keep) };
        tokio::spawn(async move {
            engine.hold(hashes, time).await;
            self.stop(keep);
        });
    }

    /// Which blocks of which engine are to be held, and how long.
    fn to_hold(&self, holds: &ToolHolds) -> Option<(Arc<EngineHandle>, Vec<u64>, Duration)> {
        let engine = self.lease()?.engine().clone();
        let block_size = engine.block_size()?;
        let salt = block_hash::salt_of(&self.start.cache_salt, self.start.lora_digest);
        let prompt = TurnPrompt::new(&salt, &self.start.prompt, block_size);
        let time = holds.ended(&prompt, self.context.session, Instant::now())?;
        let tokens = [self.start.prompt.as_slice(), &self.progress.accepted].concat();
        Some((engine, TurnPrompt::new(&salt, &tokens, block_size).hashes, time))
    }

    /// Ends the sequence after `keep` tokens. Later output is ignored. If the queue is full, dropping the stream ends
    /// the sequence, too.
    pub fn stop(mut self, keep: usize) {
        let steer = self.progress.steer(Steering::keep(keep).stop());
        if let Some(link) = &self.link {
            let _ = link.to.try_send(ToEngine { kind: Some(to_engine::Kind::Steer(steer)) });
        }
    }
}

impl SequenceContext {
    /// Opens the sequence on the engine of the lease, then on others, within the limits of `tries` and the router's
    /// retry budget. Unless the pool is fixed, an engine that never had the sequence costs no retry: its breaker limits
    /// how often it is tried.
    async fn open(&self, first: FirstEngine<'_>, start: &Start, tries: &mut u32, span: &Span) -> Result<Link, Error> {
        let now = Instant::now();
        let (mut lease, kind, wait) = match first {
            FirstEngine::Leased(lease) => (Some(lease), None, limits::ENGINE_WAIT),
            FirstEngine::Any(kind) => (None, kind, limits::RESUME_WAIT),
        };
        // Both limits are over all attempts.
        let (kind, until) = (kind.map(|kind| (kind, now + limits::KIND_WAIT)), now + wait);
        let mut refused = Vec::new();
        loop {
            let lease = match lease.take() {
                Some(lease) => lease,
                None => {
                    let tokens = [start.prompt.as_slice(), start.resume.as_slice()].concat();
                    let (salt, session) = (start.cache_salt.as_str(), self.session);
                    let lora = start.lora_digest;
                    let wanted = EngineRequest { salt, lora, tokens: &tokens, session, kind, refused: &refused };
                    self.pool.lease(&wanted, until, self.deadline).await?
                }
            };
            let engine = lease.engine().clone();
            let (error, started) = match Link::open(lease, start.clone(), self.deadline, span).await {
                Ok(link) => return Ok(link),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Lost(_, error)) => (error, true),
                Err(Failure::NotStarted(error)) => (error, false),
            };
            let (sequence, group) = (&start.request_id, &engine.group);
            tracing::warn!(parent: span, sequence, engine = group, %error, "an engine did not accept a sequence");
            let fixed = self.pool.is_fixed();
            if !started && !fixed && Instant::now() < until {
                continue;
            }
            let alone = fixed && self.pool.engines().len() == 1;
            if *tries >= limits::RESUMES || alone || !self.retry_budget.try_retry(Instant::now()) {
                return Err(error);
            }
            *tries += 1;
            refused.push(engine);
        }
    }
}

#[cfg(test)]
mod tests;
