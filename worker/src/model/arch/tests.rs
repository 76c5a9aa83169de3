//! config.json as published for well-known models: no key may be rejected.

use rein_kernels::RopeSpec;
use serde_json::json;

use super::*;
use crate::checkpoint::Quantization;
use crate::model::linear::LinearSpec;
use crate::model::mixer::{Gqa, MixerSpec};
use crate::model::spec::{LayerSpec, Mlp};

fn spec(text: &str) -> Spec {
    let config: Value = serde_json::from_str(text).expect("JSON");
    let config = config.as_object().expect("object");
    Quantization::read(&ConfigFields::new(text_config(config), "")).expect("weight format");
    build(config).unwrap_or_else(|e| panic!("{e}"))
}

fn rotation(gqa: &Gqa) -> &RopeSpec {
    gqa.rope.as_deref().expect("a rotation")
}

fn is_moe(layer: &LayerSpec) -> bool {
    matches!(layer.mlp, Mlp::Moe(_))
}

fn only(mut rows: Vec<std::ops::Range<usize>>) -> std::ops::Range<usize> {
    let last = rows.pop().expect("rows");
    assert!(rows.is_empty(), "{rows:?}");
    last
}

const KIMI_K2: &str = r#"{"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "aux_loss_alpha": 0.001,
    "bos_token_id": 163584, "eos_token_id": 163585, "ep_size": 1, "first_k_dense_replace": 1, "hidden_act": "silu",
    "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 131072, "model_type": "kimi_k2", "moe_intermediate_size": 2048, "moe_layer_freq": 1,
    "n_group": 1, "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 64,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 64, "num_nextn_predict_layers": 0,
    "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
    "weight_block_size": [128, 128]}, "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 1.0, "beta_slow": 1.0,
    "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "seq_aux": true,
    "tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
    "transformers_version": "4.48.3", "use_cache": true, "v_head_dim": 128, "vocab_size": 163840}"#;

#[test]
fn kimi_k2_is_read() {
    let spec = spec(KIMI_K2);
    assert_eq!((spec.layers.len(), spec.vocab, spec.max_positions), (61, 163_840, 131_072));
    assert!(!is_moe(&spec.layers[0]) && spec.layers[1..].iter().all(is_moe));
    let MixerSpec::Mla(mla) = &spec.layers[0].mixer else { panic!("latent attention") };
    let mscale = 0.1 * 32f64.ln() + 1.0;
    assert!((f64::from(mla.scale) - mscale * mscale / 192f64.sqrt()).abs() < 1e-8);
    assert_eq!(mla.q_rope.magnitude, 1.0);
    assert_eq!(mla.kv_a.module, "model.layers.0.self_attn.kv_a_proj_with_mqa");
}

#[test]
fn kimi_k2_in_its_multimodal_wrapper_is_read() {
    let text: Value = serde_json::from_str(KIMI_K2).expect("JSON");
    let whole = serde_json::json!({"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
        "media_placeholder_token_id": 163605, "vision_config": {"hidden_size": 1152}, "text_config": text});
    let spec = spec(&whole.to_string());
    assert_eq!(spec.embed, "language_model.model.embed_tokens");
    assert_eq!(spec.head.as_ref().map(|head| head.module.as_str()), Some("language_model.lm_head"));
    assert!(spec.ignored.contains(&"vision_tower.".to_owned()));
}

#[test]
fn keys_beside_text_config_are_checked_too() {
    let text: Value = serde_json::from_str(KIMI_K2).expect("JSON");
    let outer = |key: &str, value: Value| {
        let mut whole = serde_json::json!({"architectures": ["KimiK25ForConditionalGeneration"], "dtype": "bfloat16",
            "model_type": "kimi_k25", "ignore_index": -100, "use_unified_vision_chunk": true, "pad_token_id": 163839,
            "video_placeholder": "<|kimi_k25_video_placeholder|>", "tie_word_embeddings": false, "text_config": text});
        whole[key] = value;
        build(whole.as_object().expect("object"))
    };
    outer("vision_config", serde_json::json!({"patch_size": 14})).expect("as published");
    for (key, value) in [
        ("tie_word_embeddings", Value::from(true)),
        ("model_type", "kimi_k26".into()),
        ("new_thing", 1.into()),
        ("rope_theta", 1e6.into()),
        ("text_config", Value::Null),
    ] {
        let error = outer(key, value).expect_err(key).to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn errors_use_the_published_name_of_a_missing_key() {
    let config: Value = serde_json::from_str(&KIMI_K2.replace("\"n_routed_experts\": 384,", "")).expect("JSON");
    let error = build(config.as_object().expect("object")).expect_err("missing").to_string();
    assert!(error.contains("n_routed_experts"), "{error}");
}

#[test]
fn deepseek_v3_with_its_prediction_layer_is_read() {
    let text = KIMI_K2.replace("\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 1");
    let spec = spec(&text.replace("kimi_k2", "deepseek_v3"));
    assert_eq!(spec.ignored, ["model.layers.61."]);
}

#[test]
fn qwen3_30b_a3b_is_read() {
    let text = r#"{"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960,
        "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
        "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06,
        "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
        "use_sliding_window": false, "vocab_size": 151936}"#;
    let plain = spec(text);
    assert!(plain.layers.iter().all(is_moe));
    assert_eq!(plain.shape().experts, vec![128; 48]);
    // Qwen3-Coder-30B-A3B states what the architecture implies.
    let said = r#"{"qkv_bias": false, "shared_expert_intermediate_size": 0, "use_qk_norm": true,"#;
    assert_eq!(spec(&text.replacen('{', said, 1)).linears().count(), plain.linears().count());
    for (key, other) in [("qkv_bias", r#"{"qkv_bias": true,"#), ("use_qk_norm", r#"{"use_qk_norm": false,"#)] {
        let config: Value = serde_json::from_str(&text.replacen('{', other, 1)).expect("JSON");
        let error = build(config.as_object().expect("object")).expect_err(key).to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn qwen1_5_moe_is_read() {
    let text = r#"{"architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "decoder_sparse_step": 1, "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 5632, "max_position_embeddings": 32768,
        "max_window_layers": 21, "model_type": "qwen2_moe", "moe_intermediate_size": 1408, "norm_topk_prob": false,
        "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24,
        "num_key_value_heads": 16, "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 5632, "sliding_window": 32768,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.40.0.dev0",
        "use_cache": true, "use_sliding_window": false, "vocab_size": 151936}"#;
    let spec = spec(text);
    assert_eq!(spec.shape().experts, vec![60; 24]);
    assert!(spec.linears().any(|linear| linear.module == "model.layers.23.mlp.shared_expert_gate"));
}

#[test]
fn mixtral_8x7b_is_read() {
    let spec = spec(
        r#"{"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
        "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": null,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.36.0.dev0",
        "use_cache": true, "vocab_size": 32000}"#,
    );
    let Mlp::Moe(moe) = &spec.layers[0].mlp else { panic!("experts") };
    assert_eq!(moe.experts[7].down.module, "model.layers.0.block_sparse_moe.experts.7.w2");
}

#[test]
fn llama_3_1_8b_and_similar_models_are_read() {
    let text = r#"{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.43.0.dev0", "use_cache": true, "vocab_size": 128256}"#;
    assert_eq!(spec(text).kv_heads, 8);
    // SmolLM2 and Falcon 3 state a few more keys.
    let more = r#"{"is_llama_config": true, "rope_interleaved": false, "transformers.js_config": {"dtype": "q4"},
        "activation": "swiglu", "head_dim": 128,"#;
    assert_eq!(spec(&text.replacen('{', more, 1)).layers.len(), 32);
}

#[test]
fn mistral_windows_are_absent_null_or_stated() {
    let text = r#"{"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 2, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "vocab_size": 32000, "use_cache": true}"#;
    let window = |text: &str| spec(text).layers[1].mixer.parts().products().1;
    assert_eq!(window(text), Some(4096), "the default of transformers");
    assert_eq!(window(&text.replacen('{', "{\"sliding_window\": null,", 1)), None);
    assert_eq!(window(&text.replacen('{', "{\"sliding_window\": 17,", 1)), Some(17));
}

#[test]
fn qwen_2_5_and_3_are_read() {
    let text = r#"{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02,
        "intermediate_size": 18944, "max_position_embeddings": 32768, "max_window_layers": 28, "model_type": "qwen2",
        "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.43.1", "use_cache": true, "use_mrope": false, "use_sliding_window": false,
        "vocab_size": 152064}"#;
    let qwen2 = spec(text);
    assert!(qwen2.linears().filter(|l| l.bias).count() == 3 * 28);
    assert_eq!(spec(&text.replace("\"num_key_value_heads\": 4", "\"num_key_value_heads\": null")).kv_heads, 28);
    let yarn = r#"{"rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},"#;
    spec(&text.replacen('{', yarn, 1));
    let qwen3 = spec(&text.replace("Qwen2For", "Qwen3For").replace("\"qwen2\"", "\"qwen3\""));
    let MixerSpec::Gqa(gqa) = &qwen3.layers[0].mixer else { panic!("grouped-query attention") };
    assert_eq!((gqa.head_dim, gqa.qk_norm.is_some(), gqa.q.bias), (128, true, false));
}

#[test]
fn granite_3_1_is_read() {
    let spec = spec(
        r#"{"architectures": ["GraniteForCausalLM"], "attention_bias": false, "attention_dropout": 0.1,
        "attention_multiplier": 0.0078125, "bos_token_id": 0, "embedding_multiplier": 12.0, "eos_token_id": 0,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 12800,
        "logits_scaling": 16.0, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "granite",
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0,
        "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000000.0,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 49155}"#,
    );
    assert_eq!((spec.embedding_multiplier, spec.residual_multiplier, spec.logits_scaling), (12.0, 0.22, 16.0));
    assert!(spec.tied);
}

#[test]
fn glm_4_5_air_and_4_7_flash_are_read() {
    let text = r#"{"architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
        "pad_token_id": 151329, "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 4096, "partial_rotary_factor": 0.5, "initializer_range": 0.02, "intermediate_size": 10944,
        "max_position_embeddings": 131072, "model_type": "glm4_moe", "moe_intermediate_size": 1408,
        "norm_topk_prob": true, "num_attention_heads": 96, "n_group": 1, "topk_group": 1, "n_routed_experts": 128,
        "n_shared_experts": 1, "routed_scaling_factor": 1.0, "num_experts_per_tok": 8, "first_k_dense_replace": 1,
        "num_hidden_layers": 46, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": null,
        "rope_theta": 1000000, "num_nextn_predict_layers": 1, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.54.0", "use_cache": true, "use_qk_norm": false, "vocab_size": 151552}"#;
    let air = spec(text);
    assert!(!is_moe(&air.layers[0]) && air.layers[1..].iter().all(is_moe));
    assert_eq!(air.ignored, ["model.layers.46."]);
    let MixerSpec::Gqa(gqa) = &air.layers[0].mixer else { panic!("grouped-query attention") };
    assert_eq!((rotation(gqa).dims, gqa.qk_norm.is_some(), gqa.q.bias, gqa.o.bias), (64, false, true, false));
    let with = spec(&text.replace("\"use_qk_norm\": false", "\"use_qk_norm\": true"));
    assert_eq!(with.tensors().len(), air.tensors().len() + 2 * 46);
    let flash = spec(
        &KIMI_K2
            .replace("DeepseekV3ForCausalLM\"]", "Glm4MoeLiteForCausalLM\"]")
            .replace("\"kimi_k2\"", "\"glm4_moe_lite\"")
            .replace("\"moe_layer_freq\": 1,", "")
            .replace("\"scoring_func\": \"sigmoid\", ", ""),
    );
    assert!(!is_moe(&flash.layers[0]) && flash.layers[1..].iter().all(is_moe));
    assert!(matches!(flash.layers[0].mixer, MixerSpec::Mla(_)));
}

#[test]
fn hy3_is_read() {
    let text = r#"{"architectures": ["HYV3ForCausalLM"], "model_type": "hy_v3", "vocab_size": 120832,
        "hidden_size": 4096, "intermediate_size": 13312, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 262144,
        "initializer_range": 0.006, "rms_norm_eps": 1e-05, "use_cache": true, "qk_norm": true, "num_experts": 192,
        "num_experts_per_tok": 8, "num_shared_experts": 1, "expert_hidden_dim": 1536, "moe_intermediate_size": 1536,
        "first_k_dense_replace": 1, "moe_router_use_sigmoid": true, "moe_router_enable_expert_bias": true,
        "router_scaling_factor": 2.826, "route_norm": true, "output_router_logits": true,
        "enable_lm_head_fp32": true, "enable_attention_fp32_softmax": false, "enable_moe_fp32_combine": false,
        "num_nextn_predict_layers": 1, "rope_parameters": {"rope_theta": 11158840.0, "rope_type": "default"},
        "tie_word_embeddings": false, "dtype": "bfloat16"}"#;
    let spec = spec(text);
    let Mlp::Moe(moe) = &spec.layers[1].mlp else { panic!("experts") };
    assert_eq!(moe.router.module, "model.layers.1.mlp.router.gate");
    assert_eq!(moe.choice_bias.as_ref().map(|bias| bias.tensor.as_str()), Some("model.layers.1.mlp.expert_bias"));
    let shared = moe.shared.as_ref().expect("a shared expert");
    assert_eq!(shared.mlp.up.module, "model.layers.1.mlp.shared_mlp.up_proj");
    for (key, other) in [
        ("qk_norm", "\"qk_norm\": false"),
        ("moe_router_use_sigmoid", "\"moe_router_use_sigmoid\": false"),
        ("expert_hidden_dim", "\"expert_hidden_dim\": 1024"),
    ] {
        let start = text.find(&format!("\"{key}\"")).expect("the key");
        let end = start + text[start..].find(',').expect("its end");
        let config: Value = serde_json::from_str(&text.replace(&text[start..end], other)).expect("JSON");
        let error = build(config.as_object().expect("object")).expect_err(key).to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn minimax_m2_is_read() {
    let kinds = vec!["1"; 62].join(", ");
    let text =
        r#"{"architectures": ["MiniMaxM2ForCausalLM"], "attn_type_list": [KINDS], "auto_map": {}, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 1536, "max_position_embeddings": 196608,
        "model_type": "minimax_m2", "mtp_transformer_layers": 1, "num_attention_heads": 48, "num_experts_per_tok": 8,
        "num_hidden_layers": 62, "num_key_value_heads": 8, "num_local_experts": 256, "num_mtp_modules": 3,
        "qk_norm_type": "per_layer", "quantization_config": {"activation_scheme": "dynamic", "fmt": "float8_e4m3fn",
        "quant_method": "fp8", "weight_block_size": [128, 128],
        "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]}, "rms_norm_eps": 1e-06,
        "rope_theta": 5000000, "rotary_dim": 64, "scoring_func": "sigmoid", "shared_intermediate_size": 0,
        "tie_word_embeddings": false, "transformers_version": "4.46.1", "use_cache": true, "use_mtp": true,
        "use_qk_norm": true, "use_routing_bias": true, "vocab_size": 200064}"#
            .replace("KINDS", &kinds);
    let spec = spec(&text);
    assert_eq!(spec.ignored, ["model.layers.62.", "model.layers.63.", "model.layers.64."]);
    let MixerSpec::Gqa(gqa) = &spec.layers[0].mixer else { panic!("grouped-query attention") };
    let sizes = gqa.qk_norm.as_ref().map(|(q, k)| (q.size, k.size));
    assert_eq!((rotation(gqa).dims, sizes), (64, Some((48 * 128, 8 * 128))));
    let Mlp::Moe(moe) = &spec.layers[0].mlp else { panic!("experts") };
    assert_eq!(
        moe.choice_bias.as_ref().map(|bias| bias.tensor.as_str()),
        Some("model.layers.0.block_sparse_moe.e_score_correction_bias")
    );
    for (from, to) in [
        ("\"attn_type_list\": [1,", "\"attn_type_list\": [0,"),
        ("\"qk_norm_type\": \"per_layer\"", "\"qk_norm_type\": \"per_head\""),
        ("\"rotary_dim\": 64", "\"rotary_dim\": 256"),
        ("\"shared_intermediate_size\": 0", "\"shared_intermediate_size\": 8"),
    ] {
        let config: Value = serde_json::from_str(&text.replace(from, to)).expect("JSON");
        let error = build(config.as_object().expect("object")).expect_err(to).to_string();
        let key = from.split('"').nth(1).expect("a key");
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn ernie_4_5_and_seed_oss_are_read() {
    let text = r#"{"architectures": ["Ernie4_5_MoeForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
        "dtype": "bfloat16", "hidden_act": "silu", "hidden_size": 8192, "intermediate_size": 28672,
        "max_position_embeddings": 131072, "model_type": "ernie4_5_moe", "num_attention_heads": 64,
        "num_key_value_heads": 8, "num_hidden_layers": 54, "pad_token_id": 0, "rms_norm_eps": 1e-05,
        "use_cache": false, "vocab_size": 103424, "rope_theta": 500000, "use_rmsnorm": true, "use_bias": false,
        "moe_num_experts": 64, "moe_layer_start_index": 3, "moe_layer_end_index": -1, "moe_intermediate_size": 3584,
        "moe_capacity": [64, 64, 64], "moe_gate": "topk", "moe_k": 8, "moe_layer_interval": 1,
        "moe_num_shared_experts": 0, "moe_use_aux_free": true, "num_nextn_predict_layers": 1,
        "tie_word_embeddings": false}"#;
    let ernie = spec(text);
    assert_eq!(ernie.layers.iter().filter(|layer| is_moe(layer)).count(), 51);
    let Mlp::Moe(moe) = &ernie.layers[3].mlp else { panic!("experts") };
    assert!(moe.shared.is_none());
    assert_eq!(moe.choice_bias.as_ref().map(|bias| bias.shape.clone()), Some(vec![1, 64]));
    for (from, to, key) in
        [("\"use_bias\": false", "\"use_bias\": true", "use_bias"), ("\"moe_k\": 8", "\"moe_k\": 65", "moe_k")]
    {
        let config: Value = serde_json::from_str(&text.replace(from, to)).expect("JSON");
        let error = build(config.as_object().expect("object")).expect_err(key).to_string();
        assert!(error.contains(key), "{error}");
    }
    let seed = spec(
        r#"{"architectures": ["SeedOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.1,
        "attention_out_bias": false, "bos_token_id": 0, "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 27648, "max_position_embeddings": 524288,
        "mlp_bias": false, "model_type": "seed_oss", "num_attention_heads": 80, "num_hidden_layers": 64,
        "num_key_value_heads": 8, "pad_token_id": 1, "residual_dropout": 0.1, "rms_norm_eps": 1e-06,
        "rope_scaling": {"rope_type": "default"}, "rope_theta": 10000000.0, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 155136}"#,
    );
    assert_eq!(seed.linears().filter(|l| l.bias).count(), 3 * 64);
}

#[test]
fn layers_by_kind_must_agree_with_the_number_of_dense_ones() {
    let text = KIMI_K2
        .replace("DeepseekV3ForCausalLM\"]", "Glm4MoeLiteForCausalLM\"]")
        .replace("\"kimi_k2\"", "\"glm4_moe_lite\"")
        .replace("\"moe_layer_freq\": 1,", "")
        .replace("\"scoring_func\": \"sigmoid\", ", "")
        .replace("\"num_hidden_layers\": 61", "\"num_hidden_layers\": 2");
    let with = |types: &str| text.replacen('{', &format!("{{\"mlp_layer_types\": {types},"), 1);
    assert!(is_moe(&spec(&with("[\"dense\", \"sparse\"]")).layers[1]));
    for types in ["[\"sparse\", \"sparse\"]", "[\"dense\"]", "[\"dense\", \"experts\"]"] {
        let config: Value = serde_json::from_str(&with(types)).expect("JSON");
        let error = build(config.as_object().expect("object")).expect_err(types).to_string();
        assert!(error.contains("mlp_layer_types"), "{error}");
    }
}

#[test]
fn phi_4_is_read_and_phi_4_mini_with_its_long_rotation() {
    let text = r#"{"architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "auto_map": {}, "bos_token_id": 100257, "embd_pdrop": 0.0, "eos_token_id": 100265, "hidden_act": "silu",
        "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 17920, "max_position_embeddings": 16384,
        "model_type": "phi3", "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 10,
        "original_max_position_embeddings": 16384, "pad_token_id": 100349, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
        "rope_scaling": null, "rope_theta": 250000, "sliding_window": null, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.47.0", "use_cache": true, "vocab_size": 100352}"#;
    let phi = spec(text);
    let MixerSpec::Gqa(gqa) = &phi.layers[0].mixer else { panic!("grouped-query attention") };
    assert_eq!(gqa.v.stored_shape(), [60 * 128, 5120]);
    // The second of two ranks has the last five heads of k, which are after all queries.
    assert_eq!(only(gqa.k.stored_rows(5 * 128..10 * 128)), 45 * 128..50 * 128);
    let factors = |value: f64| json!(vec![value; 48]).to_string();
    let mini = format!(
        r#"{{"architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "auto_map": {{}},
        "bos_token_id": 199999, "embd_pdrop": 0.0, "eos_token_id": 199999, "full_attn_mod": 1, "hidden_act": "silu",
        "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 8192, "interpolate_factor": 1,
        "lm_head_bias": false, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "phi3",
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096, "pad_token_id": 199999, "partial_rotary_factor": 0.75,
        "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": {{"long_factor": {}, "short_factor": {},
        "type": "longrope"}}, "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": true,
        "torch_dtype": "bfloat16", "transformers_version": "4.45.0", "use_cache": true, "vocab_size": 200064}}"#,
        factors(2.0),
        factors(1.0)
    );
    let config: Value = serde_json::from_str(&mini).expect("JSON");
    for (context, first) in [(None, 0.5), (Some(4096), 1.0)] {
        let mini = build_for(config.as_object().expect("object"), context).expect("Phi-4-mini");
        let MixerSpec::Gqa(gqa) = &mini.layers[0].mixer else { panic!("grouped-query attention") };
        assert_eq!((rotation(gqa).dims, rotation(gqa).inv_freq[0]), (96, first));
    }
}

#[test]
fn olmo_3_scales_only_layers_that_see_all_tokens() {
    let olmo = spec(
        r#"{"architectures": ["Olmo3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 100257, "eos_token_id": 100265, "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 11008, "layer_types": ["sliding_attention",
        "sliding_attention", "sliding_attention", "full_attention"], "max_position_embeddings": 65536,
        "model_type": "olmo3", "num_attention_heads": 32, "num_hidden_layers": 4, "num_key_value_heads": 32,
        "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_scaling": {"attention_factor": 1.2079441541679836,
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0, "original_max_position_embeddings": 8192,
        "rope_type": "yarn"}, "rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.57.1", "use_cache": false, "vocab_size": 100278}"#,
    );
    let seen = olmo.layers.iter().map(|layer| {
        let MixerSpec::Gqa(gqa) = &layer.mixer else { panic!("grouped-query attention") };
        assert!(layer.input_norm.is_none() && layer.mlp_norm.is_none());
        (gqa.window, rotation(gqa).magnitude)
    });
    let (sliding, full) = ((Some(4096), 1.0), (None, 1.207_944_2));
    assert_eq!(seen.collect::<Vec<_>>(), [sliding, sliding, sliding, full]);
}

#[test]
fn experts_of_granite_are_parts_of_a_tensor() {
    let granite = spec(
        r#"{"architectures": ["GraniteMoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "attention_multiplier": 0.015625, "bos_token_id": 0, "embedding_multiplier": 12.0, "eos_token_id": 0,
        "hidden_act": "silu", "hidden_size": 1536, "initializer_range": 0.02, "intermediate_size": 512,
        "logits_scaling": 6.0, "max_position_embeddings": 131072, "model_type": "granitemoe",
        "num_attention_heads": 24, "num_experts_per_tok": 8, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "num_local_experts": 40, "output_router_logits": false, "pad_token_id": 0, "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000, "router_aux_loss_coef": 0.0,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 49155}"#,
    );
    let Mlp::Moe(moe) = &granite.layers[0].mlp else { panic!("experts") };
    let up = &moe.experts[3].up;
    assert_eq!((up.stored_shape(), only(up.stored_rows(0..512))), ([40 * 1024, 1536], 7 * 512..8 * 512));
    assert_eq!(only(moe.experts[39].down.stored_rows(0..1536)), 39 * 1536..40 * 1536);
    assert_eq!(moe.router.module, "model.layers.0.block_sparse_moe.router.layer");
}

#[test]
fn sizes_have_limits() {
    for (from, to) in [
        ("\"num_hidden_layers\": 61", "\"num_hidden_layers\": 2000000000"),
        ("\"n_routed_experts\": 384", "\"n_routed_experts\": 2000000000"),
        ("\"qk_rope_head_dim\": 64", "\"qk_rope_head_dim\": 2000000000"),
        ("\"hidden_size\": 7168", "\"hidden_size\": 2000000000"),
    ] {
        let config: Value = serde_json::from_str(&KIMI_K2.replace(from, to)).expect("JSON");
        let error = build(config.as_object().expect("object")).expect_err(to).to_string();
        assert!(error.contains("at most"), "{error}");
    }
}

#[test]
fn internlm_2_5_has_queries_keys_and_values_in_turn() {
    let model = spec(
        r#"{"architectures": ["InternLM2ForCausalLM"], "attn_implementation": "eager", "auto_map": {"AutoConfig":
        "configuration_internlm2.InternLM2Config", "AutoModelForCausalLM": "modeling_internlm2.InternLM2ForCausalLM",
        "AutoModel": "modeling_internlm2.InternLM2ForCausalLM"}, "bias": false, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "internlm2", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "pad_token_id": 2, "rms_norm_eps": 1e-05,
        "rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_theta": 1000000, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.41.0", "use_cache": true, "vocab_size": 92544,
        "pretraining_tp": 1}"#,
    );
    let MixerSpec::Gqa(gqa) = &model.layers[31].mixer else { panic!("grouped-query attention") };
    assert_eq!(gqa.v.stored_shape(), [48 * 128, 4096]);
    // The fourth group of six heads: four queries, a key, a value.
    let of = |linear: &LinearSpec, outputs| linear.stored_rows(outputs);
    assert_eq!(of(&gqa.q, 12 * 128..17 * 128), [18 * 128..22 * 128, 24 * 128..25 * 128]);
    assert_eq!(only(of(&gqa.k, 3 * 128..4 * 128)), 22 * 128..23 * 128);
    assert_eq!(only(of(&gqa.v, 3 * 128..4 * 128)), 23 * 128..24 * 128);
    let names: Vec<String> = model.modules().into_iter().map(|(name, _)| name).collect();
    for name in ["model.layers.31.attention.wqkv", "model.layers.31.feed_forward.w2", "model.tok_embeddings", "output"]
    {
        assert!(names.iter().any(|found| found == name), "{name}");
    }
}

#[test]
fn granite_20b_function_calling_is_read() {
    let text = r#"{"activation_function": "gelu", "architectures": ["GPTBigCodeForCausalLM"],
        "attention_softmax_in_fp32": true, "multi_query": true, "attn_pdrop": 0.1, "bos_token_id": 0,
        "embd_pdrop": 0.1, "eos_token_id": 0, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
        "model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_inner": 24576, "n_layer": 52,
        "n_positions": 8192, "pad_token_id": 0, "resid_pdrop": 0.1, "scale_attention_softmax_in_fp32": true,
        "scale_attn_weights": true, "summary_activation": null, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
        "torch_dtype": "bfloat16", "transformers_version": "4.37.2", "use_cache": true, "vocab_size": 49152}"#;
    let model = spec(text);
    let MixerSpec::Gqa(gqa) = &model.layers[51].mixer else { panic!("grouped-query attention") };
    assert!(gqa.rope.is_none() && gqa.q.bias && model.tied);
    assert_eq!((model.kv_heads, gqa.v.stored_shape()), (1, [6144 + 2 * 128, 6144]));
    assert_eq!(only(gqa.v.stored_rows(0..128)), 6272..6400);
    let tensors = model.tensors();
    let has = |name: &str, shape: &[usize]| tensors.iter().any(|(found, is)| found == name && is == shape);
    assert!(has("transformer.wpe.weight", &[8192, 6144]) && has("transformer.h.51.attn.c_attn.bias", &[6400]));
    assert!(has("transformer.ln_f.weight", &[6144]) && has("transformer.h.0.ln_1.bias", &[6144]));
    let other: Value = serde_json::from_str(&text.replace("\"gelu\"", "\"relu\"")).expect("JSON");
    let error = build(other.as_object().expect("object")).expect_err("relu").to_string();
    assert!(error.contains("activation_function") && error.contains("relu"), "{error}");
}
