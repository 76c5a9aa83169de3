//! The prefix cache and load of an engine as routers see them: the Events of engine.proto.
//!
//! The engine thread publishes changes after each round; without listeners it does nothing. The changes go into one
//! bounded log for all listeners. A listener reads from its own position when its next message is due, so a slow reader
//! costs nothing. If the log no longer covers its position, it gets a snapshot. This module does not know the
//! scheduler's decisions.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque, hash_map::Entry};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use rein_proto::block_hash;
use rein_proto::internal::{EngineEvents, EngineLoad, EngineStats};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use crate::blocks::{BlockChange, BlockTier};
use crate::executor::ExecutorShape;
use crate::limits;
use crate::scheduler::Scheduler;

#[derive(Debug)]
pub struct EventFeed {
    block_size: u32,
    /// Number of changes that the log keeps.
    capacity: usize,
    listeners: AtomicUsize,
    state: Mutex<State>,
    signal: watch::Sender<Signal>,
}

#[derive(Debug, Default)]
struct State {
    /// For each content in a tier, the number of blocks or places that hold it.
    held: HashMap<(u64, BlockTier), u32>,
    /// Additions and removals of the same content alternate.
    log: VecDeque<BlockChange>,
    /// Number of changes before the first one in the log.
    before: u64,
    load: EngineLoad,
    closed: Option<String>,
}

/// Wakes listeners.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Signal {
    version: u64,
    closed: bool,
}

/// The engine's side. When it is dropped, listeners are told that the engine has stopped.
pub struct EventSource(Arc<EventFeed>);

pub fn new(shape: &ExecutorShape) -> (EventSource, Arc<EventFeed>) {
    let feed = Arc::new(EventFeed {
        block_size: shape.block_size as u32,
        // A snapshot is at most as large as the cache, so a longer log is useless.
        capacity: (shape.blocks + shape.host.places).clamp(1, limits::EVENT_LOG),
        listeners: AtomicUsize::new(0),
        state: Mutex::default(),
        signal: watch::Sender::default(),
    });
    (EventSource(feed.clone()), feed)
}

impl EventSource {
    /// Fills the feed for a new listener.
    pub fn fill(&self, scheduler: &mut Scheduler) {
        if scheduler.listening() {
            return;
        }
        let hashes = scheduler.listen();
        let stats = scheduler.stats();
        let mut state = self.0.state();
        hashes.into_iter().for_each(|content| *state.held.entry(content).or_default() += 1);
        state.load = load(&stats);
    }

    /// Called after each round.
    pub fn publish(&self, scheduler: &mut Scheduler, stats: &EngineStats) {
        if !scheduler.listening() {
            return;
        }
        // A listener is counted before it asks to be filled, so one that is missed here will ask.
        if self.0.listeners.load(Ordering::SeqCst) == 0 {
            scheduler.unlisten();
            let mut state = self.0.state();
            state.before += state.log.len() as u64;
            state.log = VecDeque::new();
            state.held = HashMap::new();
            return;
        }
        self.0.publish(scheduler.take_block_changes(), load(stats));
    }

    pub fn close(&self, why: &str) {
        self.0.close(why);
    }
}

impl Drop for EventSource {
    fn drop(&mut self) {
        self.close("the engine has stopped");
    }
}

fn load(stats: &EngineStats) -> EngineLoad {
    let EngineStats { running, waiting, used_blocks, total_blocks, .. } = *stats;
    EngineLoad { running, waiting, used_blocks, total_blocks }
}

impl State {
    /// Whether the change adds or removes the only copy of a content in its tier.
    fn enter(&mut self, BlockChange { hash, stored, tier }: BlockChange) -> bool {
        match (self.held.entry((hash, tier)), stored) {
            (Entry::Vacant(entry), true) => {
                entry.insert(1);
                true
            }
            (Entry::Vacant(_), false) => false,
            (Entry::Occupied(mut entry), true) => {
                *entry.get_mut() += 1;
                false
            }
            (Entry::Occupied(mut entry), false) => {
                *entry.get_mut() -= 1;
                let last = *entry.get() == 0;
                if last {
                    entry.remove();
                }
                last
            }
        }
    }
}

impl EventFeed {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, changes: Vec<BlockChange>, load: EngineLoad) {
        let mut state = self.state();
        let mut news = state.load != load;
        state.load = load;
        for change in changes {
            if state.enter(change) {
                news = true;
                state.log.push_back(change);
                if state.log.len() > self.capacity {
                    state.log.pop_front();
                    state.before += 1;
                }
            }
        }
        drop(state);
        if news {
            self.signal.send_modify(|signal| signal.version += 1);
        }
    }

    /// Ends the feed. Listeners get the first reason.
    pub fn close(&self, why: &str) {
        self.state().closed.get_or_insert_with(|| why.to_owned());
        self.signal.send_modify(|signal| signal.closed = true);
    }

    pub fn listeners(&self) -> usize {
        self.listeners.load(Ordering::SeqCst)
    }

    /// Adds a listener. The engine must fill the feed before it is read.
    pub fn listen(self: &Arc<Self>, interval: Duration) -> Result<EventListener, Status> {
        let most = limits::EVENT_LISTENERS;
        let one_more = |count| (count < most).then_some(count + 1);
        match self.listeners.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more) {
            Err(_) => Err(Status::resource_exhausted(format!("the engine has {most} listeners, which is the limit"))),
            Ok(_) => Ok(EventListener {
                signal: self.signal.subscribe(),
                feed: self.clone(),
                interval,
                seen: 0,
                position: None,
                snapshot: None,
                sent: Instant::now(),
            }),
        }
    }
}

/// One router's position in the feed.
pub struct EventListener {
    feed: Arc<EventFeed>,
    signal: watch::Receiver<Signal>,
    interval: Duration,
    /// The version that was current when the position was set.
    seen: u64,
    /// Number of changes it has been told of, in a snapshot or one by one.
    position: Option<u64>,
    /// The rest of a snapshot, and whether its first part is still to be sent.
    snapshot: Option<(std::vec::IntoIter<(u64, BlockTier)>, bool)>,
    sent: Instant,
}

impl Drop for EventListener {
    fn drop(&mut self) {
        self.feed.listeners.fetch_sub(1, Ordering::SeqCst);
    }
}

impl EventListener {
    /// Ends with a status that says why the engine is gone.
    pub fn into_stream(self) -> BoxStream<'static, Result<EngineEvents, Status>> {
        stream::unfold(Some(self), |listener| async move {
            let mut listener = listener?;
            match listener.next().await {
                Ok(events) => Some((Ok(events), Some(listener))),
                Err(status) => Some((Err(status), None)),
            }
        })
        .boxed()
    }

    async fn next(&mut self) -> Result<EngineEvents, Status> {
        if self.snapshot.is_none() {
            if self.position.is_some() {
                self.wait().await;
            }
            if let Some(changes) = self.read()? {
                self.sent = Instant::now();
                return Ok(changes);
            }
        }
        let Some((hashes, first)) = &mut self.snapshot else { return Err(Status::internal("no snapshot was taken")) };
        let reset = std::mem::take(first);
        let part: Vec<_> = hashes.by_ref().take(limits::EVENT_PART).collect();
        let complete = hashes.len() == 0;
        if complete {
            self.snapshot = None;
        }
        self.sent = Instant::now();
        let load = self.feed.state().load;
        let mut events = EngineEvents { reset, complete, ..self.message(load) };
        add(&mut events, part.into_iter().map(|content| (content, true)));
        Ok(events)
    }

    fn message(&self, load: EngineLoad) -> EngineEvents {
        EngineEvents {
            hash_version: block_hash::VERSION,
            block_size: self.feed.block_size,
            reset: false,
            complete: true,
            load: Some(load),
            ..EngineEvents::default()
        }
    }

    /// Waits until the next message is due: after the interval if there are changes, at the latest after
    /// `EVENT_SILENCE`.
    async fn wait(&mut self) {
        let (earliest, latest) = (self.sent + self.interval, self.sent + limits::EVENT_SILENCE);
        let seen = self.seen;
        tokio::select! {
            () = sleep_until(earliest) => {}
            _ = self.signal.wait_for(|signal| signal.closed) => return,
        }
        tokio::select! {
            () = sleep_until(latest) => {}
            _ = self.signal.wait_for(|signal| signal.closed || signal.version != seen) => {}
        }
    }

    /// The changes since the last call. None: the log does not reach back so far, and a snapshot was taken.
    fn read(&mut self) -> Result<Option<EngineEvents>, Status> {
        // Before the state is read: changes in between are read now and looked for once more.
        self.seen = self.signal.borrow().version;
        let state = self.feed.state();
        if let Some(why) = &state.closed {
            return Err(Status::unavailable(why.clone()));
        }
        let end = state.before + state.log.len() as u64;
        let position = self.position.replace(end);
        let Some(skip) = position.and_then(|position| position.checked_sub(state.before)) else {
            let hashes: Vec<_> = state.held.keys().copied().collect();
            self.snapshot = Some((hashes.into_iter(), true));
            return Ok(None);
        };
        let changes: Vec<BlockChange> = state.log.iter().skip(skip as usize).copied().collect();
        let load = state.load;
        drop(state);
        let mut events = self.message(load);
        add(&mut events, net(&changes));
        Ok(Some(events))
    }
}

/// The net effect of changes in which additions and removals of a content alternate, and which contents are stored.
fn net(changes: &[BlockChange]) -> Vec<((u64, BlockTier), bool)> {
    let of = |change: &BlockChange| (change.hash, change.tier);
    let mut odd: HashMap<(u64, BlockTier), bool> = HashMap::with_capacity(changes.len());
    for change in changes {
        if odd.remove(&of(change)).is_none() {
            odd.insert(of(change), change.stored);
        }
    }
    changes.iter().filter_map(|change| Some((of(change), odd.remove(&of(change))?))).collect()
}

/// Adds contents that are stored or removed.
fn add(events: &mut EngineEvents, contents: impl IntoIterator<Item = ((u64, BlockTier), bool)>) {
    for ((hash, tier), stored) in contents {
        let list = match (tier, stored) {
            (BlockTier::Cache, true) => &mut events.stored,
            (BlockTier::Cache, false) => &mut events.removed,
            (BlockTier::Host, true) => &mut events.host_stored,
            (BlockTier::Host, false) => &mut events.host_removed,
        };
        list.push(hash);
    }
}
