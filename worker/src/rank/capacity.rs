//! What a model needs on GPUs, from its config.json alone: bytes by kind, room for KV entries, and the least time of a
//! decode step. It reads no weights, and no GPU needs to be there.

use std::collections::HashSet;

use rein_control_plane::{RankPlacement, place};
use rein_kernels::{CudaStorage, DeviceStorage, HostForm, Precision, ScaleForm, StoredForm, WeightRole};
use serde::Serialize;
use serde_json::{Map, Value};

use super::memory::bytes_of_moves;
use super::{DeviceChoice, DeviceDefaults, KvPlan, ModelOptions, open};
use crate::checkpoint::{LoadError, StatedForms};
use crate::model::{self, Footprint, Mlp, Precisions, StateSpec, WeightParts};

/// Maximum number of ranks of a group.
const MOST_GPUS: usize = 1024;
/// Tokens of each sequence in a decode step, unless given.
const CONTEXT: usize = 8192;

/// The limits of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GpuLimits {
    /// Bytes.
    pub memory: f64,
    /// Bytes per second.
    pub bandwidth: f64,
    /// Operations per second of products of bf16 and of FP8 numbers.
    pub bf16: f64,
    pub fp8: f64,
}

#[derive(Debug, Clone)]
pub struct CapacityOptions {
    /// Ranks of the group, one on each GPU.
    pub gpus: usize,
    pub gpu: GpuLimits,
    /// Tokens of each sequence in a decode step. None: `CONTEXT`, or the model's limit if that is less.
    pub context: Option<usize>,
    /// Numbers of sequences in the decode steps.
    pub sequences: Vec<usize>,
    /// The KV cache is FP8.
    pub fp8_cache: bool,
    /// The ranks share its positions.
    pub kv_parallel: bool,
}

/// Of the GPU with the most weights.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Capacity {
    pub architecture: &'static str,
    pub layers: usize,
    /// The stored form of most weights: "f32", "bf16", "fp8" or "int4".
    pub stored: &'static str,
    pub gpus: usize,
    pub gpu: GpuLimits,
    /// Tokens of each sequence.
    pub context: usize,
    pub memory: GpuMemory,
    /// The least number of GPUs that hold one sequence of the context. None: no number does.
    pub least_gpus: Option<usize>,
    pub steps: Vec<DecodeFloor>,
}

/// Bytes of one GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GpuMemory {
    pub weights: WeightParts,
    /// Room for the experts of the next layout.
    pub moves: usize,
    pub kv_bytes_per_token: usize,
    /// KV entries that fit. 0: the weights do not fit.
    pub kv_tokens: usize,
}

/// The least time of a step in which each sequence gets one token: of each op, the longer of reading its bytes and of
/// its products.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DecodeFloor {
    pub sequences: usize,
    /// Whether their KV entries fit.
    pub fits: bool,
    pub seconds: f64,
    pub ops: Vec<OpFloor>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpFloor {
    pub op: &'static str,
    pub bytes: f64,
    pub flops: f64,
    pub seconds: f64,
    /// Whether its products take longer than reading its bytes.
    pub by_products: bool,
}

/// The capacity of a model with this config.json.
pub fn capacity(config: &Map<String, Value>, options: &CapacityOptions) -> Result<Capacity, LoadError> {
    let (spec, text) = (model::build(config)?, model::text_config(config));
    let stated = open::stated_precision(text)?;
    let scales = if stated == Some(Precision::F32) { ScaleForm::F32 } else { ScaleForm::Bf16 };
    let forms = StatedForms::read(config, text, scales)?;
    // Whatever config.json says, the embedding, the head and the routers are never quantized.
    let routers = spec.layers.iter().filter_map(|layer| match &layer.mlp {
        Mlp::Moe(moe) => Some(moe.router.module.as_str()),
        Mlp::Dense(_) | Mlp::Plain(_) => None,
    });
    let plain: HashSet<&str> =
        routers.chain([spec.embed.as_str()]).chain(spec.head.iter().map(|head| head.module.as_str())).collect();
    let stored = |module: &str| if plain.contains(module) { StoredForm::Bf16 } else { forms.of(module) };
    let base = match stated {
        Some(precision) if forms.quantized().is_none() => precision,
        _ => Precision::Bf16,
    };
    let precisions = Precisions { base, linear: base, fp8_cache: options.fp8_cache };
    let footprint = Footprint { spec: &spec, precisions, devices: &CudaStorage, stored: &stored };
    let context = options.context.unwrap_or(CONTEXT.min(spec.max_positions));
    if context == 0 || context > spec.max_positions {
        let what = format!("must be from 1 to {} (max_position_embeddings), got {context}", spec.max_positions);
        return Err(LoadError::Option { option: "context", what });
    }
    let (rank, memory) = busiest(&footprint, options.gpus, options)?;
    let holds = |gpus: usize| busiest(&footprint, gpus, options).is_ok_and(|(_, m)| m.kv_tokens >= context);
    let floors = Floors { footprint: &footprint, rank: &rank, options, context, memory: &memory };
    Ok(Capacity {
        architecture: spec.architecture,
        layers: spec.layers.len(),
        stored: forms.quantized().unwrap_or(if base == Precision::F32 { "f32" } else { "bf16" }),
        gpus: options.gpus,
        gpu: options.gpu,
        context,
        least_gpus: (1..=MOST_GPUS).find(|&gpus| holds(gpus)),
        steps: options.sequences.iter().map(|&sequences| floors.step(sequences)).collect(),
        memory,
    })
}

/// The rank with the most weights, and its memory.
fn busiest(
    footprint: &Footprint<CudaStorage>,
    gpus: usize,
    CapacityOptions { gpu, kv_parallel, .. }: &CapacityOptions,
) -> Result<(RankPlacement, GpuMemory), LoadError> {
    let placement = place(&footprint.spec.shape(), gpus, 1)?;
    let bytes = |rank: &RankPlacement| {
        let parts = footprint.parts(rank, gpus, &|role, module, numbers| footprint.bytes(role, module, numbers));
        WeightParts { embedding: parts.embedding + footprint.positions(), ..parts }
    };
    let all = placement.ranks.into_iter().map(|rank| (bytes(&rank), rank));
    let Some((weights, rank)) = all.max_by_key(|(parts, _)| parts.total()) else {
        return Err(LoadError::Option { option: "gpus", what: "must be at least 1".into() });
    };
    let moves = bytes_of_moves(footprint, &rank, 0);
    let free = gpu.memory - (weights.total() + moves) as f64;
    let DeviceDefaults { block_size, kv_share, .. } = DeviceChoice::gpus(Vec::new()).defaults();
    let options = ModelOptions {
        tp: gpus,
        block_size,
        kv_memory: Some((free.max(0.0) * kv_share) as usize),
        max_sequences: usize::MAX,
        kv_parallel: *kv_parallel,
        devices: DeviceChoice::gpus(Vec::new()),
        ..ModelOptions::default()
    };
    open::check_split(footprint.spec, gpus, &options)?;
    let plan = KvPlan::with_free(footprint, &[&rank], gpus, weights.total() + moves, &options, gpu.memory as usize);
    let (kv_tokens, kv_bytes_per_token) = plan.map_or_else(
        |_| (0, KvPlan::bytes_per_token(footprint, &[&rank], gpus).div_ceil(options.kv_ranks(footprint.spec, gpus))),
        |plan| (plan.tokens(), plan.bytes_per_token),
    );
    Ok((rank, GpuMemory { weights, moves, kv_bytes_per_token, kv_tokens }))
}

/// Computes the floors of decode steps on one rank.
struct Floors<'a> {
    footprint: &'a Footprint<'a, CudaStorage>,
    rank: &'a RankPlacement,
    options: &'a CapacityOptions,
    context: usize,
    memory: &'a GpuMemory,
}

impl Floors<'_> {
    fn step(&self, sequences: usize) -> DecodeFloor {
        let Footprint { precisions, devices, stored, .. } = self.footprint;
        let numbers = self.footprint.parts(self.rank, self.options.gpus, &|_, _, numbers| numbers);
        let is_fp8 = |role: WeightRole, module: &str| {
            let form = stored(module);
            let kept = devices.host_form(role, form, precisions.of(role)) == HostForm::Stored;
            kept && matches!(form, StoredForm::Fp8 { .. })
        };
        let fp8 = |role: WeightRole, module: &str, numbers: usize| if is_fp8(role, module) { numbers } else { 0 };
        let fp8 = self.footprint.parts(self.rank, self.options.gpus, &fp8);
        let rows = sequences as f64;
        // `read`: the part of the weights that is read; `rows`: rows that each of them is multiplied with.
        let product = |op, part: fn(&WeightParts) -> usize, read: f64, rows: f64| {
            let all = 2.0 * part(&numbers) as f64 * rows;
            let fp8 = 2.0 * part(&fp8) as f64 * rows;
            self.op(op, part(&self.memory.weights) as f64 * read, [all - fp8, fp8])
        };
        let (touched, share) = self.experts(sequences);
        let ops = vec![
            product("attention projections", |parts| parts.attention, 1.0, rows),
            self.attention(sequences),
            product("dense and shared MLP", |parts| parts.mlp, 1.0, rows),
            product("routers", |parts| parts.router, 1.0, rows),
            product("experts", |parts| parts.experts, touched, rows * share),
            product("head", |parts| parts.head, 1.0, rows),
        ];
        let fits = sequences * self.context <= self.memory.kv_tokens;
        DecodeFloor { sequences, fits, seconds: ops.iter().map(|op| op.seconds).sum(), ops }
    }

    fn op(&self, op: &'static str, bytes: f64, [bf16, fp8]: [f64; 2]) -> OpFloor {
        let GpuLimits { bandwidth, bf16: bf16_rate, fp8: fp8_rate, .. } = self.options.gpu;
        let (reading, products) = (bytes / bandwidth, bf16 / bf16_rate + fp8 / fp8_rate);
        let (flops, seconds) = (bf16 + fp8, reading.max(products));
        OpFloor { op, bytes, flops, seconds, by_products: products > reading }
    }

    /// The part of the experts that a step with evenly spread routes reads, and the part of its rows that each
    /// computes.
    fn experts(&self, sequences: usize) -> (f64, f64) {
        let moe = self.footprint.spec.layers.iter().find_map(|layer| match &layer.mlp {
            Mlp::Moe(moe) => Some(moe),
            Mlp::Dense(_) | Mlp::Plain(_) => None,
        });
        let share = moe.map_or(0.0, |moe| moe.route.top_k as f64 / moe.experts.len() as f64);
        (1.0 - (1.0 - share).powf(sequences as f64), share)
    }

    /// Reading the KV entries and the recurrent states, and the products with them.
    fn attention(&self, sequences: usize) -> OpFloor {
        // A rank with a part of the positions has the queries of all ranks that share them.
        let split = if self.options.kv_parallel { self.footprint.spec.kv_ranks(self.options.gpus) } else { 1 };
        let heads = self.rank.heads.len() * split;
        let (mut bytes, mut flops) = (0.0, 0.0);
        for layer in &self.footprint.spec.layers {
            let mixer = layer.mixer.parts();
            let position = match mixer.state(self.rank, self.options.gpus) {
                StateSpec::Paged { widths, sharing } => self.footprint.precisions.cache(sharing).position_bytes(widths),
                StateSpec::Recurrent { numbers } => {
                    // Read and written, with a product each.
                    bytes += (2 * sequences * numbers * size_of::<f32>()) as f64;
                    flops += (4 * sequences * numbers) as f64;
                    continue;
                }
            };
            let (width, window) = mixer.products();
            let positions = (sequences * window.unwrap_or(self.context).min(self.context)) as f64 / split as f64;
            bytes += positions * position as f64;
            flops += positions * (2 * heads * width) as f64;
        }
        self.op("attention", bytes, [flops, 0.0])
    }
}
