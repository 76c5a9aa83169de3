//! The ranks of a group in this process: one thread with one device each. The collective hides whether the other ranks
//! are threads of this process or of others. The leader (rank 0) shares each step with all ranks; every rank executes
//! it; the leader returns the result. This module does not know sequences, the store or gRPC.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use rein_control_plane::epoch::number;
use rein_control_plane::records::Locality;
use rein_control_plane::{ModelShape, Placement, RankPlacement, place};
use rein_kernels::Devices;
use rein_kernels::collective::{self, AbortWatch, Collective};
use rein_kernels::cpu::CpuDevices;
use rein_kernels::lockstep::LockstepReport;
use rein_kernels::rounding::RoundingDevices;
use rein_proto::internal::{After, Step, StepResult};
use rein_proto::protocol;

use crate::checkpoint::{LoadError, Reads, content_hash, parse_config, read_config};
use crate::executor::{Executor, ExecutorError, ExecutorShape, StepPlacement};
use crate::lora::LoraSource;
use crate::model::{self, check_row};
use crate::tables::BlockTables;

pub mod capacity;
mod choice;
mod devices;
mod layout;
mod loading;
mod loras;
mod memory;
mod open;
mod options;
mod thread;

pub use choice::{DeviceChoice, DeviceDefaults, GpuKernels, Gpus};
pub use devices::ResidentWeights;
use devices::{AnyDevices, DeviceWeights, ReturnWeights};
pub use layout::Layouts;
use layout::{Inboxes, LayoutInbox, RankInbox};
use loading::await_loaded;
pub use loras::LoraLimits;
use loras::LoraReader;
pub use memory::{KvPlan, WeightMemory};
use open::Checkpoint;
pub use options::{Dtype, KvDtype, ModelOptions, Quantize};
use thread::{LeaderQueues, LeaderTask, LoadedRoom, Preparation, RankJob};

/// Of the ranks in this process.
type Links = Vec<Box<dyn Collective>>;

const LEADER_ENDED: &str = "the leader's thread has ended";

/// Steps that may be submitted before the first of them is waited for.
const STEPS_AHEAD: usize = 2;

/// Reports of ranks queued for the loading thread.
const REPORT_QUEUE: usize = 64;

/// An open checkpoint, which can load any rank of any placement.
pub struct ModelLoader {
    dir: PathBuf,
    options: ModelOptions,
    checkpoint: Arc<Checkpoint>,
    devices: AnyDevices,
}

/// The ranks of a group in this process, loaded and linked.
pub struct Seated {
    pub plan: KvPlan,
    slots: usize,
    weights: WeightMemory,
    // Dropped before the ranks are joined: the leader's thread ends with it.
    leader: Option<Leader>,
    ranks: Ranks,
    shape: ExecutorShape,
    epoch: u64,
    layouts: Arc<Layouts>,
    loras: Option<LoraReader>,
    /// Of a group whose ranks are all in this process.
    ended: Option<AbortWatch>,
}

/// Joined when dropped. Followers end with their group's links.
struct Ranks(Vec<JoinHandle<()>>);

struct Leader {
    tasks: Sender<LeaderTask>,
    results: Receiver<Result<StepResult, String>>,
}

impl ModelLoader {
    pub fn open(dir: &Path, options: &ModelOptions) -> Result<Self, LoadError> {
        if options.block_size == 0 {
            return Err(LoadError::Option { option: "block_size", what: "must be at least 1".into() });
        }
        let devices = AnyDevices::open(options)?;
        let reads = Reads::new(options.read_timeout);
        let checkpoint = reads.watch({
            let (dir, options, reads) = (dir.to_owned(), options.clone(), reads.clone());
            move || open::open(&dir, &options, &reads)
        })?;
        // Reported now rather than once the model is loaded.
        memory::context(&checkpoint.spec, options)?;
        let most = checkpoint.spec.shape().experts.into_iter().max().unwrap_or(0);
        if options.redundant_experts > most {
            let what = format!(
                "must be below {most}, the number of experts in a layer: a rank never holds two copies of an expert"
            );
            return Err(LoadError::Option { option: "redundant_experts", what });
        }
        Ok(ModelLoader { dir: dir.to_owned(), options: options.clone(), checkpoint: Arc::new(checkpoint), devices })
    }

    /// The name of the directory, for clients.
    pub fn name(&self) -> String {
        let whole = self.dir.canonicalize().unwrap_or_else(|_| self.dir.clone());
        whole.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
    }

    pub fn shape(&self) -> ModelShape {
        self.checkpoint.spec.shape()
    }

    /// What the bits of a sum depend on, apart from the model: the instruction set, or the kind of GPU.
    pub fn arithmetic(&self) -> String {
        self.devices.arithmetic()
    }

    /// A hash of all that the bytes of a KV block depend on, apart from its tokens and its rank.
    fn fingerprint(&self) -> Result<u64, LoadError> {
        let Checkpoint { precisions, config, .. } = &*self.checkpoint;
        let files = self.hashes()?;
        let (version, arithmetic, context) = (protocol::VERSION, self.arithmetic(), self.options.max_context);
        let split = self.options.kv_parallel;
        let of = format!("{version} {arithmetic} {config} {precisions:?} {split} {context:?} {files:?}");
        Ok(content_hash(of.as_bytes()))
    }

    /// Where its GPUs are; None on the CPU.
    pub fn locality(&self) -> Option<Locality> {
        self.devices.locality()
    }

    fn lora_reader(&self, ranks: usize, room: usize) -> Option<LoraReader> {
        let Checkpoint { spec, reads, precisions, .. } = &*self.checkpoint;
        let slots = self.options.loras.slots;
        let (spec, precision, reads) = (spec.clone(), precisions.base, reads.clone());
        (slots > 0).then_some(LoraReader { spec, ranks, precision, room, reads })
    }

    /// The hash of config.json as it was read.
    pub fn config_hash(&self) -> u64 {
        self.checkpoint.config
    }

    /// The name of each weights file and a hash of its contents. Files that are loaded later must match it.
    pub fn hashes(&self) -> Result<Vec<(PathBuf, u64)>, LoadError> {
        let checkpoint = self.checkpoint.clone();
        self.checkpoint.reads.watch(move || checkpoint.weights.hashes())
    }

    /// Checks that the weights files look as they did when they were opened. It may hang without counting as a stalled
    /// read.
    pub fn check_unmodified(&self) -> Result<(), LoadError> {
        self.checkpoint.weights.check_unmodified()
    }

    /// How many ranks of a group of `group_size` fit in this process's free memory; at least `here`, because loading
    /// checks those.
    pub fn most_ranks(&self, here: usize, group_size: usize) -> Result<usize, LoadError> {
        match &self.devices {
            AnyDevices::Cpu(devices) => self.most_ranks_on(devices, here, group_size),
            #[cfg(feature = "cuda")]
            AnyDevices::Cuda(devices) => {
                let fits = self.most_ranks_on(devices, here, group_size)?;
                Ok(devices::most_on_gpus(fits, here, group_size, rein_kernels::cuda::nccl_shares_gpus()))
            }
        }
    }

    fn most_ranks_on<D: Devices>(&self, devices: &D, here: usize, group_size: usize) -> Result<usize, LoadError> {
        let placement = place(&self.shape(), group_size, 1)?;
        let bytes = self.checkpoint.footprint(devices, |footprint| {
            let held = placement.ranks.iter().map(|rank| footprint.held(rank, group_size));
            held.max().unwrap_or(0) + footprint.copies(self.options.redundant_experts)
        });
        Ok((devices.free_memory()? / 2 / bytes.max(1)).clamp(here, group_size.max(here)))
    }

    /// A group whose ranks are all in this process.
    fn ranks_here(&self) -> Result<(Arc<Placement>, Links), LoadError> {
        let placement = place(&self.shape(), self.options.tp, self.options.epoch)?;
        let links = collective::threads::group(self.options.tp).into_iter();
        Ok((Arc::new(placement), links.map(|link| Box::new(link) as Box<dyn Collective>).collect()))
    }

    /// Loads and starts the ranks of these links. A rank whose weights are in `resident_weights` does not read them
    /// again. When their group ends, the ranks send their weights to `return_weights`. Returns when all ranks of the
    /// group, in all processes, have loaded.
    pub fn seat(
        &self,
        placement: &Arc<Placement>,
        links: Links,
        resident_weights: Vec<ResidentWeights>,
        return_weights: Option<Sender<ResidentWeights>>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Seated, LoadError> {
        match &self.devices {
            AnyDevices::Cpu(devices) => {
                self.seat_on(devices, placement, links, resident_weights, return_weights, progress)
            }
            #[cfg(feature = "cuda")]
            AnyDevices::Cuda(devices) => {
                self.seat_on(devices, placement, links, resident_weights, return_weights, progress)
            }
        }
    }

    fn seat_on<D: Devices>(
        &self,
        devices: &D,
        placement: &Arc<Placement>,
        links: Links,
        resident_weights: Vec<ResidentWeights>,
        return_weights: Option<Sender<ResidentWeights>>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Seated, LoadError> {
        let mut resident_weights: Vec<DeviceWeights<D::Backend>> =
            resident_weights.into_iter().filter_map(ResidentWeights::on).collect();
        let return_weights = return_weights.map(|return_weights| -> ReturnWeights<D::Backend> {
            Arc::new(move |resident| {
                // The owner may be gone.
                let _ = return_weights.send(ResidentWeights::new(resident));
            })
        });
        let Checkpoint { spec, weights, reads, .. } = &*self.checkpoint;
        let size = placement.ranks.len();
        open::check_recurrent(spec, size)?;
        open::check_split(spec, size, &self.options)?;
        let lora_room = self.options.loras.room_of(spec, size, self.checkpoint.precisions.base)?;
        let mine: Vec<&RankPlacement> = links.iter().filter_map(|link| placement.ranks.get(link.rank())).collect();
        let mut found: Vec<Option<DeviceWeights<D::Backend>>> =
            mine.iter().map(|rank| DeviceWeights::take(&mut resident_weights, rank, size)).collect();
        // Frees the memory of weights that no rank uses.
        drop(resident_weights);
        let kept = devices::kept_blocks(&found, self.options.block_size, self.options.kv_ranks(spec, size));
        let close = |found: &mut Vec<Option<DeviceWeights<D::Backend>>>| {
            found.iter_mut().flatten().for_each(|found| found.network.close());
        };
        if kept.is_none() {
            close(&mut found);
        }
        let to_load = || mine.iter().zip(&found).filter(|(_, found)| found.is_none()).map(|(rank, _)| *rank);
        let (plan, held) = self.checkpoint.footprint(devices, |footprint| {
            let plan = KvPlan::new(footprint, &mine, to_load(), size, &self.options, kept);
            (plan, WeightMemory::new(footprint, &mine, size))
        });
        let (plan, keeps_caches) = plan?;
        let known: Vec<Option<usize>> = found.iter().map(|found| found.as_ref().map(|found| found.device)).collect();
        let assigned = devices::assign(&known, devices.count());
        let total: u64 = to_load().map(|rank| model::bytes_to_load(spec, weights, rank, size)).sum();
        if !keeps_caches {
            close(&mut found);
        }
        let (report, reports) = bounded(REPORT_QUEUE);
        // Declared before the channels: on an early return the channels are dropped first, and the leader's thread,
        // which waits for steps, ends.
        let mut ranks = Ranks(Vec::new());
        let (tasks_in, tasks) = bounded(2 * STEPS_AHEAD);
        let (results_out, results) = bounded(STEPS_AHEAD);
        let (count, mut leads) = (links.len(), false);
        // Links to other processes have a watch of their own.
        let ended = links.first().filter(|_| count == size && size > 1).map(|link| link.abort_watch());
        let desk = LeaderQueues {
            tasks,
            results: results_out,
            used: Arc::new(AtomicU64::new(placement.layout)),
            counts: Arc::new(OnceLock::new()),
        };
        let mut inboxes = Vec::new();
        let fingerprint = if self.options.host.file.is_some() { self.fingerprint()? } else { 0 };
        let rows = self.options.token_budget.map(|tokens| tokens.max(self.options.max_sequences));
        let kv_of = |device: usize| {
            let there = mine.iter().zip(&assigned).filter(|(_, other)| **other == device).map(|(rank, _)| *rank);
            let there: Vec<&RankPlacement> = there.collect();
            let all = self.checkpoint.footprint(devices, |footprint| KvPlan::bytes_per_token(footprint, &there, size));
            all.div_ceil(self.options.kv_ranks(spec, size))
        };
        let ranks_here = links.into_iter().zip(&mine).zip(&mut found).zip(assigned.iter().copied());
        for (((link, rank), resident), device) in ranks_here {
            leads |= rank.rank == 0;
            let inbox = Arc::new(LayoutInbox::default());
            inboxes.push(RankInbox { rank: rank.rank, device, inbox: inbox.clone() });
            let job = RankJob {
                devices: devices.clone(),
                device,
                here: count,
                checkpoint: self.checkpoint.clone(),
                placement: placement.clone(),
                rank: rank.rank,
                plan: plan.clone(),
                stashes: self.options.max_sequences,
                lora_slots: self.options.loras.slots,
                host: self.options.host.clone(),
                fingerprint,
                prepares: rows.map(|rows| Preparation {
                    rows,
                    kv_of_device: kv_of(device),
                    loras_of_device: lora_room * assigned.iter().filter(|other| **other == device).count(),
                    fixed: self.options.kv_is_fixed(),
                }),
                inbox,
                report: report.clone(),
                leads: (rank.rank == 0).then(|| desk.clone()),
                return_weights: return_weights.clone(),
            };
            let resident = resident.take();
            let thread = std::thread::Builder::new()
                .name(format!("rank-{}", rank.rank))
                .spawn(move || job.run(resident, link))
                .map_err(|e| LoadError::Rank { rank: rank.rank, what: format!("cannot start its thread: {e}") })?;
            ranks.0.push(thread);
        }
        drop(report);
        let LeaderQueues { used, counts, .. } = desk;
        let layouts = Arc::new(Layouts {
            checkpoint: self.checkpoint.clone(),
            ranks: Box::new(Inboxes { devices: devices.clone(), ranks: inboxes }),
            given: Mutex::new(placement.clone()),
            wanted: Arc::new(AtomicU64::new(placement.layout)),
            used,
            counts: leads.then_some(counts),
        });
        let LoadedRoom { blocks, host } =
            await_loaded(reports, count, total, reads, progress).inspect_err(|error| {
                if matches!(error, LoadError::Stalled { .. }) {
                    // A hung rank cannot be joined.
                    ranks.0.clear();
                }
            })?;
        let plan = plan.agreed(blocks, &self.options)?;
        let shape = ExecutorShape {
            model: self.name(),
            vocab_size: spec.vocab,
            max_context: plan.max_context,
            blocks: plan.blocks,
            block_size: plan.block_size,
            kind: D::KIND,
            ranks: size,
            hidden_size: spec.hidden,
            runs_ahead: D::KIND != CpuDevices::KIND,
            step_cost: D::STEP_COST,
            states: plan.states(plan.blocks),
            lora_slots: self.options.loras.slots,
            host,
            kv_ranks: plan.kv_ranks,
        };
        let loras = self.lora_reader(size, lora_room);
        let leader = leads.then_some(Leader { tasks: tasks_in, results });
        let slots = self.options.max_sequences;
        let epoch = placement.epoch;
        Ok(Seated { slots, plan, weights: held, ranks, leader, shape, epoch, layouts, loras, ended })
    }
}

impl Seated {
    /// The executor, if the leader is in this process. Dropping it ends the group.
    pub fn executor(self) -> Option<RankGroup> {
        let Seated { plan, slots, weights, ranks, leader, shape, epoch, layouts, loras, ended } = self;
        let wanted = layouts.wanted.clone();
        leader.map(|leader| RankGroup {
            shape,
            epoch,
            wanted,
            plan,
            weights,
            leader,
            _ranks: ranks,
            tables: BlockTables::default(),
            slots,
            stashed: HashSet::new(),
            lost: None,
            loras,
            ended,
        })
    }

    pub fn layouts(&self) -> &Arc<Layouts> {
        &self.layouts
    }

    /// Whether the leader is in this process.
    pub fn leads(&self) -> bool {
        self.leader.is_some()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for thread in self.0.drain(..) {
            // A rank that panicked has logged it.
            let _ = thread.join();
        }
    }
}

/// The model over its ranks, as the leader executes it.
pub struct RankGroup {
    shape: ExecutorShape,
    epoch: u64,
    /// The expert layout of the next steps.
    wanted: Arc<AtomicU64>,
    plan: KvPlan,
    weights: WeightMemory,
    // As in `Seated`.
    leader: Leader,
    _ranks: Ranks,
    /// The block tables that the ranks hold.
    tables: BlockTables,
    /// Slots whose logits the leader holds.
    stashed: HashSet<u32>,
    /// Slots are below it.
    slots: usize,
    lost: Option<String>,
    loras: Option<LoraReader>,
    ended: Option<AbortWatch>,
}

impl RankGroup {
    /// Loads a checkpoint directory over ranks that are threads of this process. `progress` gets (bytes read, bytes to
    /// read).
    pub fn load(dir: &Path, options: &ModelOptions, progress: &mut dyn FnMut(u64, u64)) -> Result<Self, LoadError> {
        Self::of(&ModelLoader::open(dir, options)?, progress)
    }

    /// The same for a checkpoint that is open.
    pub fn of(model: &ModelLoader, progress: &mut dyn FnMut(u64, u64)) -> Result<Self, LoadError> {
        let (placement, links) = model.ranks_here()?;
        Self::started(model.seat(&placement, links, Vec::new(), None, progress)?)
    }

    /// Loads a checkpoint directory so that every op of the device is repeated on the CPU; `report` gets how far they
    /// are apart. Slow, and with all weights on both.
    pub fn load_in_lockstep(dir: &Path, options: &ModelOptions, report: &LockstepReport) -> Result<Self, LoadError> {
        let model = ModelLoader::open(dir, options)?;
        match &model.devices {
            // The CPU rounds less than its oracle, so it is compared with that rounding.
            AnyDevices::Cpu(cpu) => {
                let devices = RoundingDevices { cpu: cpu.clone() };
                Self::on(&model, &devices::lockstep(&devices, options, report))
            }
            #[cfg(feature = "cuda")]
            AnyDevices::Cuda(devices) => Self::on(&model, &devices::lockstep(devices, options, report)),
        }
    }

    /// Loads a checkpoint directory on the CPU, with the rounding of a GPU.
    pub fn load_rounding(dir: &Path, options: &ModelOptions) -> Result<Self, LoadError> {
        let options = ModelOptions { devices: DeviceChoice::Cpu, ..options.clone() };
        let devices = RoundingDevices { cpu: CpuDevices { threads: devices::threads(&options) } };
        Self::on(&ModelLoader::open(dir, &options)?, &devices)
    }

    /// On these devices, whatever the model's options say.
    fn on<D: Devices>(model: &ModelLoader, devices: &D) -> Result<Self, LoadError> {
        let (placement, links) = model.ranks_here()?;
        Self::started(model.seat_on(devices, &placement, links, Vec::new(), None, &mut |_, _| ())?)
    }

    fn started(seated: Seated) -> Result<Self, LoadError> {
        seated.executor().ok_or_else(|| LoadError::Rank { rank: 0, what: "was not started".into() })
    }

    pub fn plan(&self) -> &KvPlan {
        &self.plan
    }

    pub fn weights(&self) -> &WeightMemory {
        &self.weights
    }

    /// Checks a step before any rank sees it.
    fn check(&self, step: &Step) -> Result<(), String> {
        if step.epoch != self.epoch {
            return Err(format!("step of epoch {}, placement of epoch {}", number(step.epoch), number(self.epoch)));
        }
        for row in &step.rows {
            if row.slot as usize >= self.slots {
                return Err(format!("slot {}: there are {} slots", row.slot, self.slots));
            }
            let dropped = step.dropped.contains(&row.slot);
            check_row(row, if dropped { 0 } else { self.tables.of(row.slot).len() }, self.slots, &self.shape)?;
            if row.tokens.is_empty() && (dropped || !self.stashed.contains(&row.slot)) {
                return Err(format!("slot {}: no stashed logits to draw from", row.slot));
            }
        }
        Ok(())
    }

    fn lose(&mut self, why: String) -> ExecutorError {
        self.lost = Some(why.clone());
        ExecutorError::Lost(why)
    }
}

impl Executor for RankGroup {
    fn shape(&self) -> ExecutorShape {
        self.shape.clone()
    }

    fn placed(&self) -> StepPlacement {
        StepPlacement { epoch: self.epoch, layout: self.wanted.load(Ordering::Acquire) }
    }

    fn lora_source(&self) -> Option<Arc<dyn LoraSource>> {
        self.loras.clone().map(|reader| Arc::new(reader) as Arc<dyn LoraSource>)
    }

    fn end_watch(&self) -> Option<AbortWatch> {
        self.ended.clone()
    }

    fn submit(&mut self, step: Step) -> Result<(), ExecutorError> {
        if let Some(why) = &self.lost {
            return Err(ExecutorError::Lost(why.clone()));
        }
        self.check(&step).and_then(|()| self.tables.apply(&step)).map_err(ExecutorError::Step)?;
        for slot in &step.dropped {
            self.stashed.remove(slot);
        }
        for row in &step.rows {
            match row.after() {
                After::Stash => self.stashed.insert(row.slot),
                After::Draw | After::Embed | After::Nothing => self.stashed.remove(&row.slot),
            };
        }
        self.leader.tasks.send(LeaderTask::Begin(step)).map_err(|_| {
            // A step that nobody has waited for may say why.
            let why = self.leader.results.try_iter().find_map(Result::err);
            self.lose(why.unwrap_or_else(|| LEADER_ENDED.into()))
        })
    }

    fn wait(&mut self) -> Result<StepResult, ExecutorError> {
        // Where the thread has ended, its last result says why.
        let _ = self.leader.tasks.send(LeaderTask::Finish);
        let result = self.leader.results.recv().unwrap_or_else(|_| Err(LEADER_ENDED.into()));
        result.map_err(|why| self.lose(why))
    }
}

/// The context limit of a checkpoint directory and `options`, before its weights are opened.
pub(crate) fn max_context(dir: &Path, options: &ModelOptions) -> Result<usize, LoadError> {
    let text = read_config(dir, &Reads::new(options.read_timeout))?;
    memory::context(&model::build(&parse_config(dir, &text)?)?, options)
}

#[cfg(test)]
mod tests;
