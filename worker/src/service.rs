//! The gRPC service of engine.proto. It knows messages and statuses, and must not know scheduling.

#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, Stream};
use prometheus_client::metrics::histogram::Histogram;
use rein_kernels::collective::AbortWatch;
use rein_proto::internal::engine_server::{self, EngineServer};
use rein_proto::internal::{
    EngineEvents, EngineInfo, EngineStats, EventsRequest, FromEngine, HoldRequest, HoldResponse, InfoRequest,
    LoadLoraRequest, LoraInfo, Start, StatsRequest, ToEngine, UnloadLoraRequest, UnloadLoraResponse, from_engine,
    loras_server, to_engine,
};
use rein_proto::{deadline, protocol};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep};
use tonic::{Request, Response, Status, Streaming};
use tracing::Span;

use crate::engine::{EngineCommand, EngineHealth, EngineThread, RoomWanted};
use crate::error::Rejected;
use crate::events::{self, EventFeed};
use crate::executor::{Executor, ExecutorShape};
use crate::limits;
use crate::lora::{LoraSource, NoLoraSlot};
use crate::metrics::EngineMetrics;
use crate::request;
use crate::scheduler::{EngineOptions, context_limit};
use crate::seq::SeqId;
use crate::sequence_trace;

/// A handle to an engine. The engine stops when the last handle and the last stream are dropped.
#[derive(Debug, Clone)]
pub struct EngineService {
    commands: mpsc::Sender<EngineCommand>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    shape: ExecutorShape,
    options: EngineOptions,
    metrics: Arc<EngineMetrics>,
    feed: Arc<EventFeed>,
    draining: AtomicBool,
    vitals: Arc<EngineHealth>,
    /// The engine thread has been abandoned.
    given_up: watch::Sender<bool>,
    ended: Option<AbortWatch>,
    /// None: it takes no LoRA adapters.
    lora_source: Option<Arc<dyn LoraSource>>,
}

impl Shared {
    /// Completes when the engine is abandoned. It keeps the sender alive.
    fn given_up(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut given_up = self.given_up.subscribe();
        async move { drop(given_up.wait_for(|given_up| *given_up).await) }
    }

    fn lost(&self) -> Status {
        let why = self.vitals.lost.get().cloned().unwrap_or_default();
        rejected(Rejected::Lost(why))
    }
}

/// Starts the engine thread over `executor`.
///
/// # Panics
/// If the operating system cannot start a thread.
pub fn start(executor: Box<dyn Executor>, options: EngineOptions) -> EngineService {
    let (commands, queue) = mpsc::channel(limits::COMMAND_QUEUE);
    let metrics = Arc::new(EngineMetrics::default());
    let shape = executor.shape();
    let vitals = Arc::new(EngineHealth::new());
    let (source, feed) = events::new(&shape);
    let shared = Shared {
        shape,
        options: options.clone(),
        metrics: metrics.clone(),
        feed,
        draining: AtomicBool::new(false),
        vitals: vitals.clone(),
        given_up: watch::Sender::new(false),
        ended: executor.end_watch(),
        lora_source: executor.lora_source(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap_or_else(|error| panic!("cannot create a runtime for the engine thread: {error}"));
    std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || EngineThread::new(executor, options, queue, metrics, source, vitals, runtime).run())
        .unwrap_or_else(|error| panic!("cannot start the engine thread: {error}"));
    EngineService { commands, shared: Arc::new(shared) }
}

impl EngineService {
    /// Sets the message limits that long contexts need.
    pub fn into_server(self) -> EngineServer<Self> {
        EngineServer::new(self)
            .max_decoding_message_size(limits::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(limits::MAX_MESSAGE_BYTES)
    }

    pub fn engine_info(&self) -> EngineInfo {
        let Shared { shape, options, .. } = &*self.shared;
        EngineInfo {
            model: shape.model.clone(),
            vocab_size: shape.vocab_size as u32,
            max_context: context_limit(shape) as u32,
            block_size: shape.block_size as u32,
            total_blocks: shape.blocks as u32,
            max_sequences: options.max_sequences as u32,
            kind: shape.kind.into(),
            tensor_parallel: shape.ranks as u32,
            max_queue: options.max_queue as u32,
            protocol: protocol::NUMBER,
            version: protocol::VERSION.into(),
            embedding_size: if options.embeds { shape.hidden_size as u32 } else { 0 },
            takes_packed_prompt: true,
            loras: self.loras(),
            lora_slots: shape.lora_slots as u32,
        }
    }

    pub fn takes_loras(&self) -> bool {
        self.shared.shape.lora_slots > 0
    }

    /// The LoRA adapters that new sequences can get.
    pub fn loras(&self) -> Vec<LoraInfo> {
        self.shared.vitals.loras.borrow().clone()
    }

    /// Loads a LoRA adapter from a directory, and returns once sequences can get it. One of the same name and the same
    /// files is no error. `replace`: nor is one with other files, which leaves with its last sequence.
    pub async fn load_lora(&self, request: LoadLoraRequest) -> Result<LoraInfo, LoraError> {
        let LoadLoraRequest { name, path, replace } = request;
        let source = self.shared.lora_source.clone().ok_or(LoraError::None)?;
        if name.is_empty() || name.len() > limits::MAX_LORA_NAME_BYTES {
            return Err(LoraError::Name(limits::MAX_LORA_NAME_BYTES));
        }
        let dir = std::path::PathBuf::from(&path);
        let read = tokio::task::spawn_blocking(move || source.read(&dir)).await;
        let lora = read.map_err(|panic| LoraError::Files(panic.to_string()))?;
        let lora = lora.map_err(|error| LoraError::Files(error.to_string()))?;
        if let Some(known) = self.loras().into_iter().find(|known| known.name == name) {
            if known.digest == lora.digest {
                return Ok(known);
            }
            if !replace {
                return Err(LoraError::Taken { name, path: known.path });
            }
        }
        let (reply, loaded) = oneshot::channel();
        let command = EngineCommand::LoadLora { name, path, lora: Arc::new(lora), reply };
        self.commands.send(command).await.map_err(|_| LoraError::Stopped)?;
        let loaded = tokio::select! {
            loaded = loaded => loaded.map_err(|_| LoraError::Stopped)?,
            () = self.shared.given_up() => return Err(LoraError::Stopped),
        };
        Ok(loaded?)
    }

    /// New sequences no longer get it. False: there is none of this name.
    pub async fn unload_lora(&self, name: String) -> Result<bool, LoraError> {
        let (reply, known) = oneshot::channel();
        self.commands.send(EngineCommand::UnloadLora { name, reply }).await.map_err(|_| LoraError::Stopped)?;
        known.await.map_err(|_| LoraError::Stopped)
    }

    /// Counters, at most one step old.
    pub fn engine_stats(&self) -> EngineStats {
        self.shared.metrics.snapshot()
    }

    /// Accepts no new sequences from now on, and waits until the open ones have ended.
    pub async fn drain(&self) {
        self.shared.draining.store(true, Ordering::SeqCst);
        let (done, drained) = oneshot::channel();
        if self.commands.send(EngineCommand::Drain { done }).await.is_ok() {
            // A stopped engine has nothing to drain.
            let _ = drained.await;
        }
    }

    /// Ends every open sequence with Finish ERROR and accepts no new ones. Returns after the current step, when all
    /// routers have been told.
    pub async fn abort(&self) {
        self.shared.draining.store(true, Ordering::SeqCst);
        let (done, aborted) = oneshot::channel();
        if self.commands.send(EngineCommand::Abort { done }).await.is_ok() {
            // A stopped engine has no sequences.
            let _ = aborted.await;
        }
    }

    /// Abandons an engine whose step does not end. All streams end with the status of a lost executor, so that their
    /// routers resume elsewhere. The memory of the step is freed if it ends later.
    pub fn give_up(&self, why: &str) {
        // The first reason stays.
        let _ = self.shared.vitals.lost.set(why.to_owned());
        self.shared.draining.store(true, Ordering::SeqCst);
        self.shared.feed.close(why);
        self.shared.given_up.send_replace(true);
    }

    /// Why the executor can no longer execute. It does not recover.
    pub fn lost(&self) -> Option<&str> {
        self.shared.vitals.lost.get().map(String::as_str)
    }

    /// Why the executor is lost although its step may not end: then it has to be given up.
    pub fn ended(&self) -> Option<String> {
        self.shared.ended.as_ref()?.reason()
    }

    /// Number of routers that listen to its events.
    pub fn listeners(&self) -> usize {
        self.shared.feed.listeners()
    }

    /// Durations of steps.
    pub fn step_times(&self) -> Histogram {
        self.shared.vitals.times.clone()
    }

    /// How long the current step has been running.
    pub fn step_time(&self) -> Option<Duration> {
        self.shared.vitals.step_time()
    }

    fn executable(&self) -> Result<(), Status> {
        self.lost().map_or(Ok(()), |_| Err(self.shared.lost()))
    }

    /// Waits for an answer of the engine thread, unless the engine is abandoned.
    async fn answered<T>(&self, answer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        tokio::select! {
            biased;
            answer = answer => answer,
            () = self.shared.given_up() => Err(self.shared.lost()),
        }
    }

    async fn open(&self, start: Box<Start>, span: Span) -> Result<(SeqId, Open), Status> {
        let (outputs, messages) = mpsc::channel(limits::OUTPUT_QUEUE);
        let (reply, answer) = oneshot::channel();
        let room = RoomWanted::default();
        let command = EngineCommand::Start { start, outputs, room: room.clone(), span, reply };
        self.commands.send(command).await.map_err(|_| stopped())?;
        // It had the sequence, and may have ended with it.
        let ended = |_| Status::aborted("the engine has stopped");
        let seq = answer.await.map_err(ended)?.map_err(rejected)?;
        Ok((seq, Open { messages, room }))
    }
}

struct Open {
    messages: mpsc::Receiver<FromEngine>,
    room: RoomWanted,
}

/// Why an adapter is not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoraError {
    #[error("this engine takes no LoRA adapters: start it with --max-loras")]
    None,
    #[error("the name of a LoRA adapter must have from 1 to {0} bytes")]
    Name(usize),
    #[error("{0}")]
    Files(String),
    #[error("the LoRA adapter '{name}' is loaded from other files ({path}): unload it first, or ask to replace it")]
    Taken { name: String, path: String },
    #[error(transparent)]
    Full(#[from] NoLoraSlot),
    #[error("the engine has stopped")]
    Stopped,
}

impl From<LoraError> for Status {
    fn from(error: LoraError) -> Status {
        let what = error.to_string();
        match error {
            LoraError::None => Status::failed_precondition(what),
            LoraError::Name(_) | LoraError::Files(_) => Status::invalid_argument(what),
            LoraError::Taken { .. } => Status::already_exists(what),
            LoraError::Full(_) => Status::resource_exhausted(what),
            LoraError::Stopped => Status::unavailable(what),
        }
    }
}

#[tonic::async_trait]
impl loras_server::Loras for EngineService {
    async fn load(&self, request: Request<LoadLoraRequest>) -> Result<Response<LoraInfo>, Status> {
        Ok(Response::new(self.load_lora(request.into_inner()).await?))
    }

    async fn unload(&self, request: Request<UnloadLoraRequest>) -> Result<Response<UnloadLoraResponse>, Status> {
        let UnloadLoraRequest { name } = request.into_inner();
        match self.unload_lora(name.clone()).await? {
            true => Ok(Response::new(UnloadLoraResponse {})),
            false => Err(Status::not_found(format!("the LoRA adapter '{name}' is not loaded here"))),
        }
    }
}

fn stopped() -> Status {
    Status::unavailable("the engine has stopped")
}

/// Rejects a router whose protocol this release does not support.
fn understood(number: u32, version: &str) -> Result<(), Status> {
    let refused = || Status::failed_precondition(protocol::refusal("the router", number, version));
    if protocol::understands(number, protocol::NUMBER) { Ok(()) } else { Err(refused()) }
}

fn rejected(rejected: Rejected) -> Status {
    match rejected {
        Rejected::QueueFull { .. } => Status::resource_exhausted(rejected.to_string()),
        Rejected::Draining | Rejected::Lost(_) => Status::unavailable(rejected.to_string()),
        Rejected::NoLora(_) => Status::not_found(rejected.to_string()),
    }
}

#[tonic::async_trait]
impl engine_server::Engine for EngineService {
    type GenerateStream = Outputs;
    type EventsStream = BoxStream<'static, Result<EngineEvents, Status>>;

    async fn generate(&self, request: Request<Streaming<ToEngine>>) -> Result<Response<Outputs>, Status> {
        let deadline = deadline::timeout(request.metadata())?.and_then(|left| Instant::now().checked_add(left));
        let span = sequence_trace::sequence(request.metadata());
        let mut inbound = request.into_inner();
        let opening = async {
            let first = inbound.message().await?;
            let Some(to_engine::Kind::Start(mut start)) = first.and_then(|message| message.kind) else {
                return Err(Status::invalid_argument("the first message must be a start"));
            };
            request::unpack_prompt(&mut start).map_err(|error| Status::invalid_argument(error.to_string()))?;
            sequence_trace::describe(&span, &start);
            understood(start.protocol, &start.version)?;
            if self.shared.draining.load(Ordering::SeqCst) {
                return Err(rejected(Rejected::Draining));
            }
            request::check(&start, &self.shared.shape, self.shared.options.embeds)
                .map_err(|error| Status::invalid_argument(error.to_string()))?;
            self.answered(self.open(Box::new(start), span)).await
        };
        let (seq, open) = match deadline {
            None => opening.await?,
            Some(at) => tokio::time::timeout_at(at, opening).await.map_err(|_| deadline::passed())??,
        };
        let pump = tokio::spawn(pump(inbound, seq, self.commands.clone()));
        Ok(Response::new(Outputs {
            seq,
            messages: open.messages,
            room: open.room,
            commands: self.commands.clone(),
            pump: pump.abort_handle(),
            deadline: deadline.map(|at| Box::pin(tokio::time::sleep_until(at))),
            given_up: self.shared.given_up().boxed(),
            shared: self.shared.clone(),
            finished: false,
            ended: false,
        }))
    }

    async fn info(&self, request: Request<InfoRequest>) -> Result<Response<EngineInfo>, Status> {
        let InfoRequest { protocol, version } = request.into_inner();
        understood(protocol, &version)?;
        self.executable()?;
        Ok(Response::new(self.engine_info()))
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Result<Response<EngineStats>, Status> {
        self.executable()?;
        Ok(Response::new(self.engine_stats()))
    }

    async fn hold(&self, request: Request<HoldRequest>) -> Result<Response<HoldResponse>, Status> {
        let HoldRequest { hashes, milliseconds } = request.into_inner();
        self.executable()?;
        let time = Duration::from_millis(milliseconds.into());
        let command = EngineCommand::Hold { hashes: hashes.into_iter().collect(), time };
        self.commands.send(command).await.map_err(|_| stopped())?;
        Ok(Response::new(HoldResponse {}))
    }

    async fn events(&self, request: Request<EventsRequest>) -> Result<Response<Self::EventsStream>, Status> {
        let interval = request::interval(&request.into_inner());
        let interval = interval.map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.executable()?;
        let listener = self.shared.feed.listen(interval)?;
        let (ready, filled) = oneshot::channel();
        let asked = async {
            self.commands.send(EngineCommand::Listen { ready }).await.map_err(|_| stopped())?;
            filled.await.map_err(|_| stopped())
        };
        self.answered(asked).await?;
        Ok(Response::new(listener.into_stream()))
    }
}

/// Forwards Steers to the engine until the request side ends, which frees the slot.
async fn pump(mut inbound: Streaming<ToEngine>, seq: SeqId, commands: mpsc::Sender<EngineCommand>) {
    loop {
        let command = match inbound.message().await {
            Ok(Some(ToEngine { kind: Some(to_engine::Kind::Steer(steer)) })) => EngineCommand::Steer { seq, steer },
            Ok(Some(_)) => EngineCommand::Fail { seq, error: "only a steer may follow the start".into() },
            Ok(None) | Err(_) => EngineCommand::Cancel { seq },
        };
        let last = !matches!(command, EngineCommand::Steer { .. });
        if commands.send(command).await.is_err() || last {
            return;
        }
    }
}

/// The response side of one sequence. Dropping it frees the slot.
pub struct Outputs {
    seq: SeqId,
    messages: mpsc::Receiver<FromEngine>,
    room: RoomWanted,
    commands: mpsc::Sender<EngineCommand>,
    pump: AbortHandle,
    deadline: Option<Pin<Box<Sleep>>>,
    given_up: BoxFuture<'static, ()>,
    shared: Arc<Shared>,
    /// The last message was a Finish.
    finished: bool,
    ended: bool,
}

impl Stream for Outputs {
    type Item = Result<FromEngine, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.deadline.as_mut().is_some_and(|deadline| deadline.poll_unpin(context).is_ready()) {
            self.end();
            return Poll::Ready(Some(Err(deadline::passed())));
        }
        match self.messages.poll_recv(context) {
            Poll::Pending => match self.given_up.poll_unpin(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(()) => {
                    self.end();
                    Poll::Ready(Some(Err(self.shared.lost())))
                }
            },
            Poll::Ready(Some(message)) => {
                if self.room.answer(self.messages.capacity()) {
                    // If the queue is full, the engine will check all sequences anyway.
                    let _ = self.commands.try_send(EngineCommand::Room);
                }
                self.finished = matches!(message.kind, Some(from_engine::Kind::Finish(_)));
                Poll::Ready(Some(Ok(message)))
            }
            Poll::Ready(None) => {
                self.end();
                match self.finished {
                    true => Poll::Ready(None),
                    false => Poll::Ready(Some(Err(Status::cancelled("the sequence was dropped before it finished")))),
                }
            }
        }
    }
}

impl Outputs {
    fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.pump.abort();
            self.messages.close();
            // Only wakes an idle engine: it frees every sequence whose messages nobody reads.
            let _ = self.commands.try_send(EngineCommand::Cancel { seq: self.seq });
        }
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        self.end();
    }
}
