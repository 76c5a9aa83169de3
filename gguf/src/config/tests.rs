use super::*;
use crate::tests::{BYTE_LEVEL, Header, Put};

fn of(header: &Header) -> Result<Map<String, Value>, String> {
    config(&header.read(), BYTE_LEVEL.len() as u64, &RopeFactors::new()).map_err(|error| error.to_string())
}

fn has(config: &Map<String, Value>, expected: Value) {
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(config.get(key), Some(value), "{key}");
    }
}

fn moe() -> Header {
    Header::dense("qwen3moe")
        .put("qwen3moe.attention.key_length", Put::U32(16))
        .put("qwen3moe.attention.value_length", Put::U32(16))
        .put("qwen3moe.expert_count", Put::U32(4))
        .put("qwen3moe.expert_used_count", Put::U32(2))
        .put("qwen3moe.expert_feed_forward_length", Put::U32(6))
}

fn deepseek() -> Header {
    Header::dense("deepseek2")
        .set("deepseek2.attention.key_length", Put::U32(12))
        .put("deepseek2.attention.value_length", Put::U32(8))
        .put("deepseek2.attention.key_length_mla", Put::U32(10))
        .put("deepseek2.attention.value_length_mla", Put::U32(6))
        .put("deepseek2.attention.kv_lora_rank", Put::U32(8))
        .put("deepseek2.rope.dimension_count", Put::U32(4))
        .put("deepseek2.leading_dense_block_count", Put::U32(1))
        .put("deepseek2.expert_count", Put::U32(4))
        .put("deepseek2.expert_used_count", Put::U32(2))
        .put("deepseek2.expert_shared_count", Put::U32(1))
        .put("deepseek2.expert_feed_forward_length", Put::U32(6))
        .put("deepseek2.expert_gating_func", Put::U32(2))
        .put("deepseek2.expert_weights_norm", Put::Bool(true))
        .put("deepseek2.expert_weights_scale", Put::F32(2.5))
        .tensor("blk.1.exp_probs_b.bias", &[4])
}

#[test]
fn a_llama_has_the_common_keys() {
    let config = of(&Header::dense("llama")).unwrap();
    has(
        &config,
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 12, "hidden_size": 8,
            "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 64,
            "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false, "hidden_act": "silu",
        }),
    );
    assert!(!config.contains_key("rope_scaling"));
    has(&of(&Header::dense("llama").tensor("output.weight", &[8, 12])).unwrap(), json!({"tie_word_embeddings": false}));
}

#[test]
fn biases_are_those_of_the_tensors() {
    let both = Header::dense("llama").tensor("blk.0.attn_q.bias", &[8]).tensor("blk.0.attn_output.bias", &[8]);
    has(&of(&both.tensor("blk.0.ffn_gate.bias", &[12])).unwrap(), json!({"attention_bias": true, "mlp_bias": true}));
    let one = Header::dense("llama").tensor("blk.0.attn_q.bias", &[8]);
    assert!(
        of(&one).unwrap_err().contains("must have biases on the projections of q, k, v and the output, or on none")
    );
    let qwen2 = of(&Header::dense("qwen2").tensor("blk.0.attn_q.bias", &[8])).unwrap();
    has(&qwen2, json!({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}));
    assert!(!qwen2.contains_key("attention_bias"));
}

#[test]
fn experts_make_a_llama_a_mixtral() {
    let header = Header::dense("llama")
        .put("llama.expert_count", Put::U32(4))
        .put("llama.expert_used_count", Put::U32(2))
        .put("llama.rope.dimension_count", Put::U32(4));
    has(
        &of(&header).unwrap(),
        json!({
            "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
            "num_experts_per_tok": 2, "intermediate_size": 12,
        }),
    );
}

#[test]
fn qwen3_moe_normalizes_and_has_its_own_head_size() {
    has(
        &of(&moe()).unwrap(),
        json!({
            "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16,
            "moe_intermediate_size": 6, "norm_topk_prob": true, "decoder_sparse_step": 1,
        }),
    );
    let sigmoid = moe().put("qwen3moe.expert_gating_func", Put::U32(2));
    assert!(of(&sigmoid).unwrap_err().contains("qwen3moe.expert_gating_func: must be 1 (softmax), got 2"));
    let scaled = moe().put("qwen3moe.expert_weights_scale", Put::F32(2.5));
    assert!(of(&scaled).unwrap_err().contains("qwen3moe.expert_weights_scale: must be 0 or 1"));
    assert!(of(&Header::dense("qwen3moe")).unwrap_err().contains("qwen3moe.expert_count: must be at least 1"));
}

#[test]
fn deepseek_has_latent_attention_and_sigmoid_routing() {
    let expected = json!({
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_key_value_heads": 2,
        "kv_lora_rank": 8, "q_lora_rank": null, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 6,
        "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": true, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    });
    has(&of(&deepseek()).unwrap(), expected);
    // A file from before merged attention: the plain keys are the sizes of a head.
    let old = deepseek()
        .without("deepseek2.attention.key_length_mla")
        .without("deepseek2.attention.value_length_mla")
        .put("deepseek2.attention.q_lora_rank", Put::U32(3));
    has(&of(&old).unwrap(), json!({"qk_nope_head_dim": 8, "v_head_dim": 8, "q_lora_rank": 3}));
    let kimi = deepseek().set("tokenizer.ggml.pre", Put::Str("kimi-k2"));
    has(&of(&kimi).unwrap(), json!({"model_type": "kimi_k2"}));
}

#[test]
fn the_older_deepseek_is_refused() {
    let flash = deepseek().without("deepseek2.expert_gating_func");
    has(&of(&flash).unwrap(), json!({"scoring_func": "sigmoid"}));
    let v2 = flash.without_tensor("blk.1.exp_probs_b.bias");
    assert!(of(&v2).unwrap_err().contains("must be 2 (sigmoid, as in DeepSeek-V3 and Kimi K2), got no value"));
    let unbiased = deepseek().without_tensor("blk.1.exp_probs_b.bias");
    assert!(of(&unbiased).unwrap_err().contains("blk.1.exp_probs_b.bias: the tensor is required"));
}

#[test]
fn granite_s_scales_are_multipliers() {
    let granite = Header::dense("granite")
        .put("granite.attention.scale", Put::F32(0.35))
        .put("granite.embedding_scale", Put::F32(12.0))
        .put("granite.residual_scale", Put::F32(0.22))
        .put("granite.logit_scale", Put::F32(8.0));
    has(
        &of(&granite).unwrap(),
        json!({
            "attention_multiplier": 0.35, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
            "logits_scaling": 8.0, "attention_bias": false,
        }),
    );
    has(&of(&Header::dense("granite")).unwrap(), json!({"attention_multiplier": 0.5, "logits_scaling": 1.0}));
    let still = granite.put("granite.rope.scaling.finetuned", Put::Bool(false));
    assert!(of(&still).unwrap_err().contains("granite.rope.scaling.finetuned: must be true"));
}

#[test]
fn gemma_s_windows_and_bases_are_those_of_its_layers() {
    let gemma = Header::dense("gemma3").put("gemma3.attention.sliding_window", Put::U32(32));
    let config = of(&gemma).unwrap();
    has(
        &config,
        json!({
            "architectures": ["Gemma3ForCausalLM"], "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 32,
            "sliding_window_pattern": 6, "rope_local_base_freq": 1e4, "query_pre_attn_scalar": 4,
        }),
    );
    assert!(!config.contains_key("hidden_act"));
    has(&of(&Header::dense("gemma3")).unwrap(), json!({"sliding_window_pattern": 1}));
    let capped = gemma.put("gemma3.final_logit_softcapping", Put::F32(30.0));
    assert!(of(&capped).unwrap_err().contains("gemma3.final_logit_softcapping"));
}

#[test]
fn layers_of_multi_token_prediction_are_not_counted() {
    let header = Header::dense("llama").put("llama.nextn_predict_layers", Put::U32(1));
    has(&of(&header).unwrap(), json!({"num_hidden_layers": 1}));
    let all = Header::dense("llama").put("llama.nextn_predict_layers", Put::U32(2));
    assert!(of(&all).unwrap_err().contains("llama.nextn_predict_layers: must be below block_count, got 2"));
}

#[test]
fn keys_that_may_change_results_are_refused_by_name() {
    for key in ["attn_logit_softcapping", "expert_weights_scale", "rope.dimension_sections", "anything"] {
        let header = Header::dense("llama").put(&format!("llama.{key}"), Put::F32(30.0));
        let expected = format!("llama.{key}: unknown key, which may change the model's results");
        assert_eq!(of(&header).unwrap_err(), expected);
    }
    let scaled = Header::dense("llama").put("llama.attention.scale", Put::F32(0.3));
    assert!(of(&scaled).unwrap_err().contains("llama.attention.scale: must be 1 / sqrt(head size), 0.5"));
    of(&Header::dense("llama").put("llama.attention.scale", Put::F32(0.5))).unwrap();
    let windowed = Header::dense("llama").put("llama.attention.sliding_window", Put::U32(32));
    assert!(of(&windowed).unwrap_err().contains("must be 0 or at least context_length, 64, got 32"));
    let partial = Header::dense("llama").put("llama.rope.dimension_count", Put::U32(2));
    assert!(of(&partial).unwrap_err().contains("must be the size of a head, 4, got 2"));
    // Keys of other parts of the file are not the architecture's.
    of(&Header::dense("llama").put("general.name", Put::Str("x")).put("quantize.imatrix.file", Put::Str("y"))).unwrap();
}

#[test]
fn invalid_values_name_the_key() {
    let message = |key: &str, value: Put| of(&Header::dense("llama").set(key, value)).unwrap_err();
    let unknown = message("general.architecture", Put::Str("mamba"));
    assert!(
        unknown.starts_with("general.architecture: must be one of llama, mistral3, internlm2, granite, "),
        "{unknown}"
    );
    assert!(unknown.ends_with(", phi3, starcoder, got mamba"), "{unknown}");
    assert_eq!(message("llama.block_count", Put::U32(0)), "llama.block_count: must be at least 1, got 0");
    let most = "llama.block_count: must be at most 4096, got 4097";
    assert_eq!(message("llama.block_count", Put::U32(4097)), most);
    assert_eq!(message("llama.block_count", Put::Str("2")), "llama.block_count: must be a whole number, got a string");
    assert!(message("llama.attention.head_count_kv", Put::I32s(&[1, 2])).contains("differs between layers"));
    assert!(message("llama.attention.head_count_kv", Put::I32s(&[])).contains("must not be an empty array"));
    assert!(message("llama.attention.head_count_kv", Put::U32(0)).contains("must divide attention.head_count"));
    assert!(message("llama.attention.head_count", Put::U32(3)).contains("must divide embedding_length, 8, got 3"));
    assert!(message("llama.rope.freq_base", Put::F32(f32::NAN)).contains("must be finite, got NaN"));
    assert!(message("llama.attention.key_length", Put::U32(3)).contains("must be even and at least 2, got 3"));
    of(&Header::dense("llama").set("llama.attention.head_count_kv", Put::I32s(&[1, 1]))).unwrap();
    let short = Header::dense("llama").without_tensor("token_embd.weight").tensor("token_embd.weight", &[8, 11]);
    assert!(of(&short).unwrap_err().contains("must have the dimensions [8, 12]"));
    let missing = Header::dense("llama").without("llama.context_length");
    assert_eq!(of(&missing).unwrap_err(), "llama.context_length: is required");
}

#[test]
fn gpt_oss_has_what_its_files_do_not_state() {
    let header = Header::dense("gpt-oss")
        .put("gpt-oss.expert_count", Put::U32(4))
        .put("gpt-oss.expert_used_count", Put::U32(2))
        .put("gpt-oss.expert_feed_forward_length", Put::U32(6))
        .put("gpt-oss.attention.sliding_window", Put::U32(16))
        .put("gpt-oss.rope.scaling.type", Put::Str("yarn"))
        .put("gpt-oss.rope.scaling.factor", Put::F32(32.0))
        .put("gpt-oss.rope.scaling.original_context_length", Put::U32(4096));
    has(
        &of(&header).unwrap(),
        json!({
            "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": 4,
            "num_experts_per_tok": 2, "intermediate_size": 6, "sliding_window": 16, "attention_bias": true,
            "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
                "truncate": false},
        }),
    );
    let dense = Header::dense("gpt-oss").put("gpt-oss.attention.sliding_window", Put::U32(16));
    assert!(of(&dense).unwrap_err().contains("expert_count: must be at least 1"));
}
