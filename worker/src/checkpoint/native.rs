//! Mistral's own layout of a model: `params.json` instead of config.json, and other names of tensors in
//! `consolidated.safetensors`. Only Mistral Large 3 is published in it alone.

use serde_json::{Map, Value, json};

/// Of an architecture's own file.
pub const PARAMS: &str = "params.json";

/// Keys of the text model, with their names in config.json.
const KEYS: &[[&str; 2]] = &[
    ["dim", "hidden_size"],
    ["n_layers", "num_hidden_layers"],
    ["n_heads", "num_attention_heads"],
    ["n_kv_heads", "num_key_value_heads"],
    ["head_dim", "head_dim"],
    ["hidden_dim", "intermediate_size"],
    ["vocab_size", "vocab_size"],
    ["norm_eps", "rms_norm_eps"],
    ["tied_embeddings", "tie_word_embeddings"],
    ["max_position_embeddings", "max_position_embeddings"],
    ["q_lora_rank", "q_lora_rank"],
    ["kv_lora_rank", "kv_lora_rank"],
    ["qk_nope_head_dim", "qk_nope_head_dim"],
    ["qk_rope_head_dim", "qk_rope_head_dim"],
    ["v_head_dim", "v_head_dim"],
    ["sliding_window", "sliding_window"],
    ["activation", "hidden_act"],
    ["dtype", "dtype"],
    ["quantization_config", "quantization_config"],
];
const MOE_KEYS: &[[&str; 2]] = &[
    ["expert_hidden_dim", "moe_intermediate_size"],
    ["first_k_dense_replace", "first_k_dense_replace"],
    ["num_expert_groups", "n_group"],
    ["num_expert_groups_per_tok", "topk_group"],
    ["num_experts", "n_routed_experts"],
    ["num_experts_per_tok", "num_experts_per_tok"],
    ["num_shared_experts", "n_shared_experts"],
    ["route_every_n", "moe_layer_freq"],
    ["routed_scale", "routed_scaling_factor"],
];
const YARN_KEYS: &[[&str; 2]] = &[
    ["factor", "factor"],
    ["original_max_position_embeddings", LENGTH],
    ["beta", "beta_fast"],
    ["alpha", "beta_slow"],
];
const LENGTH: &str = "original_max_position_embeddings";
/// Of training, of other runtimes, and of the vision tower, which is not read.
const HARMLESS: &[&str] = &["max_seq_len", "model_type", "vision_encoder", "multimodal"];
const HARMLESS_OF_MOE: &[&str] = &["expert_parallel", "expert_model_parallel"];

/// An object whose keys are taken one by one.
struct Params {
    at: &'static str,
    left: Map<String, Value>,
}

impl Params {
    fn new(at: &'static str, map: Option<&Map<String, Value>>) -> Self {
        Params { at, left: map.cloned().unwrap_or_default() }
    }

    fn error(&self, key: &str, what: &str) -> String {
        format!("{}{key} {}", self.at, what)
    }

    fn take(&mut self, key: &str) -> Option<Value> {
        self.left.remove(key).filter(|value| !value.is_null())
    }

    fn renamed_into(&mut self, keys: &[[&str; 2]], to: &mut Map<String, Value>) {
        for [theirs, ours] in keys {
            to.extend(self.take(theirs).map(|value| ((*ours).to_owned(), value)));
        }
    }

    fn finish(mut self, harmless: &[&str]) -> Result<(), String> {
        self.left.retain(|key, value| !harmless.contains(&key.as_str()) && !value.is_null());
        match self.left.keys().next() {
            Some(key) => Err(self.error(key, "is not supported")),
            None => Ok(()),
        }
    }
}

/// The config.json of a model with such parameters. An error names the key.
pub fn config_of(params: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    let object = |key: &str| params.get(key).and_then(Value::as_object);
    let mut all = Params::new("", Some(params));
    let shared = object("moe").and_then(|moe| moe.get("num_shared_experts")).and_then(Value::as_u64);
    if !params.contains_key("kv_lora_rank") || shared.is_none_or(|shared| shared == 0) {
        let what = "kv_lora_rank and moe.num_shared_experts are required: of models without a config.json, only those with \
                    latent attention and shared experts (Mistral Large 3) are read";
        return Err(what.into());
    }
    let mut config = Map::new();
    config.insert("architectures".into(), json!(["MistralLarge3ForCausalLM"]));
    config.insert("model_type".into(), "mistral4".into());
    // The same in all of Mistral's vocabularies.
    config.extend([("bos_token_id".to_owned(), 1.into()), ("eos_token_id".to_owned(), 2.into())]);
    all.renamed_into(KEYS, &mut config);
    for key in ["moe", "yarn", "llama_4_scaling"] {
        all.left.remove(key);
    }
    let mut moe = Params::new("moe.", object("moe"));
    moe.renamed_into(MOE_KEYS, &mut config);
    moe.finish(HARMLESS_OF_MOE)?;

    let mut rope = Map::new();
    rope.extend(all.take("rope_theta").map(|theta| ("rope_theta".to_owned(), theta)));
    let mut yarn = Params::new("yarn.", object("yarn"));
    if object("yarn").is_some() {
        rope.insert("rope_type".into(), "yarn".into());
        yarn.renamed_into(YARN_KEYS, &mut rope);
        // Of cosines and sines, and of attention's scale.
        let scales: &[&str] = match yarn.take("apply_scale") {
            Some(Value::Bool(false)) => &["attention_factor"],
            None | Some(Value::Bool(true)) => &["mscale", "mscale_all_dim"],
            Some(_) => return Err(yarn.error("apply_scale", "must be true or false")),
        };
        rope.extend(scales.iter().map(|key| ((*key).to_owned(), 1.0.into())));
    }
    yarn.finish(&[])?;
    let mut growth = Params::new("llama_4_scaling.", object("llama_4_scaling"));
    if let Some(length) = growth.take(LENGTH) {
        match rope.get(LENGTH) {
            Some(other) if *other != length => {
                return Err(growth.error(LENGTH, &format!("is {length}, but {other} in yarn; they must be equal")));
            }
            _ => rope.insert(LENGTH.into(), length),
        };
    }
    rope.extend(growth.take("beta").map(|beta| ("llama_4_scaling_beta".to_owned(), beta)));
    growth.finish(&[])?;
    config.insert("rope_parameters".into(), rope.into());
    all.finish(HARMLESS)?;
    Ok(config)
}

/// What stands after `layers.N.`, with what stands for it after `model.layers.N.`.
const OF_LAYERS: &[[&str; 2]] = &[
    ["attention_norm.", "input_layernorm."],
    ["ffn_norm.", "post_attention_layernorm."],
    ["attention.wq_a.", "self_attn.q_a_proj."],
    ["attention.q_a_norm.", "self_attn.q_a_layernorm."],
    ["attention.wq_b.", "self_attn.q_b_proj."],
    ["attention.wkv_a_with_mqa.", "self_attn.kv_a_proj_with_mqa."],
    ["attention.kv_a_norm.", "self_attn.kv_a_layernorm."],
    ["attention.wkv_b.", "self_attn.kv_b_proj."],
    ["attention.wo.", "self_attn.o_proj."],
    ["gate.", "mlp.gate."],
    ["feed_forward.", "mlp."],
    ["shared_experts.", "mlp.shared_experts."],
    ["experts.", "mlp.experts."],
];
const PLAIN: &[[&str; 2]] =
    &[["tok_embeddings.", "model.embed_tokens."], ["norm.", "model.norm."], ["output.", "lm_head."]];
/// Between dots, anywhere.
const PARTS: &[[&str; 2]] = &[
    ["w1", "gate_proj"],
    ["w2", "down_proj"],
    ["w3", "up_proj"],
    ["qscale_weight", "weight_scale"],
    ["qscale_act", "input_scale"],
];

/// The name that a tensor has in checkpoints of transformers; that of other parts stays.
pub fn name_of(theirs: &str) -> String {
    let begun = |table: &[[&str; 2]], name: &str| {
        table.iter().find_map(|[from, to]| name.strip_prefix(from).map(|rest| format!("{to}{rest}")))
    };
    let of_layer = || {
        let (layer, rest) = theirs.strip_prefix("layers.")?.split_once('.')?;
        Some(format!("model.layers.{layer}.{}", begun(OF_LAYERS, rest)?))
    };
    let Some(name) = of_layer().or_else(|| begun(PLAIN, theirs)) else { return theirs.to_owned() };
    let parts = name.split('.').map(|part| PARTS.iter().find(|[from, _]| *from == part).map_or(part, |[_, to]| to));
    parts.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests;
