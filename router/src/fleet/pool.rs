//! The engines of one model: tracks their state, and leases one to each sequence. It does not know how engines are
//! reached: a transport is a socket, or a service in the same process.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, atomic::Ordering},
};

use futures::{
    FutureExt, StreamExt,
    future::{self, BoxFuture},
    stream,
};
use rein_proto::{
    block_hash,
    internal::{EngineInfo, EngineStats, LoadLoraRequest, LoraInfo},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

pub use crate::fleet::handle::{EngineHandle, EngineListing};
use crate::{
    error::Error,
    fleet::{
        breaker::{BreakerPermit, BreakerState, Fault},
        route::{EngineState, PromptHashes, RoutePolicy, Routing},
        transport::EngineTransport,
    },
    limits,
};

/// A sequence that needs an engine.
pub struct EngineRequest<'a> {
    pub salt: &'a str,
    /// The digest of the LoRA adapter that the engine must have; 0: none.
    pub lora: u64,
    /// All tokens that the engine gets: the prompt, and the tokens generated before.
    pub tokens: &'a [u32],
    pub session: Option<u64>,
    /// The kind of the engine that it had before. Until this time, only healthy engines of this kind are used, if the
    /// pool has other kinds.
    pub kind: Option<(&'a str, Instant)>,
    /// Engines that did not accept it. Other engines are preferred.
    pub refused: &'a [Arc<EngineHandle>],
}

/// A prompt that is hashed when a choice depends on it.
struct LazyPrompt<'a> {
    routing: &'a Routing,
    wanted: &'a EngineRequest<'a>,
    hashes: OnceLock<PromptHashes>,
}

impl<'a> LazyPrompt<'a> {
    fn new(routing: &'a Routing, wanted: &'a EngineRequest<'a>) -> Self {
        LazyPrompt { routing, wanted, hashes: OnceLock::new() }
    }

    fn hashes(&self) -> &PromptHashes {
        let salt = block_hash::salt_of(self.wanted.salt, self.wanted.lora);
        self.hashes.get_or_init(|| self.routing.prompt(&salt, self.wanted.tokens))
    }
}

/// How much an engine should be used. Lower standings are preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    Serving,
    /// It gets new sequences only if no serving engine can take them.
    Draining,
    /// Since this time, membership does not list it. It may still be there, if membership is incomplete.
    Unlisted(Instant),
}

#[derive(Clone)]
struct Listed {
    engine: Arc<EngineHandle>,
    standing: Standing,
}

impl Listed {
    /// Membership lists it.
    fn is_listed(&self) -> bool {
        !matches!(self.standing, Standing::Unlisted(_))
    }

    /// Membership lists it, and it has not failed recently.
    fn is_healthy(&self, now: Instant) -> bool {
        self.is_listed() && self.engine.breaker().condition(now) == BreakerState::Closed
    }
}

/// The engines of one model.
pub struct EnginePool {
    engines: RwLock<Arc<Vec<Listed>>>,
    /// Counts the changes of `engines`.
    changes: watch::Sender<u64>,
    routing: Routing,
    began: Instant,
    /// The engines never change.
    fixed: bool,
    /// The last info that any engine reported.
    info: Mutex<Option<EngineInfo>>,
}

impl EnginePool {
    /// A pool of exactly these engines. Each comes with its kind and its LoRA adapters.
    pub fn fixed(engines: Vec<(EngineTransport, String, Vec<LoraInfo>)>) -> Self {
        let pool = EnginePool { fixed: true, ..EnginePool::open(RoutePolicy::LeastLoad, 0) };
        let listed = |(i, (transport, kind, loras)): (usize, _)| {
            let (group, address) = (i.to_string(), String::new());
            let listing = EngineListing { group, epoch: 1, kind, revision: None, address, draining: false, loras };
            let engine = Arc::new(EngineHandle::new(&listing, transport, &pool.routing));
            Listed { engine, standing: Standing::Serving }
        };
        let engines = engines.into_iter().enumerate().map(listed).collect();
        EnginePool { engines: RwLock::new(Arc::new(engines)), ..pool }
    }

    /// A pool whose engines come from [`EnginePool::list`], with an index of so many bytes.
    pub fn open(policy: RoutePolicy, index: usize) -> Self {
        EnginePool {
            engines: RwLock::default(),
            changes: watch::Sender::new(0),
            routing: Routing::new(policy, index),
            began: Instant::now(),
            fixed: false,
            info: Mutex::new(None),
        }
    }

    fn listed(&self) -> Arc<Vec<Listed>> {
        self.engines.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The engines that have the adapter with this digest; 0: all.
    fn listed_with(&self, lora: u64) -> Arc<Vec<Listed>> {
        let listed = self.listed();
        match lora {
            0 => listed,
            lora => Arc::new(listed.iter().filter(|listed| listed.engine.has_lora(lora)).cloned().collect()),
        }
    }

    /// The LoRA adapters of its engines by name. Of one name, those with the most engines.
    pub fn loras(&self) -> BTreeMap<String, LoraInfo> {
        let mut counts = BTreeMap::<String, Vec<(LoraInfo, usize)>>::new();
        for listed in self.listed().iter() {
            for lora in listed.engine.loras().iter() {
                let found = counts.entry(lora.name.clone()).or_default();
                match found.iter_mut().find(|(known, _)| known.digest == lora.digest) {
                    Some((_, count)) => *count += 1,
                    None => found.push((lora.clone(), 1)),
                }
            }
        }
        let most = |found: Vec<(LoraInfo, usize)>| found.into_iter().max_by_key(|(_, count)| *count);
        counts.into_iter().filter_map(|(name, found)| Some((name, most(found)?.0))).collect()
    }

    /// Loads an adapter into all listed engines. If one fails, those that did not have it before unload it again.
    pub async fn load_lora(&self, request: &LoadLoraRequest) -> Result<LoraInfo, Error> {
        let engines: Vec<_> =
            self.listed().iter().filter(|listed| listed.is_listed()).map(|listed| listed.engine.clone()).collect();
        let had = |engine: &EngineHandle| engine.loras().iter().any(|lora| lora.name == request.name);
        let fresh: Vec<_> = engines.iter().filter(|engine| !had(engine)).cloned().collect();
        let loaded = future::join_all(engines.iter().map(|engine| engine.load_lora(request.clone()).boxed())).await;
        let mut found = None;
        for loaded in loaded {
            match loaded {
                Ok(lora) => found = Some(lora),
                Err(error) => {
                    // What is wrong is told; that an engine which just failed cannot unload it either is not news.
                    let _ =
                        future::join_all(fresh.iter().map(|engine| engine.unload_lora(&request.name).boxed())).await;
                    return Err(error);
                }
            }
        }
        self.changes.send_modify(|changes| *changes += 1);
        found.ok_or_else(|| Error::unavailable("this model has no engine now; try again later"))
    }

    /// Unloads an adapter from all its engines.
    pub async fn unload_lora(&self, name: &str) -> Result<(), Error> {
        let engines = self.engines();
        let unloaded = future::join_all(engines.iter().map(|engine| engine.unload_lora(name).boxed())).await;
        unloaded.into_iter().collect()
    }

    pub fn engines(&self) -> Vec<Arc<EngineHandle>> {
        self.listed().iter().map(|listed| listed.engine.clone()).collect()
    }

    /// The current stats of each engine, or None if it did not answer in time. Engines that are not listed and have no
    /// sequences are left out: they are gone, so their silence is not a failure.
    pub async fn stats(&self) -> Vec<(Arc<EngineHandle>, Option<EngineStats>)> {
        let expected = |listed: &&Listed| listed.is_listed() || listed.engine.open.load(Ordering::Relaxed) > 0;
        let engines: Vec<Arc<EngineHandle>> =
            self.listed().iter().filter(expected).map(|listed| listed.engine.clone()).collect();
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

    /// Number of engines by standing.
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

    /// Number of kinds among the listed engines. If there is more than one, answers depend on the engine.
    pub fn kinds(&self) -> usize {
        let listed = self.listed();
        listed
            .iter()
            .filter(|listed| listed.is_listed())
            .map(|listed| &listed.engine.kind)
            .collect::<HashSet<_>>()
            .len()
    }

    /// The revision of the listed engines. None: it is unknown, or they differ.
    pub fn revision(&self) -> Option<String> {
        let listed = self.listed();
        let mut revisions = listed.iter().filter(|listed| listed.is_listed()).map(|listed| &listed.engine.revision);
        let first = revisions.next()?;
        first.clone().filter(|_| revisions.all(|revision| revision == first))
    }

    pub fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// Sets the groups that serve now. Engines that are not listed any more stay as the last choice until they fail or
    /// `ENGINE_UNLISTED` has passed, because membership may be incomplete. They are removed at once if `superseded`:
    /// their group has another epoch.
    pub fn list(
        &self,
        listings: &[EngineListing],
        superseded: impl Fn(&EngineHandle) -> bool,
        mut dial: impl FnMut(&str) -> Option<EngineTransport>,
    ) {
        let (known, now) = (self.listed(), Instant::now());
        let mut engines = Vec::with_capacity(listings.len());
        // A map, because this runs once per engine when many engines start.
        let mut others: HashMap<(&str, u64), &Listed> =
            known.iter().map(|listed| ((listed.engine.group.as_str(), listed.engine.epoch), listed)).collect();
        for listing in listings {
            let engine = match others.remove(&(listing.group.as_str(), listing.epoch)) {
                Some(listed) => {
                    listed.engine.loras.told(&listing.loras);
                    listed.engine.clone()
                }
                None => {
                    let Some(transport) = dial(&listing.address) else { continue };
                    let engine = Arc::new(EngineHandle::new(listing, transport, &self.routing));
                    engine.start_following(listings.len());
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
            let expired = now.duration_since(since) >= limits::ENGINE_UNLISTED || !listed.engine.breaker().allows(now);
            if !expired || listed.engine.open.load(Ordering::Relaxed) > 0 {
                engines.push(Listed { engine: listed.engine.clone(), standing: Standing::Unlisted(since) });
            }
        }
        *self.engines.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(engines);
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// What the model's engines are. One answer is enough, because all are alike. While there is no engine, the last
    /// answer is returned.
    pub async fn info(&self) -> Result<EngineInfo, Error> {
        let listed = self.listed();
        let remember = |info: &EngineInfo| {
            *self.info.lock().unwrap_or_else(PoisonError::into_inner) = Some(info.clone());
            info.clone()
        };
        // An earlier answer of any engine: when many engines start at once, each may answer slowly.
        if let Some(info) = listed.iter().find_map(|listed| listed.engine.info.get()) {
            return Ok(remember(info));
        }
        let ask = |engine: Arc<EngineHandle>| async move { engine.info().await.cloned() }.boxed();
        let why = match self.first_answer(ask).await {
            Some(Ok(info)) => return Ok(remember(&info)),
            Some(Err(error)) => error,
            None => Error::unavailable("this model has no engine now; try again later"),
        };
        let known = self.info.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.filter(|_| !self.fixed).ok_or(why)
    }

    /// Err: no engine answers now. Stats are asked for, because an engine that has answered before may have lost its
    /// workers since.
    pub async fn check_available(&self) -> Result<(), Error> {
        let ask = |engine: Arc<EngineHandle>| async move { engine.stats().await.map(drop) }.boxed();
        match self.first_answer(ask).await {
            Some(Err(error)) => Err(Error { cause: error.cause, ..Error::unavailable(error.message) }),
            Some(Ok(())) => Ok(()),
            None => Err(Error::unavailable("this model has no engine now")),
        }
    }

    /// The best standing among the listed engines. None: there is none.
    pub fn standing(&self) -> Option<Standing> {
        self.listed().iter().filter(|listed| listed.is_listed()).map(|listed| listed.standing).min()
    }

    /// Leases an engine for one sequence, which counts as open there until the lease is dropped. Waits for an engine
    /// until `until` or the request's deadline, unless the pool is fixed.
    pub async fn lease(
        &self,
        wanted: &EngineRequest<'_>,
        until: Instant,
        deadline: Instant,
    ) -> Result<EngineLease, Error> {
        let until = until.min(deadline);
        let prompt = LazyPrompt::new(&self.routing, wanted);
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            let (listed, now) = (self.listed_with(wanted.lora), Instant::now());
            let mixed = |kind: &str| listed.iter().any(|listed| *listed.engine.kind != *kind);
            let required = wanted.kind.filter(|(kind, until)| now < *until && mixed(kind));
            // Unhealthy engines of the required kind are not tried while there are other kinds.
            let same_kind = required.map(|(kind, _)| {
                let healthy = |listed: &&Listed| *listed.engine.kind == *kind && listed.is_healthy(now);
                listed.iter().filter(healthy).cloned().collect::<Vec<_>>()
            });
            let usable = same_kind.as_deref().unwrap_or(&listed);
            let refused = |listed: &&Listed| wanted.refused.iter().any(|engine| Arc::ptr_eq(engine, &listed.engine));
            let others = || usable.iter().filter(|listed| !refused(listed)).cloned().collect::<Vec<_>>();
            let lease = match wanted.refused {
                [] => None,
                _ => self.choose(&others(), &prompt, wanted.session),
            };
            if let Some(lease) = lease.or_else(|| self.choose(usable, &prompt, wanted.session)) {
                return Ok(lease);
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(Error::deadline());
            }
            if self.fixed || now >= until {
                let what = match wanted.lora {
                    0 => "this model has no engine now; try again later",
                    _ => "no engine of this model has the LoRA adapter now; try again later",
                };
                return Err(Error::unavailable(what));
            }
            let opens = listed.iter().filter_map(|listed| listed.engine.breaker().opens_at()).min();
            let retry_at = opens.unwrap_or(until).min(until).min(required.map_or(until, |(_, until)| until));
            tokio::select! {
                biased;
                // The sender lives as long as the pool: this never fails.
                _ = changes.changed() => {}
                () = sleep_until(retry_at.max(now + limits::MIN_ENGINE_RETRY_WAIT)) => {}
            }
        }
    }

    /// Leases a second engine for a sequence: a healthy, serving one of the wanted kind, in another group
    /// than `than`.
    pub fn lease_elsewhere(&self, wanted: &EngineRequest<'_>, than: &str) -> Option<EngineLease> {
        let now = Instant::now();
        let healthy = |listed: &&Listed| {
            listed.standing == Standing::Serving
                && listed.engine.group != than
                && wanted.kind.is_none_or(|(kind, _)| *listed.engine.kind == *kind)
                && listed.is_healthy(now)
        };
        let others: Vec<Listed> = self.listed_with(wanted.lora).iter().filter(healthy).cloned().collect();
        self.choose(&others, &LazyPrompt::new(&self.routing, wanted), wanted.session)
    }

    /// Leases the engine that the policy chooses among those with the best standing.
    fn choose<'listed>(
        &self,
        listed: &'listed [Listed],
        prompt: &LazyPrompt<'_>,
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
            breaker.allows(now).then(|| (standing, breaker.condition(now) != BreakerState::Closed))
        };
        let pick = |engines: &[&'listed Arc<EngineHandle>]| {
            // An engine that has not reported its number is assumed to equal the others.
            let default = engines.iter().find_map(|engine| engine.max_sequences()).unwrap_or(limits::ENGINE_SLOTS);
            let target = |engine: &&'listed Arc<EngineHandle>| EngineState {
                key: engine.key,
                index_slot: &engine.index_slot,
                open: engine.open.load(Ordering::Relaxed) as u32,
                max_sequences: engine.max_sequences().unwrap_or(default),
            };
            let targets: Vec<EngineState> = engines.iter().map(target).collect();
            let chosen = self.routing.pick(&targets, || prompt.hashes(), session, self.began.elapsed())?;
            Some(engines[chosen])
        };
        loop {
            let usable: Vec<_> = listed.iter().filter_map(|listed| Some((class(listed)?, &listed.engine))).collect();
            let best = usable.iter().map(|(class, _)| *class).min();
            let engines: Vec<&'listed Arc<EngineHandle>> =
                usable.iter().filter(|(class, _)| Some(*class) == best).map(|(_, engine)| *engine).collect();
            if engines.is_empty() && self.fixed {
                return pick(&listed.iter().map(|listed| &listed.engine).collect::<Vec<_>>()).map(EngineLease::new);
            }
            let lease = EngineLease::new(pick(&engines)?);
            // Without a pass, another sequence became the engine's probe in between: choose again.
            if lease.pass.is_some() {
                return Some(lease);
            }
        }
    }

    /// The first successful answer of the engines, else the last error. Several engines are asked at once, because one
    /// may be slow; healthy ones are asked first. None: there are no engines.
    async fn first_answer<'a, T: 'a>(
        &self,
        ask: impl Fn(Arc<EngineHandle>) -> BoxFuture<'a, Result<T, Error>>,
    ) -> Option<Result<T, Error>> {
        let (listed, now) = (self.listed(), Instant::now());
        let (healthy, unhealthy): (Vec<_>, Vec<_>) = listed.iter().partition(|listed| listed.is_healthy(now));
        let calls: Vec<_> = healthy.iter().chain(&unhealthy).map(|listed| ask(listed.engine.clone())).collect();
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

/// One open sequence on an engine. Its outcome is reported to the engine's circuit breaker.
pub struct EngineLease {
    engine: Arc<EngineHandle>,
    /// None: the outcome has been reported.
    pass: Option<BreakerPermit>,
}

impl EngineLease {
    fn new(engine: &Arc<EngineHandle>) -> Self {
        engine.open.fetch_add(1, Ordering::Relaxed);
        let pass = engine.breaker().begin(Instant::now());
        EngineLease { engine: engine.clone(), pass }
    }

    pub fn engine(&self) -> &Arc<EngineHandle> {
        &self.engine
    }

    /// A lease for a second sequence on the same engine, which has their common prompt in its cache.
    pub fn for_another_sequence(&self) -> Self {
        EngineLease::new(&self.engine)
    }

    /// The engine has accepted the sequence and computed its prompt.
    pub fn succeeded(&mut self) {
        if let Some(pass) = self.pass.take() {
            self.engine.breaker().succeeded(pass);
        }
    }

    /// The sequence failed because of a fault of the engine.
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
