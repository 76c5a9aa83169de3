//! Opens a checkpoint directory and checks the weights against config.json. It does not read tensors.

use std::path::Path;
use std::sync::Arc;

use rein_kernels::{KvSplit, Precision};
use serde_json::{Map, Value};

use super::{DeviceChoice, Dtype, KvDtype, ModelOptions, Quantize};
use crate::checkpoint::{
    CheckpointWeights, ConfigFields, LoadError, Quantization, Reads, StoredDtype, content_hash, parse_config,
    read_config,
};
use crate::model::{self, Footprint, LayerSpec, MixerSpec, Precisions, Spec, WeightSource};

/// Before the names of all tensors of the decoder, unless it was saved alone.
const DECODER: &str = "model.";

pub struct Checkpoint {
    pub spec: Arc<Spec>,
    pub weights: CheckpointWeights,
    pub precisions: Precisions,
    pub reads: Arc<Reads>,
    /// The hash of config.json.
    pub config: u64,
}

impl Checkpoint {
    pub fn source<'a, D>(&'a self, devices: &'a D) -> WeightSource<'a, D> {
        WeightSource { spec: &self.spec, weights: &self.weights, precisions: self.precisions, devices }
    }

    /// Calls `f` with the footprint of the weights on these devices.
    pub fn footprint<D, T>(&self, devices: &D, f: impl FnOnce(&Footprint<D>) -> T) -> T {
        let stored = |module: &str| self.weights.stored_form(module);
        f(&Footprint { spec: &self.spec, precisions: self.precisions, devices, stored: &stored })
    }
}

/// Reads config.json, opens the weights and checks that they match.
pub fn open(dir: &Path, options: &ModelOptions, reads: &Arc<Reads>) -> Result<Checkpoint, LoadError> {
    let text = read_config(dir, reads)?;
    let (config, hash) = (parse_config(dir, &text)?, content_hash(&text));
    let text = model::text_config(&config);
    let mut spec = model::build_for(&config, options.max_context)?;
    let quantization = Quantization::of(&config, text)?;
    let mut weights = CheckpointWeights::open(dir, quantization, reads)?;
    model::renamed(&config).iter().for_each(|[from, to]| weights.rename(from, to));
    weights.unstack(&spec.modules());
    check_fp8(&spec, options)?;
    let embed = format!("{}.weight", spec.embed);
    // Embedding models are often saved without the wrapper that has the head.
    if let Some(bare) = embed.strip_prefix(DECODER).filter(|bare| !weights.has(&embed) && weights.has(bare)) {
        weights.nest(DECODER);
        tracing::debug!(tensor = bare, "the checkpoint is a bare decoder");
    }
    if options.embeds
        && let Some(head) = spec.head.take()
    {
        spec.ignored.push(format!("{}.", head.module));
    }

    let mut duplicate = None;
    if let (true, Some(of_head)) = (spec.tied, &mut spec.head) {
        let head = format!("{}.weight", of_head.module);
        match (weights.has(&embed), weights.has(&head)) {
            (true, true) if weights.equal(&embed, &head)? => duplicate = Some(head),
            // Both exist and differ: they are two matrices, as transformers 5 treats them.
            (true, true) => spec.tied = false,
            (false, true) => spec.embed = of_head.module.clone(),
            _ => {}
        }
        if spec.tied {
            of_head.module.clone_from(&spec.embed);
        }
    }
    weights.check(&spec.modules(), &spec.tensors(), |name| {
        name.ends_with("rotary_emb.inv_freq")
            || duplicate.as_deref() == Some(name)
            || spec.ignored.iter().any(|beginning| name.starts_with(beginning))
    })?;

    let stored = match (stated_precision(text)?, weights.dtype(&format!("{}.weight", spec.embed))) {
        (Some(stated), _) => stated,
        (None, Some(StoredDtype::Bf16)) => Precision::Bf16,
        (None, _) => Precision::F32,
    };
    let base = match options.dtype {
        Dtype::F32 => Precision::F32,
        Dtype::Bf16 => Precision::Bf16,
        Dtype::Auto if quantization != Quantization::None || weights.has_blocks() => Precision::Bf16,
        Dtype::Auto => stored,
    };
    let linear = match options.quantize {
        Quantize::None => base,
        Quantize::Int8 => Precision::Int8,
    };
    let precisions = Precisions { base, linear, fp8_cache: options.kv_dtype == KvDtype::Fp8 };
    Ok(Checkpoint { spec: Arc::new(spec), weights, precisions, reads: reads.clone(), config: hash })
}

/// Whether keys have the precision that they need in FP8. Biases make some of their numbers large, and a code's error
/// is a part of its number: Qwen2.5-Coder-1.5B loses 0.42 nats per token (docs/benchmarks/quantization.md).
fn check_fp8(spec: &Spec, options: &ModelOptions) -> Result<(), LoadError> {
    let large = |layer: &LayerSpec| match &layer.mixer {
        MixerSpec::Gqa(gqa) => gqa.k.bias && gqa.qk_norm.is_none(),
        MixerSpec::Mla(_) | MixerSpec::DeltaNet(_) => false,
    };
    match options.kv_dtype == KvDtype::Fp8 && spec.layers.iter().any(large) {
        false => Ok(()),
        true => {
            let what = "the keys of this model have biases and no norm, as in Qwen2: they are too large for codes of 8 \
                        bits; leave it at auto";
            Err(LoadError::Option { option: "kv_dtype", what: what.into() })
        }
    }
}

/// Whether the KV cache can be split over so many ranks, if it is to be.
pub fn check_split(spec: &Spec, ranks: usize, options: &ModelOptions) -> Result<(), LoadError> {
    let refused = |what: String| Err(LoadError::Option { option: "kv_parallel", what });
    if !options.kv_parallel || ranks == 1 {
        return Ok(());
    }
    let has = |kind: fn(&MixerSpec) -> bool| spec.layers.iter().any(|layer| kind(&layer.mixer));
    let latent = has(|mixer| matches!(mixer, MixerSpec::Mla(_)));
    let groups = has(|mixer| matches!(mixer, MixerSpec::Gqa(_)));
    if latent && groups {
        return refused("splits the cache of one kind of attention, and this model has two".into());
    }
    if groups && options.devices != DeviceChoice::Cpu {
        return refused(
            "on GPUs splits the cache of latent attention (MLA) alone, which this model does not have".into(),
        );
    }
    let kv_ranks = options.kv_ranks(spec, ranks);
    if kv_ranks == 1 {
        return refused(format!(
            "splits positions over the ranks that have the same KV head, and no two of {ranks} ranks have: this model has \
             {} KV heads; leave it out, or take more ranks",
            spec.kv_heads
        ));
    }
    if options.devices != DeviceChoice::Cpu && !spec.heads.is_multiple_of(ranks) {
        return refused(format!("takes as many heads on each GPU, got {} heads for {ranks} GPUs", spec.heads));
    }
    match KvSplit::fits(kv_ranks, options.block_size) {
        true => Ok(()),
        false => refused(format!(
            "splits positions over 2, 4 or 8 ranks, in blocks of a number of tokens that divides 64, got {kv_ranks} ranks \
             and blocks of {}",
            options.block_size
        )),
    }
}

/// Whether so many ranks can share the recurrent layers.
pub fn check_recurrent(spec: &Spec, ranks: usize) -> Result<(), LoadError> {
    let mut heads = spec.layers.iter().filter_map(|layer| layer.mixer.parts().own_heads());
    match heads.find(|heads| !heads.is_multiple_of(ranks)) {
        None => Ok(()),
        Some(heads) => {
            let what = format!(
                "cannot split {heads} heads of recurrent layers evenly over {ranks} ranks; choose a size that divides {heads}"
            );
            Err(LoadError::Option { option: "tp", what })
        }
    }
}

/// The type in config.json under either spelling. None: that of the stored weights.
pub fn stated_precision(config: &Map<String, Value>) -> Result<Option<Precision>, LoadError> {
    let config = ConfigFields::new(config, "");
    let stated = match config.str("dtype")? {
        Some(name) => Some(("dtype", name)),
        None => config.str("torch_dtype")?.map(|name| ("torch_dtype", name)),
    };
    match stated.map(|(key, name)| (key, name.trim_start_matches("torch."))) {
        Some((_, "bfloat16")) => Ok(Some(Precision::Bf16)),
        Some((_, "float16" | "float32" | "float")) => Ok(Some(Precision::F32)),
        Some((_, "auto")) | None => Ok(None),
        Some((key, other)) => Err(config.error(key, format!("must be bfloat16, float16 or float32, got {other:?}"))),
    }
}
