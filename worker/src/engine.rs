//! The engine thread: it owns scheduler and executor, and everything else reaches it over one bounded queue.
//!
//! `schedule` -> execute -> `commit`, and between rounds the commands that have come. With nothing to do it sleeps on
//! the queue. It never waits for a router: a sequence whose router does not read is paused instead.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rein_proto::internal::{FromEngine, Start, Steer, Step, StepResult};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};
use tracing::Span;

use crate::error::Rejected;
use crate::executor::{Executor, ExecutorError};
use crate::feed::Source;
use crate::limits::{COMMAND_QUEUE, OUTPUT_BACKLOG, OUTPUT_HEADROOM};
use crate::metrics::{Metrics, StepTimes};
use crate::scheduler::{EngineOptions, Event, Output, Scheduler};
use crate::seq::SeqId;
use crate::trace::Stages;

pub enum Command {
    Start {
        start: Box<Start>,
        outputs: mpsc::Sender<FromEngine>,
        room: RoomWanted,
        /// The sequence's.
        span: Span,
        reply: oneshot::Sender<Result<SeqId, Rejected>>,
    },
    Steer {
        seq: SeqId,
        steer: Steer,
    },
    /// The router broke the protocol.
    Fail {
        seq: SeqId,
        error: String,
    },
    /// The router is gone.
    Cancel {
        seq: SeqId,
    },
    /// A router that was slow has read on.
    Room,
    /// Somebody listens to the feed; answer when it is filled.
    Listen {
        ready: oneshot::Sender<()>,
    },
    /// Take no new sequences; answer when the last is gone.
    Drain {
        done: oneshot::Sender<()>,
    },
    /// Take no new sequences and end the open ones; answer when that is said to all.
    Abort {
        done: oneshot::Sender<()>,
    },
}

/// Set by the engine when a sequence waits for room in its output queue. Whoever reads the queue looks at it after each
/// read, and wakes the engine.
#[derive(Debug, Clone, Default)]
pub struct RoomWanted(Arc<AtomicBool>);

impl RoomWanted {
    fn ask(&self) {
        self.0.store(true, Ordering::SeqCst);
        // Either the engine sees the room that the reader makes, or the reader sees the question.
        fence(Ordering::SeqCst);
    }

    /// Called after a read that left `capacity` places: true if the engine must be woken.
    pub fn answer(&self, capacity: usize) -> bool {
        fence(Ordering::SeqCst);
        capacity >= OUTPUT_HEADROOM && self.0.load(Ordering::SeqCst) && self.0.swap(false, Ordering::SeqCst)
    }
}

/// How the engine is, for whoever watches from outside.
#[derive(Debug)]
pub struct Vitals {
    /// Why the executor cannot execute any more.
    pub lost: OnceLock<String>,
    started: Instant,
    /// When the present step began: microseconds after `started`, and one; 0: no step.
    since: AtomicU64,
    pub times: StepTimes,
}

impl Vitals {
    pub fn new() -> Self {
        Vitals { lost: OnceLock::new(), started: Instant::now(), since: AtomicU64::new(0), times: StepTimes::default() }
    }

    fn begins(&self) {
        self.since.store(self.started.elapsed().as_micros() as u64 + 1, Ordering::Relaxed);
    }

    fn ends(&self) {
        if let Some(time) = self.step_time() {
            self.times.observe(time);
        }
        self.since.store(0, Ordering::Relaxed);
    }

    /// For how long the present step has been running.
    pub fn step_time(&self) -> Option<Duration> {
        let since = Duration::from_micros(self.since.load(Ordering::Relaxed).checked_sub(1)?);
        Some(self.started.elapsed().saturating_sub(since))
    }
}

/// The way back to one router.
struct Port {
    outputs: mpsc::Sender<FromEngine>,
    room: RoomWanted,
    /// What does not fit into the queue.
    backlog: VecDeque<FromEngine>,
    paused: bool,
    /// The sequence is gone; the backlog is still to be sent.
    last: bool,
    stages: Stages,
}

impl Port {
    fn send(&mut self, message: FromEngine) {
        self.backlog.push_back(message);
        self.flush();
    }

    fn flush(&mut self) {
        while !self.backlog.is_empty() {
            let Ok(permit) = self.outputs.try_reserve() else { return };
            if let Some(message) = self.backlog.pop_front() {
                permit.send(message);
            }
        }
    }

    fn has_room(&self) -> bool {
        self.backlog.is_empty() && self.outputs.capacity() >= OUTPUT_HEADROOM
    }

    /// Whether the sequence must not emit now.
    fn is_full(&mut self) -> bool {
        self.flush();
        if self.has_room() {
            return false;
        }
        self.room.ask();
        self.flush();
        !self.has_room()
    }
}

pub struct Engine {
    scheduler: Scheduler,
    /// None once it is of no more use: what it holds is free then, also if a router keeps its stream open.
    executor: Option<Box<dyn Executor>>,
    epoch: u64,
    vitals: Arc<Vitals>,
    commands: mpsc::Receiver<Command>,
    metrics: Arc<Metrics>,
    feed: Source,
    runtime: tokio::runtime::Runtime,
    started: Instant,
    ports: BTreeMap<SeqId, Port>,
    /// Traced sequences of which no step has computed anything.
    queued: BTreeSet<SeqId>,
    next_seq: SeqId,
    drains: Vec<oneshot::Sender<()>>,
    draining: bool,
}

impl Engine {
    /// `runtime` only waits for commands with a
    /// timeout.
    pub fn new(
        executor: Box<dyn Executor>,
        options: EngineOptions,
        commands: mpsc::Receiver<Command>,
        metrics: Arc<Metrics>,
        feed: Source,
        vitals: Arc<Vitals>,
        runtime: tokio::runtime::Runtime,
    ) -> Self {
        let scheduler = Scheduler::new(&executor.shape(), options);
        metrics.publish(&scheduler.stats());
        Self {
            scheduler,
            epoch: executor.epoch(),
            executor: Some(executor),
            vitals,
            commands,
            metrics,
            feed,
            runtime,
            started: Instant::now(),
            ports: BTreeMap::new(),
            queued: BTreeSet::new(),
            next_seq: 1,
            drains: Vec::new(),
            draining: false,
        }
    }

    /// Until all handles are gone.
    pub fn run(mut self) {
        while self.take_commands() {
            self.tend_ports();
            let step = self.scheduler.schedule(self.started.elapsed());
            let idle = step.is_none();
            if let Some(mut step) = step {
                step.epoch = self.epoch;
                self.note_begun(&step);
                self.execute(&step);
            }
            let stats = self.scheduler.stats();
            self.metrics.publish(&stats);
            self.feed.publish(&mut self.scheduler, &stats);
            self.deliver();
            if self.scheduler.is_empty() && self.ports.is_empty() {
                for done in self.drains.drain(..) {
                    // Whoever asked may have gone.
                    let _ = done.send(());
                }
            }
            if idle && !self.wait() {
                return;
            }
        }
    }

    /// False when nobody is left to send any.
    fn take_commands(&mut self) -> bool {
        for _ in 0..COMMAND_QUEUE {
            match self.commands.try_recv() {
                Ok(command) => self.command(command),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        true
    }

    /// Sleep until a command comes or the scheduler wants to be asked again.
    fn wait(&mut self) -> bool {
        let until = self.scheduler.wake_at().map(|at| at.saturating_sub(self.started.elapsed()));
        let commands = &mut self.commands;
        let received = self.runtime.block_on(async move {
            match until {
                None => Some(commands.recv().await),
                Some(left) => tokio::time::timeout(left.max(Duration::from_millis(1)), commands.recv()).await.ok(),
            }
        });
        match received {
            Some(Some(command)) => self.command(command),
            Some(None) => return false,
            None => {}
        }
        true
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Start { start, outputs, room, span, reply } => {
                let answer = self.start(start, outputs, room, span);
                let started = answer.as_ref().ok().copied();
                if reply.send(answer).is_err()
                    && let Some(seq) = started
                {
                    self.cancel(seq);
                }
            }
            Command::Steer { seq, steer } => self.apply(Event::Steer { seq, steer }),
            Command::Fail { seq, error } => self.apply(Event::Fail { seq, error }),
            Command::Cancel { seq } => self.cancel(seq),
            // The ports are looked at before each step.
            Command::Room => {}
            Command::Listen { ready } => {
                self.feed.fill(&mut self.scheduler);
                // Whoever asked may have gone; the next round finds out.
                let _ = ready.send(());
            }
            Command::Drain { done } => {
                self.draining = true;
                self.drains.push(done);
            }
            Command::Abort { done } => {
                self.draining = true;
                self.scheduler.fail_all("the engine is shutting down");
                self.deliver();
                self.executor = None;
                // Whoever asked may have gone.
                let _ = done.send(());
            }
        }
        self.deliver();
    }

    fn start(
        &mut self,
        start: Box<Start>,
        outputs: mpsc::Sender<FromEngine>,
        room: RoomWanted,
        span: Span,
    ) -> Result<SeqId, Rejected> {
        if let Some(why) = self.vitals.lost.get() {
            return Err(Rejected::Lost(why.clone()));
        }
        if self.draining {
            return Err(Rejected::Draining);
        }
        let seq = self.next_seq;
        self.next_seq += 1;
        self.scheduler.apply(Event::Start { seq, start })?;
        let stages = Stages::new(span);
        if stages.traced() {
            self.queued.insert(seq);
        }
        self.ports.insert(seq, Port { outputs, room, backlog: VecDeque::new(), paused: false, last: false, stages });
        Ok(seq)
    }

    /// An event that cannot be rejected.
    fn apply(&mut self, event: Event) {
        if let Err(rejected) = self.scheduler.apply(event) {
            tracing::error!(%rejected, "an event other than Start was rejected");
        }
    }

    fn cancel(&mut self, seq: SeqId) {
        self.apply(Event::Cancel { seq });
        self.close(seq);
    }

    fn close(&mut self, seq: SeqId) {
        self.ports.remove(&seq);
        self.queued.remove(&seq);
    }

    fn note_begun(&mut self, step: &Step) {
        if self.queued.is_empty() {
            return;
        }
        for row in &step.rows {
            if self.queued.remove(&row.seq)
                && let Some(port) = self.ports.get_mut(&row.seq)
            {
                port.stages.begins();
            }
        }
    }

    /// Cancel what nobody reads any more, pause what is not read now.
    fn tend_ports(&mut self) {
        let mut gone = Vec::new();
        let mut events = Vec::new();
        for (&seq, port) in &mut self.ports {
            if port.outputs.is_closed() {
                gone.push(seq);
                continue;
            }
            let full = port.is_full();
            if port.last {
                if port.backlog.is_empty() {
                    gone.push(seq);
                }
            } else if port.backlog.len() > OUTPUT_BACKLOG {
                gone.push(seq);
            } else if full != port.paused {
                port.paused = full;
                events.push(if full { Event::Pause { seq } } else { Event::Resume { seq } });
            }
        }
        gone.into_iter().for_each(|seq| self.cancel(seq));
        events.into_iter().for_each(|event| self.apply(event));
    }

    fn execute(&mut self, step: &Step) {
        match self.try_execute(step) {
            Ok(result) => self.scheduler.commit(result),
            Err(error) => {
                tracing::error!(step = step.id, rows = step.rows.len(), %error, "step failed");
                match &error {
                    ExecutorError::Step(_) => self.scheduler.fail(&error.to_string()),
                    ExecutorError::Lost(_) => {
                        // Set before the sequences end, so that whoever sees one end sees the reason too.
                        let _ = self.vitals.lost.set(error.to_string());
                        self.feed.close(&error.to_string());
                        self.scheduler.fail_all(&error.to_string());
                        self.executor = None;
                    }
                }
            }
        }
    }

    /// After a panic the executor's state is unknown, so it is lost.
    fn try_execute(&mut self, step: &Step) -> Result<StepResult, ExecutorError> {
        let Some(executor) = &mut self.executor else {
            return Err(ExecutorError::Lost("it has been given up".into()));
        };
        self.vitals.begins();
        let result = catch_unwind(AssertUnwindSafe(|| executor.execute(step)));
        self.vitals.ends();
        result.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(ExecutorError::Lost(format!("it panicked: {}", text.unwrap_or("no message"))))
        })
    }

    fn deliver(&mut self) {
        for Output { seq, message, last } in self.scheduler.take_outputs() {
            let Some(port) = self.ports.get_mut(&seq) else { continue };
            port.stages.tells(&message);
            port.send(message);
            port.last = last;
            if last && port.backlog.is_empty() {
                self.close(seq);
            }
        }
    }
}
