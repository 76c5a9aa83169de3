//! A worker process in a cluster: it registers, takes the seat that the controller assigns, and leaves it when its
//! group ends. Its instructions come from the store; while the store is unreachable, the last known ones stay valid.
//!
//! This module does not decide which seat a worker gets, and does not compute.

mod checkpoint_watch;
mod expert_layout;
mod files;
mod load_report;
mod loras;
mod probe;
mod readiness;
mod seat;
mod standing;
mod switch;
mod teardown;
#[cfg(test)]
mod tests;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use rein_control_plane::connectivity::needs_links;
use rein_control_plane::epoch;
use rein_control_plane::records::{
    Drain, GroupRecord, Keys, LinkReport, Ready, Seat, WorkerRecord, WorkerState, decode, encode,
};
use rein_control_plane::{KeyCondition, Mirror, NameHolder, Session, Store, StoreError, Transaction};
use rein_kernels::KernelError;
use rein_kernels::collective::tcp::{Abort, RankListener};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use checkpoint_watch::CheckpointWatch;
use expert_layout::{ExpertMigration, StoredRecord};
pub use files::{TextFiles, is_text_file};
use load_report::LoadReport;
use loras::LoraKeeper;
pub use loras::NamedLora;
use probe::Probing;
pub use readiness::{Readiness, ReadinessVerdict};
pub use seat::Workload;
use seat::{GroupLinks, SeatError, SeatTask, TakenSeat};
pub use switch::{EngineSwitch, WorkerReport};
use waits::{finished, group_aborted, probe_report};

use crate::checkpoint::LoadError;
use crate::rank::ResidentWeights;
use crate::scheduler::EngineOptions;
use crate::service::EngineService;

mod limits {
    use std::time::Duration;

    /// Time limit for the ranks of a group to link with each other.
    pub const JOIN_TIME: Duration = Duration::from_secs(10);
    /// How often the thread that waits for the end of a group checks whether its caller is still there.
    pub const STOP_CHECK_INTERVAL: Duration = Duration::from_secs(1);
    /// How often a leader checks its engine.
    pub const ENGINE_CHECK_INTERVAL: Duration = Duration::from_millis(500);
    /// How often a leader publishes its load while it changes. Becoming idle or busy is published at once.
    pub const LOAD_INTERVAL: Duration = Duration::from_secs(5);
    /// Time for an engine to end its sequences. After that it is abandoned; a leaving worker waits no longer for
    /// anything that may hang.
    pub const ENGINE_END: Duration = Duration::from_secs(2);
    /// Ranks whose weights can be returned; no process holds more.
    pub const RETURNED_WEIGHTS: usize = 64;
    /// Shortest and longest time for which a worker that could not load is unavailable.
    pub const LOAD_RETRY_FIRST: Duration = Duration::from_secs(1);
    pub const LOAD_RETRY_LONGEST: Duration = Duration::from_secs(60);
    /// How often a leader checks the use of experts.
    pub const EXPERTS_CHECK_INTERVAL: Duration = Duration::from_secs(5);
    /// It publishes the use at once when the imbalance has changed by the first value, and otherwise at this interval.
    pub const EXPERTS_CHANGE: f64 = 0.05;
    pub const EXPERTS_INTERVAL: Duration = Duration::from_secs(60);
    /// After this time a count has half its weight.
    pub const EXPERTS_HALF_LIFE: Duration = Duration::from_secs(15);
    /// Pause before loading an expert layout again that could not be loaded.
    pub const LAYOUT_RETRY: Duration = Duration::from_secs(10);
    /// Time for the process that holds this worker's id to accept or refuse a connection.
    pub const NAME_HOLDER_TIME: Duration = Duration::from_millis(300);
    /// How often a worker checks that its checkpoint is unchanged.
    pub const CHECKPOINT_LOOK: Duration = Duration::from_secs(5);
    /// Time limit of a probe of a peer ...
    pub const PROBE_TIME: Duration = Duration::from_secs(2);
    /// ... plus this for resolving its host name.
    pub const PROBE_LATE: Duration = Duration::from_secs(1);
    /// Pause before probing a reachable peer again, and an unreachable one.
    pub const PROBE_INTERVAL: Duration = Duration::from_secs(10);
    pub const PROBE_RETRY: Duration = Duration::from_secs(2);
    /// Character limit of a reported reason.
    pub const PROBE_WORDS: usize = 300;
    /// How long the record of a worker that leaves stays, so that a controller sees it.
    pub const FAREWELL: Duration = Duration::from_millis(100);
    /// How long that may take.
    pub const FAREWELL_TIME: Duration = Duration::from_secs(1);
    /// How long a leaving worker waits for its group to replace it: longer than the controller gives open sequences.
    pub const LEAVE_TIME: Duration = Duration::from_secs(40);
}

pub struct NodeOptions {
    pub keys: Keys,
    pub id: String,
    pub record: WorkerRecord,
    pub engine: EngineOptions,
    /// LoRA adapters that its groups get.
    pub loras: Vec<NamedLora>,
    /// A step that takes longer counts as hung.
    pub step_deadline: Duration,
    pub lease: Duration,
    /// When its certificate expires, in seconds since 1970. A renewal may change it at any time.
    pub expires: watch::Receiver<Option<u64>>,
}

/// This worker's membership in one epoch of its group.
struct Membership {
    group: String,
    record: Arc<GroupRecord>,
    /// The first of its ranks.
    rank: usize,
    /// The number of its ranks.
    ranks: usize,
    links: Arc<GroupLinks>,
    engine: Option<EngineService>,
    taken: Option<TakenSeat>,
    migration: Option<ExpertMigration>,
    /// The group's keys. Followed only by a leader, and by ranks with experts.
    mirror: Option<Mirror>,
    known: StoredRecord,
    /// The load published last.
    reported: Option<LoadReport>,
    /// None: it does not lead a group that takes adapters.
    loras: Option<LoraKeeper>,
}

impl Membership {
    /// Publishes that this member is linked and has loaded its part of the placement.
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
    work: Workload,
    listener: Arc<RankListener>,
    switch: EngineSwitch,
    now: Option<Membership>,
    taking: Option<JoinHandle<Result<TakenSeat, SeatError>>>,
    ended: Option<oneshot::Receiver<Abort>>,
    returned_weights: (Sender<ResidentWeights>, Receiver<ResidentWeights>),
    load_retry: Duration,
    /// Until then this worker does not offer itself for a seat.
    unavailable_until: Option<Instant>,
    /// A seat whose placement could not be read yet.
    pending: Option<Seat>,
    leave: watch::Receiver<bool>,
    checkpoint_watch: CheckpointWatch,
    /// Why this process has to end.
    fatal: Option<NodeError>,
}

enum NodeEvent {
    Links(LinkReport),
    Expires,
    Seat(Seat),
    TakenSeat(Box<Result<TakenSeat, SeatError>>),
    Ended(Abort),
    SessionState,
    Tick,
    Leave,
    /// The request to leave was for an earlier process with this id.
    Outlived,
}

/// Why a worker ends without having been asked to.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NodeError {
    #[error("--id: worker id {id} is in use at {address}; choose a unique id")]
    Displaced { id: String, address: String },
    #[error("a rank is stuck and this process must be restarted: {0}")]
    Stuck(String),
    /// The weights to load now are not, or may not be, those of its fingerprint.
    #[error("the checkpoint has changed or cannot be read: {0}")]
    Checkpoint(String),
    #[error("the device has failed and this process must be restarted: {0}")]
    Device(String),
}

impl NodeError {
    /// None: loading may succeed later.
    fn of(error: &LoadError) -> Option<Self> {
        match error {
            LoadError::Kernel(KernelError::Device(what)) => Some(NodeError::Device(what.clone())),
            error => error.is_final().then(|| NodeError::Checkpoint(error.to_string())),
        }
    }
}

/// Runs until `leave` becomes true and the group can do without this worker.
pub async fn run(
    store: Arc<dyn Store>,
    options: NodeOptions,
    work: Workload,
    listener: Arc<RankListener>,
    switch: EngineSwitch,
    mut leave: watch::Receiver<bool>,
) -> Result<(), NodeError> {
    let name = options.keys.worker(&options.id);
    let is_record = |value: &[u8]| decode::<WorkerRecord>(value).is_ok();
    let session = Session::of_record(store.clone(), &options.id, options.lease, name, is_record);
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
        returned_weights: bounded(limits::RETURNED_WEIGHTS),
        load_retry: limits::LOAD_RETRY_FIRST,
        unavailable_until: None,
        pending: None,
        leave: leave.clone(),
        checkpoint_watch: CheckpointWatch::default(),
        fatal: None,
        options,
    };
    let mut expires = node.options.expires.clone();
    node.record.expires = *expires.borrow_and_update();
    let links = node.options.keys.links(&node.options.id);
    let mut probing = needs_links(&node.record).then(|| {
        // Part of the first registration: no peer has been probed yet.
        node.session.put(links.clone(), encode(&LinkReport::default()));
        let NodeOptions { keys, id, .. } = &node.options;
        Probing::start(node.store.clone(), keys, id, node.listener.clone())
    });
    node.publish_record();
    node.publish_standing(false);
    let mut held = node.session.held();
    let mut tick = interval(limits::ENGINE_CHECK_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut leaving: Option<Instant> = None;
    loop {
        let news = tokio::select! {
            biased;
            taken = finished(&mut node.taking) => NodeEvent::TakenSeat(Box::new(taken)),
            abort = group_aborted(&mut node.ended) => NodeEvent::Ended(abort),
            view = seats.changed() => match seat_of(&view, &seat_key) {
                Some(seat) => NodeEvent::Seat(seat),
                None => continue,
            },
            view = drains.changed(), if leaving.is_none() => match view.entries.get(&drain_key) {
                // A request that cannot be decoded counts.
                Some(entry) if decode(&entry.value).is_ok_and(|Drain { incarnation }| incarnation < started) => {
                    NodeEvent::Outlived
                }
                Some(_) => NodeEvent::Leave,
                None => continue,
            },
            report = probe_report(&mut probing) => NodeEvent::Links(report),
            Ok(()) = expires.changed() => NodeEvent::Expires,
            changed = held.changed() => match changed {
                Ok(()) => NodeEvent::SessionState,
                Err(_) => NodeEvent::Tick,
            },
            _ = leave.wait_for(|leave| *leave), if leaving.is_none() => NodeEvent::Leave,
            _ = tick.tick() => NodeEvent::Tick,
        };
        match news {
            NodeEvent::Links(report) => node.session.put(links.clone(), encode(&report)),
            NodeEvent::Expires => {
                node.record.expires = *expires.borrow_and_update();
                node.publish_record();
            }
            NodeEvent::Seat(seat) => node.take_seat(seat).await,
            NodeEvent::TakenSeat(taken) => node.taken(*taken).await,
            NodeEvent::Ended(abort) => node.report_failure(abort.reason, abort.suspect).await,
            NodeEvent::SessionState => {
                let taken = held.borrow_and_update().name_holder.clone();
                if let Some(taken) = taken {
                    node.check_name_holder(&taken).await;
                }
            }
            NodeEvent::Tick => node.tick().await,
            NodeEvent::Outlived => {
                tracing::info!("ignoring a drain request for an earlier process with this id");
                node.forget_drain().await;
            }
            NodeEvent::Leave => {
                leaving = Some(Instant::now());
                node.record.state = WorkerState::Draining;
                node.publish_record();
            }
        }
        node.publish_standing(leaving.is_some());
        let asked = leaving.is_some() || *node.leave.borrow();
        let over = leaving.is_some_and(|since| {
            let patience = since.elapsed() > limits::LEAVE_TIME;
            node.now.is_none() && node.taking.is_none() || patience
        });
        if over || asked && node.fatal.is_some() {
            node.leave_seat("the worker is leaving").await;
            node.forget_drain().await;
            // So that the controller sees that it leaves, and does not take it for lost.
            let told = async {
                node.session.settled().await;
                sleep(limits::FAREWELL).await;
            };
            let _ = timeout(limits::FAREWELL_TIME, told).await;
            node.session.leave().await;
            return Ok(());
        }
        if let Some(error) = node.displaced().or(node.fatal.clone()) {
            tracing::error!("{error}");
            node.leave_seat(&error.to_string()).await;
            node.session.leave().await;
            return Err(error);
        }
    }
}

fn seat_of(view: &rein_control_plane::Snapshot, key: &str) -> Option<Seat> {
    let seat = decode(&view.entries.get(key)?.value);
    seat.inspect_err(|_| tracing::warn!(key, "ignoring a seat that cannot be decoded")).ok()
}

impl Node {
    /// Publishes the worker's record.
    fn publish_record(&self) {
        self.session.put(self.options.keys.worker(&self.options.id), encode(&self.record));
    }

    async fn forget_drain(&self) {
        let gone = Transaction::default().delete(self.options.keys.drain(&self.options.id));
        if let Err(error) = self.store.commit(gone).await {
            tracing::warn!(%error, "cannot delete the drain request");
        }
    }

    /// Checks whether the process that holds this worker's id is gone. A restarted worker then need not wait for the
    /// lease of its predecessor.
    async fn check_name_holder(&self, taken: &NameHolder) {
        let Ok(record) = decode::<WorkerRecord>(&taken.value) else { return };
        let gone = record.address == self.record.address || {
            let answer = timeout(limits::NAME_HOLDER_TIME, TcpStream::connect(&record.address)).await;
            matches!(answer, Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused)
        };
        if gone {
            tracing::info!(address = record.address, "the previous process with this id is gone; taking over its id");
            self.session.replace(taken);
        }
    }

    /// Whether another process, which is alive, holds this id.
    fn displaced(&self) -> Option<NodeError> {
        let held = self.session.held();
        let held = held.borrow();
        let WorkerRecord { address, .. } = decode(held.name_taken_by(self.options.lease)?).ok()?;
        Some(NodeError::Displaced { id: self.options.id.clone(), address })
    }

    /// Takes a seat that is newer than the current one.
    async fn take_seat(&mut self, seat: Seat) {
        self.pending = None;
        if seat.epoch <= self.record.seat.epoch && (seat.group.is_some() || self.record.seat.group.is_none()) {
            return;
        }
        self.leave_seat(&format!("replaced by epoch {}", epoch::number(seat.epoch))).await;
        if self.fatal.is_some() {
            return;
        }
        let Some(group) = seat.group.clone() else {
            tracing::info!(epoch = epoch::number(seat.epoch), "no seat: this worker is a spare");
            self.record.seat = seat;
            // The former member must not count as present.
            self.record.incarnation += 1;
            if self.unavailable_until.is_none() {
                self.publish_record();
            }
            return;
        };
        let record = match self.placement(&group).await {
            // A placement of another epoch: a newer seat is there or will follow.
            Ok(record) => match record.filter(|record| record.epoch() == seat.epoch) {
                Some(record) => Arc::new(record),
                None => return,
            },
            Err(error) => {
                tracing::warn!(group, %error, "cannot read the placement; retrying");
                self.pending = Some(seat);
                return;
            }
        };
        let Some(member) = record.member(&self.options.id, self.record.incarnation) else {
            return tracing::warn!(
                group,
                epoch = epoch::number(seat.epoch),
                "ignoring a seat: the group's record does not list this worker"
            );
        };
        tracing::info!(group, epoch = epoch::number(seat.epoch), rank = record.first_rank(member), "taking a seat");
        self.record.seat = seat;
        let links = Arc::new(GroupLinks::default());
        let resident_weights = self.returned_weights.1.try_iter().collect();
        let taking = SeatTask {
            work: self.work.clone(),
            group: group.clone(),
            record: record.clone(),
            member,
            listener: self.listener.clone(),
            resident_weights,
            return_weights: self.returned_weights.0.clone(),
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
            migration: None,
            mirror: None,
            known: StoredRecord::default(),
            reported: None,
            loras: None,
        });
        self.publish_record();
    }

    async fn placement(&self, group: &str) -> Result<Option<GroupRecord>, StoreError> {
        let key = self.options.keys.placement(group);
        let snapshot = self.store.read(&key).await?;
        let record = snapshot.entries.get(&key).map(|entry| decode(&entry.value));
        Ok(record.and_then(|record| record.inspect_err(|_| tracing::error!(group, "cannot decode the placement")).ok()))
    }

    async fn taken(&mut self, taken: Result<TakenSeat, SeatError>) {
        let Some(now) = &mut self.now else { return };
        match taken {
            Ok(mut taken) => {
                now.engine = taken.engine.take();
                let layouts = taken.layouts.take();
                now.migration = layouts.map(|layouts| ExpertMigration::new(layouts, now.record.placement.layout));
                now.taken = Some(taken);
                self.load_retry = limits::LOAD_RETRY_FIRST;
                let epoch = epoch::number(now.record.epoch());
                tracing::info!(group = now.group, epoch, rank = now.rank, "seat taken: loaded and linked");
                self.switch.set(now.engine.clone());
                let keys = &self.options.keys;
                now.loras = now
                    .engine
                    .as_ref()
                    .filter(|engine| engine.takes_loras())
                    .map(|_| LoraKeeper::new(self.store.clone(), &self.options, &self.record.model));
                now.ready(&self.session, keys, &self.options.id);
                self.session.remove(&keys.trouble(&now.group, now.rank));
                if now.rank == 0 || now.migration.is_some() {
                    let prefix = keys.group(&now.group);
                    now.mirror = Some(Mirror::new(self.store.clone(), &self.options.id, prefix));
                }
                self.ended = now.links.watch();
                self.publish_record();
            }
            Err(SeatError { reason, suspect, fatal }) => {
                if fatal.is_some() {
                    self.fatal = fatal;
                } else if suspect == Some(now.rank) {
                    // The controller would assign the same seat again and again.
                    tracing::warn!(error = reason, wait = ?self.load_retry, "loading failed; the worker takes no seat for a while");
                    self.unavailable_until = Some(Instant::now() + self.load_retry);
                    self.load_retry = (self.load_retry * 2).min(limits::LOAD_RETRY_LONGEST);
                }
                self.report_failure(reason, suspect).await;
            }
        }
    }

    /// Follows the group's expert layout.
    async fn follow_expert_layout(&mut self) {
        let Some(now) = &mut self.now else { return };
        let (Some(migration), Some(mirror)) = (&mut now.migration, &now.mirror) else { return };
        let (keys, view) = (&self.options.keys, mirror.view());
        now.known.read(&view, &keys.placement(&now.group));
        let epoch = now.record.epoch();
        let Some(record) = now.known.record.clone().filter(|record| record.epoch() == epoch) else { return };
        match migration.follow(&record.placement).await {
            Ok(Some(placement)) => {
                now.record = Arc::new(GroupRecord { placement: (*placement).clone(), ..(*record).clone() });
                now.ready(&self.session, keys, &self.options.id);
            }
            Ok(None) => {}
            Err(error) => {
                self.fatal = Some(NodeError::Checkpoint(error.to_string()));
                return;
            }
        }
        let Some(migration) = now.migration.as_mut().filter(|_| now.rank == 0) else { return };
        migration.lead(&view, keys, &now.group, &record);
        if let Some(load) = migration.usage(&now.record) {
            self.session.put(keys.experts(&now.group), encode(&load));
        }
    }

    async fn tick(&mut self) {
        if self.unavailable_until.is_some_and(|until| Instant::now() > until) {
            self.unavailable_until = None;
            self.publish_record();
        }
        if let Some(seat) = self.pending.take() {
            self.take_seat(seat).await;
        }
        self.check_checkpoint().await;
        self.follow_expert_layout().await;
        let Some(now) = &mut self.now else { return };
        let Some(engine) = now.engine.clone() else { return };
        if let Some(why) = engine.ended() {
            engine.give_up(&why);
        }
        if let Some(why) = engine.lost().map(str::to_owned) {
            // With links to other processes, the links know which rank failed.
            if now.ranks == now.record.placement.ranks.len() {
                return self.report_failure(why, None).await;
            }
            return;
        }
        if let Some(time) = engine.step_time().filter(|&time| time > self.options.step_deadline) {
            let why = format!("a step is running for {time:.1?}, longer than --step-deadline");
            if now.links.give_up(&why) {
                // The task that watches the links is told, as all other ranks are.
                return;
            }
            let rank = now.rank;
            engine.give_up(&why);
            return self.report_failure(why, Some(rank)).await;
        }
        if let Some(keeper) = &mut now.loras
            && let Some(told) = keeper.follow(&engine, now.record.epoch()).await
        {
            self.session.put(self.options.keys.group_loras(&now.group), encode(&told));
        }
        let (epoch, stats) = (now.record.epoch(), engine.engine_stats());
        if let Some(report) = LoadReport::due(now.reported.as_ref(), Instant::now(), epoch, &stats) {
            self.session.put(self.options.keys.load(&now.group), encode(&report.load));
            now.reported = Some(report);
        }
        let key = self.options.keys.placement(&now.group);
        let Some(view) = now.mirror.as_ref().map(Mirror::view).filter(|view| view.revision > 0) else { return };
        let at = now.known.read(&view, &key);
        let older = now.known.record.as_ref().is_some_and(|record| record.epoch() < now.record.epoch());
        if at.is_none() || older {
            let condition = at.map_or(KeyCondition::Absent(key.clone()), |at| KeyCondition::At(key.clone(), at));
            let back = Transaction::default().when(condition);
            match self.store.commit(back.put(key, encode(&*now.record), None)).await {
                Ok(Some(_)) => tracing::warn!(group = now.group, "the store had lost the placement; restored it"),
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "cannot restore the placement"),
            }
        }
    }
}
