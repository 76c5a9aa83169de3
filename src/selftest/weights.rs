//! A checkpoint with random weights, for benches: real widths, few layers. Its numbers are a seeded block that repeats,
//! so writing it is as fast as the file system. It does not know what is measured.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use half::bf16;
use rein_proto::splitmix::mix;
use serde_json::{Map, Value, json};

/// Numbers of the block that repeats. A prime, so that equal matrices do not begin at equal numbers.
const BLOCK: usize = 4_194_301;
/// Of a uniform distribution around zero.
const LARGEST: f32 = 0.035;

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

    /// Names and shapes, as the Hub has them.
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let Self { hidden, head_dim, expert_width: width, .. } = *self;
        let (q, kv) = (self.heads * head_dim, self.kv_heads * head_dim);
        let mut all = vec![
            ("model.embed_tokens.weight".to_owned(), vec![self.vocab, hidden]),
            ("model.norm.weight".to_owned(), vec![hidden]),
            ("lm_head.weight".to_owned(), vec![self.vocab, hidden]),
        ];
        for layer in 0..self.layers {
            let mut add =
                |name: &str, shape: Vec<usize>| all.push((format!("model.layers.{layer}.{name}.weight"), shape));
            add("input_layernorm", vec![hidden]);
            add("post_attention_layernorm", vec![hidden]);
            add("self_attn.q_norm", vec![head_dim]);
            add("self_attn.k_norm", vec![head_dim]);
            add("self_attn.q_proj", vec![q, hidden]);
            add("self_attn.k_proj", vec![kv, hidden]);
            add("self_attn.v_proj", vec![kv, hidden]);
            add("self_attn.o_proj", vec![hidden, q]);
            add("mlp.gate", vec![self.experts, hidden]);
            for expert in 0..self.experts {
                add(&format!("mlp.experts.{expert}.gate_proj"), vec![width, hidden]);
                add(&format!("mlp.experts.{expert}.up_proj"), vec![width, hidden]);
                add(&format!("mlp.experts.{expert}.down_proj"), vec![hidden, width]);
            }
        }
        all
    }

    /// Writes the model into a new directory for temporary files.
    pub fn write(&self) -> io::Result<BenchModel> {
        let dir = std::env::temp_dir().join(format!("rein-bench-{}-{}", self.hidden, std::process::id()));
        fs::create_dir_all(&dir)?;
        let mut model = BenchModel { dir, bytes: 0 };
        fs::write(model.dir.join("config.json"), serde_json::to_string_pretty(&self.config())?)?;
        let (tensors, mut header) = (self.tensors(), Map::new());
        for (name, shape) in &tensors {
            let end = model.bytes + 2 * shape.iter().product::<usize>();
            let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [model.bytes, end]});
            header.insert(name.clone(), entry);
            model.bytes = end;
        }
        let header = Value::Object(header).to_string();
        let mut file = BufWriter::new(File::create(model.dir.join("model.safetensors"))?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        let block: Vec<u8> = (0..BLOCK as u64).flat_map(|i| number(i).to_le_bytes()).collect();
        let one = bf16::ONE.to_le_bytes();
        let mut at = 0;
        for (_, shape) in tensors {
            let mut left = 2 * shape.iter().product::<usize>();
            if shape.len() == 1 {
                file.write_all(&one.repeat(shape[0]))?;
                continue;
            }
            while left > 0 {
                let part = left.min(block.len() - at);
                file.write_all(&block[at..at + part])?;
                (at, left) = ((at + part) % block.len(), left - part);
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
