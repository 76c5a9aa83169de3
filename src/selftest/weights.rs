//! Checkpoints with random weights, for benches: real widths, few layers. Their numbers are seeded blocks that repeat,
//! so writing one is as fast as the file system. It does not know what is measured.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use half::bf16;
use rein_proto::splitmix::mix;
use serde_json::{Map, Value, json};

/// Bytes of the blocks that repeat: twice a prime, so that equal matrices do not begin at equal numbers.
const BLOCK: usize = 2 * 4_194_301;
/// Of a uniform distribution around zero.
const LARGEST: f32 = 0.035;
/// Rows and columns of an FP8 weight, and numbers of a row of an int4 weight, that share a scale.
const FP8_BLOCK: usize = 128;
const INT4_GROUP: usize = 32;
/// The scales of random codes, so that weights are about as large as in bf16.
const FP8_SCALE: f32 = 2e-4;
const INT4_SCALE: f32 = 4e-3;

/// What a tensor is filled with.
#[derive(Debug, Clone)]
enum Fill {
    /// Random numbers in bf16.
    Numbers,
    /// Random e4m3 codes, without NaN.
    Codes,
    /// Random bytes.
    Bytes,
    /// These bytes, again and again.
    Repeated(Vec<u8>),
}

#[derive(Debug, Clone)]
struct BenchTensor {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    fill: Fill,
}

impl BenchTensor {
    fn bytes(&self) -> usize {
        let size = match self.dtype {
            "F8_E4M3" => 1,
            "BF16" => 2,
            "I64" => 8,
            _ => 4,
        };
        size * self.shape.iter().product::<usize>()
    }
}

/// How the weights of a checkpoint's products are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BenchForm {
    Bf16,
    /// All products of layers.
    Fp8,
    /// Experts; other products in bf16.
    Int4,
}

/// The tensors of a checkpoint.
#[derive(Debug, Default)]
struct Tensors(Vec<BenchTensor>);

impl Tensors {
    fn add(&mut self, name: impl Into<String>, dtype: &'static str, shape: &[usize], fill: Fill) {
        self.0.push(BenchTensor { name: name.into(), dtype, shape: shape.to_vec(), fill });
    }

    fn vector(&mut self, name: &str, len: usize) {
        self.add(name, "BF16", &[len], Fill::Repeated(bf16::ONE.to_le_bytes().to_vec()));
    }

    /// The tensors that stand for a weight.
    fn matrix(&mut self, name: &str, [outs, ins]: [usize; 2], form: BenchForm) {
        match form {
            BenchForm::Bf16 => self.add(format!("{name}.weight"), "BF16", &[outs, ins], Fill::Numbers),
            BenchForm::Fp8 => {
                self.add(format!("{name}.weight"), "F8_E4M3", &[outs, ins], Fill::Codes);
                let blocks = [outs, ins].map(|side| side.div_ceil(FP8_BLOCK));
                let scale = Fill::Repeated(FP8_SCALE.to_le_bytes().to_vec());
                self.add(format!("{name}.weight_scale_inv"), "F32", &blocks, scale);
            }
            BenchForm::Int4 => {
                self.add(format!("{name}.weight_packed"), "I32", &[outs, ins.div_ceil(8)], Fill::Bytes);
                let scale = Fill::Repeated(bf16::from_f32(INT4_SCALE).to_le_bytes().to_vec());
                self.add(format!("{name}.weight_scale"), "BF16", &[outs, ins.div_ceil(INT4_GROUP)], scale);
                let shape = [outs, ins].map(|side| (side as i64).to_le_bytes()).concat();
                self.add(format!("{name}.weight_shape"), "I64", &[2], Fill::Repeated(shape));
            }
        }
    }
}

/// A model to be written.
#[derive(Debug)]
pub struct BenchCheckpoint {
    config: Value,
    tensors: Vec<BenchTensor>,
}

/// The widths of a mixture-of-experts model with grouped-query attention.
#[derive(Debug, Clone, Copy)]
pub struct BenchShape {
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub experts: usize,
    pub top_k: usize,
    pub expert_width: usize,
    pub vocab: usize,
}

/// Qwen3-30B-A3B with 4 of its 48 layers.
pub const FULL: BenchShape = BenchShape {
    layers: 4,
    hidden: 2048,
    heads: 32,
    kv_heads: 4,
    head_dim: 128,
    experts: 128,
    top_k: 8,
    expert_width: 768,
    vocab: 151_936,
};

pub const REDUCED: BenchShape = BenchShape {
    layers: 2,
    hidden: 64,
    heads: 4,
    kv_heads: 2,
    head_dim: 32,
    experts: 8,
    top_k: 2,
    expert_width: 32,
    vocab: 512,
};

impl BenchShape {
    fn config(&self) -> Value {
        json!({
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16",
            "vocab_size": self.vocab, "hidden_size": self.hidden, "intermediate_size": self.hidden,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim, "num_experts": self.experts, "num_experts_per_tok": self.top_k,
            "moe_intermediate_size": self.expert_width, "norm_topk_prob": true, "decoder_sparse_step": 1,
            "mlp_only_layers": [], "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e6,
            "max_position_embeddings": 40960, "attention_bias": false, "tie_word_embeddings": false,
        })
    }

    /// Names and shapes as the Hub has them.
    pub fn checkpoint(&self) -> BenchCheckpoint {
        let Self { hidden, head_dim, expert_width: width, .. } = *self;
        let (q, kv, form) = (self.heads * head_dim, self.kv_heads * head_dim, BenchForm::Bf16);
        let mut all = Tensors::default();
        all.matrix("model.embed_tokens", [self.vocab, hidden], form);
        all.vector("model.norm.weight", hidden);
        all.matrix("lm_head", [self.vocab, hidden], form);
        for layer in 0..self.layers {
            let name = |name: &str| format!("model.layers.{layer}.{name}");
            all.vector(&name("input_layernorm.weight"), hidden);
            all.vector(&name("post_attention_layernorm.weight"), hidden);
            all.vector(&name("self_attn.q_norm.weight"), head_dim);
            all.vector(&name("self_attn.k_norm.weight"), head_dim);
            all.matrix(&name("self_attn.q_proj"), [q, hidden], form);
            all.matrix(&name("self_attn.k_proj"), [kv, hidden], form);
            all.matrix(&name("self_attn.v_proj"), [kv, hidden], form);
            all.matrix(&name("self_attn.o_proj"), [hidden, q], form);
            all.matrix(&name("mlp.gate"), [self.experts, hidden], form);
            for expert in 0..self.experts {
                all.matrix(&name(&format!("mlp.experts.{expert}.gate_proj")), [width, hidden], form);
                all.matrix(&name(&format!("mlp.experts.{expert}.up_proj")), [width, hidden], form);
                all.matrix(&name(&format!("mlp.experts.{expert}.down_proj")), [hidden, width], form);
            }
        }
        BenchCheckpoint { config: self.config(), tensors: all.0 }
    }
}

/// One rank of Kimi K2 over eight GPUs, as a model of its own: its heads, its experts, of which each row chooses one,
/// and its part of the vocabulary. Its shared expert is whole.
#[derive(Debug, Clone, Copy)]
pub struct K2Slice {
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub q_rank: usize,
    pub experts: usize,
    pub expert_width: usize,
    pub vocab: usize,
    pub form: BenchForm,
}

/// 8 of the 64 heads, 48 of the 384 experts, 8 of the 61 layers.
pub const K2: K2Slice = K2Slice {
    layers: 8,
    hidden: 7168,
    heads: 8,
    q_rank: 1536,
    experts: 48,
    expert_width: 2048,
    vocab: 20_480,
    form: BenchForm::Fp8,
};

pub const K2_REDUCED: K2Slice =
    K2Slice { layers: 1, hidden: 256, heads: 2, q_rank: 128, experts: 4, expert_width: 256, vocab: 512, ..K2 };

/// Widths of a head's query without and with rotation, of its value, and of the cached latent.
const NOPE: usize = 128;
const ROPE: usize = 64;
const VALUE: usize = 128;
const LATENT: usize = 512;

impl K2Slice {
    fn config(&self) -> Value {
        let quantization = match self.form {
            BenchForm::Bf16 => Value::Null,
            BenchForm::Fp8 => json!({
                "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
            }),
            BenchForm::Int4 => json!({
                "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
                "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"],
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                    "num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": INT4_GROUP,
                    "dynamic": false,
                }}},
            }),
        };
        json!({
            "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "torch_dtype": "bfloat16",
            "vocab_size": self.vocab, "hidden_size": self.hidden, "intermediate_size": self.hidden,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads, "num_key_value_heads": self.heads,
            "q_lora_rank": self.q_rank, "kv_lora_rank": LATENT, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE,
            "v_head_dim": VALUE, "n_routed_experts": self.experts, "n_shared_experts": 1, "num_experts_per_tok": 1,
            "moe_intermediate_size": self.expert_width, "moe_layer_freq": 1, "first_k_dense_replace": 0,
            "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": true,
            "routed_scaling_factor": 2.827, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 50000.0,
            "max_position_embeddings": 32768, "attention_bias": false, "tie_word_embeddings": false,
            "quantization_config": quantization,
        })
    }

    /// Names and shapes as the Hub has them.
    pub fn checkpoint(&self) -> BenchCheckpoint {
        let Self { hidden, heads, q_rank, expert_width: width, form, .. } = *self;
        let (plain, others) = (BenchForm::Bf16, if form == BenchForm::Int4 { BenchForm::Bf16 } else { form });
        let mut all = Tensors::default();
        all.matrix("model.embed_tokens", [self.vocab, hidden], plain);
        all.vector("model.norm.weight", hidden);
        all.matrix("lm_head", [self.vocab, hidden], plain);
        for layer in 0..self.layers {
            let name = |name: &str| format!("model.layers.{layer}.{name}");
            all.vector(&name("input_layernorm.weight"), hidden);
            all.vector(&name("post_attention_layernorm.weight"), hidden);
            all.vector(&name("self_attn.q_a_layernorm.weight"), q_rank);
            all.vector(&name("self_attn.kv_a_layernorm.weight"), LATENT);
            all.matrix(&name("self_attn.q_a_proj"), [q_rank, hidden], others);
            all.matrix(&name("self_attn.q_b_proj"), [heads * (NOPE + ROPE), q_rank], others);
            all.matrix(&name("self_attn.kv_a_proj_with_mqa"), [LATENT + ROPE, hidden], others);
            all.matrix(&name("self_attn.kv_b_proj"), [heads * (NOPE + VALUE), LATENT], others);
            all.matrix(&name("self_attn.o_proj"), [hidden, heads * VALUE], others);
            all.matrix(&name("mlp.gate"), [self.experts, hidden], plain);
            let bias = Fill::Repeated(0f32.to_le_bytes().to_vec());
            all.add(name("mlp.gate.e_score_correction_bias"), "F32", &[self.experts], bias);
            let experts = (0..self.experts).map(|expert| (format!("mlp.experts.{expert}"), form));
            for (expert, form) in experts.chain([("mlp.shared_experts".to_owned(), others)]) {
                all.matrix(&name(&format!("{expert}.gate_proj")), [width, hidden], form);
                all.matrix(&name(&format!("{expert}.up_proj")), [width, hidden], form);
                all.matrix(&name(&format!("{expert}.down_proj")), [hidden, width], form);
            }
        }
        BenchCheckpoint { config: self.config(), tensors: all.0 }
    }

    /// Bytes that a layer reads once when so many sequences of a length draw a token: weights, the experts that are
    /// chosen if all are equally likely, and the cache.
    pub fn layer_bytes(&self, batch: usize, context: usize) -> f64 {
        let of = |prefix: &str| -> usize {
            let checkpoint = K2Slice { layers: 1, ..*self }.checkpoint();
            checkpoint.tensors.iter().filter(|t| t.name.starts_with(prefix)).map(BenchTensor::bytes).sum()
        };
        let experts = of("model.layers.0.mlp.experts.");
        let others = of("model.layers.0.") - experts;
        let chosen = 1.0 - (1.0 - 1.0 / self.experts as f64).powi(batch as i32);
        others as f64 + experts as f64 * chosen + (batch * context * 2 * (LATENT + ROPE)) as f64
    }

    /// Multiplications and additions of a layer when a prompt of so many tokens is prefilled: of its weights, without
    /// the router's, and of causal attention over the latent cache.
    pub fn layer_operations(&self, tokens: usize) -> f64 {
        let Self { hidden, heads, q_rank, expert_width, .. } = *self;
        let attention = hidden * (q_rank + LATENT + ROPE)
            + q_rank * heads * (NOPE + ROPE)
            + heads * (NOPE + VALUE) * LATENT
            + heads * VALUE * hidden;
        // The chosen expert and the shared one.
        let experts = 2 * 3 * hidden * expert_width;
        let pairs = tokens as f64 * (tokens + 1) as f64 / 2.0;
        2.0 * (tokens * (attention + experts)) as f64 + 2.0 * pairs * (heads * (2 * LATENT + ROPE)) as f64
    }
}

/// A model directory that is removed when this is dropped.
#[derive(Debug)]
pub struct BenchModel {
    pub dir: PathBuf,
    /// Of the weights.
    pub bytes: usize,
}

impl Drop for BenchModel {
    fn drop(&mut self) {
        // What is left is in the system's directory for temporary files.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl BenchCheckpoint {
    /// Writes the model into a new directory for temporary files.
    pub fn write(&self) -> io::Result<BenchModel> {
        let dir = std::env::temp_dir().join(format!("rein-bench-{}-{}", self.tensors.len(), std::process::id()));
        fs::create_dir_all(&dir)?;
        let mut model = BenchModel { dir, bytes: 0 };
        fs::write(model.dir.join("config.json"), serde_json::to_string_pretty(&self.config)?)?;
        let mut header = Map::new();
        for tensor in &self.tensors {
            let end = model.bytes + tensor.bytes();
            let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [model.bytes, end]});
            header.insert(tensor.name.clone(), entry);
            model.bytes = end;
        }
        let header = Value::Object(header).to_string();
        let mut file = BufWriter::new(File::create(model.dir.join("model.safetensors"))?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        let numbers: Vec<u8> = (0..BLOCK as u64 / 2).flat_map(|i| number(i).to_le_bytes()).collect();
        let bytes: Vec<u8> = (0..BLOCK as u64).map(|i| mix(i) as u8).collect();
        // 0x7f and 0xff are NaN.
        let codes: Vec<u8> = bytes.iter().map(|byte| if byte & 0x7f == 0x7f { byte ^ 1 } else { *byte }).collect();
        let mut at = 0;
        for tensor in &self.tensors {
            let mut left = tensor.bytes();
            let block = match &tensor.fill {
                Fill::Numbers => &numbers,
                Fill::Codes => &codes,
                Fill::Bytes => &bytes,
                Fill::Repeated(bytes) => {
                    file.write_all(&bytes.repeat(left / bytes.len()))?;
                    continue;
                }
            };
            while left > 0 {
                // At an even place, so that bf16 numbers are whole.
                at = at / 2 * 2 % block.len();
                let part = left.min(block.len() - at);
                file.write_all(&block[at..at + part])?;
                (at, left) = (at + part, left - part);
            }
        }
        file.flush()?;
        Ok(model)
    }
}

fn number(i: u64) -> bf16 {
    let uniform = (mix(i) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
    bf16::from_f32(uniform * LARGEST)
}
