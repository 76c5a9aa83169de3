//! Options of `rein capacity`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::model::KvDtypeArg;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GpuKind {
    /// 80 GB at 2.0 TB/s
    A100,
    /// 80 GB at 3.35 TB/s
    H100,
    /// 141 GB at 4.8 TB/s
    H200,
    /// 180 GB at 8 TB/s
    B200,
}

#[derive(Debug, Clone, Args)]
pub struct CapacityArgs {
    /// Directory with a config.json or ORG/NAME of the Hub (weights are not read), or a known shape: deepseek-v3,
    /// kimi-k2, kimi-k2-thinking, llama-3.1-70b, mixtral-8x7b, qwen3-235b-a22b, qwen3-30b-a3b, glm-4.5-air, hy3,
    /// minimax-m2, mistral-large-3, qwen3.5-35b-a3b, gpt-oss-20b, gpt-oss-120b
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Ranks, one on each GPU; must divide the number of attention heads
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub gpus: u16,
    /// Kind of GPU: memory, memory bandwidth and rates of products by its data sheet
    #[arg(long, value_enum, default_value_t = GpuKind::H200)]
    pub gpu: GpuKind,
    /// Memory of each GPU in GiB, instead of the kind's
    #[arg(long, value_name = "GIB", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub gpu_memory: Option<u16>,
    /// Type of the KV cache
    #[arg(long, value_enum, default_value_t = KvDtypeArg::Auto)]
    pub kv_dtype: KvDtypeArg,
    /// The ranks share the positions of the KV cache (latent attention, 2, 4 or 8 GPUs)
    #[arg(long)]
    pub kv_parallel: bool,
    /// Tokens of each sequence in the decode steps [default: 8192, or the model's limit if that is less]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Option<u32>,
    /// Sequences of the decode steps
    #[arg(long, value_delimiter = ',', default_value = "1,8,32,64,128,256", value_name = "NUMBERS", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub sequences: Vec<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
