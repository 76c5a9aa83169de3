//! A worker process in a cluster: it says that it is there, takes the seat it is given, and leaves it when its group is
//! over. What it is told comes from the store; what it knows last counts while the store is silent.

mod end;
mod files;
mod fitness;
mod layout;
mod probe;
mod ready;
mod seat;
mod switch;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use rein_control_plane::reach::{LinkReport, needs_links};
use rein_control_plane::records::{
    Drain, GroupRecord, Keys, Load, Ready, Seat, WorkerRecord, WorkerState, decode, encode,
};
use rein_control_plane::{Condition, Mirror, Rival, Session, Store, StoreError, Transaction};
use rein_kernels::collective::tcp::{Abort, Listener};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

pub use files::Files;
use fitness::Fitness;
use layout::{Known, Relayout};
use probe::Probing;
pub use ready::{Readiness, Verdict};
pub use seat::Work;
use seat::{Links, Refused, Taken, Taking};
pub use switch::{Switch, WorkerReport};

use crate::rank::Resident;
use crate::scheduler::EngineOptions;
use crate::service::EngineService;

mod limits {
    use std::time::Duration;

    /// How long the ranks of a group wait for each other.
    pub const JOIN_TIME: Duration = Duration::from_secs(10);
    /// How often a thread that waits for the end of a group looks whether anybody still wants to know.
    pub const LOOK: Duration = Duration::from_secs(1);
    /// How often a leader looks at its engine.
    pub const TICK: Duration = Duration::from_millis(500);
    /// How often it tells its load while that changes; that there is none, or some, it tells at once.
    pub const TELL: Duration = Duration::from_secs(5);
    /// An engine that has not ended its sequences by then is given up. Whoever leaves waits no longer for anything that may
    /// hang.
    pub const ENGINE_END: Duration = Duration::from_secs(2);
    /// Ranks whose weights come home; no process holds more.
    pub const HOMES: usize = 64;
    /// A worker that could not load waits before it offers itself again, from the first to the second.
    pub const PENANCE_FIRST: Duration = Duration::from_secs(1);
    pub const PENANCE_LONGEST: Duration = Duration::from_secs(60);
    /// How often a leader looks how much experts are used.
    pub const EXPERTS_LOOK: Duration = Duration::from_secs(5);
    /// It tells when the imbalance has changed by this, and otherwise so often.
    pub const EXPERTS_CHANGE: f64 = 0.05;
    pub const EXPERTS_TELL: Duration = Duration::from_secs(60);
    /// What was counted so long ago counts half.
    pub const EXPERTS_HALF_LIFE: Duration = Duration::from_secs(15);
    /// A layout of experts that could not be loaded is tried again after this.
    pub const LAYOUT_RETRY: Duration = Duration::from_secs(10);
    /// Longest wait for the one who has this worker's id to take, or refuse, a connection.
    pub const KNOCK: Duration = Duration::from_millis(300);
    /// How often a worker looks whether its checkpoint is as it was.
    pub const CHECKPOINT_LOOK: Duration = Duration::from_secs(5);
    /// How long a worker tries to link with a peer ...
    pub const PROBE_TIME: Duration = Duration::from_secs(2);
    /// ... beyond which finding its host may take so long.
    pub const PROBE_LATE: Duration = Duration::from_secs(1);
    /// One that it can link with is tried again after this, another one after that.
    pub const PROBE_AGAIN: Duration = Duration::from_secs(10);
    pub const PROBE_RETRY: Duration = Duration::from_secs(2);
    /// Letters of the reason that is reported.
    pub const PROBE_WORDS: usize = 300;
    /// A worker that leaves waits for its group to do without it, beyond what the controller gives to open sequences.
    pub const LEAVE_TIME: Duration = Duration::from_secs(40);
}

pub struct NodeOptions {
    pub keys: Keys,
    pub id: String,
    pub record: WorkerRecord,
    pub engine: EngineOptions,
    /// A step that takes longer has hung.
    pub step_deadline: Duration,
    pub lease: Duration,
    /// When its peers take its certificate no more, in seconds since 1970. It may be replaced at any time.
    pub expires: watch::Receiver<Option<u64>>,
}

/// A member's part in one epoch of its group.
struct Membership {
    group: String,
    record: Arc<GroupRecord>,
    /// The first of its ranks.
    rank: usize,
    /// How many it holds.
    ranks: usize,
    links: Arc<Links>,
    engine: Option<EngineService>,
    taken: Option<Taken>,
    relayout: Option<Relayout>,
    /// The group as the store has it. Not followed by ranks that have nothing to learn from it.
    mirror: Option<Mirror>,
    known: Known,
    /// The load that the cluster knows, since when.
    told: Option<(Instant, Load)>,
}

impl Membership {
    /// Says that this member is linked and has loaded what its record says.
    fn ready(&self, session: &Session, keys: &Keys, worker: &str) {
        let (epoch, layout) = (self.record.epoch(), self.record.placement.layout);
        session.put(keys.ready(&self.group, self.rank), encode(&Ready { epoch, layout, worker: worker.to_owned() }));
    }
}

struct Node {
    store: Arc<dyn Store>,
    options: NodeOptions,
    session: Session,
    record: WorkerRecord,
    work: Work,
    listener: Arc<Listener>,
    switch: Switch,
    now: Option<Membership>,
    taking: Option<JoinHandle<Result<Taken, Refused>>>,
    ended: Option<oneshot::Receiver<Abort>>,
    homes: (Sender<Resident>, Receiver<Resident>),
    penance: Duration,
    /// Until then nobody is told that this worker is free.
    quiet: Option<Instant>,
    /// A seat whose placement could not be read.
    pending: Option<Seat>,
    leave: watch::Receiver<bool>,
    fitness: Fitness,
    /// Why this process has to end.
    unfit: Option<NodeError>,
}

enum News {
    Links(LinkReport),
    Expires,
    Seat(Seat),
    Taken(Result<Taken, Refused>),
    Ended(Abort),
    Held,
    Tick,
    Leave,
    /// Asked to leave was an older worker of this id, which did not live to do it.
    Outlived,
}

/// Why a worker ends that was not asked to.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NodeError {
    #[error("--id: the cluster has a worker {id} already, at {address}; each needs an id of its own")]
    Displaced { id: String, address: String },
    #[error("this process can compute no more and has to be started again: {0}")]
    Stuck(String),
    /// Weights that it would load now are not, or may not be, those of its fingerprint.
    #[error("the checkpoint cannot be read any more: {0}")]
    Checkpoint(String),
}

/// Until `leave` turns true and the group can do without this worker.
pub async fn run(
    store: Arc<dyn Store>,
    options: NodeOptions,
    work: Work,
    listener: Arc<Listener>,
    switch: Switch,
    mut leave: watch::Receiver<bool>,
) -> Result<(), NodeError> {
    let session = Session::named(store.clone(), &options.id, options.lease, options.keys.worker(&options.id));
    let mut seats = Mirror::new(store.clone(), &options.id, options.keys.seat(&options.id));
    let mut drains = Mirror::new(store.clone(), &options.id, options.keys.drain(&options.id));
    let (seat_key, drain_key) = (options.keys.seat(&options.id), options.keys.drain(&options.id));
    let (record, started) = (options.record.clone(), options.record.incarnation);
    let mut node = Node {
        store,
        session,
        record,
        work,
        listener,
        switch,
        now: None,
        taking: None,
        ended: None,
        homes: bounded(limits::HOMES),
        penance: limits::PENANCE_FIRST,
        quiet: None,
        pending: None,
        leave: leave.clone(),
        fitness: Fitness::default(),
        unfit: None,
        options,
    };
    let mut expires = node.options.expires.clone();
    node.record.expires = *expires.borrow_and_update();
    let links = node.options.keys.links(&node.options.id);
    let mut probing = needs_links(&node.record).then(|| {
        // With the first word of this worker: it has tried nobody yet.
        node.session.put(links.clone(), encode(&LinkReport::default()));
        let NodeOptions { keys, id, .. } = &node.options;
        Probing::start(node.store.clone(), keys, id, node.listener.clone())
    });
    node.say();
    node.stand(false);
    let mut held = node.session.held();
    let mut tick = interval(limits::TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut leaving: Option<Instant> = None;
    loop {
        let news = tokio::select! {
            biased;
            taken = finished(&mut node.taking) => News::Taken(taken),
            abort = told(&mut node.ended) => News::Ended(abort),
            view = seats.changed() => match seat_of(&view, &seat_key) {
                Some(seat) => News::Seat(seat),
                None => continue,
            },
            view = drains.changed(), if leaving.is_none() => match view.entries.get(&drain_key) {
                // A request that cannot be read is one all the same.
                Some(entry) if decode(&entry.value).is_ok_and(|Drain { incarnation }| incarnation < started) => {
                    News::Outlived
                }
                Some(_) => News::Leave,
                None => continue,
            },
            report = tried(&mut probing) => News::Links(report),
            Ok(()) = expires.changed() => News::Expires,
            changed = held.changed() => match changed {
                Ok(()) => News::Held,
                Err(_) => News::Tick,
            },
            _ = leave.wait_for(|leave| *leave), if leaving.is_none() => News::Leave,
            _ = tick.tick() => News::Tick,
        };
        match news {
            News::Links(report) => node.session.put(links.clone(), encode(&report)),
            News::Expires => {
                node.record.expires = *expires.borrow_and_update();
                node.say();
            }
            News::Seat(seat) => node.sit(seat).await,
            News::Taken(taken) => node.taken(taken).await,
            News::Ended(abort) => node.trouble(abort.reason, abort.suspect).await,
            News::Held => {
                let taken = held.borrow_and_update().taken.clone();
                if let Some(taken) = taken {
                    node.knock(&taken).await;
                }
            }
            News::Tick => node.tick().await,
            News::Outlived => {
                tracing::info!("a request to leave is older than this worker");
                node.forget_drain().await;
            }
            News::Leave => {
                leaving = Some(Instant::now());
                node.record.state = WorkerState::Draining;
                node.say();
            }
        }
        node.stand(leaving.is_some());
        let asked = leaving.is_some() || *node.leave.borrow();
        let over = leaving.is_some_and(|since| {
            let patience = since.elapsed() > limits::LEAVE_TIME;
            node.now.is_none() && node.taking.is_none() || patience
        });
        if over || asked && node.unfit.is_some() {
            node.stand_up("the worker leaves").await;
            node.forget_drain().await;
            node.session.leave().await;
            return Ok(());
        }
        if let Some(error) = node.displaced().or(node.unfit.clone()) {
            tracing::error!("{error}");
            node.stand_up(&error.to_string()).await;
            node.session.leave().await;
            return Err(error);
        }
    }
}

fn seat_of(view: &rein_control_plane::Snapshot, key: &str) -> Option<Seat> {
    let seat = decode(&view.entries.get(key)?.value);
    seat.inspect_err(|error| tracing::warn!(key, %error, "a seat that cannot be read")).ok()
}

async fn tried(probing: &mut Option<Probing>) -> LinkReport {
    match probing {
        Some(probing) => probing.changed().await,
        None => std::future::pending().await,
    }
}

async fn finished(taking: &mut Option<JoinHandle<Result<Taken, Refused>>>) -> Result<Taken, Refused> {
    let Some(handle) = taking else { return std::future::pending().await };
    let taken = handle.await;
    *taking = None;
    taken.unwrap_or_else(|panic| Err(Refused::because(format!("taking the seat failed: {panic}"), None)))
}

async fn told(ended: &mut Option<oneshot::Receiver<Abort>>) -> Abort {
    let Some(receiver) = ended else { return std::future::pending().await };
    let told = receiver.await;
    *ended = None;
    match told {
        Ok(abort) => abort,
        Err(_) => std::future::pending().await,
    }
}

impl Node {
    /// The worker's record as it is now.
    fn say(&self) {
        self.session.put(self.options.keys.worker(&self.options.id), encode(&self.record));
    }

    async fn forget_drain(&self) {
        let gone = Transaction::default().delete(self.options.keys.drain(&self.options.id));
        if let Err(error) = self.store.commit(gone).await {
            tracing::warn!(%error, "the request to leave stays in the store");
        }
    }

    /// Whether anybody is left where the one was who has this id: a worker that was killed and started again need not wait
    /// for its own old lease.
    async fn knock(&self, taken: &Rival) {
        let Ok(record) = decode::<WorkerRecord>(&taken.value) else { return };
        let gone = record.address == self.record.address || {
            let answer = timeout(limits::KNOCK, TcpStream::connect(&record.address)).await;
            matches!(answer, Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused)
        };
        if gone {
            tracing::info!(address = record.address, "the one before with this id is gone");
            self.session.replace(taken);
        }
    }

    /// Another one has been here with this id for longer than a dead one could be.
    fn displaced(&self) -> Option<NodeError> {
        let held = self.session.held();
        let held = held.borrow();
        let record = decode::<WorkerRecord>(held.is_taken(self.options.lease)?);
        let address = record.map_or_else(|_| "an unknown address".to_owned(), |record| record.address);
        Some(NodeError::Displaced { id: self.options.id.clone(), address })
    }

    /// Takes a seat that is newer than the present one.
    async fn sit(&mut self, seat: Seat) {
        self.pending = None;
        if seat.epoch <= self.record.seat.epoch && (seat.group.is_some() || self.record.seat.group.is_none()) {
            return;
        }
        self.stand_up(&format!("epoch {} follows", seat.epoch)).await;
        if self.unfit.is_some() {
            return;
        }
        let Some(group) = seat.group.clone() else {
            tracing::info!(epoch = seat.epoch, "without a seat: a spare");
            self.record.seat = seat;
            // Whoever counted on the member that this was, counts no more.
            self.record.incarnation += 1;
            if self.quiet.is_none() {
                self.say();
            }
            return;
        };
        let record = match self.placement(&group).await {
            // Of another epoch: there is a newer seat, too, or there will be.
            Ok(record) => match record.filter(|record| record.epoch() == seat.epoch) {
                Some(record) => Arc::new(record),
                None => return,
            },
            Err(error) => {
                tracing::warn!(group, %error, "cannot read the placement; trying again");
                self.pending = Some(seat);
                return;
            }
        };
        let Some(member) = record.member(&self.options.id, self.record.incarnation) else {
            return tracing::warn!(group, seat.epoch, "a seat for a member that this worker no longer is");
        };
        tracing::info!(group, seat.epoch, rank = record.first_rank(member), "taking a seat");
        self.record.seat = seat;
        let links = Arc::new(Links::default());
        let residents = self.homes.1.try_iter().collect();
        let taking = Taking {
            work: self.work.clone(),
            group: group.clone(),
            record: record.clone(),
            member,
            listener: self.listener.clone(),
            residents,
            home: self.homes.0.clone(),
            links: links.clone(),
            options: self.options.engine.clone(),
        };
        self.taking = Some(tokio::task::spawn_blocking(move || taking.take()));
        let (rank, ranks) = (record.first_rank(member), record.members[member].ranks.len());
        self.now = Some(Membership {
            group,
            record,
            rank,
            ranks,
            links,
            engine: None,
            taken: None,
            relayout: None,
            mirror: None,
            known: Known::default(),
            told: None,
        });
        self.say();
    }

    async fn placement(&self, group: &str) -> Result<Option<GroupRecord>, StoreError> {
        let key = self.options.keys.placement(group);
        let snapshot = self.store.read(&key).await?;
        let record = snapshot.entries.get(&key).map(|entry| decode(&entry.value));
        Ok(record.and_then(|record| {
            record.inspect_err(|error| tracing::error!(group, %error, "a placement that cannot be read")).ok()
        }))
    }

    async fn taken(&mut self, taken: Result<Taken, Refused>) {
        let Some(now) = &mut self.now else { return };
        match taken {
            Ok(mut taken) => {
                now.engine = taken.engine.take();
                let layout = now.record.placement.layout;
                now.relayout = taken.layouts.take().map(|layouts| Relayout::new(layouts, layout));
                now.taken = Some(taken);
                self.penance = limits::PENANCE_FIRST;
                let epoch = now.record.epoch();
                tracing::info!(group = now.group, epoch, rank = now.rank, "seated");
                self.switch.set(now.engine.clone());
                let keys = &self.options.keys;
                now.ready(&self.session, keys, &self.options.id);
                self.session.remove(&keys.trouble(&now.group, now.rank));
                if now.rank == 0 || now.relayout.is_some() {
                    let prefix = keys.group(&now.group);
                    now.mirror = Some(Mirror::new(self.store.clone(), &self.options.id, prefix));
                }
                self.ended = now.links.watch();
                self.say();
            }
            Err(Refused { reason, suspect, is_final }) => {
                if is_final {
                    self.unfit = Some(NodeError::Checkpoint(reason.clone()));
                } else if suspect == Some(now.rank) {
                    // Not to be given the same seat again and again.
                    tracing::warn!(wait = ?self.penance, "not available for a while");
                    self.quiet = Some(Instant::now() + self.penance);
                    self.penance = (self.penance * 2).min(limits::PENANCE_LONGEST);
                }
                self.trouble(reason, suspect).await;
            }
        }
    }

    /// Follows the group's layout of experts.
    async fn lay_out(&mut self) {
        let Some(now) = &mut self.now else { return };
        let (Some(relayout), Some(mirror)) = (&mut now.relayout, &now.mirror) else { return };
        let (keys, view) = (&self.options.keys, mirror.view());
        now.known.read(&view, &keys.placement(&now.group));
        let epoch = now.record.epoch();
        let Some(record) = now.known.record.clone().filter(|record| record.epoch() == epoch) else { return };
        match relayout.follow(&record.placement).await {
            Ok(Some(placement)) => {
                now.record = Arc::new(GroupRecord { placement: (*placement).clone(), ..(*record).clone() });
                now.ready(&self.session, keys, &self.options.id);
            }
            Ok(None) => {}
            Err(error) => {
                self.unfit = Some(NodeError::Checkpoint(error.to_string()));
                return;
            }
        }
        let Some(relayout) = now.relayout.as_mut().filter(|_| now.rank == 0) else { return };
        relayout.lead(&view, keys, &now.group, &record);
        if let Some(load) = relayout.usage(&now.record) {
            self.session.put(keys.experts(&now.group), encode(&load));
        }
    }

    async fn tick(&mut self) {
        if self.quiet.is_some_and(|until| Instant::now() > until) {
            self.quiet = None;
            self.say();
        }
        if let Some(seat) = self.pending.take() {
            self.sit(seat).await;
        }
        self.look_after_checkpoint().await;
        self.lay_out().await;
        let Some(now) = &mut self.now else { return };
        let Some(engine) = now.engine.clone() else { return };
        if let Some(why) = engine.lost().map(str::to_owned) {
            // The links, where there are any, know whose fault it was.
            if now.ranks == now.record.placement.ranks.len() {
                return self.trouble(why, None).await;
            }
            return;
        }
        if let Some(time) = engine.step_time().filter(|&time| time > self.options.step_deadline) {
            let why = format!("a step has taken {time:.1?}");
            if now.links.give_up(&why) {
                // Whoever watches the links hears of it, as all other ranks do.
                return;
            }
            let rank = now.rank;
            engine.give_up(&why);
            return self.trouble(why, Some(rank)).await;
        }
        let stats = engine.engine_stats();
        let load = Load {
            epoch: now.record.epoch(),
            running: stats.running,
            waiting: stats.waiting,
            used_blocks: stats.used_blocks,
            total_blocks: stats.total_blocks,
        };
        let idle = |load: &Load| load.running + load.waiting == 0;
        let fresh =
            now.told.as_ref().is_some_and(|(at, told)| at.elapsed() < limits::TELL && idle(told) == idle(&load));
        if !fresh {
            self.session.put(self.options.keys.load(&now.group), encode(&load));
            now.told = Some((Instant::now(), load));
        }
        let key = self.options.keys.placement(&now.group);
        let Some(view) = now.mirror.as_ref().map(Mirror::view).filter(|view| view.revision > 0) else { return };
        let at = now.known.read(&view, &key);
        let older = now.known.record.as_ref().is_some_and(|record| record.epoch() < now.record.epoch());
        if at.is_none() || older {
            let condition = at.map_or(Condition::Absent(key.clone()), |at| Condition::At(key.clone(), at));
            let back = Transaction::default().when(condition);
            match self.store.commit(back.put(key, encode(&*now.record), None)).await {
                Ok(Some(_)) => tracing::warn!(group = now.group, "the store had forgotten the placement"),
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "cannot put the placement back"),
            }
        }
    }
}
