//! A model over its ranks: one thread with one device each. The group broadcasts a step, every rank executes it, the
//! leader (rank 0) answers.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use rein_control_plane::{Placement, RankPlacement, place};
use rein_kernels::cpu::Cpu;
use rein_kernels::{Backend, Precision, Result as KernelResult, collective};
use rein_proto::internal::{After, Step, StepResult};

use crate::checkpoint::{Fields, LoadError, Quantization, StoredDtype, Weights, read_config};
use crate::executor::{Executor, ExecutorError, ExecutorShape};
use crate::limits::MAX_SEQUENCES;
use crate::model::{self, Executing, Network, Precisions, Spec, check_row};

mod memory;

pub use memory::KvPlan;

/// What numbers are computed and kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dtype {
    /// The checkpoint's, where f16 becomes f32 and quantized weights become bf16.
    #[default]
    Auto,
    F32,
    Bf16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Quantize {
    #[default]
    None,
    /// int8 weights with a scale per group of inputs, made at load.
    Int8,
}

#[derive(Debug, Clone)]
pub struct ModelOptions {
    pub dtype: Dtype,
    pub quantize: Quantize,
    /// Tensor parallel ranks.
    pub tp: usize,
    /// Threads of all ranks together. None: one per core.
    pub threads: Option<usize>,
    /// KV blocks. None: as many as `kv_memory` holds.
    pub kv_blocks: Option<usize>,
    /// Bytes for the KV cache of all ranks together. None: a quarter of the memory that the weights leave free.
    pub kv_memory: Option<usize>,
    /// Tokens per KV block.
    pub block_size: usize,
    /// Longest prompt + generated. None: what the model allows, or what the KV cache holds if that is less.
    pub max_context: Option<usize>,
    /// Sequences computed at once, as in `EngineOptions`. The KV cache is no larger than so many full contexts.
    pub max_sequences: usize,
    /// Of the placement; steps of another epoch are refused.
    pub epoch: u64,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            dtype: Dtype::Auto,
            quantize: Quantize::None,
            tp: 1,
            threads: None,
            kv_blocks: None,
            kv_memory: None,
            block_size: 16,
            max_context: None,
            max_sequences: MAX_SEQUENCES,
            epoch: 1,
        }
    }
}

/// The model over its rank threads.
pub struct Group {
    shape: ExecutorShape,
    placement: Placement,
    plan: KvPlan,
    ranks: Vec<Rank>,
    /// Sequences of which the leader holds logits.
    stashed: HashSet<u64>,
    lost: Option<String>,
}

struct Rank {
    /// None once the group is being dropped.
    steps: Option<Sender<Arc<Step>>>,
    results: Receiver<KernelResult<Option<StepResult>>>,
    thread: Option<JoinHandle<()>>,
}

enum Report {
    Read(u64),
    Loaded(Result<(), LoadError>),
}

/// Reports of ranks on their way to the loading thread.
const REPORT_QUEUE: usize = 64;

impl Group {
    /// Loads a checkpoint directory. `progress` is told (bytes read, bytes to read) as it goes.
    pub fn load(dir: &Path, options: &ModelOptions, progress: &mut dyn FnMut(u64, u64)) -> Result<Self, LoadError> {
        if options.block_size == 0 {
            return Err(LoadError::Option { option: "block_size", what: "must be at least 1".into() });
        }
        let checkpoint = open(dir, options)?;
        let Checkpoint { spec, weights, precisions } = &checkpoint;
        let placement = place(&spec.shape(), options.tp, options.epoch)?;
        let plan = KvPlan::new(spec, &placement, *precisions, options)?;
        let total: u64 = placement.ranks.iter().map(|r| model::bytes_to_load(spec, weights, r, options.tp)).sum();

        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (options.threads.unwrap_or(cores) / options.tp).max(1);
        let (report, reports) = bounded(REPORT_QUEUE);
        let checkpoint = Arc::new(checkpoint);
        let mut ranks = Vec::with_capacity(options.tp);
        for (collective, rank) in collective::threads::group(options.tp).into_iter().zip(&placement.ranks) {
            let (steps_in, steps) = bounded(1);
            let (results_out, results) = bounded(1);
            let job = Job {
                checkpoint: checkpoint.clone(),
                rank: rank.clone(),
                plan: plan.clone(),
                report: report.clone(),
                steps,
                results: results_out,
            };
            let thread = std::thread::Builder::new()
                .name(format!("rank-{}", rank.rank))
                .spawn(move || job.run(Cpu::new(threads, Box::new(collective))))
                .map_err(|e| LoadError::Rank { rank: rank.rank, what: format!("cannot start its thread: {e}") })?;
            ranks.push(Rank { steps: Some(steps_in), results, thread: Some(thread) });
        }
        drop(report);
        let shape = ExecutorShape {
            model: name_of(dir),
            vocab_size: checkpoint.spec.vocab,
            max_context: plan.max_context,
            blocks: plan.blocks,
            block_size: plan.block_size,
            kind: "cpu",
            ranks: options.tp,
        };
        // The last rank to have loaded closes the files.
        drop(checkpoint);
        let group = Self { shape, placement, plan, ranks, stashed: HashSet::new(), lost: None };
        await_loaded(reports, options.tp, total, progress)?;
        Ok(group)
    }

    pub fn plan(&self) -> &KvPlan {
        &self.plan
    }

    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Whether a step can be executed, before any rank sees it.
    fn check(&self, step: &Step) -> Result<(), String> {
        if step.epoch != self.placement.epoch {
            return Err(format!("it is of epoch {}, the placement of epoch {}", step.epoch, self.placement.epoch));
        }
        let shape = &self.shape;
        for row in &step.rows {
            check_row(row, shape.vocab_size, shape.max_context, shape.blocks, shape.block_size)?;
            let dropped = || step.dropped.contains(&row.seq);
            if row.tokens.is_empty() && (!self.stashed.contains(&row.seq) || dropped()) {
                return Err(format!("sequence {}: there are no logits to draw from", row.seq));
            }
        }
        Ok(())
    }

    fn broadcast(&mut self, step: &Step) -> Result<StepResult, String> {
        let step = Arc::new(step.clone());
        for (i, rank) in self.ranks.iter().enumerate() {
            let sent = rank.steps.as_ref().is_some_and(|steps| steps.send(step.clone()).is_ok());
            if !sent {
                return Err(format!("rank {i} has ended"));
            }
        }
        // All answers are taken, so that the first cause is not hidden behind the ranks that it aborted.
        let answers: Vec<_> = self.ranks.iter().map(|rank| rank.results.recv()).collect();
        let mut result = None;
        let mut failure: Option<(bool, String)> = None;
        for (i, answer) in answers.into_iter().enumerate() {
            let (aborted, what) = match answer {
                Ok(Ok(found)) => {
                    result = result.or(found);
                    continue;
                }
                Ok(Err(error @ rein_kernels::Error::Aborted(_))) => (true, format!("rank {i}: {error}")),
                Ok(Err(error)) => (false, format!("rank {i}: {error}")),
                Err(_) => (false, format!("rank {i} has ended")),
            };
            if failure.as_ref().is_none_or(|(was_aborted, _)| *was_aborted && !aborted) {
                failure = Some((aborted, what));
            }
        }
        match (failure, result) {
            (Some((_, what)), _) => Err(what),
            (None, Some(result)) => Ok(result),
            (None, None) => Err("the leader gave no result".into()),
        }
    }
}

impl Executor for Group {
    fn shape(&self) -> ExecutorShape {
        self.shape.clone()
    }

    fn epoch(&self) -> u64 {
        self.placement.epoch
    }

    fn execute(&mut self, step: &Step) -> Result<StepResult, ExecutorError> {
        if let Some(why) = &self.lost {
            return Err(ExecutorError::Lost(why.clone()));
        }
        self.check(step).map_err(ExecutorError::Step)?;
        for seq in &step.dropped {
            self.stashed.remove(seq);
        }
        for row in &step.rows {
            match row.after() {
                After::Stash => self.stashed.insert(row.seq),
                After::Draw => row.tokens.is_empty() && self.stashed.remove(&row.seq),
                After::Nothing => false,
            };
        }
        self.broadcast(step).map_err(|why| {
            self.lost = Some(why.clone());
            ExecutorError::Lost(why)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            rank.steps = None;
        }
        for rank in &mut self.ranks {
            if let Some(thread) = rank.thread.take() {
                // A rank that panicked has said so on its own.
                let _ = thread.join();
            }
        }
    }
}

/// Takes the reports' queue with it, so that ranks which go on after a failure do not wait for a reader.
fn await_loaded(
    reports: Receiver<Report>,
    ranks: usize,
    total: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), LoadError> {
    let mut read = 0;
    let mut waiting = ranks;
    while waiting > 0 {
        match reports.recv() {
            Ok(Report::Read(bytes)) => {
                read += bytes;
                progress(read.min(total), total);
            }
            Ok(Report::Loaded(Ok(()))) => waiting -= 1,
            Ok(Report::Loaded(Err(error))) => return Err(error),
            Err(_) => return Err(LoadError::Rank { rank: 0, what: "a rank ended while it was loading".into() }),
        }
    }
    progress(total, total);
    Ok(())
}

/// What a rank thread is started with.
struct Job {
    checkpoint: Arc<Checkpoint>,
    rank: RankPlacement,
    plan: KvPlan,
    report: Sender<Report>,
    steps: Receiver<Arc<Step>>,
    results: Sender<KernelResult<Option<StepResult>>>,
}

impl Job {
    fn run<B: Backend>(self, backend: B) {
        let Self { checkpoint, rank, plan, report, steps, results } = self;
        let progress = |bytes| {
            // Nobody listens any more when another rank has failed.
            let _ = report.send(Report::Read(bytes));
        };
        let loaded = Network::load(
            backend,
            checkpoint.spec.clone(),
            &checkpoint.weights,
            &rank,
            checkpoint.precisions,
            plan.blocks,
            plan.block_size,
            &progress,
        );
        let vocab = checkpoint.spec.vocab;
        drop(checkpoint);
        let (network, outcome) = match loaded {
            Ok(network) => (Some(network), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let _ = report.send(Report::Loaded(outcome));
        drop(report);
        let Some(network) = network else { return };
        let mut executing = Executing::new(network, vocab);
        for step in steps {
            let result = executing.step(&step);
            let failed = result.is_err();
            // Dropping the backend after a failure aborts the collective, so that no other rank waits for this one.
            if results.send(result).is_err() || failed {
                return;
            }
        }
    }
}

struct Checkpoint {
    spec: Arc<Spec>,
    weights: Weights,
    precisions: Precisions,
}

/// Reads config.json, maps the weights and holds one against the other.
fn open(dir: &Path, options: &ModelOptions) -> Result<Checkpoint, LoadError> {
    let config = read_config(dir)?;
    let text = model::text_config(&config);
    let mut spec = model::build(&config)?;
    let mut quantization = Quantization::read(&Fields::new(text, ""))?;
    if quantization == Quantization::None {
        quantization = Quantization::read(&Fields::new(&config, ""))?;
    }
    let weights = Weights::open(dir, quantization)?;

    let (embed, head) = (format!("{}.weight", spec.embed), format!("{}.weight", spec.head.module));
    let mut duplicate = None;
    if spec.tied {
        match (weights.has(&embed), weights.has(&head)) {
            (true, true) if weights.equal(&embed, &head) => duplicate = Some(head),
            // Both are there and differ: then they are two matrices, as transformers 5 has it.
            (true, true) => spec.tied = false,
            (false, true) => spec.embed = spec.head.module.clone(),
            _ => {}
        }
    }
    if spec.tied {
        spec.head.module = spec.embed.clone();
    }
    weights.check(&spec.modules(), &spec.tensors(), |name| {
        name.ends_with("rotary_emb.inv_freq")
            || duplicate.as_deref() == Some(name)
            || spec.ignored.iter().any(|beginning| name.starts_with(beginning))
    })?;

    let stored = stored_precision(&Fields::new(text, ""), &weights, &format!("{}.weight", spec.embed))?;
    let base = match options.dtype {
        Dtype::F32 => Precision::F32,
        Dtype::Bf16 => Precision::Bf16,
        Dtype::Auto if quantization != Quantization::None => Precision::Bf16,
        Dtype::Auto => stored,
    };
    let linear = match options.quantize {
        Quantize::None => base,
        Quantize::Int8 => Precision::Int8,
    };
    Ok(Checkpoint { spec: Arc::new(spec), weights, precisions: Precisions { base, linear } })
}

/// What config.json says under either spelling, or else what the embedding is stored in.
fn stored_precision(config: &Fields, weights: &Weights, embed: &str) -> Result<Precision, LoadError> {
    let stated = match config.str("dtype")? {
        Some(name) => Some(("dtype", name)),
        None => config.str("torch_dtype")?.map(|name| ("torch_dtype", name)),
    };
    match stated.map(|(key, name)| (key, name.trim_start_matches("torch."))) {
        Some((_, "bfloat16")) => Ok(Precision::Bf16),
        Some((_, "float16" | "float32" | "float")) => Ok(Precision::F32),
        Some((_, "auto")) | None => Ok(match weights.dtype(embed) {
            Some(StoredDtype::Bf16) => Precision::Bf16,
            _ => Precision::F32,
        }),
        Some((key, other)) => Err(config.error(key, format!("{other:?} is not bfloat16, float16 or float32"))),
    }
}

/// The longest sequence that a checkpoint directory and `options` allow, before its weights are looked at.
pub(crate) fn max_context(dir: &Path, options: &ModelOptions) -> Result<usize, LoadError> {
    memory::context(&model::build(&read_config(dir)?)?, options)
}

/// The directory's own name, for clients.
fn name_of(dir: &Path) -> String {
    let whole = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    whole.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests;
