//! How a model is loaded, and onto which devices.

use std::time::Duration;

use super::choice::DeviceChoice;
use super::loras::LoraLimits;
use crate::limits::{MAX_SEQUENCES, READ_TIMEOUT};
use crate::model::{HostLimits, Spec};

/// The type for computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dtype {
    /// The checkpoint's type; f16 becomes f32 and quantized weights become bf16.
    #[default]
    Auto,
    F32,
    Bf16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Quantize {
    #[default]
    None,
    /// int8 weights with a scale per group of inputs, quantized at load.
    Int8,
}

/// The type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvDtype {
    /// That of embedding and activations.
    #[default]
    Auto,
    /// e4m3 with a scale for each position and 128 numbers or fewer.
    Fp8,
}

#[derive(Debug, Clone)]
pub struct ModelOptions {
    pub dtype: Dtype,
    pub kv_dtype: KvDtype,
    pub quantize: Quantize,
    pub devices: DeviceChoice,
    /// Tensor parallel ranks.
    pub tp: usize,
    /// Threads of all ranks of this process together. None: one per core.
    pub threads: Option<usize>,
    /// KV blocks. None: as many as fit in `kv_memory`.
    pub kv_blocks: Option<usize>,
    /// Bytes for the KV cache of all ranks of this process together. None: `DeviceDefaults::kv_share` of the memory
    /// that the weights leave free.
    pub kv_memory: Option<usize>,
    /// Tokens per KV block.
    pub block_size: usize,
    /// Limit of prompt and generated tokens together. None: the model's limit, or what the KV cache holds if that is
    /// less.
    pub max_context: Option<usize>,
    /// Whether a KV cache that is too small for `max_context` cuts it, instead of being refused.
    pub cuts_context: bool,
    /// Sequences computed at once, as in `EngineOptions`. The KV cache holds at most this many full contexts.
    pub max_sequences: usize,
    /// Tokens computed in one step, as in `EngineOptions`: what such steps need on a GPU is made while loading. None:
    /// nothing is.
    pub token_budget: Option<usize>,
    /// Experts per layer and rank that fit beyond those of the placement.
    pub redundant_experts: usize,
    /// The epoch of the placement. Steps of another epoch are rejected.
    pub epoch: u64,
    /// The model only computes embeddings, so its head is not loaded.
    pub embeds: bool,
    /// A read of the checkpoint that returns nothing for this long counts as stalled, and loading fails.
    pub read_timeout: Duration,
    /// When a running step counts as hung. None: nothing watches steps.
    pub step_deadline: Option<Duration>,
    pub loras: LoraLimits,
    /// Where KV blocks that leave the cache are kept.
    pub host: HostLimits,
    /// The positions of the KV cache are split over the ranks of the group.
    pub kv_parallel: bool,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            dtype: Dtype::Auto,
            kv_dtype: KvDtype::Auto,
            quantize: Quantize::None,
            devices: DeviceChoice::Cpu,
            tp: 1,
            threads: None,
            kv_blocks: None,
            kv_memory: None,
            block_size: DeviceChoice::Cpu.defaults().block_size,
            max_context: None,
            cuts_context: false,
            max_sequences: MAX_SEQUENCES,
            token_budget: None,
            redundant_experts: 0,
            epoch: 1,
            embeds: false,
            read_timeout: READ_TIMEOUT,
            step_deadline: None,
            loras: LoraLimits::default(),
            host: HostLimits::default(),
            kv_parallel: false,
        }
    }
}

impl ModelOptions {
    /// Ranks that share the positions of the KV cache.
    pub(super) fn kv_ranks(&self, spec: &Spec, ranks: usize) -> usize {
        if self.kv_parallel { spec.kv_ranks(ranks) } else { 1 }
    }

    /// Whether the size of the KV cache was given.
    pub(super) fn kv_is_fixed(&self) -> bool {
        self.kv_blocks.is_some() || self.kv_memory.is_some()
    }
}
