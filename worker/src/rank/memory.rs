//! How much KV cache there is.

use std::fmt;

use rein_control_plane::RankPlacement;
use rein_control_plane::limits::EXPERT_MOVES;
use rein_kernels::Precision;

use super::ModelOptions;
use crate::checkpoint::LoadError;
use crate::model::{Precisions, Spec, bytes_of_copies, bytes_to_hold};

/// Of the memory that the weights leave free, unless configured: 1 / this.
const DEFAULT_SHARE: usize = 4;
/// Assumed free where the system does not say.
const UNKNOWN_FREE: usize = 2 << 30;

/// The KV cache of the ranks in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvPlan {
    pub blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Of this process's ranks together.
    pub bytes_per_token: usize,
    /// Longest prompt + generated.
    pub max_context: usize,
    /// What it would be with a larger KV cache.
    pub full_context: usize,
}

impl fmt::Display for KvPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.blocks * self.block_size;
        let mib = (tokens * self.bytes_per_token) as f64 / f64::from(1 << 20);
        write!(
            f,
            "KV cache: {} blocks of {} tokens ({tokens} tokens, {mib:.1} MiB, {} bytes per token), context ",
            self.blocks, self.block_size, self.bytes_per_token
        )?;
        match self.max_context == self.full_context {
            true => write!(f, "{} tokens", self.max_context),
            false => {
                write!(f, "{} of {} tokens: the KV cache holds no more", self.max_context, self.full_context)
            }
        }
    }
}

impl KvPlan {
    /// Of these ranks of a group of `ranks`; the weights of those in `to_load` are still to take their memory.
    pub(super) fn new<'a>(
        spec: &Spec,
        mine: &[&RankPlacement],
        to_load: impl Iterator<Item = &'a RankPlacement>,
        ranks: usize,
        precisions: Precisions,
        options: &ModelOptions,
    ) -> Result<Self, LoadError> {
        Self::within(spec, mine, to_load, ranks, precisions, options, free_memory())
    }

    fn within<'a>(
        spec: &Spec,
        mine: &[&RankPlacement],
        to_load: impl Iterator<Item = &'a RankPlacement>,
        ranks: usize,
        precisions: Precisions,
        options: &ModelOptions,
        free: usize,
    ) -> Result<Self, LoadError> {
        let copies = bytes_of_copies(spec, precisions, options.redundant_experts);
        let weights: usize = to_load.map(|rank| bytes_to_hold(spec, precisions, rank, ranks) + copies).sum();
        let moves: usize =
            mine.iter().map(|rank| bytes_of_moves(spec, precisions, rank, options.redundant_experts)).sum();
        Self::with_free(spec, mine, weights + moves, precisions, options, free)
    }

    /// With the blocks that all ranks have room for, which may be fewer.
    pub(super) fn agreed(mut self, blocks: usize, options: &ModelOptions) -> Result<Self, LoadError> {
        self.blocks = blocks;
        self.limited(options)
    }

    fn with_free(
        spec: &Spec,
        mine: &[&RankPlacement],
        weights: usize,
        precisions: Precisions,
        options: &ModelOptions,
        free: usize,
    ) -> Result<Self, LoadError> {
        let block_size = options.block_size;
        let size = if precisions.base == Precision::F32 { 4 } else { 2 };
        let of_rank = |kv_heads: usize| -> usize {
            let width = |layer: &crate::model::Layer| {
                let (k, v) = layer.attention.cache_widths(kv_heads);
                k + v
            };
            spec.layers.iter().map(width).sum()
        };
        let bytes_per_token = size * mine.iter().map(|rank| of_rank(rank.kv_heads.len())).sum::<usize>();

        let context = context(spec, options)?;
        let blocks = match (options.kv_blocks, options.kv_memory) {
            (Some(blocks), _) => blocks,
            (None, None) if weights >= free => {
                let (weights, free) = (weights >> 20, free >> 20);
                let what = format!("the weights take {weights} MiB, of {free} that are free; state the size to use");
                return Err(LoadError::Option { option: "kv_memory", what });
            }
            (None, memory) => {
                let budget = memory.unwrap_or(free.saturating_sub(weights) / DEFAULT_SHARE);
                let most = context.div_ceil(block_size).saturating_mul(options.max_sequences.max(1));
                (budget / (block_size * bytes_per_token).max(1)).min(most)
            }
        };
        Self { blocks, block_size, bytes_per_token, max_context: context, full_context: context }.limited(options)
    }

    /// With the context that the blocks hold.
    fn limited(self, options: &ModelOptions) -> Result<Self, LoadError> {
        let Self { blocks, block_size, bytes_per_token, full_context, .. } = self;
        let fits = blocks * block_size;
        match options.max_context {
            _ if blocks == 0 => {
                let what = format!("does not hold one block of {block_size} tokens at {bytes_per_token} bytes each");
                Err(LoadError::Option { option: "kv_memory", what })
            }
            Some(asked) if asked > fits => {
                let what = format!("{asked} tokens do not fit the KV cache of {fits}; give it more memory or blocks");
                Err(LoadError::Option { option: "max_context", what })
            }
            _ => Ok(Self { max_context: full_context.min(fits), ..self }),
        }
    }
}

/// Bytes of the experts of a layout to come that a rank holds beside those of the present one: as many as the controller moves
/// at once, or those of one layer if these are more. None where it holds all, as the only rank of a group does.
fn bytes_of_moves(spec: &Spec, precisions: Precisions, rank: &RankPlacement, redundant: usize) -> usize {
    let all = spec.shape().experts;
    let lacks = || all.iter().zip(&rank.experts).map(|(all, held)| (all.saturating_sub(held.len()), held.len()));
    let of_layer = lacks().map(|(lacks, held)| lacks.min(held + redundant)).max().unwrap_or(0);
    let moves = lacks().map(|(lacks, _)| lacks).sum::<usize>().min(EXPERT_MOVES.max(of_layer));
    let layers = all.iter().filter(|&&experts| experts > 0).count();
    moves * bytes_of_copies(spec, precisions, 1) / layers.max(1)
}

/// Longest prompt + generated that config.json and `options` allow.
pub(super) fn context(spec: &Spec, options: &ModelOptions) -> Result<usize, LoadError> {
    let allowed = spec.max_positions;
    match options.max_context.unwrap_or(allowed) {
        context if context == 0 || context > allowed => {
            let what = format!("must be from 1 to max_position_embeddings, {allowed}, not {context}");
            Err(LoadError::Option { option: "max_context", what })
        }
        context => Ok(context),
    }
}

/// MemAvailable of Linux, in bytes.
pub fn free_memory() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<usize>().ok());
    kib.map_or(UNKNOWN_FREE, |kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use rein_control_plane::place;
    use serde_json::json;

    use super::*;
    use crate::limits::MAX_SEQUENCES;

    const PRECISIONS: Precisions = Precisions { base: Precision::Bf16, linear: Precision::Bf16 };

    /// `free` is what the weights leave.
    fn plan(options: &ModelOptions, free: usize) -> Result<KvPlan, LoadError> {
        let config = json!({"architectures": ["LlamaForCausalLM"], "vocab_size": 8, "hidden_size": 16,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 8,
            "max_position_embeddings": 100});
        let spec = crate::model::build(config.as_object().expect("object")).expect("spec");
        let placement = place(&spec.shape(), options.tp, 1).expect("placement");
        let weights: usize =
            placement.ranks.iter().map(|rank| bytes_to_hold(&spec, PRECISIONS, rank, options.tp)).sum();
        // Embedding and head; q and o, k and v, the MLP, of each layer.
        if options.tp == 1 {
            assert_eq!(weights, 2 * (2 * 8 * 16 + 2 * (2 * 16 * 16 + 2 * 8 * 16 + 3 * 8 * 16)));
        }
        let mine: Vec<&RankPlacement> = placement.ranks.iter().collect();
        KvPlan::with_free(&spec, &mine, weights, PRECISIONS, options, weights + free)
    }

    #[test]
    fn memory_is_a_share_of_what_is_free_and_no_more_than_can_be_used() {
        // 2 layers * (k + v) * 2 heads * 4 wide * 2 bytes.
        let all = plan(&ModelOptions::default(), 1 << 30).expect("plan");
        assert_eq!((all.bytes_per_token, all.blocks, all.max_context), (64, 7 * MAX_SEQUENCES, 100));
        let few = plan(&ModelOptions::default(), 4 * 64 * 16 * 3).expect("plan");
        assert_eq!((few.blocks, few.max_context), (3, 48));
        assert!(few.to_string().contains("context 48 of 100 tokens"), "{few}");
        let narrow = plan(&ModelOptions { max_sequences: 2, ..Default::default() }, 1 << 30).expect("plan");
        assert_eq!(narrow.blocks, 7 * 2);
        // Four ranks, two heads: each head is held twice.
        let wide = plan(&ModelOptions { tp: 4, ..Default::default() }, 1 << 30).expect("plan");
        assert_eq!(wide.bytes_per_token, 128);
        assert!(all.to_string().contains("448 blocks of 16 tokens"), "{all}");
        assert!(all.to_string().ends_with("context 100 tokens"), "{all}");
    }

    #[test]
    fn a_layout_to_come_has_room_beside_the_present_one() {
        let spec = |experts: usize| {
            let config = json!({"architectures": ["MixtralForCausalLM"], "vocab_size": 8, "hidden_size": 16,
                "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 8,
                "num_local_experts": experts, "num_experts_per_tok": 2, "max_position_embeddings": 100});
            crate::model::build(config.as_object().expect("object")).expect("spec")
        };
        let expert = 2 * 3 * 16 * 8;
        let of = |experts: usize, ranks, redundant| {
            let spec = spec(experts);
            let placement = place(&spec.shape(), ranks, 1).expect("placement");
            bytes_of_moves(&spec, PRECISIONS, &placement.ranks[0], redundant) / expert
        };
        assert_eq!(of(8, 1, 2), 0, "it holds all");
        assert_eq!(of(8, 2, 2), 2 * 4, "all that it lacks");
        assert_eq!(of(256, 4, 2), 66, "those of one layer");
        assert_eq!(of(128, 4, 2), EXPERT_MOVES);
        // What that leaves is what the KV cache is a share of.
        let (spec, options) = (spec(128), ModelOptions { tp: 4, max_sequences: 1 << 40, ..Default::default() });
        let placement = place(&spec.shape(), 4, 1).expect("placement");
        let mine: Vec<&RankPlacement> = placement.ranks[..2].iter().collect();
        let blocks = |to_load: &[&RankPlacement], free: usize| {
            let to_load = to_load.iter().copied();
            let plan = KvPlan::within(&spec, &mine, to_load, 4, PRECISIONS, &options, free).expect("plan");
            plan.blocks * plan.block_size * plan.bytes_per_token * DEFAULT_SHARE
        };
        let (room, free) = (2 * EXPERT_MOVES * expert, 1 << 30);
        let (loaded, all) = (blocks(&[], free), blocks(&mine, free));
        let weights: usize = mine.iter().map(|rank| bytes_to_hold(&spec, PRECISIONS, rank, 4)).sum();
        let block = 64 * 16 * DEFAULT_SHARE;
        assert!((free - room).abs_diff(loaded) <= block, "{loaded}");
        assert!((free - room - weights).abs_diff(all) <= block, "{all}");
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let of = |options: ModelOptions, free| plan(&options, free).expect_err("refused").to_string();
        assert!(of(ModelOptions { max_context: Some(101), ..Default::default() }, 1 << 30).contains("100"));
        assert!(
            of(ModelOptions { max_context: Some(64), ..Default::default() }, 4 * 64 * 16 * 3).contains("64 tokens")
        );
        assert!(of(ModelOptions::default(), 0).contains("kv_memory"));
        assert!(of(ModelOptions::default(), 64).contains("one block"));
    }
}
