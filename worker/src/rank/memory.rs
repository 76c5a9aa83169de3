//! Sizes the KV cache from free memory, and reports the memory of the weights. It does not know sequences.

use std::fmt;
use std::mem;

use rein_control_plane::limits::EXPERT_MOVES;
use rein_control_plane::{RankPlacement, place};
use rein_kernels::{DeviceStorage, Devices, Precision, kv_split};

use super::{DeviceChoice, ModelOptions};
use crate::bytes::ByteCount;
use crate::cells::StateShape;
use crate::checkpoint::LoadError;
use crate::limits::{MAX_SEQUENCES, RECENT_STATES};
use crate::model::{Footprint, Precisions, Spec, StateSize, StateSpec};

/// Caches that are larger by more than 1 / this replace those that were kept.
const MUCH_LARGER: usize = 8;

/// The weights of the ranks in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightMemory {
    pub bytes: usize,
    pub precisions: Precisions,
}

impl WeightMemory {
    pub(super) fn new<D: DeviceStorage>(footprint: &Footprint<D>, mine: &[&RankPlacement], ranks: usize) -> Self {
        let bytes = mine.iter().map(|rank| footprint.held(rank, ranks)).sum();
        WeightMemory { bytes, precisions: footprint.precisions }
    }
}

impl fmt::Display for WeightMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |precision| match precision {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::Int8 => "int8",
        };
        let Precisions { base, linear, fp8_cache } = self.precisions;
        match (base == linear, fp8_cache) {
            (true, false) => write!(f, "{}, ", name(base))?,
            (true, true) => write!(f, "{} (KV cache fp8), ", name(base))?,
            (false, false) => write!(f, "{} (embedding and KV cache {}), ", name(linear), name(base))?,
            (false, true) => write!(f, "{} (embedding {}, KV cache fp8), ", name(linear), name(base))?,
        }
        write!(f, "{}", ByteCount(self.bytes as u64))
    }
}

/// The KV cache of the ranks in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvPlan {
    pub blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Bytes for all ranks of this process together.
    pub bytes_per_token: usize,
    /// Limit of prompt and generated tokens together.
    pub max_context: usize,
    /// The limit with a larger KV cache.
    pub full_context: usize,
    /// None: the model has no recurrent layers.
    pub states: Option<StatePlan>,
    /// Ranks that share the positions: each has its part of the blocks.
    pub kv_ranks: usize,
}

/// The recurrent states of the ranks in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatePlan {
    /// Bytes of one sequence's state, on all ranks of this process together.
    pub bytes: usize,
    /// Tokens between two checkpoints, so that they take about as much memory as the KV cache of those tokens.
    pub every: usize,
    /// Sequences computed at once.
    pub sequences: usize,
}

/// Tokens between two checkpoints of a model without a KV cache.
const CHECKPOINT_EVERY: usize = 1024;

impl StatePlan {
    fn new<D: DeviceStorage>(
        footprint: &Footprint<D>,
        mine: &[&RankPlacement],
        ranks: usize,
        options: &ModelOptions,
    ) -> Option<Self> {
        let of = |rank: &RankPlacement, ranks| {
            let states = footprint.spec.layers.iter().map(|layer| layer.mixer.parts().state(rank, ranks));
            let numbers = states.filter_map(|state| match state {
                StateSpec::Recurrent { numbers } => Some(numbers),
                StateSpec::Paged { .. } => None,
            });
            numbers.sum::<usize>() * mem::size_of::<f32>()
        };
        // Of the whole model, so that all ranks have the same.
        let whole = place(&footprint.spec.shape(), 1, options.epoch).ok()?.ranks.pop()?;
        let every = match KvPlan::bytes_per_token(footprint, &[&whole], 1) {
            0 => CHECKPOINT_EVERY,
            kv => of(&whole, 1).div_ceil(kv),
        };
        let bytes = mine.iter().map(|rank| of(rank, ranks)).sum();
        let every = every.next_multiple_of(options.block_size);
        // Without a limit only a capacity is asked for.
        let sequences = if options.max_sequences == usize::MAX { MAX_SEQUENCES } else { options.max_sequences.max(1) };
        (bytes > 0).then_some(Self { bytes, every, sequences })
    }

    /// Bytes whatever the size of the KV cache: recent states and a checkpoint of each sequence that runs.
    fn fixed(&self) -> usize {
        self.sequences.saturating_mul((RECENT_STATES + 1) * self.bytes)
    }

    fn shape(&self, tokens: usize) -> StateShape {
        StateShape { checkpoints: tokens / self.every + self.sequences, every: self.every }
    }
}

impl fmt::Display for KvPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "KV cache: {} blocks of {} tokens ({} tokens, {}, {} bytes per token), ",
            self.blocks,
            self.block_size,
            self.tokens(),
            ByteCount((self.tokens() * self.bytes_per_token) as u64),
            self.bytes_per_token
        )?;
        if let Some(states) = &self.states {
            let count = states.shape(self.tokens()).cells(states.sequences);
            write!(f, "{count} recurrent states of {}, ", ByteCount(states.bytes as u64))?;
        }
        write!(f, "context ")?;
        match self.max_context == self.full_context {
            true => write!(f, "{} tokens", self.max_context),
            false => {
                write!(f, "{} of {} tokens, limited by the size of the KV cache", self.max_context, self.full_context)
            }
        }
    }
}

impl KvPlan {
    /// The number of blocks is a multiple of it.
    fn blocks_at_once(&self) -> usize {
        match self.kv_ranks {
            1 => 1,
            ranks => ranks * (kv_split::TILE / self.block_size).max(1),
        }
    }

    pub fn tokens(&self) -> usize {
        self.blocks * self.block_size
    }

    pub fn bytes(&self) -> usize {
        let cells =
            self.states(self.blocks).zip(self.states).map(|(shape, plan)| shape.cells(plan.sequences) * plan.bytes);
        self.tokens() * self.bytes_per_token + cells.unwrap_or(0)
    }

    /// With this many blocks.
    pub fn states(&self, blocks: usize) -> Option<StateShape> {
        self.states.map(|states| states.shape(blocks * self.block_size))
    }

    pub fn state_size(&self, blocks: usize) -> StateSize {
        let cells = self.states(blocks).zip(self.states).map_or(0, |(shape, plan)| shape.cells(plan.sequences));
        let Self { block_size, kv_ranks, .. } = *self;
        StateSize { blocks: blocks / kv_ranks, block_size, cells, kv_ranks }
    }

    /// For these ranks of a group of `ranks`; the weights of those in `to_load` are not in memory yet. The ranks have
    /// kept caches of `kept` blocks, which stay if no much larger ones fit. Also whether they stay.
    pub(super) fn new<'a, D: Devices>(
        footprint: &Footprint<D>,
        mine: &[&RankPlacement],
        to_load: impl Iterator<Item = &'a RankPlacement>,
        ranks: usize,
        options: &ModelOptions,
        kept: Option<usize>,
    ) -> Result<(Self, bool), LoadError> {
        let kv_ranks = options.kv_ranks(footprint.spec, ranks);
        let held = kept.map_or(0, |blocks| {
            Self {
                blocks,
                block_size: options.block_size,
                bytes_per_token: Self::bytes_per_token(footprint, mine, ranks).div_ceil(kv_ranks),
                max_context: 0,
                full_context: 0,
                kv_ranks,
                states: StatePlan::new(footprint, mine, ranks, options),
            }
            .bytes()
        });
        let free = footprint.devices.free_memory()? + held;
        let plan = Self::within(footprint, mine, to_load, ranks, options, free)?;
        Ok(match kept.and_then(|blocks| plan.keeping(blocks, options)) {
            Some(kept) => (kept, true),
            None => (plan, false),
        })
    }

    /// With caches of `blocks` blocks, which exist. None: they are too small.
    fn keeping(&self, blocks: usize, options: &ModelOptions) -> Option<Self> {
        if self.blocks > blocks + blocks / MUCH_LARGER {
            return None;
        }
        self.clone().agreed(blocks, options).ok()
    }

    fn within<'a, D: DeviceStorage>(
        footprint: &Footprint<D>,
        mine: &[&RankPlacement],
        to_load: impl Iterator<Item = &'a RankPlacement>,
        ranks: usize,
        options: &ModelOptions,
        free: usize,
    ) -> Result<Self, LoadError> {
        let copies = footprint.copies(options.redundant_experts);
        let weights: usize = to_load.map(|rank| footprint.held(rank, ranks) + copies).sum();
        let moves: usize = mine.iter().map(|rank| bytes_of_moves(footprint, rank, options.redundant_experts)).sum();
        let loras = options.loras.room_of(footprint.spec, ranks, footprint.precisions.base)? * mine.len();
        Self::with_free(footprint, mine, ranks, weights + moves + loras, options, free)
    }

    /// Uses the number of blocks that all ranks have room for, which may be lower.
    pub(super) fn agreed(mut self, blocks: usize, options: &ModelOptions) -> Result<Self, LoadError> {
        // Each rank has whole tiles.
        self.blocks = blocks / self.blocks_at_once() * self.blocks_at_once();
        self.limited(options)
    }

    pub(super) fn with_free<D: DeviceStorage>(
        footprint: &Footprint<D>,
        mine: &[&RankPlacement],
        ranks: usize,
        weights: usize,
        options: &ModelOptions,
        free: usize,
    ) -> Result<Self, LoadError> {
        let (block_size, spec) = (options.block_size, footprint.spec);
        let kv_ranks = options.kv_ranks(spec, ranks);
        let bytes_per_token = Self::bytes_per_token(footprint, mine, ranks).div_ceil(kv_ranks);
        let states = StatePlan::new(footprint, mine, ranks, options);
        let context = context(spec, options)?;
        let on_gpus = matches!(options.devices, DeviceChoice::Cuda(_));
        if on_gpus && weights >= free {
            return Err(LoadError::Device(weights_do_not_fit(footprint, weights, free, options)));
        }
        let blocks = match (options.kv_blocks, options.kv_memory) {
            (Some(blocks), _) => blocks,
            (None, None) if weights >= free => {
                let (weights, free) = (weights >> 20, free >> 20);
                let what = format!("the weights take {weights} MiB of {free} MiB free memory; give an explicit size");
                return Err(LoadError::Option { option: "kv_memory", what });
            }
            (None, memory) => {
                let budget = memory.unwrap_or_else(|| {
                    (free.saturating_sub(weights) as f64 * options.devices.defaults().kv_share) as usize
                });
                let most = context.div_ceil(block_size).saturating_mul(options.max_sequences.max(1));
                let fixed = states.map_or(0, |states| states.fixed());
                if fixed >= budget {
                    let (of, free) = (bytes(fixed), bytes(budget));
                    let what = format!(
                        "the recurrent states of {} sequences take {of} of {free} for the KV cache: lower it",
                        options.max_sequences
                    );
                    return Err(LoadError::Option { option: "max_sequences", what });
                }
                let per_block = states.map_or(0, |states| (block_size * states.bytes).div_ceil(states.every));
                ((budget - fixed) / (block_size * bytes_per_token + per_block).max(1)).min(most)
            }
        };
        let (max_context, full_context) = (context, context);
        let plan = Self { blocks, block_size, bytes_per_token, max_context, full_context, states, kv_ranks };
        let plan = Self { blocks: blocks / plan.blocks_at_once() * plan.blocks_at_once(), ..plan };
        let cache = plan.bytes();
        let rest = free.saturating_sub(weights);
        if on_gpus && cache > rest {
            let [cache, rest] = [cache, rest].map(bytes);
            let what = format!(
                "a KV cache of {cache} exceeds the device memory that the weights leave free, {rest}: make it smaller, \
                 or lower --max-context and --max-sequences"
            );
            return Err(LoadError::Option { option: "kv_memory", what });
        }
        // On a CPU, an explicit size may count on memory that others will free.
        if cache > rest {
            let [cache, weights, free] = [cache, weights, free].map(bytes);
            tracing::warn!(%cache, %weights, %free, "the KV cache may not fit into memory beside the weights");
        }
        plan.limited(options)
    }

    /// Bytes of a token on these ranks together.
    pub(super) fn bytes_per_token<D: DeviceStorage>(
        footprint: &Footprint<D>,
        mine: &[&RankPlacement],
        ranks: usize,
    ) -> usize {
        let states = mine
            .iter()
            .flat_map(|rank| footprint.spec.layers.iter().map(move |layer| layer.mixer.parts().state(rank, ranks)));
        let bytes = states.map(|state| match state {
            StateSpec::Paged { widths, sharing } => footprint.precisions.cache(sharing).position_bytes(widths),
            StateSpec::Recurrent { .. } => 0,
        });
        bytes.sum()
    }

    /// Limits the context to what the blocks hold.
    fn limited(self, options: &ModelOptions) -> Result<Self, LoadError> {
        let Self { blocks, block_size, bytes_per_token, full_context, .. } = self;
        let fits = blocks * block_size;
        match options.max_context {
            _ if blocks == 0 => {
                let what = format!("too small for one block of {block_size} tokens at {bytes_per_token} bytes each");
                Err(LoadError::Option { option: "kv_memory", what })
            }
            Some(asked) if asked > fits && !options.cuts_context => {
                let what =
                    format!("{asked} tokens exceed the KV cache, which holds {fits}; increase its memory or blocks");
                Err(LoadError::Option { option: "max_context", what })
            }
            _ => Ok(Self { max_context: full_context.min(fits), ..self }),
        }
    }
}

/// Names the bytes needed and free, and what would fit.
fn weights_do_not_fit<D: DeviceStorage>(
    footprint: &Footprint<D>,
    weights: usize,
    free: usize,
    options: &ModelOptions,
) -> String {
    let shape = footprint.spec.shape();
    let of_rank = |ranks: usize| {
        let placement = place(&shape, ranks, options.epoch).ok()?;
        placement.ranks.iter().map(|rank| footprint.held(rank, ranks)).max()
    };
    // A rank also needs a KV cache: a tenth of the memory at least.
    let fits = |bytes: usize| bytes < free / 10 * 9;
    let ranks = [2, 4, 8, 16, 32, 64].into_iter().find(|&ranks| of_rank(ranks).is_some_and(fits));
    let mut would: Vec<String> = Vec::new();
    if let Some((name, part)) = [("FP8", 2), ("int4", 4)].into_iter().find(|(_, part)| fits(weights / part)) {
        would.push(format!(
            "if they are stored as bf16, a checkpoint quantized to {name} (about {})",
            bytes(weights / part)
        ));
    }
    if let Some(ranks) = ranks {
        would.push(format!("{ranks} ranks on {ranks} such devices"));
    }
    let would = if would.is_empty() { "nothing on such devices".to_owned() } else { would.join("; or ") };
    format!(
        "the weights need {}, but {} of device memory are free for them and the KV cache (other processes on the \
         device count too); what would fit: {would}",
        bytes(weights),
        bytes(free)
    )
}

fn bytes(bytes: usize) -> ByteCount {
    ByteCount(bytes as u64)
}

/// Bytes of the experts of a new layout that a rank holds beside those of the current one: as many as the controller
/// moves at once, or those of one layer if that is more. None for the only rank of a group, which holds all experts.
pub(super) fn bytes_of_moves<D: DeviceStorage>(
    footprint: &Footprint<D>,
    rank: &RankPlacement,
    redundant: usize,
) -> usize {
    let all = footprint.spec.shape().experts;
    let lacks = || all.iter().zip(&rank.experts).map(|(all, held)| (all.saturating_sub(held.len()), held.len()));
    let of_layer = lacks().map(|(lacks, held)| lacks.min(held + redundant)).max().unwrap_or(0);
    let moves = lacks().map(|(lacks, _)| lacks).sum::<usize>().min(EXPERT_MOVES.max(of_layer));
    let layers = all.iter().filter(|&&experts| experts > 0).count();
    moves * footprint.copies(1) / layers.max(1)
}

/// The context limit that config.json and `options` allow.
pub(super) fn context(spec: &Spec, options: &ModelOptions) -> Result<usize, LoadError> {
    let allowed = spec.max_positions;
    match options.max_context.unwrap_or(allowed) {
        context if context == 0 || context > allowed => {
            let what = format!("must be from 1 to {allowed} (max_position_embeddings), got {context}");
            Err(LoadError::Option { option: "max_context", what })
        }
        context => Ok(context),
    }
}

#[cfg(test)]
mod tests;
