//! One file per architecture with one row in the table. A file turns config.json into a `Spec`; it does not know how
//! one is executed.

mod deepseek_v3;
mod ernie4_5;
mod gemma3;
mod glm4_moe;
mod gpt_bigcode;
mod gpt_oss;
mod granite;
mod hy_v3;
mod internlm2;
mod llama;
mod minicpm3;
mod minimax_m2;
mod mistral;
mod mixtral;
mod olmo;
mod phi3;
mod qwen;
mod qwen2_moe;
mod qwen3_moe;
mod qwen3_next;
mod windows;

use serde_json::{Map, Value};

use super::spec::Spec;
use crate::checkpoint::{ConfigFields, LoadError};

struct Architecture {
    /// As in `architectures` of config.json.
    name: &'static str,
    model_types: &'static [&'static str],
    build: fn(&ConfigFields, &str) -> Result<Spec, LoadError>,
}

const ARCHITECTURES: &[Architecture] = &[
    Architecture { name: "DeepseekV3ForCausalLM", model_types: &["deepseek_v3", "kimi_k2"], build: deepseek_v3::build },
    Architecture { name: "Qwen2MoeForCausalLM", model_types: &["qwen2_moe"], build: qwen2_moe::build },
    Architecture { name: "Qwen3MoeForCausalLM", model_types: &["qwen3_moe"], build: qwen3_moe::build },
    Architecture { name: "Qwen3NextForCausalLM", model_types: &["qwen3_next"], build: qwen3_next::build },
    Architecture {
        name: "Qwen3_5MoeForCausalLM",
        model_types: &["qwen3_5_moe_text"],
        build: qwen3_next::build_qwen3_5_moe,
    },
    Architecture { name: "Qwen3_5ForCausalLM", model_types: &["qwen3_5_text"], build: qwen3_next::build_qwen3_5 },
    Architecture { name: "Glm4MoeForCausalLM", model_types: &["glm4_moe"], build: glm4_moe::build },
    Architecture { name: "Glm4MoeLiteForCausalLM", model_types: &["glm4_moe_lite"], build: glm4_moe::build_lite },
    Architecture { name: "HYV3ForCausalLM", model_types: &["hy_v3"], build: hy_v3::build },
    Architecture { name: "MiniMaxM2ForCausalLM", model_types: &["minimax_m2"], build: minimax_m2::build },
    Architecture { name: "MiniCPM3ForCausalLM", model_types: &["minicpm3"], build: minicpm3::build },
    Architecture { name: "MixtralForCausalLM", model_types: &["mixtral"], build: mixtral::build },
    Architecture { name: "LlamaForCausalLM", model_types: &["llama"], build: llama::build },
    Architecture { name: "InternLM2ForCausalLM", model_types: &["internlm2"], build: internlm2::build },
    Architecture { name: "InternLM3ForCausalLM", model_types: &["internlm3"], build: llama::build_internlm3 },
    Architecture { name: "SeedOssForCausalLM", model_types: &["seed_oss"], build: llama::build_seed_oss },
    Architecture { name: "Ernie4_5ForCausalLM", model_types: &["ernie4_5"], build: ernie4_5::build },
    Architecture { name: "Ernie4_5_MoeForCausalLM", model_types: &["ernie4_5_moe"], build: ernie4_5::build_moe },
    Architecture { name: "MistralForCausalLM", model_types: &["mistral"], build: mistral::build },
    Architecture { name: "Ministral3ForCausalLM", model_types: &["ministral3"], build: mistral::build_ministral3 },
    Architecture { name: "Mistral4ForCausalLM", model_types: &["mistral4"], build: mistral::build_mistral4 },
    Architecture { name: "MistralLarge3ForCausalLM", model_types: &["mistral4"], build: mistral::build_large3 },
    Architecture { name: "Qwen2ForCausalLM", model_types: &["qwen2"], build: qwen::build_qwen2 },
    Architecture { name: "Qwen3ForCausalLM", model_types: &["qwen3"], build: qwen::build_qwen3 },
    Architecture { name: "Gemma3ForCausalLM", model_types: &["gemma3_text"], build: gemma3::build },
    Architecture { name: "GptOssForCausalLM", model_types: &["gpt_oss"], build: gpt_oss::build },
    Architecture { name: "GPTBigCodeForCausalLM", model_types: &["gpt_bigcode"], build: gpt_bigcode::build },
    Architecture { name: "GraniteForCausalLM", model_types: &["granite"], build: granite::build },
    Architecture { name: "GraniteMoeForCausalLM", model_types: &["granitemoe"], build: granite::build_moe },
    Architecture {
        name: "GraniteMoeSharedForCausalLM",
        model_types: &["granitemoeshared"],
        build: granite::build_moe_shared,
    },
    Architecture { name: "OlmoeForCausalLM", model_types: &["olmoe"], build: olmo::build_olmoe },
    Architecture { name: "Olmo2ForCausalLM", model_types: &["olmo2"], build: olmo::build_olmo2 },
    Architecture { name: "Olmo3ForCausalLM", model_types: &["olmo3"], build: olmo::build_olmo3 },
    Architecture { name: "Phi3ForCausalLM", model_types: &["phi3"], build: phi3::build },
];

/// Names of the supported architectures.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|row| row.name)
}

const TIED: &str = "tie_word_embeddings";

/// A multimodal architecture of which only the language model runs. Its keys are in `text_config`.
struct Wrapper {
    name: &'static str,
    model_type: &'static str,
    /// Prefix of the language model's tensor names.
    prefix: &'static str,
    /// How names of tensors begin, and how they would without the wrapper.
    renamed: &'static [[&'static str; 2]],
    /// Prefixes of the other parts' tensor names.
    others: &'static [&'static str],
    /// Keys beside `text_config` that belong only to other parts.
    keys: &'static [&'static str],
}

const QWEN3_5: Wrapper = Wrapper {
    name: "Qwen3_5ForConditionalGeneration",
    model_type: "qwen3_5",
    prefix: "",
    renamed: &[["model.language_model.", "model."]],
    others: &["model.visual."],
    keys: &["vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"],
};

const WRAPPERS: &[Wrapper] = &[
    Wrapper {
        name: "KimiK25ForConditionalGeneration",
        model_type: "kimi_k25",
        prefix: "language_model.",
        renamed: &[],
        others: &["vision_tower.", "mm_projector."],
        keys: &[
            "vision_config",
            "media_placeholder_token_id",
            "ignore_index",
            "use_unified_vision_chunk",
            "video_placeholder",
        ],
    },
    Wrapper {
        name: "Mistral3ForConditionalGeneration",
        model_type: "mistral3",
        prefix: "",
        // As published, and as transformers 5 writes them.
        renamed: &[
            ["language_model.model.", "model."],
            ["language_model.lm_head.", "lm_head."],
            ["model.language_model.", "model."],
        ],
        others: &["vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."],
        keys: &[
            "vision_config",
            "image_token_index",
            "image_token_id",
            "multimodal_projector_bias",
            "projector_hidden_act",
            "spatial_merge_size",
            "vision_feature_layer",
        ],
    },
    QWEN3_5,
    Wrapper { name: "Qwen3_5MoeForConditionalGeneration", model_type: "qwen3_5_moe", ..QWEN3_5 },
];

/// How names of the language model's tensors begin, and how they would without what is around it.
pub fn renamed(config: &Map<String, Value>) -> &'static [[&'static str; 2]] {
    wrapper(config).map_or(&[], |wrapper| wrapper.renamed)
}

/// The object in config.json that describes the language model.
pub fn text_config(config: &Map<String, Value>) -> &Map<String, Value> {
    match (wrapper(config), config.get("text_config").and_then(Value::as_object)) {
        (Some(_), Some(text)) => text,
        _ => config,
    }
}

fn wrapper(config: &Map<String, Value>) -> Option<&'static Wrapper> {
    let name = config.get("architectures")?.get(0)?.as_str()?;
    WRAPPERS.iter().find(|wrapper| wrapper.name == name)
}

/// Checks the keys beside `text_config` like all others.
fn check_wrapper(wrapper: &Wrapper, config: &Map<String, Value>, spec: &Spec) -> Result<(), LoadError> {
    let fields = ConfigFields::new(config, "");
    fields.require("model_type", wrapper.model_type)?;
    fields.object("text_config")?;
    for key in wrapper.keys {
        fields.get(key);
    }
    match fields.bool(TIED)? {
        Some(tied) if tied != spec.tied => {
            let what = format!("is {tied}, but the language model in text_config has {}", spec.tied);
            Err(fields.error(TIED, what))
        }
        _ => fields.finish(),
    }
}

/// Reads all of config.json: every key is implemented, harmless or rejected.
pub fn build(config: &Map<String, Value>) -> Result<Spec, LoadError> {
    build_for(config, None)
}

/// For a context that may be shorter than the model's: some rotations depend on it.
pub fn build_for(config: &Map<String, Value>, context: Option<usize>) -> Result<Spec, LoadError> {
    let wrapper = wrapper(config);
    if wrapper.is_some() && ConfigFields::new(config, "").object("text_config")?.is_none() {
        return Err(LoadError::config("text_config", "is required"));
    }
    let text = text_config(config);
    let row = find(text)?;
    let fields = ConfigFields::new(text, "").for_context(context);
    let prefix = wrapper.map_or("", |w| w.prefix);
    let mut spec = (row.build)(&fields, prefix)?;
    fields.finish()?;
    if let (Some(_), None, Some(tied)) = (wrapper, text.get(TIED), config.get(TIED).and_then(Value::as_bool)) {
        spec.tied = tied;
    }
    if let Some(wrapper) = wrapper {
        check_wrapper(wrapper, config, &spec)?;
        spec.ignored.extend(wrapper.others.iter().map(|&other| other.to_owned()));
    }
    let mtp = fields_usize(text, "num_nextn_predict_layers").or(fields_usize(text, "num_mtp_layers")).unwrap_or(0);
    let layers = spec.layers.len();
    spec.ignored.extend((layers..layers + mtp).map(|i| format!("{prefix}model.layers.{i}.")));
    Ok(spec)
}

fn fields_usize(map: &Map<String, Value>, key: &str) -> Option<usize> {
    const MOST_MTP_LAYERS: u64 = 64;
    map.get(key)?.as_u64().map(|n| n.min(MOST_MTP_LAYERS) as usize)
}

fn find(config: &Map<String, Value>) -> Result<&'static Architecture, LoadError> {
    let stated = config.get("architectures").and_then(|v| v.get(0)).and_then(Value::as_str);
    let model_type = config.get("model_type").and_then(Value::as_str);
    let row = match (stated, model_type) {
        (Some(name), _) => ARCHITECTURES.iter().find(|row| row.name == name),
        (None, Some(kind)) => ARCHITECTURES.iter().find(|row| row.model_types.contains(&kind)),
        (None, None) => None,
    };
    let Some(row) = row else {
        let found = stated.or(model_type).map_or("(none given)".into(), |name| format!("{name:?}"));
        let wrappers = WRAPPERS.iter().map(|wrapper| wrapper.name);
        let supported = architectures().chain(wrappers).collect::<Vec<_>>().join(", ");
        return Err(LoadError::Architecture { found, supported });
    };
    match model_type {
        Some(kind) if !row.model_types.contains(&kind) => {
            Err(LoadError::config("model_type", format!("{kind:?} does not match architecture {}", row.name)))
        }
        _ => Ok(row),
    }
}

#[cfg(test)]
mod tests;
