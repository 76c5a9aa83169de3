//! One rank's thread: it loads, agrees with the other ranks on the KV cache, and follows the leader's steps. It does
//! not know which steps come.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
use prost::Message;
use rein_control_plane::Placement;
use rein_control_plane::epoch::number;
use rein_kernels::collective::{Collective, ControlLink, threads};
use rein_kernels::{
    AWAITED_TOKEN, Backend, Devices, DryRun, ExpertCounts, KernelError, Result as KernelResult, StepBounds,
};
use rein_proto::internal::{BlockSave, Draw, Row, Step, StepResult};

use super::devices::{DeviceWeights, ReturnWeights};
use super::layout::LayoutInbox;
use super::{Checkpoint, KvPlan};
use crate::blocks::HostShape;
use crate::bytes::ByteCount;
use crate::checkpoint::LoadError;
use crate::executor::{DrawnTokens, add_to_history};
use crate::model::{Executing, HostLimits, HostTier, Network, StateSize, StepUnderWay, least};

pub enum RankReport {
    Read(u64),
    Loaded(Result<LoadedRoom, LoadError>),
}

/// What all ranks of a group have room for.
#[derive(Debug, Clone, Default)]
pub struct LoadedRoom {
    /// KV blocks.
    pub blocks: usize,
    pub host: HostShape,
}

/// What the leader's thread is asked for.
pub enum LeaderTask {
    /// Begin it, after those before.
    Begin(Step),
    /// Send the result of the oldest that was begun.
    Finish,
}

/// The leader's tasks, and the results of its steps.
#[derive(Clone)]
pub struct LeaderQueues {
    pub tasks: Receiver<LeaderTask>,
    pub results: Sender<Result<StepResult, String>>,
    /// The layout of the last step.
    pub used: Arc<AtomicU64>,
    /// Set once the leader has loaded.
    pub counts: Arc<OnceLock<ExpertCounts>>,
}

/// What is made before the first sequence comes.
#[derive(Debug, Clone, Copy)]
pub struct Preparation {
    /// Tokens of the largest step.
    pub rows: usize,
    /// KV bytes of a token on the rank's device, for all ranks there.
    pub kv_of_device: usize,
    /// Bytes that LoRA adapters may take there.
    pub loras_of_device: usize,
    /// The KV cache has a size that was asked for.
    pub fixed: bool,
}

/// The parameters of a rank thread.
pub struct RankJob<D: Devices> {
    pub devices: D,
    /// Index of its device.
    pub device: usize,
    /// Ranks of this process.
    pub here: usize,
    pub checkpoint: Arc<Checkpoint>,
    pub placement: Arc<Placement>,
    pub rank: usize,
    pub plan: KvPlan,
    /// Sequences whose logits are stashed at the same time.
    pub stashes: usize,
    pub lora_slots: usize,
    pub host: HostLimits,
    /// The hash of what the bytes of KV blocks depend on.
    pub fingerprint: u64,
    /// None: steps are not prepared.
    pub prepares: Option<Preparation>,
    pub inbox: Arc<LayoutInbox<D::Backend>>,
    pub report: Sender<RankReport>,
    /// None: this rank follows.
    pub leads: Option<LeaderQueues>,
    pub return_weights: Option<ReturnWeights<D::Backend>>,
}

impl<D: Devices> RankJob<D> {
    pub fn run(self, resident: Option<DeviceWeights<D::Backend>>, link: Box<dyn Collective>) {
        let ranks = link.size();
        let loaded = self.load(resident, link);
        let RankJob { checkpoint, device, here, rank, placement, report, leads, inbox, return_weights, .. } = self;
        drop(checkpoint);
        let (executing, outcome) = match loaded {
            Ok((executing, room)) => (Some(executing), Ok(room)),
            Err(error) => (None, Err(error)),
        };
        // The receiver is gone if another rank has failed.
        let _ = report.send(RankReport::Loaded(outcome));
        drop(report);
        let Some(mut executing) = executing else { return };
        let end = match leads {
            Some(desk) => Lead::new(&mut executing, &desk, &inbox).run(),
            None => Some(follow(&mut executing, rank, placement.epoch, &inbox)),
        };
        if let Some(end) = &end {
            tracing::debug!(rank, %end, "the group ended");
        }
        // Weights on a device that failed are of no use.
        let failed = matches!(end, Some(KernelError::Device(_) | KernelError::OutOfMemory(_)));
        let return_weights = return_weights.filter(|_| !failed);
        let mut network = executing.into_network();
        if let Some(return_weights) = return_weights {
            network.leave(Box::new(threads::alone()), D::KEEPS_CACHES);
            return_weights(DeviceWeights { network, ranks, device, here });
        }
    }

    fn load(
        &self,
        resident: Option<DeviceWeights<D::Backend>>,
        link: Box<dyn Collective>,
    ) -> Result<(Executing<D::Backend>, LoadedRoom), LoadError> {
        let network = self.read(resident, link);
        // Checked even if the read failed, because a changed file may be the reason.
        self.checkpoint.weights.verify_reads()?;
        let mut network = network?;
        network.connect(self.here)?;
        if let Some(desk) = &self.leads {
            desk.counts.get_or_init(|| network.expert_counts());
        }
        // Those of another group are gone.
        network.take_adapters(self.lora_slots)?;
        let fresh = network.state_size() == StateSize::default();
        let prepares = match self.prepares.filter(|_| D::PREPARES) {
            Some(prepares) => {
                let bounds =
                    StepBounds { rows: prepares.rows, sequences: self.stashes, positions: self.plan.full_context };
                agreed(network.backend().control(), fresh, bounds)?.map(|bounds| (prepares, bounds))
            }
            None => None,
        };
        let began = Instant::now();
        let fits = match &prepares {
            Some((prepares, bounds)) => self.measure(&mut network, prepares, bounds)?,
            None => self.plan.blocks,
        };
        let blocks = least(network.backend().control(), fits)?;
        network.open(self.plan.state_size(blocks), self.stashes)?;
        if let Some((_, bounds)) = &prepares {
            network.prepare(bounds, DryRun::Recording)?;
            let seconds = format!("{:.1}", began.elapsed().as_secs_f64());
            tracing::info!(rank = self.rank, seconds, "computed steps of all sizes");
        }
        let (tier, host) = HostTier::open(&mut network, &self.host, self.here, self.fingerprint)?.unzip();
        Ok((Executing::new(network, tier), LoadedRoom { blocks, host: host.unwrap_or_default() }))
    }

    /// How many KV blocks fit beside the activations of the largest steps.
    fn measure(
        &self,
        network: &mut Network<D::Backend>,
        prepares: &Preparation,
        bounds: &StepBounds,
    ) -> Result<usize, LoadError> {
        let KvPlan { block_size, kv_ranks, .. } = self.plan;
        network.open(StateSize { blocks: 1, block_size, cells: 1, kv_ranks }, self.stashes)?;
        network.prepare(bounds, DryRun::Memory).map_err(|error| match error {
            KernelError::OutOfMemory(what) => {
                let (rows, sequences) = (bounds.rows, bounds.sequences);
                LoadError::Device(format!(
                    "a step of {rows} tokens for {sequences} sequences does not fit beside the weights ({what}): lower \
                     --token-budget or --max-sequences"
                ))
            }
            error => error.into(),
        })?;
        network.close();
        // Other ranks may have the same device.
        network.backend().control().gather_bytes(&[])?;
        let free = self.devices.free_after_dry_run(self.device)?.saturating_sub(prepares.loras_of_device);
        let fits = free / (block_size * prepares.kv_of_device).max(1);
        if prepares.fixed && fits < self.plan.blocks {
            let [asked, free] = [self.plan.bytes(), free].map(|bytes| ByteCount(bytes as u64));
            let what = format!(
                "a KV cache of {asked} does not fit beside the activations of a step of {} tokens, which leave {free}: \
                 make it smaller, or lower --token-budget or --max-sequences",
                bounds.rows
            );
            return Err(LoadError::Option { option: "kv_memory", what });
        }
        if fits < self.plan.blocks {
            let planned = self.plan.blocks;
            tracing::info!(rank = self.rank, fits, planned, "activations leave room for fewer KV blocks");
        }
        Ok(fits.min(self.plan.blocks))
    }

    fn read(
        &self,
        resident: Option<DeviceWeights<D::Backend>>,
        link: Box<dyn Collective>,
    ) -> Result<Network<D::Backend>, LoadError> {
        let source = self.checkpoint.source(&self.devices);
        match resident {
            Some(DeviceWeights { mut network, .. }) => {
                network.join(link);
                let goal = (&self.placement, self.rank);
                let (never, before) = (AtomicBool::new(false), network.rank());
                let swap = Network::fetch(network.backend(), source, goal, before, &never)?;
                network.relayout(swap)?;
                Ok(network)
            }
            None => {
                let progress = |bytes| {
                    let _ = self.report.send(RankReport::Read(bytes));
                };
                let backend = self.devices.open(self.device, self.here, link)?;
                Network::load(backend, source, (&self.placement, self.rank), &progress)
            }
        }
    }
}

/// The leader's bounds, for all ranks compute the same dry steps. None: some rank goes on from another group, whose
/// streams must not wait.
fn agreed(control: &dyn ControlLink, fresh: bool, bounds: StepBounds) -> KernelResult<Option<StepBounds>> {
    let StepBounds { rows, sequences, positions } = bounds;
    let mine = [usize::from(fresh), rows, sequences, positions];
    let mine: Vec<u8> = mine.iter().flat_map(|n| (*n as u64).to_le_bytes()).collect();
    let mut of_leader = None;
    for bytes in control.gather_bytes(&mine)? {
        let words: Vec<usize> = bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes) as usize).collect();
        match words[..] {
            [0, ..] => return Ok(None),
            [_, rows, sequences, positions] => {
                of_leader.get_or_insert(StepBounds { rows, sequences, positions });
            }
            _ => {
                let what = format!("32 bytes expected, got {}", bytes.len());
                return Err(KernelError::Shape { op: "bounds", what });
            }
        }
    }
    Ok(of_leader)
}

/// The leader's work.
struct Lead<'a, B: Backend> {
    executing: &'a mut Executing<B>,
    desk: &'a LeaderQueues,
    inbox: &'a LayoutInbox<B>,
    /// Steps that were begun, the oldest first.
    under_way: VecDeque<StepUnderWay<B>>,
    /// Results of steps before them, for which nobody has asked yet.
    finished: VecDeque<StepResult>,
    /// Of the newest step, if it was finished.
    drawn: DrawnTokens,
}

impl<'a, B: Backend> Lead<'a, B> {
    fn new(executing: &'a mut Executing<B>, desk: &'a LeaderQueues, inbox: &'a LayoutInbox<B>) -> Self {
        let (under_way, finished) = (VecDeque::new(), VecDeque::new());
        Lead { executing, desk, inbox, under_way, finished, drawn: DrawnTokens::default() }
    }

    /// Runs until there are no more tasks, or one fails; then the other ranks are told why, and the error is returned.
    fn run(mut self) -> Option<KernelError> {
        for task in &self.desk.tasks {
            let done = match task {
                LeaderTask::Begin(step) => self.begin(step),
                // Where nobody asks any more, there are no more tasks.
                LeaderTask::Finish => self.finish().map(|result| drop(self.desk.results.send(Ok(result)))),
            };
            if let Err(error) = done {
                self.executing.backend().control().abort(&format!("rank 0: {error}"));
                let _ = self.desk.results.send(Err(error.to_string()));
                return Some(error);
            }
        }
        None
    }

    fn begin(&mut self, mut step: Step) -> KernelResult<()> {
        if !(B::KEEPS_DRAWN && runs_behind(&step, self.desk.used.load(Ordering::Acquire))) {
            while let Some(oldest) = self.under_way.pop_front() {
                let result = self.executing.finish(oldest)?;
                self.note_drawn(&result);
                self.finished.push_back(result);
            }
        }
        if self.under_way.is_empty() {
            self.drawn.fill_in(&mut step);
            step.rows.iter_mut().for_each(|row| row.awaits_token = false);
        }
        for row in step.rows.iter_mut().filter(|row| row.awaits_token) {
            add_to_history(row, AWAITED_TOKEN);
        }
        share(self.executing, &step)?;
        let begun = begin(self.executing, &step, self.inbox)?;
        self.desk.used.store(step.layout, Ordering::Release);
        self.under_way.push_back(begun);
        Ok(())
    }

    fn finish(&mut self) -> KernelResult<StepResult> {
        if let Some(result) = self.finished.pop_front() {
            return Ok(result);
        }
        let oldest = self.under_way.pop_front();
        let oldest = oldest.ok_or_else(|| KernelError::Aborted("the leader was given no step to finish".into()))?;
        let result = self.executing.finish(oldest)?;
        self.note_drawn(&result);
        Ok(result)
    }

    fn note_drawn(&mut self, result: &StepResult) {
        if self.under_way.is_empty() {
            self.drawn = DrawnTokens::of(result);
        }
    }
}

/// Whether a step can begin while the one before runs, with its tokens on the device alone. `layout`: of that one.
fn runs_behind(step: &Step, layout: u64) -> bool {
    step.saves.is_empty() && step.loads.is_empty() && step.loras.is_empty() && step.layout == layout
}

fn begin<B: Backend>(
    executing: &mut Executing<B>,
    step: &Step,
    inbox: &LayoutInbox<B>,
) -> KernelResult<StepUnderWay<B>> {
    inbox.take_up(executing.network_mut(), step.layout)?;
    executing.begin(step)
}

fn share<B: Backend>(executing: &Executing<B>, step: &Step) -> KernelResult<()> {
    let control = executing.backend().control();
    if control.size() == 1 {
        return Ok(());
    }
    control.share(0, &mut for_followers(step).encode_to_vec())
}

/// The step without what only the leader needs: it alone samples, and masks and the tokens of penalties are most of a
/// step's bytes.
fn for_followers(step: &Step) -> Step {
    let rows = step.rows.iter().map(|row| Row {
        slot: row.slot,
        tokens: row.tokens.clone(),
        start: row.start,
        kept_blocks: row.kept_blocks,
        blocks: row.blocks.clone(),
        after: row.after,
        draws: row.draws.iter().map(|draw| Draw { logprobs: draw.logprobs, ..Draw::default() }).collect(),
        score: row.score,
        next: row.next,
        awaits_token: row.awaits_token,
        state: row.state,
        saves: row.saves.clone(),
        lora: row.lora,
    });
    let Step { epoch, id, dropped, layout, loras, saves, loads, .. } = step;
    Step {
        epoch: *epoch,
        id: *id,
        rows: rows.collect(),
        dropped: dropped.clone(),
        layout: *layout,
        loras: loras.clone(),
        saves: saves
            .iter()
            .map(|&BlockSave { block, place, content, .. }| BlockSave { block, place, content, ..BlockSave::default() })
            .collect(),
        loads: loads.clone(),
    }
}

/// Returns why it ended: the group ended, or this rank failed, which ends the group.
fn follow<B: Backend>(executing: &mut Executing<B>, rank: usize, epoch: u64, inbox: &LayoutInbox<B>) -> KernelError {
    loop {
        let mut bytes = Vec::new();
        if let Err(error) = executing.backend().control().share(0, &mut bytes) {
            return error;
        }
        let result = match Step::decode(&*bytes) {
            Ok(step) if step.epoch == epoch => begin(executing, &step, inbox).map(drop),
            Ok(step) => Err(KernelError::Aborted(format!(
                "step of epoch {}, placement of epoch {}",
                number(step.epoch),
                number(epoch)
            ))),
            Err(error) => Err(KernelError::Aborted(format!("cannot decode the leader's step: {error}"))),
        };
        if let Err(error) = result {
            executing.backend().control().abort(&format!("rank {rank}: {error}"));
            return error;
        }
    }
}

#[cfg(test)]
mod tests;
