//! The gRPC service of engine.proto over an engine that is already there. It knows messages and statuses, and must not
//! know what differs between engines.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use rein_proto::checks;
use rein_proto::internal::engine_server::{self, EngineServer};
use rein_proto::internal::{
    EngineEvents, EngineInfo, EngineLoad, EngineStats, EventsRequest, FromEngine, HoldRequest, HoldResponse,
    InfoRequest, StatsRequest, ToEngine, to_engine,
};
use rein_proto::{deadline, protocol};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Request, Response, Status, Streaming};

use crate::clock::TokenClock;
use crate::connection::EngineHttp;
use crate::course::{self, CourseShape};
use crate::dialect::EngineDialect;
use crate::driven::Driven;
use crate::events::{EventReader, follow_events};
use crate::feed::CacheFeed;
use crate::health::{Lost, watch_engine};
use crate::identity::Identity;
use crate::join::{Deployment, Joined};
use crate::limits;
use crate::metrics::EngineCounters;
use crate::sequence::{EngineLink, Sequence};
use crate::verdict::VerdictTime;

/// An engine that has joined, as an engine of Rein's protocol. Clones share it.
#[derive(Debug, Clone)]
pub struct AdapterService {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    shape: CourseShape,
    link: Arc<EngineLink>,
    open: AtomicUsize,
    listeners: AtomicUsize,
    draining: AtomicBool,
}

/// How an adapter treats its engine.
#[derive(Debug, Clone)]
pub struct AdapterOptions {
    /// Where the engine publishes its block events, HOST:PORT.
    pub events: Option<String>,
    /// How long a stream may take for a token, or for the head of its answer.
    pub token_deadline: Duration,
}

impl Default for AdapterOptions {
    fn default() -> Self {
        AdapterOptions { events: None, token_deadline: limits::TOKEN_DEADLINE }
    }
}

/// Counts an open sequence, or a listener, until it is dropped.
struct Counted(Arc<Shared>, fn(&Shared) -> &AtomicUsize);

impl Counted {
    /// None: there are this many already.
    fn new(shared: &Arc<Shared>, of: fn(&Shared) -> &AtomicUsize, most: usize) -> Option<Self> {
        let count = of(shared).fetch_add(1, Ordering::Relaxed);
        let counted = Counted(shared.clone(), of);
        (count < most).then_some(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.1)(&self.0).fetch_sub(1, Ordering::Relaxed);
    }
}

impl AdapterService {
    /// Watches the engine, which has joined for this deployment, until all clones and streams are dropped.
    pub fn start(
        http: EngineHttp,
        dialect: EngineDialect,
        deployment: Deployment,
        joined: Joined,
        options: AdapterOptions,
    ) -> Self {
        let http = Arc::new(http);
        let (lost, watched) = watch::channel(Lost::None);
        let identity = Arc::new(Identity::new(http.clone(), dialect, deployment, joined.clone()));
        tokio::spawn(watch_engine(http.clone(), dialect, identity.clone(), lost));
        let AdapterOptions { events, token_deadline } = options;
        let shape = CourseShape { vocab_size: joined.vocab_size, context: joined.context, traits: dialect.traits() };
        let blocks = if joined.prefix_cache { joined.blocks as usize } else { 0 };
        let feed = CacheFeed::new(joined.block_size, blocks, events.is_some());
        if let Some(address) = events {
            tokio::spawn(follow_events(address, EventReader::new(&joined), Arc::downgrade(&feed)));
        }
        let counters = Arc::new(EngineCounters::default());
        let clock = Arc::new(TokenClock::new(token_deadline, counters.clone(), joined.slots));
        let link = Arc::new(EngineLink {
            http,
            dialect,
            identity,
            clock,
            counters,
            feed,
            lost: watched,
            verdicts: VerdictTime::default(),
        });
        let (open, listeners, draining) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        AdapterService { shared: Arc::new(Shared { shape, link, open, listeners, draining }) }
    }

    /// Sets the message limits that long contexts need.
    pub fn into_server(self) -> EngineServer<Self> {
        EngineServer::new(self)
            .max_decoding_message_size(limits::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(limits::MAX_MESSAGE_BYTES)
    }

    pub fn dialect(&self) -> EngineDialect {
        self.shared.link.dialect
    }

    pub fn joined(&self) -> &Joined {
        self.shared.link.identity.joined()
    }

    pub fn url(&self) -> &str {
        self.shared.link.http.url()
    }

    /// Whether the engine reports the blocks of its cache: None if it was not asked to.
    pub fn reports_blocks(&self) -> Option<bool> {
        self.shared.link.feed.reports()
    }

    pub fn counters(&self) -> &Arc<EngineCounters> {
        &self.shared.link.counters
    }

    /// Changes when the engine is lost, and when it answers again.
    pub fn lost(&self) -> watch::Receiver<Lost> {
        self.shared.link.lost.clone()
    }

    pub fn engine_stats(&self) -> EngineStats {
        let joined = self.joined();
        self.counters().stats(joined.slots, joined.blocks)
    }

    /// Number of open sequences.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// Accepts no new sequences from now on, and waits until the open ones have ended.
    pub async fn drain(&self) {
        self.shared.draining.store(true, Ordering::SeqCst);
        while self.open() > 0 {
            sleep(limits::EVENT_INTERVAL.0).await;
        }
    }

    pub fn engine_info(&self) -> EngineInfo {
        let joined = self.joined();
        EngineInfo {
            model: joined.served_name.clone(),
            vocab_size: joined.vocab_size as u32,
            max_context: joined.context as u32,
            block_size: joined.block_size,
            total_blocks: joined.blocks,
            max_sequences: joined.slots,
            kind: self.dialect().name().into(),
            tensor_parallel: 1,
            max_queue: limits::MAX_QUEUE as u32,
            protocol: protocol::NUMBER,
            version: protocol::VERSION.into(),
            embedding_size: 0,
            takes_packed_prompt: false,
            ..EngineInfo::default()
        }
    }

    fn available(&self) -> Result<(), Status> {
        match &*self.shared.link.lost.borrow() {
            Some(why) => Err(Status::unavailable(why.to_string())),
            None => Ok(()),
        }
    }
}

/// Rejects a router whose protocol this release does not support.
fn understood(number: u32, version: &str) -> Result<(), Status> {
    let refused = || Status::failed_precondition(protocol::refusal("the router", number, version));
    if protocol::understands(number, protocol::NUMBER) { Ok(()) } else { Err(refused()) }
}

#[tonic::async_trait]
impl engine_server::Engine for AdapterService {
    type GenerateStream = BoxStream<'static, Result<FromEngine, Status>>;
    type EventsStream = BoxStream<'static, Result<EngineEvents, Status>>;

    async fn generate(&self, request: Request<Streaming<ToEngine>>) -> Result<Response<Self::GenerateStream>, Status> {
        let deadline = deadline::timeout(request.metadata())?.and_then(|left| Instant::now().checked_add(left));
        let mut inbound = request.into_inner();
        let shared = &self.shared;
        let opening = async {
            let first = inbound.message().await?;
            let Some(to_engine::Kind::Start(start)) = first.and_then(|message| message.kind) else {
                return Err(Status::invalid_argument("the first message must be a start"));
            };
            understood(start.protocol, &start.version)?;
            if shared.draining.load(Ordering::SeqCst) {
                return Err(Status::unavailable("the adapter is draining and accepts no new sequences"));
            }
            self.available()?;
            course::check(&start, &shared.shape).map_err(|error| Status::invalid_argument(error.to_string()))?;
            let most = self.joined().slots as usize + limits::MAX_QUEUE;
            let counted = Counted::new(shared, |shared| &shared.open, most)
                .ok_or_else(|| Status::resource_exhausted(format!("{most} sequences are open; retry later")))?;
            let mut sequence = Sequence::new(start, shared.shape.clone(), shared.link.clone());
            sequence.begin().await?;
            Ok((counted, sequence))
        };
        let (counted, sequence) = match deadline {
            None => opening.await?,
            Some(at) => timeout_at(at, opening).await.map_err(|_| deadline::passed())??,
        };
        let (to, messages) = mpsc::channel(limits::OUTPUT_QUEUE);
        let run = async move {
            sequence.run(inbound, to, deadline).await;
            drop(counted);
        };
        // A router that does not read keeps its sequence where it is.
        let mut sequence = Driven::new(run, messages);
        Ok(Response::new(stream::poll_fn(move |context| sequence.poll_next(context)).boxed()))
    }

    async fn info(&self, request: Request<InfoRequest>) -> Result<Response<EngineInfo>, Status> {
        let InfoRequest { protocol, version } = request.into_inner();
        understood(protocol, &version)?;
        self.available()?;
        Ok(Response::new(self.engine_info()))
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Result<Response<EngineStats>, Status> {
        self.available()?;
        Ok(Response::new(self.engine_stats()))
    }

    /// These engines cannot be told.
    async fn hold(&self, _: Request<HoldRequest>) -> Result<Response<HoldResponse>, Status> {
        Ok(Response::new(HoldResponse {}))
    }

    async fn events(&self, request: Request<EventsRequest>) -> Result<Response<Self::EventsStream>, Status> {
        let interval = Duration::from_millis(request.into_inner().interval_ms.into());
        let (least, most) = limits::EVENT_INTERVAL;
        checks::require("interval_ms", (least..=most).contains(&interval), || {
            format!("must be from {} to {}, got {}", least.as_millis(), most.as_millis(), interval.as_millis())
        })
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.available()?;
        let counted = Counted::new(&self.shared, |shared| &shared.listeners, limits::EVENT_LISTENERS)
            .ok_or_else(|| Status::resource_exhausted("too many routers listen to this engine"))?;
        let service = self.clone();
        let events = self.shared.link.feed.listen(interval).map(move |event| {
            let EngineStats { running, waiting, used_blocks, total_blocks, .. } = service.engine_stats();
            let load = EngineLoad { running, waiting, used_blocks, total_blocks };
            let _listens = &counted;
            event.map(|event| EngineEvents { load: Some(load), ..event })
        });
        // A lost engine's listeners come back when it answers again.
        let mut lost = self.lost();
        let gone = async move { drop(lost.wait_for(Option::is_some).await) };
        Ok(Response::new(events.take_until(Box::pin(gone)).boxed()))
    }
}
