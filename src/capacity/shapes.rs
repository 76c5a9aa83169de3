//! Published config.json files of well-known models, as far as they matter for capacity.

/// Name and config.json.
const SHAPES: &[(&str, &str)] = &[
    (
        "deepseek-v3",
        r#"{"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "intermediate_size": 18432,
            "moe_intermediate_size": 2048, "num_hidden_layers": 61, "first_k_dense_replace": 3,
            "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1,
            "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "q_lora_rank": 1536, "kv_lora_rank": 512,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
            "max_position_embeddings": 163840, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
            "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8",
            "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}}"#,
    ),
    (
        "kimi-k2",
        r#"{"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "intermediate_size": 18432,
            "moe_intermediate_size": 2048, "num_hidden_layers": 61, "first_k_dense_replace": 1,
            "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384, "n_shared_experts": 1,
            "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1, "q_lora_rank": 1536, "kv_lora_rank": 512,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 163840,
            "max_position_embeddings": 131072, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid",
            "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8",
            "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}}"#,
    ),
    (
        "kimi-k2-thinking",
        r#"{"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "intermediate_size": 18432,
            "moe_intermediate_size": 2048, "num_hidden_layers": 61, "first_k_dense_replace": 1,
            "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384, "n_shared_experts": 1,
            "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1, "q_lora_rank": 1536, "kv_lora_rank": 512,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 163840,
            "max_position_embeddings": 262144, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid",
            "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "quantization_config":
            {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights":
            {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 32}}}, "ignore":
            ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]}}"#,
    ),
    (
        "llama-3.1-70b",
        r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "intermediate_size": 28672,
            "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
            "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}"#,
    ),
    (
        "mixtral-8x7b",
        r#"{"architectures": ["MixtralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
            "num_experts_per_tok": 2, "vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": null,
            "torch_dtype": "bfloat16"}"#,
    ),
    (
        "qwen3-235b-a22b",
        r#"{"architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 4096, "intermediate_size": 12288,
            "moe_intermediate_size": 1536, "num_hidden_layers": 94, "num_attention_heads": 64,
            "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
            "norm_topk_prob": true, "vocab_size": 151936, "max_position_embeddings": 40960,
            "torch_dtype": "bfloat16"}"#,
    ),
    (
        "qwen3-30b-a3b",
        r#"{"architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "intermediate_size": 6144,
            "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
            "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
            "norm_topk_prob": true, "vocab_size": 151936, "max_position_embeddings": 40960,
            "torch_dtype": "bfloat16"}"#,
    ),
    (
        "glm-4.5-air",
        r#"{"architectures": ["Glm4MoeForCausalLM"], "hidden_size": 4096, "intermediate_size": 10944,
            "moe_intermediate_size": 1408, "num_hidden_layers": 46, "first_k_dense_replace": 1,
            "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "attention_bias": true,
            "use_qk_norm": false, "partial_rotary_factor": 0.5, "n_routed_experts": 128, "n_shared_experts": 1,
            "num_experts_per_tok": 8, "routed_scaling_factor": 1.0, "vocab_size": 151552,
            "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}"#,
    ),
    (
        "hy3",
        r#"{"architectures": ["HYV3ForCausalLM"], "hidden_size": 4096, "intermediate_size": 13312,
            "moe_intermediate_size": 1536, "num_hidden_layers": 80, "first_k_dense_replace": 1,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "num_experts": 192,
            "num_shared_experts": 1, "num_experts_per_tok": 8, "router_scaling_factor": 2.826, "vocab_size": 120832,
            "max_position_embeddings": 262144, "torch_dtype": "bfloat16"}"#,
    ),
    (
        "minimax-m2",
        r#"{"architectures": ["MiniMaxM2ForCausalLM"], "hidden_size": 3072, "intermediate_size": 1536,
            "num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
            "rotary_dim": 64, "num_local_experts": 256, "num_experts_per_tok": 8, "vocab_size": 200064,
            "max_position_embeddings": 196608, "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8",
            "fmt": "float8_e4m3fn", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}}"#,
    ),
    (
        "mistral-large-3",
        r#"{"architectures": ["MistralLarge3ForCausalLM"], "hidden_size": 7168, "intermediate_size": 16384,
            "moe_intermediate_size": 4096, "num_hidden_layers": 61, "first_k_dense_replace": 3,
            "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 128, "n_shared_experts": 1,
            "num_experts_per_tok": 4, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 131072, "max_position_embeddings": 294912,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 36.0, "attention_factor": 1.0,
            "original_max_position_embeddings": 8192, "llama_4_scaling_beta": 0.1}, "torch_dtype": "bfloat16",
            "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
            "weight_block_size": [128, 128], "modules_to_not_convert": ["model.embed_tokens", "lm_head"]}}"#,
    ),
    (
        "qwen3.5-35b-a3b",
        r#"{"architectures": ["Qwen3_5MoeForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 40,
            "full_attention_interval": 4, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
            "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
            "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
            "vocab_size": 248320, "max_position_embeddings": 262144, "torch_dtype": "bfloat16"}"#,
    ),
    (
        "gpt-oss-20b",
        r#"{"architectures": ["GptOssForCausalLM"], "hidden_size": 2880, "intermediate_size": 2880,
            "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
            "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "swiglu_limit": 7.0,
            "vocab_size": 201088, "max_position_embeddings": 131072, "rope_theta": 150000, "rope_scaling":
            {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
            "original_max_position_embeddings": 4096}, "quantization_config": {"quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
            "lm_head"]}}"#,
    ),
    (
        "gpt-oss-120b",
        r#"{"architectures": ["GptOssForCausalLM"], "hidden_size": 2880, "intermediate_size": 2880,
            "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
            "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128, "swiglu_limit": 7.0,
            "vocab_size": 201088, "max_position_embeddings": 131072, "rope_theta": 150000, "rope_scaling":
            {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
            "original_max_position_embeddings": 4096}, "quantization_config": {"quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
            "lm_head"]}}"#,
    ),
];

/// The config.json of a model with this name.
pub fn config(name: &str) -> Option<&'static str> {
    SHAPES.iter().find(|(known, _)| *known == name).map(|(_, config)| *config)
}

pub fn names() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|(name, _)| *name)
}
