use super::*;

/// params.json of mistralai/Mistral-Large-3-675B-Instruct-2512, without the rest of its vision tower.
const LARGE3: &str = r#"{"dim": 7168, "n_layers": 61, "head_dim": 192, "hidden_dim": 16384, "n_heads": 128,
    "n_kv_heads": 128, "rope_theta": 10000.0, "norm_eps": 1e-06, "vocab_size": 131072, "tied_embeddings": false,
    "max_position_embeddings": 294912, "max_seq_len": 262144,
    "llama_4_scaling": {"original_max_position_embeddings": 8192, "beta": 0.1}, "q_lora_rank": 1536,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "kv_lora_rank": 512, "v_head_dim": 128,
    "quantization_config": {"config_groups": {"FP8_BLOCK": {"format": "float-quantized",
        "input_activations": {"dynamic": true, "group_size": 128, "num_bits": 8, "strategy": "group", "symmetric": true,
            "type": "float"}, "output_activations": null, "targets": ["Linear"],
        "weights": {"block_structure": [128, 128], "dynamic": false, "num_bits": 8, "strategy": "block",
            "symmetric": true, "type": "float"}}}, "format": "float-quantized",
        "ignore": ["model.embed_tokens", "re:patch_merger.*", "re:.*kv_a_proj_with_mqa$", "re:.*q_a_proj$", "re:.*gate$",
            "lm_head"], "quant_method": "compressed-tensors", "quantization_status": "compressed"},
    "moe": {"expert_parallel": 1, "expert_model_parallel": 1, "route_every_n": 1, "first_k_dense_replace": 3,
        "num_experts_per_tok": 4, "num_experts": 128, "num_expert_groups": 1, "num_expert_groups_per_tok": 1,
        "routed_scale": 1.0, "expert_hidden_dim": 4096, "num_shared_experts": 1},
    "vision_encoder": {"hidden_size": 1664},
    "yarn": {"original_max_position_embeddings": 8192, "factor": 36, "apply_scale": false, "beta": 32, "alpha": 1}}"#;

fn read(text: &str) -> Result<Map<String, Value>, String> {
    config_of(serde_json::from_str::<Value>(text).expect("JSON").as_object().expect("object"))
}

#[test]
fn mistral_large_3_is_read() {
    let config = read(LARGE3).expect("config");
    let spec = crate::model::build(&config).expect("spec");
    assert_eq!((spec.architecture, spec.layers.len()), ("MistralLarge3ForCausalLM", 61));
    assert_eq!(spec.shape().experts[2..4], [0, 128]);
    let forms = crate::checkpoint::StatedForms::read(&config, &config, rein_kernels::ScaleForm::F32).expect("forms");
    let form = |module: &str| forms.of(module);
    assert_eq!(form("model.layers.3.mlp.experts.7.up_proj"), rein_kernels::StoredForm::Fp8 { block: [128, 128] });
    assert_eq!(form("model.layers.3.self_attn.q_a_proj"), rein_kernels::StoredForm::Bf16);
}

#[test]
fn what_would_change_results_is_refused_by_name() {
    for (from, to, named) in [
        ("\"dim\"", "\"new_thing\": 1, \"dim\"", "new_thing is not supported"),
        ("\"route_every_n\"", "\"renorm\": true, \"route_every_n\"", "moe.renorm is not supported"),
        ("\"alpha\": 1", "\"alpha\": 1, \"gamma\": 2", "yarn.gamma is not supported"),
        ("\"apply_scale\": false", "\"apply_scale\": 2", "yarn.apply_scale must be true or false"),
        ("\"num_shared_experts\": 1", "\"num_shared_experts\": 0", "moe.num_shared_experts"),
        (
            "8192, \"beta\"",
            "4096, \"beta\"",
            "llama_4_scaling.original_max_position_embeddings is 4096, but 8192 in yarn",
        ),
    ] {
        let changed = LARGE3.replacen(from, to, 1);
        assert_ne!(changed, LARGE3, "{from}");
        let error = read(&changed).expect_err(named);
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn names_are_those_of_transformers() {
    for (theirs, ours) in [
        ("tok_embeddings.weight", "model.embed_tokens.weight"),
        ("norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
        ("layers.12.attention_norm.weight", "model.layers.12.input_layernorm.weight"),
        ("layers.0.attention.wkv_a_with_mqa.weight", "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"),
        ("layers.0.attention.wq_b.qscale_weight", "model.layers.0.self_attn.q_b_proj.weight_scale"),
        ("layers.0.feed_forward.w2.weight_scale", "model.layers.0.mlp.down_proj.weight_scale"),
        ("layers.3.gate.weight", "model.layers.3.mlp.gate.weight"),
        ("layers.3.shared_experts.w3.weight", "model.layers.3.mlp.shared_experts.up_proj.weight"),
        ("layers.3.experts.101.w1.qscale_act", "model.layers.3.mlp.experts.101.gate_proj.input_scale"),
        ("vision_encoder.layers.0.w1.weight", "vision_encoder.layers.0.w1.weight"),
        ("layers.0.attention.wq.weight", "layers.0.attention.wq.weight"),
    ] {
        assert_eq!(name_of(theirs), ours);
    }
}
