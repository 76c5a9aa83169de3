//! The engine thread. It owns the scheduler and the executor; all other threads reach it over one bounded queue.
//!
//! A round is `schedule`, submit, wait, `commit`; while a step runs, the tokens of the one before go out and, if the
//! executor runs ahead, the next step is planned. Between rounds the thread handles queued commands. Without work it
//! sleeps on the queue. It never waits for a router: a sequence whose router does not read is paused. This module does
//! not know gRPC.

mod loras;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use prometheus_client::metrics::histogram::Histogram;
use rein_proto::internal::{FromEngine, LoraInfo, Start, Steer, Step};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::Span;

use crate::error::Rejected;
use crate::events::EventSource;
use crate::executor::{Executor, ExecutorError, StepPlacement};
use crate::limits::{COMMAND_QUEUE, OUTPUT_BACKLOG, OUTPUT_HEADROOM};
use crate::lora::{Lora, LoraSlots, NoLoraSlot};
use crate::metrics::{EngineMetrics, step_times};
use crate::scheduler::{EngineOptions, Output, Scheduler, SchedulerEvent};
use crate::seq::SeqId;
use crate::sequence_trace::Stages;

pub enum EngineCommand {
    Start {
        start: Box<Start>,
        outputs: mpsc::Sender<FromEngine>,
        room: RoomWanted,
        /// The sequence's span.
        span: Span,
        reply: oneshot::Sender<Result<SeqId, Rejected>>,
    },
    Steer {
        seq: SeqId,
        steer: Steer,
    },
    /// Answers when sequences can have it.
    LoadLora {
        name: String,
        path: String,
        lora: Arc<Lora>,
        reply: oneshot::Sender<Result<LoraInfo, NoLoraSlot>>,
    },
    /// Answers whether there was one of this name.
    UnloadLora {
        name: String,
        reply: oneshot::Sender<bool>,
    },
    /// Blocks with these hashes stay cached before others for this time.
    Hold {
        hashes: HashSet<u64>,
        time: Duration,
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
    /// A slow router has read from its queue.
    Room,
    /// A listener has subscribed; answer when the feed is filled.
    Listen {
        ready: oneshot::Sender<()>,
    },
    /// Accept no new sequences; answer when the last one has ended.
    Drain {
        done: oneshot::Sender<()>,
    },
    /// Accept no new sequences and end the open ones; answer when all routers have been told.
    Abort {
        done: oneshot::Sender<()>,
    },
}

/// Set by the engine when a sequence waits for room in its output queue. The reader of the queue checks it after each
/// read and wakes the engine.
#[derive(Debug, Clone, Default)]
pub struct RoomWanted(Arc<AtomicBool>);

impl RoomWanted {
    fn ask(&self) {
        self.0.store(true, Ordering::SeqCst);
        // Either the engine sees the room that the reader makes, or the reader sees this flag.
        fence(Ordering::SeqCst);
    }

    /// Called after a read that left room for `capacity` messages. True if the engine must be woken.
    pub fn answer(&self, capacity: usize) -> bool {
        fence(Ordering::SeqCst);
        capacity >= OUTPUT_HEADROOM && self.0.load(Ordering::SeqCst) && self.0.swap(false, Ordering::SeqCst)
    }
}

/// The state of the engine, readable from other threads.
#[derive(Debug)]
pub struct EngineHealth {
    /// Why the executor can no longer execute.
    pub lost: OnceLock<String>,
    started: Instant,
    /// When the current step began: microseconds after `started`, plus one. 0: no step is running.
    since: AtomicU64,
    pub times: Histogram,
    /// The LoRA adapters that new sequences can get.
    pub loras: watch::Sender<Vec<LoraInfo>>,
}

impl EngineHealth {
    pub fn new() -> Self {
        EngineHealth {
            lost: OnceLock::new(),
            started: Instant::now(),
            since: AtomicU64::new(0),
            times: step_times(),
            loras: watch::Sender::default(),
        }
    }

    fn begins(&self) {
        self.since.store(self.started.elapsed().as_micros() as u64 + 1, Ordering::Relaxed);
    }

    fn ends(&self) {
        if let Some(time) = self.step_time() {
            self.times.observe(time.as_secs_f64());
        }
        self.since.store(0, Ordering::Relaxed);
    }

    /// How long the current step has been running.
    pub fn step_time(&self) -> Option<Duration> {
        let since = Duration::from_micros(self.since.load(Ordering::Relaxed).checked_sub(1)?);
        Some(self.started.elapsed().saturating_sub(since))
    }
}

/// The output of one sequence to its router.
struct OutputPort {
    outputs: mpsc::Sender<FromEngine>,
    room: RoomWanted,
    /// Messages that do not fit into the queue.
    backlog: VecDeque<FromEngine>,
    paused: bool,
    /// The slot of its LoRA adapter.
    lora: Option<u32>,
    /// The sequence has ended; the backlog is still to be sent.
    last: bool,
    stages: Stages,
}

impl OutputPort {
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

/// A step that was submitted.
struct RunningStep {
    id: u64,
    rows: usize,
    /// Else it brings only parts of LoRA adapters, and the scheduler does not know it.
    planned: bool,
    /// LoRA slots of which it brings parts.
    lora_parts: BTreeSet<u32>,
    /// LoRA slots that the ranks have whole after it.
    loras: Vec<u32>,
}

pub struct EngineThread {
    scheduler: Scheduler,
    /// Steps that were submitted and not waited for, at most two.
    running: VecDeque<RunningStep>,
    runs_ahead: bool,
    /// None once the executor is lost. Its memory is then free even if a router keeps its stream open.
    executor: Option<Box<dyn Executor>>,
    vitals: Arc<EngineHealth>,
    commands: mpsc::Receiver<EngineCommand>,
    metrics: Arc<EngineMetrics>,
    feed: EventSource,
    runtime: tokio::runtime::Runtime,
    started: Instant,
    ports: BTreeMap<SeqId, OutputPort>,
    /// Traced sequences for which no step has run yet.
    queued: BTreeSet<SeqId>,
    next_seq: SeqId,
    loras: LoraSlots,
    /// Who waits for the adapter of a slot.
    lora_replies: BTreeMap<u32, oneshot::Sender<Result<LoraInfo, NoLoraSlot>>>,
    drains: Vec<oneshot::Sender<()>>,
    draining: bool,
}

impl EngineThread {
    /// `runtime` is used only to wait for commands with a timeout.
    pub fn new(
        executor: Box<dyn Executor>,
        options: EngineOptions,
        commands: mpsc::Receiver<EngineCommand>,
        metrics: Arc<EngineMetrics>,
        feed: EventSource,
        vitals: Arc<EngineHealth>,
        runtime: tokio::runtime::Runtime,
    ) -> Self {
        let shape = executor.shape();
        let scheduler = Scheduler::new(&shape, options);
        metrics.publish(&scheduler.stats());
        Self {
            scheduler,
            running: VecDeque::new(),
            runs_ahead: shape.runs_ahead,
            loras: LoraSlots::new(shape.lora_slots, executor.lora_source().map_or(0, |source| source.room())),
            lora_replies: BTreeMap::new(),
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

    /// Runs until all handles are dropped.
    pub fn run(mut self) {
        while self.take_commands() {
            self.update_ports();
            let mut idle = true;
            while self.may_begin() && self.begin_step() {
                idle = false;
            }
            // While the step runs, the tokens of the one before go out.
            let stats = self.scheduler.stats();
            self.metrics.publish(&stats);
            self.feed.publish(&mut self.scheduler, &stats);
            self.deliver();
            if self.scheduler.is_empty() && self.ports.is_empty() {
                for done in self.drains.drain(..) {
                    // The caller may have given up.
                    let _ = done.send(());
                }
            }
            match self.running.pop_front() {
                Some(running) => self.finish(running),
                None if idle && !self.wait() => return,
                None => {}
            }
        }
    }

    fn may_begin(&self) -> bool {
        self.running.is_empty() || (self.runs_ahead && self.scheduler.may_run_ahead())
    }

    /// False: there is nothing to do.
    fn begin_step(&mut self) -> bool {
        let placed = self.executor.as_ref().map(|executor| executor.placed()).unwrap_or_default();
        let scheduled = self.scheduler.schedule(placed, self.started.elapsed());
        let planned = scheduled.is_some();
        let mut step = match scheduled {
            Some(step) => step,
            None if self.loras.has_parts() && self.running.is_empty() => {
                let StepPlacement { epoch, layout } = placed;
                Step { epoch, layout, ..Step::default() }
            }
            None => return false,
        };
        let (parts, whole) = self.loras.take_parts();
        step.loras = parts;
        self.note_begun();
        self.submit(step, planned, whole);
        true
    }

    /// Returns false when all senders are gone.
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

    /// Sleeps until there is a command or the scheduler is due.
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

    fn command(&mut self, command: EngineCommand) {
        match command {
            EngineCommand::Start { start, outputs, room, span, reply } => {
                let answer = self.start(start, outputs, room, span);
                let started = answer.as_ref().ok().copied();
                if reply.send(answer).is_err()
                    && let Some(seq) = started
                {
                    self.cancel(seq);
                }
            }
            EngineCommand::LoadLora { name, path, lora, reply } => self.load_lora([name, path], lora, reply),
            EngineCommand::UnloadLora { name, reply } => {
                let known = self.loras.unload(&name);
                self.publish_loras();
                // The caller may have given up.
                let _ = reply.send(known);
            }
            EngineCommand::Steer { seq, steer } => self.apply(SchedulerEvent::Steer { seq, steer }),
            EngineCommand::Fail { seq, error } => self.apply(SchedulerEvent::Fail { seq, error }),
            EngineCommand::Cancel { seq } => self.cancel(seq),
            // The ports are checked before each step.
            EngineCommand::Room => {}
            EngineCommand::Hold { hashes, time } => self.scheduler.hold(&hashes, time, self.started.elapsed()),
            EngineCommand::Listen { ready } => {
                self.feed.fill(&mut self.scheduler);
                // The caller may have given up; the next round notices.
                let _ = ready.send(());
            }
            EngineCommand::Drain { done } => {
                self.draining = true;
                self.drains.push(done);
            }
            EngineCommand::Abort { done } => {
                self.draining = true;
                self.scheduler.fail_all("the engine is shutting down");
                self.deliver();
                self.executor = None;
                self.running.clear();
                // The caller may have given up.
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
        let lora = match start.lora.as_str() {
            "" => None,
            name => match self.loras.open(name, start.lora_digest) {
                Some(slot) => Some(slot),
                None => return Err(Rejected::NoLora(name.to_owned())),
            },
        };
        let seq = self.next_seq;
        self.next_seq += 1;
        if let Err(rejected) = self.scheduler.apply(SchedulerEvent::Start { seq, start, lora }) {
            lora.into_iter().for_each(|slot| self.loras.close(slot));
            return Err(rejected);
        }
        let stages = Stages::new(span);
        if stages.traced() {
            self.queued.insert(seq);
        }
        self.ports.insert(
            seq,
            OutputPort { outputs, room, backlog: VecDeque::new(), paused: false, lora, last: false, stages },
        );
        Ok(seq)
    }

    /// Applies an event that cannot be rejected.
    fn apply(&mut self, event: SchedulerEvent) {
        if let Err(rejected) = self.scheduler.apply(event) {
            tracing::error!(%rejected, "an event other than Start was rejected");
        }
    }

    fn cancel(&mut self, seq: SeqId) {
        self.apply(SchedulerEvent::Cancel { seq });
        self.close(seq);
    }

    fn close(&mut self, seq: SeqId) {
        if let Some(slot) = self.ports.remove(&seq).and_then(|port| port.lora) {
            self.loras.close(slot);
        }
        self.queued.remove(&seq);
    }

    fn note_begun(&mut self) {
        if self.queued.is_empty() {
            return;
        }
        for seq in self.scheduler.scheduled() {
            if self.queued.remove(&seq)
                && let Some(port) = self.ports.get_mut(&seq)
            {
                port.stages.begin_prefill();
            }
        }
    }

    /// Cancels sequences whose routers are gone and pauses those whose routers do not read.
    fn update_ports(&mut self) {
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
                events.push(if full { SchedulerEvent::Pause { seq } } else { SchedulerEvent::Resume { seq } });
            }
        }
        gone.into_iter().for_each(|seq| self.cancel(seq));
        events.into_iter().for_each(|event| self.apply(event));
    }

    /// `loras`: slots that the ranks have whole after it.
    fn submit(&mut self, step: Step, planned: bool, loras: Vec<u32>) {
        let lora_parts = step.loras.iter().map(|part| part.slot).collect();
        let running = RunningStep { id: step.id, rows: step.rows.len(), planned, lora_parts, loras };
        if self.running.is_empty() {
            self.vitals.begins();
        }
        match self.on_executor(|executor| executor.submit(step)) {
            Ok(()) => self.running.push_back(running),
            Err(error) => {
                if self.running.is_empty() {
                    self.vitals.ends();
                }
                self.fail(running, error, true);
            }
        }
    }

    /// Waits for the oldest step that runs.
    fn finish(&mut self, running: RunningStep) {
        let result = self.on_executor(|executor| executor.wait());
        self.vitals.ends();
        if !self.running.is_empty() {
            self.vitals.begins();
        }
        match result {
            Ok(result) => {
                if running.planned {
                    self.scheduler.commit(result);
                }
                running.loras.iter().for_each(|&slot| self.lora_arrived(slot));
            }
            Err(error) => self.fail(running, error, false),
        }
    }

    /// `newest`: the step could not begin; else it is the oldest.
    fn fail(
        &mut self,
        RunningStep { id, rows, planned, lora_parts, .. }: RunningStep,
        error: ExecutorError,
        newest: bool,
    ) {
        match &error {
            ExecutorError::Step(_) => {
                tracing::error!(step = id, rows, %error, "step failed");
                if planned {
                    self.scheduler.fail(&error.to_string(), newest);
                }
                for slot in lora_parts {
                    self.loras.lost(slot);
                    self.lora_replies.remove(&slot);
                }
            }
            ExecutorError::Lost(_) => {
                tracing::warn!(step = id, rows, %error, "lost a rank; the group ends");
                // Set before the sequences end, so that every observer of an end sees the reason.
                let _ = self.vitals.lost.set(error.to_string());
                self.feed.close(&error.to_string());
                self.scheduler.fail_all(&error.to_string());
                self.executor = None;
                self.running.clear();
                self.lora_replies.clear();
                self.vitals.loras.send_replace(Vec::new());
            }
        }
    }

    /// After a panic the state of the executor is unknown, so it counts as lost.
    fn on_executor<T>(
        &mut self,
        work: impl FnOnce(&mut dyn Executor) -> Result<T, ExecutorError>,
    ) -> Result<T, ExecutorError> {
        let Some(executor) = &mut self.executor else {
            return Err(ExecutorError::Lost("the executor was abandoned".into()));
        };
        let result = catch_unwind(AssertUnwindSafe(|| work(&mut **executor)));
        result.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(ExecutorError::Lost(format!("it panicked: {}", text.unwrap_or("no message"))))
        })
    }

    fn deliver(&mut self) {
        for Output { seq, message, last } in self.scheduler.take_outputs() {
            let Some(port) = self.ports.get_mut(&seq) else { continue };
            port.stages.record_message(&message);
            port.send(message);
            port.last = last;
            if last && port.backlog.is_empty() {
                self.close(seq);
            }
        }
    }
}
