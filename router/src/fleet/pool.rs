//! The engines of one model, reached through any transport that speaks HTTP/2 frames or pretends to.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use rein_proto::{
    internal::{EngineInfo, EngineStats, InfoRequest, StatsRequest, engine_client::EngineClient},
    protocol,
};
use tokio::{
    sync::{OnceCell, watch},
    task::AbortHandle,
    time::{Instant, sleep, sleep_until, timeout},
};
use tonic::{Response, Status, body::Body};
use tower::{Service, ServiceExt, util::BoxCloneSyncService};

use crate::{
    error::Error,
    fleet::{
        breaker::{CircuitBreaker, Condition, Fault, Pass},
        route::{
            self, EngineSlot, PromptHashes, RoutePolicy, Routing, Target,
            follow::{follow_events, interval},
        },
    },
    limits,
};

/// Why an engine could not be called.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct TransportError(Box<dyn std::error::Error + Send + Sync>);

/// A tonic `Channel`, or the generated `EngineServer` itself, called without a socket: the wire path is the only path.
pub type EngineTransport = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, TransportError>;

/// Wraps a `Channel` or an `EngineServer`.
pub fn transport<S>(service: S) -> EngineTransport
where
    S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + Sync + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
    S::Future: Send + 'static,
{
    let wrap: fn(S::Error) -> TransportError = |error| TransportError(error.into());
    BoxCloneSyncService::new(service.map_err(wrap))
}

pub struct EngineHandle {
    /// The group that it leads, and its epoch there.
    pub group: String,
    pub epoch: u64,
    /// Engines of one kind give the same answers to the token.
    pub kind: Arc<str>,
    /// The commit of its checkpoint's repository, if it is known.
    revision: Option<String>,
    /// [`route::key`] of the group.
    key: u64,
    client: EngineClient<EngineTransport>,
    open: Arc<AtomicUsize>,
    info: OnceCell<EngineInfo>,
    breaker: Mutex<CircuitBreaker>,
    /// What it has cached and has to do, as it says itself.
    seat: Arc<EngineSlot>,
    listening: OnceLock<AbortHandle>,
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        if let Some(listening) = self.listening.get() {
            listening.abort();
        }
    }
}

/// A sequence that is to have an engine.
pub struct EngineRequest<'a> {
    pub salt: &'a str,
    /// All that the engine is given.
    pub tokens: &'a [u32],
    pub session: Option<u64>,
    /// Of the engine that it had before: another one of that kind, if one that is well is there by then.
    pub kind: Option<(&'a str, Instant)>,
    /// Engines that did not take it: others are better.
    pub refused: &'a [Arc<EngineHandle>],
}

impl EngineHandle {
    fn new(listing: &EngineListing, transport: EngineTransport, routing: &Routing) -> Self {
        let client = EngineClient::new(transport).max_decoding_message_size(limits::ENGINE_MESSAGE_BYTES);
        let breaker = Mutex::new(CircuitBreaker::new(&listing.group));
        EngineHandle {
            key: route::key(&listing.group),
            group: listing.group.clone(),
            epoch: listing.epoch,
            kind: listing.kind.as_str().into(),
            revision: listing.revision.clone(),
            client,
            open: Arc::default(),
            info: OnceCell::new(),
            breaker,
            seat: Arc::new(routing.index().join()),
            listening: OnceLock::new(),
        }
    }

    /// Learns from it, as long as it is there, how it is and what it has cached.
    fn listen(self: &Arc<Self>, engines: usize) {
        let (engine, client) = (Arc::downgrade(self), self.client());
        let (seat, open) = (self.seat.clone(), self.open.clone());
        let listening = tokio::spawn(async move {
            if let Some(engine) = engine.upgrade()
                && let Err(error) = engine.info().await
            {
                tracing::debug!(%error, "an engine does not say what it is");
            }
            let open = move || open.load(Ordering::Relaxed) as u32;
            follow_events(client, seat, interval(engines), open).await;
        });
        // Once for each engine.
        let _ = self.listening.set(listening.abort_handle());
    }

    /// Sequences that it computes at once, if it has said so.
    fn slots(&self) -> Option<u32> {
        self.info.get().map(|info| info.max_sequences)
    }

    fn breaker(&self) -> MutexGuard<'_, CircuitBreaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub fn lets(&self, now: Instant) -> bool {
        self.breaker().lets(now)
    }

    pub fn client(&self) -> EngineClient<EngineTransport> {
        self.client.clone()
    }

    /// What the engine is. Asked once.
    pub async fn info(&self) -> Result<&EngineInfo, Error> {
        let mut client = self.client();
        let request = InfoRequest { protocol: protocol::NUMBER, version: protocol::VERSION.into() };
        let ask = || async {
            let info = answer(async move { client.info(request).await }.boxed()).await?;
            if protocol::understands(info.protocol, protocol::NUMBER) {
                return Ok(info);
            }
            let cause = protocol::refusal(&format!("engine {}", self.group), info.protocol, &info.version);
            Err(Error {
                cause: Some(cause),
                ..Error::unavailable("the engine is of a release that this router cannot use")
            })
        };
        self.info.get_or_try_init(ask).await
    }

    pub async fn stats(&self) -> Result<EngineStats, Error> {
        let mut client = self.client();
        answer(async move { client.stats(StatsRequest {}).await }.boxed()).await
    }
}

/// Waits for an engine, not for long. (Boxed: the compiler cannot see through the transport that the future is `Send`.)
async fn answer<T>(call: BoxFuture<'static, Result<Response<T>, Status>>) -> Result<T, Error> {
    match timeout(limits::ENGINE_CALL_TIME, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(Error::from_engine(&status)),
        Err(_) => Err(Error::unavailable("the engine does not answer")),
    }
}

/// How much an engine is to be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    Serving,
    /// For new sequences where no other can take them.
    Draining,
    /// Nobody says any more that it is there, since then; nor that it is not.
    Unlisted(Instant),
}

/// A group that serves, as membership has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineListing {
    pub group: String,
    pub epoch: u64,
    /// [`EngineHandle::kind`].
    pub kind: String,
    /// The commit of its checkpoint's repository, if it is known.
    pub revision: Option<String>,
    pub address: String,
    pub draining: bool,
}

#[derive(Clone)]
struct Listed {
    engine: Arc<EngineHandle>,
    standing: Standing,
}

impl Listed {
    /// Membership has it.
    fn is_here(&self) -> bool {
        !matches!(self.standing, Standing::Unlisted(_))
    }

    /// It is here, and has not failed lately.
    fn is_well(&self, now: Instant) -> bool {
        self.is_here() && self.engine.breaker().condition(now) == Condition::Closed
    }
}

pub struct EnginePool {
    engines: RwLock<Arc<Vec<Listed>>>,
    /// Counts the changes of `engines`.
    changes: watch::Sender<u64>,
    routing: Routing,
    began: Instant,
    /// No engine ever joins.
    fixed: bool,
    /// What an engine said last.
    info: Mutex<Option<EngineInfo>>,
}

impl EnginePool {
    /// Of these engines and no others. Each comes with its kind.
    pub fn fixed(engines: Vec<(EngineTransport, String)>) -> Self {
        let pool = EnginePool { fixed: true, ..EnginePool::open(RoutePolicy::LeastLoad) };
        let listed = |(i, (transport, kind)): (usize, _)| {
            let (group, address) = (i.to_string(), String::new());
            let listing = EngineListing { group, epoch: 1, kind, revision: None, address, draining: false };
            let engine = Arc::new(EngineHandle::new(&listing, transport, &pool.routing));
            Listed { engine, standing: Standing::Serving }
        };
        let engines = engines.into_iter().enumerate().map(listed).collect();
        EnginePool { engines: RwLock::new(Arc::new(engines)), ..pool }
    }

    /// Of whichever engines are listed.
    pub fn open(policy: RoutePolicy) -> Self {
        EnginePool {
            engines: RwLock::default(),
            changes: watch::Sender::new(0),
            routing: Routing::new(policy),
            began: Instant::now(),
            fixed: false,
            info: Mutex::new(None),
        }
    }

    fn listed(&self) -> Arc<Vec<Listed>> {
        self.engines.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn engines(&self) -> Vec<Arc<EngineHandle>> {
        self.listed().iter().map(|listed| listed.engine.clone()).collect()
    }

    /// What each engine says of itself now, if it does so in time. One that membership no longer has, and that has
    /// nothing to do, has left: that it does not answer would be no news.
    pub async fn stats(&self) -> Vec<(Arc<EngineHandle>, Option<EngineStats>)> {
        let here = |listed: &&Listed| listed.is_here() || listed.engine.open.load(Ordering::Relaxed) > 0;
        let engines: Vec<Arc<EngineHandle>> =
            self.listed().iter().filter(here).map(|listed| listed.engine.clone()).collect();
        let ask = |(i, engine): (usize, Arc<EngineHandle>)| async move { (i, engine.stats().await.ok()) }.boxed();
        let calls: Vec<_> = engines.iter().cloned().enumerate().map(ask).collect();
        let mut answers = vec![None; engines.len()];
        let asking = stream::iter(calls).buffer_unordered(limits::STATS_AT_ONCE);
        let mut asking = asking.take_until(Box::pin(sleep(limits::STATS_TIME)));
        while let Some((i, answer)) = asking.next().await {
            answers[i] = answer;
        }
        engines.into_iter().zip(answers).collect()
    }

    /// Engines by standing.
    pub fn standings(&self) -> [(&'static str, usize); 3] {
        let mut standings = [("serving", 0), ("draining", 0), ("unlisted", 0)];
        for listed in self.listed().iter() {
            let place = match listed.standing {
                Standing::Serving => 0,
                Standing::Draining => 1,
                Standing::Unlisted(_) => 2,
            };
            standings[place].1 += 1;
        }
        standings
    }

    /// Kinds of the engines that membership has. With more than one, an answer depends on where it is computed.
    pub fn kinds(&self) -> usize {
        let listed = self.listed();
        listed.iter().filter(|listed| listed.is_here()).map(|listed| &listed.engine.kind).collect::<HashSet<_>>().len()
    }

    /// The revision of the engines that membership has. None: it is unknown, or they differ.
    pub fn revision(&self) -> Option<String> {
        let listed = self.listed();
        let mut revisions = listed.iter().filter(|listed| listed.is_here()).map(|listed| &listed.engine.revision);
        let first = revisions.next()?;
        first.clone().filter(|_| revisions.all(|revision| revision == first))
    }

    pub fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// These groups serve now. An engine that is not among them stays as the last choice for a while, unless its group
    /// has gone on to another epoch: membership may know too little, and whoever answers is there.
    pub fn list(
        &self,
        listings: &[EngineListing],
        superseded: impl Fn(&EngineHandle) -> bool,
        mut dial: impl FnMut(&str) -> Option<EngineTransport>,
    ) {
        let (known, now) = (self.listed(), Instant::now());
        let mut engines = Vec::with_capacity(listings.len());
        // Membership changes a thousand times in a row when a thousand engines come.
        let mut others: HashMap<(&str, u64), &Listed> =
            known.iter().map(|listed| ((listed.engine.group.as_str(), listed.engine.epoch), listed)).collect();
        for listing in listings {
            let engine = match others.remove(&(listing.group.as_str(), listing.epoch)) {
                Some(listed) => listed.engine.clone(),
                None => {
                    let Some(transport) = dial(&listing.address) else { continue };
                    let engine = Arc::new(EngineHandle::new(listing, transport, &self.routing));
                    engine.listen(listings.len());
                    engine
                }
            };
            let standing = if listing.draining { Standing::Draining } else { Standing::Serving };
            engines.push(Listed { engine, standing });
        }
        for listed in known.iter() {
            let kept = !others.contains_key(&(listed.engine.group.as_str(), listed.engine.epoch));
            if kept || superseded(&listed.engine) {
                continue;
            }
            let since = match listed.standing {
                Standing::Unlisted(since) => since,
                _ => now,
            };
            let doubted = now.duration_since(since) >= limits::ENGINE_UNLISTED || !listed.engine.breaker().lets(now);
            if !doubted || listed.engine.open.load(Ordering::Relaxed) > 0 {
                engines.push(Listed { engine: listed.engine.clone(), standing: Standing::Unlisted(since) });
            }
        }
        *self.engines.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(engines);
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// What the model's engines are; all are alike. Known from before while there is none.
    pub async fn info(&self) -> Result<EngineInfo, Error> {
        let listed = self.listed();
        let remember = |info: &EngineInfo| {
            *self.info.lock().unwrap_or_else(PoisonError::into_inner) = Some(info.clone());
            info.clone()
        };
        // Whoever has said it: when many engines come at once, each of them may be slow to.
        if let Some(info) = listed.iter().find_map(|listed| listed.engine.info.get()) {
            return Ok(remember(info));
        }
        let ask = |engine: Arc<EngineHandle>| async move { engine.info().await.cloned() }.boxed();
        let why = match self.first(ask).await {
            Some(Ok(info)) => return Ok(remember(&info)),
            Some(Err(error)) => error,
            None => Error::unavailable("no engine of this model is there now; try again later"),
        };
        let known = self.info.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.filter(|_| !self.fixed).ok_or(why)
    }

    /// Whether any engine answers now: one that once did may have lost its workers since.
    pub async fn answers(&self) -> Result<(), Error> {
        let ask = |engine: Arc<EngineHandle>| async move { engine.stats().await.map(drop) }.boxed();
        match self.first(ask).await {
            Some(Err(error)) => Err(Error { cause: error.cause, ..Error::unavailable(error.message) }),
            Some(Ok(())) => Ok(()),
            None => Err(Error::unavailable("this model has no engine")),
        }
    }

    /// The best standing of the engines that membership has: one that it no longer has may be there all the same, or
    /// not.
    pub fn standing(&self) -> Option<Standing> {
        self.listed().iter().filter(|listed| listed.is_here()).map(|listed| listed.standing).min()
    }

    /// The engine for one more sequence, which counts as open there until the lease is dropped. Waits for one where
    /// others may join, not beyond `until` nor the request's deadline.
    pub async fn lease(
        &self,
        wanted: &EngineRequest<'_>,
        until: Instant,
        deadline: Instant,
    ) -> Result<EngineLease, Error> {
        let until = until.min(deadline);
        let prompt = self.routing.prompt(wanted.salt, wanted.tokens);
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            let (listed, now) = (self.listed(), Instant::now());
            let mixed = |kind: &str| listed.iter().any(|listed| *listed.engine.kind != *kind);
            let choosy = wanted.kind.filter(|(kind, until)| now < *until && mixed(kind));
            // Where there are others, an engine of the kind that is ill is not worth a try.
            let alike = choosy.map(|(kind, _)| {
                let well = |listed: &&Listed| *listed.engine.kind == *kind && listed.is_well(now);
                listed.iter().filter(well).cloned().collect::<Vec<_>>()
            });
            let able = alike.as_deref().unwrap_or(&listed);
            let refused = |listed: &&Listed| wanted.refused.iter().any(|engine| Arc::ptr_eq(engine, &listed.engine));
            let others = || able.iter().filter(|listed| !refused(listed)).cloned().collect::<Vec<_>>();
            let lease = match wanted.refused {
                [] => None,
                _ => self.choose(&others(), &prompt, wanted.session),
            };
            if let Some(lease) = lease.or_else(|| self.choose(able, &prompt, wanted.session)) {
                return Ok(lease);
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(Error::deadline());
            }
            if self.fixed || now >= until {
                return Err(Error::unavailable("no engine of this model is there now; try again later"));
            }
            let opens = listed.iter().filter_map(|listed| listed.engine.breaker().opens_at()).min();
            let healed = opens.unwrap_or(until).min(until).min(choosy.map_or(until, |(_, until)| until));
            tokio::select! {
                biased;
                // The sender lives as long as the pool.
                _ = changes.changed() => {}
                () = sleep_until(healed.max(now + limits::ENGINE_LOOK)) => {}
            }
        }
    }

    /// One that serves and has not failed lately, other than this group's and like it: for a sequence that has an
    /// engine already.
    pub fn another(&self, wanted: &EngineRequest<'_>, than: &str) -> Option<EngineLease> {
        let now = Instant::now();
        let healthy = |listed: &&Listed| {
            listed.standing == Standing::Serving
                && listed.engine.group != than
                && wanted.kind.is_none_or(|(kind, _)| *listed.engine.kind == *kind)
                && listed.is_well(now)
        };
        let others: Vec<Listed> = self.listed().iter().filter(healthy).cloned().collect();
        self.choose(&others, &self.routing.prompt(wanted.salt, wanted.tokens), wanted.session)
    }

    /// Of the best standing, the one that the policy takes.
    fn choose<'listed>(
        &self,
        listed: &'listed [Listed],
        prompt: &PromptHashes,
        session: Option<u64>,
    ) -> Option<EngineLease> {
        let now = Instant::now();
        let class = |listed: &Listed| {
            let standing = match listed.standing {
                Standing::Serving => 0,
                Standing::Draining => 1,
                Standing::Unlisted(_) => 2,
            };
            let breaker = listed.engine.breaker();
            breaker.lets(now).then(|| (standing, breaker.condition(now) != Condition::Closed))
        };
        let pick = |engines: &[&'listed Arc<EngineHandle>]| {
            // One that has not said how many is as the others are.
            let slots = engines.iter().find_map(|engine| engine.slots()).unwrap_or(limits::ENGINE_SLOTS);
            let target = |engine: &&'listed Arc<EngineHandle>| Target {
                engine: engine.key,
                seat: &engine.seat,
                open: engine.open.load(Ordering::Relaxed) as u32,
                slots: engine.slots().unwrap_or(slots),
            };
            let targets: Vec<Target> = engines.iter().map(target).collect();
            let chosen = self.routing.pick(&targets, prompt, session, self.began.elapsed())?;
            Some(engines[chosen])
        };
        loop {
            let able: Vec<_> = listed.iter().filter_map(|listed| Some((class(listed)?, &listed.engine))).collect();
            let best = able.iter().map(|(class, _)| *class).min();
            let engines: Vec<&'listed Arc<EngineHandle>> =
                able.iter().filter(|(class, _)| Some(*class) == best).map(|(_, engine)| *engine).collect();
            if engines.is_empty() && self.fixed {
                return pick(&listed.iter().map(|listed| &listed.engine).collect::<Vec<_>>()).map(EngineLease::on);
            }
            let lease = EngineLease::on(pick(&engines)?);
            // Another sequence may have become the engine's probe just now; then it lets nobody else.
            if lease.pass.is_some() {
                return Some(lease);
            }
        }
    }

    /// The first good answer of the engines, those first that are well; not each of them in turn: one may be slow to
    /// say nothing. None: there are no engines.
    async fn first<'a, T: 'a>(
        &self,
        ask: impl Fn(Arc<EngineHandle>) -> BoxFuture<'a, Result<T, Error>>,
    ) -> Option<Result<T, Error>> {
        let (listed, now) = (self.listed(), Instant::now());
        let (well, ill): (Vec<_>, Vec<_>) = listed.iter().partition(|listed| listed.is_well(now));
        let calls: Vec<_> = well.iter().chain(&ill).map(|listed| ask(listed.engine.clone())).collect();
        let mut answers = stream::iter(calls).buffer_unordered(limits::ENGINES_ASKED_AT_ONCE);
        let mut last = None;
        while let Some(answer) = answers.next().await {
            if answer.is_ok() {
                return Some(answer);
            }
            last = Some(answer);
        }
        last
    }
}

/// One open sequence on an engine. What becomes of it is told to the engine's breaker.
pub struct EngineLease {
    engine: Arc<EngineHandle>,
    /// None: it has been told.
    pass: Option<Pass>,
}

impl EngineLease {
    fn on(engine: &Arc<EngineHandle>) -> Self {
        engine.open.fetch_add(1, Ordering::Relaxed);
        let pass = engine.breaker().begin(Instant::now());
        EngineLease { engine: engine.clone(), pass }
    }

    pub fn engine(&self) -> &Arc<EngineHandle> {
        &self.engine
    }

    /// A second sequence on the same engine, where the prompt they share is cached.
    pub fn again(&self) -> Self {
        EngineLease::on(&self.engine)
    }

    /// The engine has taken the sequence and computed its prompt.
    pub fn succeeded(&mut self) {
        if let Some(pass) = self.pass.take() {
            self.engine.breaker().succeeded(pass);
        }
    }

    /// The sequence failed here for no fault of its own.
    pub fn failed(&mut self, fault: Fault) {
        let now = Instant::now();
        let pass = self.pass.take().or_else(|| self.engine.breaker().begin(now));
        if let Some(pass) = pass {
            self.engine.breaker().failed(pass, fault, now);
        }
    }
}

impl Drop for EngineLease {
    fn drop(&mut self) {
        self.engine.open.fetch_sub(1, Ordering::Relaxed);
        if let Some(pass) = self.pass.take() {
            self.engine.breaker().abandoned(pass, Instant::now());
        }
    }
}
