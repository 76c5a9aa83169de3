//! The architectures of files that can be read: how their tensors are named on the Hub, and what else the names depend
//! on.
//!
//! Names: gguf-py/gguf/tensor_mapping.py and conversion/*.py of llama.cpp.

use crate::GgufError;
use crate::config::{ArchShape, Config, dense, experts, latent, recurrent};
use crate::fields::MetadataFields;

/// A tensor's name in a file and on the Hub; of a layer, without what stands before. `*` is `weight` or `bias`, `#` the
/// number of an expert; only on the Hub's side, one of the parts that the tensor holds.
pub(crate) type Name = (&'static str, &'static str);

type Configure = fn(&MetadataFields, &ArchShape, &mut Config) -> Result<(), GgufError>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadKind {
    /// All dimensions of a head are rotated.
    Whole,
    /// So many as the file says.
    InPart,
    /// Latent attention.
    Latent,
}

/// One architecture of files.
pub(crate) struct Family {
    /// `general.architecture`.
    pub gguf: &'static str,
    pub architecture: &'static str,
    pub model_type: &'static str,
    pub has_experts: bool,
    pub heads: HeadKind,
    /// Rows of queries and keys that are rotated together are neighbours in the file, but not on the Hub.
    pub pairs: bool,
    /// Value heads of delta nets are in turn of their groups.
    pub in_turn: bool,
    /// The Hub's norms, by the end of their names, of which the file has one more.
    pub from_one: &'static [&'static str],
    pub outside: &'static [Name],
    /// What stands before a layer's number.
    pub layers: &'static str,
    pub names: &'static [&'static [Name]],
    /// Adds its own keys to those that all have.
    pub config: Configure,
}

const OUTSIDE: &[Name] = &[
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
];
const NORMS: &[Name] =
    &[("attn_norm.weight", "input_layernorm.weight"), ("ffn_norm.weight", "post_attention_layernorm.weight")];
/// Where llama.cpp names the norm before the MLP by what is before it.
const POST_NORMS: &[Name] = &[
    ("attn_norm.weight", "input_layernorm.weight"),
    ("post_attention_norm.weight", "post_attention_layernorm.weight"),
];
const ATTENTION: &[Name] = &[
    ("attn_q.*", "self_attn.q_proj.*"),
    ("attn_k.*", "self_attn.k_proj.*"),
    ("attn_v.*", "self_attn.v_proj.*"),
    ("attn_output.*", "self_attn.o_proj.*"),
];
const QK_NORMS: &[Name] =
    &[("attn_q_norm.weight", "self_attn.q_norm.weight"), ("attn_k_norm.weight", "self_attn.k_norm.weight")];
const MLP: &[Name] =
    &[("ffn_gate.*", "mlp.gate_proj.*"), ("ffn_up.*", "mlp.up_proj.*"), ("ffn_down.*", "mlp.down_proj.*")];
const EXPERTS: &[Name] = &[
    ("ffn_gate_exps.weight", "mlp.experts.#.gate_proj.weight"),
    ("ffn_up_exps.weight", "mlp.experts.#.up_proj.weight"),
    ("ffn_down_exps.weight", "mlp.experts.#.down_proj.weight"),
];
const ROUTER: &[Name] = &[("ffn_gate_inp.weight", "mlp.gate.weight")];
const CHOICE_BIAS: &[Name] = &[("exp_probs_b.bias", "mlp.gate.e_score_correction_bias")];
const SHARED: &[Name] = &[
    ("ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight"),
    ("ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"),
    ("ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight"),
];
/// Of Qwen, whose shared expert has a gate.
const GATED_SHARED: &[Name] = &[
    ("ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"),
    ("ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"),
    ("ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"),
    ("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"),
];
const LATENT: &[Name] = &[
    ("attn_q.weight", "self_attn.q_proj.weight"),
    ("attn_output.*", "self_attn.o_proj.*"),
    ("attn_q_a.weight", "self_attn.q_a_proj.weight"),
    ("attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"),
    ("attn_q_b.weight", "self_attn.q_b_proj.weight"),
    ("attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"),
    ("attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"),
    ("attn_kv_b.weight", "self_attn.kv_b_proj.weight"),
    ("attn_k_b.weight", "self_attn.kv_b_proj.k_b"),
    ("attn_v_b.weight", "self_attn.kv_b_proj.v_b"),
];
const MIXTRAL: &[Name] = &[
    ("ffn_gate_inp.weight", "block_sparse_moe.gate.weight"),
    ("ffn_gate_exps.weight", "block_sparse_moe.experts.#.w1.weight"),
    ("ffn_up_exps.weight", "block_sparse_moe.experts.#.w3.weight"),
    ("ffn_down_exps.weight", "block_sparse_moe.experts.#.w2.weight"),
];
/// The first files of Mixtral had a tensor for each expert.
const MIXTRAL_APART: &[Name] = &[
    ("ffn_gate.#.weight", "block_sparse_moe.experts.#.w1.weight"),
    ("ffn_up.#.weight", "block_sparse_moe.experts.#.w3.weight"),
    ("ffn_down.#.weight", "block_sparse_moe.experts.#.w2.weight"),
];
const MINIMAX: &[Name] = &[("exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias")];
const GEMMA_NORMS: &[Name] = &[
    ("attn_norm.weight", "input_layernorm.weight"),
    ("post_attention_norm.weight", "post_attention_layernorm.weight"),
    ("ffn_norm.weight", "pre_feedforward_layernorm.weight"),
    ("post_ffw_norm.weight", "post_feedforward_layernorm.weight"),
];
const OLMO_NORMS: &[Name] = &[
    ("post_attention_norm.weight", "post_attention_layernorm.weight"),
    ("post_ffw_norm.weight", "post_feedforward_layernorm.weight"),
];
const GPT_OSS: &[Name] = &[
    ("attn_sinks.weight", "self_attn.sinks"),
    ("ffn_gate_inp.*", "mlp.router.*"),
    ("ffn_gate_exps.bias", "mlp.experts.gate_proj_bias"),
    ("ffn_up_exps.bias", "mlp.experts.up_proj_bias"),
    ("ffn_down_exps.bias", "mlp.experts.down_proj_bias"),
];
const GRANITE_EXPERTS: &[Name] = &[
    ("ffn_gate_inp.weight", "block_sparse_moe.router.layer.weight"),
    ("ffn_gate_exps.weight", "block_sparse_moe.experts.#.gate_proj.weight"),
    ("ffn_up_exps.weight", "block_sparse_moe.experts.#.up_proj.weight"),
    ("ffn_down_exps.weight", "block_sparse_moe.experts.#.down_proj.weight"),
    ("ffn_gate_shexp.weight", "shared_mlp.gate_proj.weight"),
    ("ffn_up_shexp.weight", "shared_mlp.up_proj.weight"),
    ("ffn_down_shexp.weight", "shared_mlp.down_proj.weight"),
];
const ERNIE: &[Name] = &[("exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias")];
const HY: &[Name] = &[
    ("ffn_gate_inp.weight", "mlp.router.gate.weight"),
    ("exp_probs_b", "mlp.expert_bias"),
    ("exp_probs_b.bias", "mlp.expert_bias"),
    ("ffn_gate_shexp.weight", "mlp.shared_mlp.gate_proj.weight"),
    ("ffn_up_shexp.weight", "mlp.shared_mlp.up_proj.weight"),
    ("ffn_down_shexp.weight", "mlp.shared_mlp.down_proj.weight"),
];
const PHI: &[Name] = &[
    ("attn_qkv.weight", "self_attn.qkv_proj.weight"),
    ("attn_output.weight", "self_attn.o_proj.weight"),
    ("ffn_up.weight", "mlp.gate_up_proj.weight"),
    ("ffn_down.weight", "mlp.down_proj.weight"),
];
const DELTA_NET: &[Name] = &[
    ("attn_qkv.weight", "linear_attn.in_proj_qkv.weight"),
    ("attn_gate.weight", "linear_attn.in_proj_z.weight"),
    ("ssm_in.weight", "linear_attn.in_proj_qkvz.weight"),
    ("ssm_ba.weight", "linear_attn.in_proj_ba.weight"),
    ("ssm_beta.weight", "linear_attn.in_proj_b.weight"),
    ("ssm_alpha.weight", "linear_attn.in_proj_a.weight"),
    ("ssm_conv1d.weight", "linear_attn.conv1d.weight"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    ("ssm_a", NEGATIVE_EXP),
    ("ssm_norm.weight", "linear_attn.norm.weight"),
    ("ssm_out.weight", "linear_attn.out_proj.weight"),
];
/// Of which files have the negative exponential.
pub(crate) const NEGATIVE_EXP: &str = "linear_attn.A_log";
const QWEN_FROM_ONE: &[&str] =
    &["layernorm.weight", "self_attn.q_norm.weight", "self_attn.k_norm.weight", "model.norm.weight"];
const BIGCODE_OUTSIDE: &[Name] = &[
    ("token_embd.weight", "transformer.wte.weight"),
    ("position_embd.weight", "transformer.wpe.weight"),
    ("output_norm.*", "transformer.ln_f.*"),
    ("output.weight", "lm_head.weight"),
];
const BIGCODE: &[Name] = &[
    ("attn_norm.*", "ln_1.*"),
    ("attn_qkv.*", "attn.c_attn.*"),
    ("attn_output.*", "attn.c_proj.*"),
    ("ffn_norm.*", "ln_2.*"),
    ("ffn_up.*", "mlp.c_fc.*"),
    ("ffn_down.*", "mlp.c_proj.*"),
];

/// Llama's, from which the others differ.
const LLAMA: Family = Family {
    gguf: "llama",
    architecture: "LlamaForCausalLM",
    model_type: "llama",
    has_experts: false,
    heads: HeadKind::Whole,
    pairs: true,
    in_turn: false,
    from_one: &[],
    outside: OUTSIDE,
    layers: "model.layers.",
    names: &[NORMS, ATTENTION, MLP],
    config: dense::llama,
};
/// The same with rows in the Hub's order.
const PLAIN: Family = Family { pairs: false, ..LLAMA };
const MOE: Family = Family { has_experts: true, ..PLAIN };

pub(crate) const FAMILIES: &[Family] = &[
    LLAMA,
    Family {
        architecture: "MixtralForCausalLM",
        model_type: "mixtral",
        has_experts: true,
        names: &[NORMS, ATTENTION, MIXTRAL, MIXTRAL_APART],
        config: experts::mixtral,
        ..LLAMA
    },
    Family {
        gguf: "mistral3",
        architecture: "MistralForCausalLM",
        model_type: "mistral",
        config: dense::mistral3,
        ..LLAMA
    },
    Family { gguf: "internlm2", ..LLAMA },
    Family {
        gguf: "granite",
        architecture: "GraniteForCausalLM",
        model_type: "granite",
        config: dense::granite,
        ..LLAMA
    },
    Family {
        gguf: "granitemoe",
        architecture: "GraniteMoeSharedForCausalLM",
        model_type: "granitemoeshared",
        has_experts: true,
        names: &[NORMS, ATTENTION, GRANITE_EXPERTS],
        config: experts::granite,
        ..LLAMA
    },
    Family { gguf: "qwen2", architecture: "Qwen2ForCausalLM", model_type: "qwen2", config: dense::nothing, ..PLAIN },
    Family {
        gguf: "qwen2moe",
        architecture: "Qwen2MoeForCausalLM",
        model_type: "qwen2_moe",
        names: &[NORMS, ATTENTION, ROUTER, EXPERTS, GATED_SHARED],
        config: experts::qwen2,
        ..MOE
    },
    Family {
        gguf: "qwen3",
        architecture: "Qwen3ForCausalLM",
        model_type: "qwen3",
        names: &[NORMS, ATTENTION, QK_NORMS, MLP],
        config: dense::qwen3,
        ..PLAIN
    },
    Family {
        gguf: "qwen3moe",
        architecture: "Qwen3MoeForCausalLM",
        model_type: "qwen3_moe",
        names: &[NORMS, ATTENTION, QK_NORMS, ROUTER, EXPERTS],
        config: experts::qwen3,
        ..MOE
    },
    Family {
        gguf: "qwen3next",
        architecture: "Qwen3NextForCausalLM",
        model_type: "qwen3_next",
        heads: HeadKind::InPart,
        from_one: QWEN_FROM_ONE,
        names: &[POST_NORMS, ATTENTION, QK_NORMS, DELTA_NET, ROUTER, EXPERTS, GATED_SHARED],
        config: recurrent::qwen3_next,
        ..MOE
    },
    Family {
        gguf: "qwen35moe",
        architecture: "Qwen3_5MoeForCausalLM",
        model_type: "qwen3_5_moe_text",
        in_turn: true,
        heads: HeadKind::InPart,
        from_one: QWEN_FROM_ONE,
        names: &[POST_NORMS, ATTENTION, QK_NORMS, DELTA_NET, ROUTER, EXPERTS, GATED_SHARED],
        config: recurrent::qwen3_5_moe,
        ..MOE
    },
    Family {
        gguf: "qwen35",
        architecture: "Qwen3_5ForCausalLM",
        model_type: "qwen3_5_text",
        in_turn: true,
        heads: HeadKind::InPart,
        from_one: QWEN_FROM_ONE,
        names: &[POST_NORMS, ATTENTION, QK_NORMS, DELTA_NET, MLP],
        config: recurrent::qwen3_5,
        ..PLAIN
    },
    Family {
        gguf: "deepseek2",
        architecture: "DeepseekV3ForCausalLM",
        model_type: "deepseek_v3",
        heads: HeadKind::Latent,
        names: &[NORMS, LATENT, MLP, ROUTER, CHOICE_BIAS, EXPERTS, SHARED],
        config: latent::deepseek,
        ..MOE
    },
    Family {
        gguf: "minicpm3",
        architecture: "MiniCPM3ForCausalLM",
        model_type: "minicpm3",
        heads: HeadKind::Latent,
        names: &[NORMS, LATENT, MLP],
        config: latent::minicpm3,
        ..PLAIN
    },
    Family {
        gguf: "gemma3",
        architecture: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        from_one: &["norm.weight"],
        names: &[GEMMA_NORMS, ATTENTION, QK_NORMS, MLP],
        config: dense::gemma3,
        ..PLAIN
    },
    Family {
        gguf: "gpt-oss",
        architecture: "GptOssForCausalLM",
        model_type: "gpt_oss",
        names: &[POST_NORMS, ATTENTION, GPT_OSS, EXPERTS],
        config: experts::gpt_oss,
        ..MOE
    },
    Family {
        gguf: "glm4moe",
        architecture: "Glm4MoeForCausalLM",
        model_type: "glm4_moe",
        heads: HeadKind::InPart,
        names: &[POST_NORMS, ATTENTION, QK_NORMS, MLP, ROUTER, CHOICE_BIAS, EXPERTS, SHARED],
        config: experts::glm4,
        ..MOE
    },
    Family {
        gguf: "minimax-m2",
        architecture: "MiniMaxM2ForCausalLM",
        model_type: "minimax_m2",
        heads: HeadKind::InPart,
        names: &[NORMS, ATTENTION, QK_NORMS, MIXTRAL, MINIMAX],
        config: experts::minimax_m2,
        ..MOE
    },
    Family {
        gguf: "hy_v3",
        architecture: "HYV3ForCausalLM",
        model_type: "hy_v3",
        names: &[NORMS, ATTENTION, QK_NORMS, MLP, HY, EXPERTS],
        config: experts::hy_v3,
        ..MOE
    },
    Family {
        gguf: "ernie4_5",
        architecture: "Ernie4_5ForCausalLM",
        model_type: "ernie4_5",
        config: dense::ernie4_5,
        ..PLAIN
    },
    Family {
        gguf: "ernie4_5-moe",
        architecture: "Ernie4_5_MoeForCausalLM",
        model_type: "ernie4_5_moe",
        names: &[NORMS, ATTENTION, MLP, ROUTER, ERNIE, EXPERTS, SHARED],
        config: experts::ernie4_5,
        ..MOE
    },
    Family {
        gguf: "olmo2",
        architecture: "Olmo2ForCausalLM",
        model_type: "olmo2",
        names: &[OLMO_NORMS, ATTENTION, QK_NORMS, MLP],
        config: dense::olmo2,
        ..PLAIN
    },
    Family {
        gguf: "olmoe",
        architecture: "OlmoeForCausalLM",
        model_type: "olmoe",
        names: &[NORMS, ATTENTION, QK_NORMS, ROUTER, EXPERTS],
        config: experts::olmoe,
        ..MOE
    },
    Family {
        gguf: "seed_oss",
        architecture: "SeedOssForCausalLM",
        model_type: "seed_oss",
        names: &[POST_NORMS, ATTENTION, MLP],
        config: dense::seed_oss,
        ..PLAIN
    },
    Family {
        gguf: "phi3",
        architecture: "Phi3ForCausalLM",
        model_type: "phi3",
        heads: HeadKind::InPart,
        names: &[NORMS, PHI],
        config: dense::phi3,
        ..PLAIN
    },
    Family {
        gguf: "starcoder",
        architecture: "GPTBigCodeForCausalLM",
        model_type: "gpt_bigcode",
        outside: BIGCODE_OUTSIDE,
        layers: "transformer.h.",
        names: &[BIGCODE],
        config: dense::gpt_bigcode,
        ..PLAIN
    },
];

impl Family {
    pub fn of(fields: &MetadataFields, has_experts: bool) -> Result<&'static Family, GgufError> {
        let same: Vec<&Family> = FAMILIES.iter().filter(|family| family.gguf == fields.arch).collect();
        if let Some(family) = same.iter().find(|family| family.has_experts == has_experts) {
            return Ok(family);
        }
        match same.first() {
            None => {
                let mut known: Vec<&str> = FAMILIES.iter().map(|family| family.gguf).collect();
                known.dedup();
                let what = format!("must be one of {}, got {}", known.join(", "), fields.arch);
                Err(GgufError::unsupported("general.architecture", what))
            }
            Some(family) if family.has_experts => Err(fields.invalid("expert_count", "must be at least 1")),
            Some(_) => Err(fields.unsupported("expert_count", "must be 0 or missing for this architecture")),
        }
    }

    /// The Hub's name of a tensor in a layer, whose name in the file is `rest`. `experts`: how many there are.
    pub fn in_layer(&self, rest: &str, experts: u64) -> Option<String> {
        self.names.iter().copied().flatten().find_map(|&name| renamed(rest, name, experts))
    }

    pub fn outside(&self, name: &str) -> Option<String> {
        self.outside.iter().find_map(|&row| renamed(name, row, 0))
    }
}

fn renamed(name: &str, (theirs, hub): Name, experts: u64) -> Option<String> {
    if let Some(base) = theirs.strip_suffix('*') {
        let end = name.strip_prefix(base).filter(|end| matches!(*end, "weight" | "bias"))?;
        return Some(hub.replace('*', end));
    }
    if let Some((before, after)) = theirs.split_once('#') {
        let number = name.strip_prefix(before)?.strip_suffix(after)?;
        // Not `parse` alone, which accepts "+1" and "01".
        let expert = number.parse::<u64>().ok().filter(|&expert| expert < experts && expert.to_string() == number)?;
        return Some(hub.replace('#', &expert.to_string()));
    }
    (name == theirs).then(|| hub.to_owned())
}
