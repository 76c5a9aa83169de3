//! GPT-BigCode (StarCoder, Granite 20B Code): GPT-2 with one key head for all queries.

use rein_kernels::Gelu;

use crate::checkpoint::{ConfigFields, LoadError};
use crate::model::blocks::{MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS};
use crate::model::linear::{LinearSpec, Norm, Shard};
use crate::model::mixer::{Gqa, MixerSpec};
use crate::model::spec::{LayerSpec, Mlp, PlainMlp, Spec};

/// Of training, of another head, and of how transformers computes.
const WITHOUT_EFFECT: &[&str] = &[
    "attention_softmax_in_fp32",
    "attn_pdrop",
    "inference_runner",
    "max_batch_size",
    "pad_key_length",
    "pre_allocate_kv_cache",
    "scale_attention_softmax_in_fp32",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "validate_runner_input",
];

pub fn build(config: &ConfigFields, prefix: &str) -> Result<Spec, LoadError> {
    for key in WITHOUT_EFFECT {
        config.get(key);
    }
    let (vocab, hidden) = (config.size("vocab_size")?, config.size("n_embd")?);
    let layers = config.within("n_layer", config.size("n_layer")?, MAX_LAYERS)?;
    let heads = config.within("n_head", config.size("n_head")?, MAX_HEADS)?;
    if !hidden.is_multiple_of(heads) {
        return Err(config.error("n_embd", format!("{hidden} is not a multiple of n_head, {heads}")));
    }
    let max_positions = config.size("n_positions")?;
    let inter = match config.usize("n_inner")? {
        Some(_) => config.size("n_inner")?,
        None => 4 * hidden,
    };
    let eps = config.f64("layer_norm_epsilon")?.unwrap_or(1e-5);
    if !(0.0..1.0).contains(&eps) {
        return Err(config.error("layer_norm_epsilon", format!("must be between 0 and 1, got {eps}")));
    }
    let gelu = match config.str("activation_function")?.unwrap_or("gelu_pytorch_tanh") {
        "gelu" => Gelu::Erf,
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Gelu::Tanh,
        other => {
            let what = format!("must be gelu or gelu_pytorch_tanh, got {other:?}");
            return Err(config.error("activation_function", what));
        }
    };
    let shared_key = config.bool("multi_query")?.unwrap_or(true);
    let scaled = config.bool("scale_attn_weights")?.unwrap_or(true);
    let (dim, kv_heads) = (hidden / heads, if shared_key { 1 } else { heads });
    if dim > MAX_HEAD_DIM {
        return Err(config.error("n_head", format!("makes heads of {dim}, which must be at most {MAX_HEAD_DIM}")));
    }
    if config.usize("num_key_value_heads")?.is_some_and(|stated| stated != kv_heads) {
        return Err(config.error("num_key_value_heads", format!("must be {kv_heads}, as multi_query says")));
    }
    let joined = (heads + 2 * kv_heads) * dim;
    let name = |rest: String| format!("{prefix}transformer.{rest}");
    let norm = |at: String| Norm {
        tensor: name(format!("{at}.weight")),
        size: hidden,
        eps: eps as f32,
        from_one: false,
        bias: Some(name(format!("{at}.bias"))),
    };
    let layer = |i: usize| {
        let linear = |module: &str, shape, shard| LinearSpec::new(name(format!("h.{i}.{module}")), shape, true, shard);
        let qkv = |heads: usize, shard, which: usize| {
            let linear = linear("attn.c_attn", [heads * dim, hidden], shard);
            match shared_key {
                // All queries, the key, the value.
                true => linear.within(joined, [0, hidden, hidden + dim][which]),
                // Of each head its query, its key and its value.
                false => linear.runs([dim, 3 * dim], joined, which * dim),
            }
        };
        LayerSpec {
            input_norm: Some(norm(format!("h.{i}.ln_1"))),
            mixer: MixerSpec::Gqa(Gqa {
                q: qkv(heads, Shard::OutHeads(dim), 0),
                k: qkv(kv_heads, Shard::OutKvHeads(dim), 1),
                v: qkv(kv_heads, Shard::OutKvHeads(dim), 2),
                o: linear("attn.c_proj", [hidden, hidden], Shard::InHeads(dim)),
                gate: None,
                qk_norm: None,
                head_dim: dim,
                scale: if scaled { (1.0 / (dim as f64).sqrt()) as f32 } else { 1.0 },
                window: None,
                sinks: None,
                rope: None,
                growth: None,
            }),
            mixer_result_norm: None,
            mlp_norm: Some(norm(format!("h.{i}.ln_2"))),
            mlp: Mlp::Plain(PlainMlp {
                gelu,
                up: linear("mlp.c_fc", [inter, hidden], Shard::Out),
                down: linear("mlp.c_proj", [hidden, inter], Shard::In),
            }),
            mlp_result_norm: None,
        }
    };
    Ok(Spec {
        architecture: "GPTBigCodeForCausalLM",
        vocab,
        hidden,
        max_positions,
        heads,
        kv_heads,
        embed: name("wte".into()),
        embedding_multiplier: 1.0,
        positions: Some(name("wpe.weight".into())),
        layers: (0..layers).map(layer).collect(),
        residual_multiplier: 1.0,
        norm: norm("ln_f".into()),
        head: Some(LinearSpec::new(format!("{prefix}lm_head"), [vocab, hidden], false, Shard::Out)),
        tied: config.bool("tie_word_embeddings")?.unwrap_or(true),
        logits_scaling: 1.0,
        ignored: Vec::new(),
    })
}
