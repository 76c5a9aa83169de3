//! How much KV cache there is.

use std::fmt;

use rein_control_plane::Placement;
use rein_kernels::Precision;

use super::ModelOptions;
use crate::checkpoint::LoadError;
use crate::limits::MAX_SEQUENCES;
use crate::model::Spec;

/// Of the free memory, unless configured: 1 / this.
const DEFAULT_SHARE: usize = 4;
/// Assumed free where the system does not say.
const UNKNOWN_FREE: usize = 2 << 30;

/// The KV cache of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvPlan {
    pub blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Of all ranks together.
    pub bytes_per_token: usize,
    /// Longest prompt + generated.
    pub max_context: usize,
}

impl fmt::Display for KvPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.blocks * self.block_size;
        let mib = (tokens * self.bytes_per_token) as f64 / f64::from(1 << 20);
        write!(
            f,
            "KV cache: {} blocks of {} tokens ({tokens} tokens, {mib:.1} MiB, {} bytes per token), context {}",
            self.blocks, self.block_size, self.bytes_per_token, self.max_context
        )
    }
}

impl KvPlan {
    pub(super) fn new(
        spec: &Spec,
        placement: &Placement,
        precision: Precision,
        options: &ModelOptions,
    ) -> Result<Self, LoadError> {
        Self::with_free(spec, placement, precision, options, free_memory())
    }

    fn with_free(
        spec: &Spec,
        placement: &Placement,
        precision: Precision,
        options: &ModelOptions,
        free: usize,
    ) -> Result<Self, LoadError> {
        let block_size = options.block_size;
        let size = if precision == Precision::F32 { 4 } else { 2 };
        let of_rank = |kv_heads: usize| -> usize {
            let width = |layer: &crate::model::Layer| {
                let (k, v) = layer.attention.cache_widths(kv_heads);
                k + v
            };
            spec.layers.iter().map(width).sum()
        };
        let bytes_per_token = size * placement.ranks.iter().map(|rank| of_rank(rank.kv_heads.len())).sum::<usize>();

        let allowed = spec.max_positions;
        let context = options.max_context.unwrap_or(allowed);
        if context == 0 || context > allowed {
            let what = format!("must be from 1 to max_position_embeddings, {allowed}, not {context}");
            return Err(LoadError::Option { option: "max_context", what });
        }
        let blocks = match options.kv_blocks {
            Some(blocks) => blocks,
            None => {
                let budget = options.kv_memory.unwrap_or(free / DEFAULT_SHARE);
                let most = context.div_ceil(block_size) * MAX_SEQUENCES;
                (budget / (block_size * bytes_per_token).max(1)).min(most)
            }
        };
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
            _ => Ok(Self { blocks, block_size, bytes_per_token, max_context: context.min(fits) }),
        }
    }
}

/// MemAvailable of Linux, in bytes.
fn free_memory() -> usize {
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

    fn plan(options: &ModelOptions, free: usize) -> Result<KvPlan, LoadError> {
        let config = json!({"architectures": ["LlamaForCausalLM"], "vocab_size": 8, "hidden_size": 16,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 8,
            "max_position_embeddings": 100});
        let spec = crate::model::build(config.as_object().expect("object")).expect("spec");
        let placement = place(&spec.shape(), options.tp, 1).expect("placement");
        KvPlan::with_free(&spec, &placement, Precision::Bf16, options, free)
    }

    #[test]
    fn memory_is_a_share_of_what_is_free_and_no_more_than_can_be_used() {
        // 2 layers * (k + v) * 2 heads * 4 wide * 2 bytes.
        let all = plan(&ModelOptions::default(), 1 << 30).expect("plan");
        assert_eq!((all.bytes_per_token, all.blocks, all.max_context), (64, 7 * MAX_SEQUENCES, 100));
        let few = plan(&ModelOptions::default(), 4 * 64 * 16 * 3).expect("plan");
        assert_eq!((few.blocks, few.max_context), (3, 48));
        // Four ranks, two heads: each head is held twice.
        let wide = plan(&ModelOptions { tp: 4, ..Default::default() }, 1 << 30).expect("plan");
        assert_eq!(wide.bytes_per_token, 128);
        assert!(all.to_string().contains("448 blocks of 16 tokens"), "{all}");
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let of = |options: ModelOptions, free| plan(&options, free).expect_err("refused").to_string();
        assert!(of(ModelOptions { max_context: Some(101), ..Default::default() }, 1 << 30).contains("100"));
        assert!(
            of(ModelOptions { max_context: Some(64), ..Default::default() }, 4 * 64 * 16 * 3).contains("64 tokens")
        );
        assert!(of(ModelOptions::default(), 0).contains("kv_memory"));
    }
}
