//! Options of a model's weights and of the engine that executes it.

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{NonEmptyStringValueParser, OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use rein_worker::limits;

use crate::option_values;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DtypeArg {
    /// The checkpoint's type
    Auto,
    F32,
    Bf16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvDtypeArg {
    /// That of the weights' activations: bf16, or f32
    Auto,
    /// e4m3 codes with a scale for each position and at most 128 numbers: nearly twice as many tokens
    Fp8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum QuantizeArg {
    None,
    Int8,
}

/// Which weights to load, and as which types.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct WeightArgs {
    /// The model, in place of --model
    #[arg(value_name = "MODEL")]
    pub first: Option<PathBuf>,
    /// Model directory in the Hub's layout (config.json, *.safetensors, tokenizer, chat template), a GGUF file, or
    /// ORG/NAME@REVISION of the Hub
    // Empty: none is given.
    #[arg(long, env = "REIN_MODEL", value_name = "DIR|ORG/NAME", default_value = "", hide_default_value = true, value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub model: PathBuf,
    /// Type of the weights in memory, and of the KV cache
    #[arg(long, env = "REIN_DTYPE", value_enum, default_value_t = DtypeArg::Auto)]
    pub dtype: DtypeArg,
    /// Type of the KV cache
    #[arg(long, env = "REIN_KV_DTYPE", value_enum, default_value_t = KvDtypeArg::Auto)]
    pub kv_dtype: KvDtypeArg,
    /// Quantize the weights of the large matrix products while loading
    #[arg(long, env = "REIN_QUANTIZE", value_enum, default_value_t = QuantizeArg::None)]
    pub quantize: QuantizeArg,
    /// Compute threads of all ranks in this process together [default: all cores]
    #[arg(long, env = "REIN_THREADS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Seconds without data from the disk or file server after which loading fails
    #[arg(long, env = "REIN_READ_TIMEOUT", default_value = "60", value_name = "S", value_parser = option_values::deadline)]
    pub read_timeout: f64,
}

impl WeightArgs {
    /// Whether the options that control how weights are loaded have their defaults.
    pub fn is_default(&self) -> bool {
        self.dtype == DtypeArg::Auto
            && self.kv_dtype == KvDtypeArg::Auto
            && self.quantize == QuantizeArg::None
            && self.threads.is_none()
    }
}

/// A model in one process; shared by `serve` and `score`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    #[command(flatten)]
    pub weights: WeightArgs,
    /// Tensor- and expert-parallel ranks; must divide the number of attention heads
    #[arg(long, env = "REIN_TP", default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub tp: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineKind {
    /// The model, on this machine's CPU
    Cpu,
    /// The model, on NVIDIA GPUs
    Cuda,
    /// A simulation without weights: seeded or scripted tokens, step times from a cost model
    Sim,
}

/// Where a rank computes: `cpu`, or the index of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    Cpu,
    Gpu(usize),
}

impl Device {
    pub fn gpu(&self) -> Option<usize> {
        match self {
            Device::Cpu => None,
            Device::Gpu(index) => Some(*index),
        }
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "cpu" => Ok(Device::Cpu),
            index => index.parse().map(Device::Gpu).map_err(|_| "expected cpu, or the index of a GPU such as 0".into()),
        }
    }
}

/// What executes the steps, and on which devices.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Engine")]
pub struct DeviceArgs {
    /// Backend that executes the steps
    #[arg(long, env = "REIN_ENGINE", value_enum, default_value_t = EngineKind::Cpu)]
    pub engine: EngineKind,
    /// Comma-separated devices, one for each rank of this process: `cpu`, or with --engine cuda the indices of GPUs,
    /// among those that CUDA_VISIBLE_DEVICES leaves [default: cpu; with --engine cuda: 0]
    #[arg(long, env = "REIN_DEVICES", value_delimiter = ',', value_name = "DEVICES")]
    pub devices: Vec<Device>,
    /// Kernels of GPUs: those that run on every GPU, or faster ones where Hopper has them [default: fast]
    #[arg(long, env = "REIN_GPU_KERNELS", value_enum, value_name = "KERNELS")]
    pub gpu_kernels: Option<GpuKernelsArg>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GpuKernelsArg {
    /// Those that run on every GPU
    Plain,
    /// For GPUs of compute capability 9.0, kernels of DeepGEMM and FlashInfer; plain ones for what these do not take
    Fast,
}

/// What an engine computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineTask {
    /// Tokens: chats and completions
    Generate,
    /// The embedding of each prompt: the normalized hidden state of its last token
    Embed,
}

/// The engine: context, KV cache, batching.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    #[command(flatten)]
    pub on: DeviceArgs,
    /// What the model computes; `embed` serves /v1/embeddings alone and does not load the output head
    #[arg(long, env = "REIN_TASK", value_enum, default_value_t = EngineTask::Generate)]
    pub task: EngineTask,
    /// Name of the model in the API; with `rein serve` also several, separated by commas [default: ORG/NAME, or the
    /// name of the model directory]
    #[arg(long, env = "REIN_SERVED_NAME", value_delimiter = ',', value_name = "NAMES", value_parser = NonEmptyStringValueParser::new())]
    pub served_name: Vec<String>,
    /// Maximum number of tokens in prompt and answer together [default: the model's, or what the KV cache holds]
    #[arg(long, env = "REIN_MAX_CONTEXT", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_context: Option<u32>,
    /// Memory for the KV cache in MiB, at most what --max-sequences contexts of --max-context tokens need [default: a
    /// quarter of the memory that the weights leave free; with --engine cuda: nine tenths]
    #[arg(long, env = "REIN_KV_MEMORY", value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    pub kv_memory: Option<u64>,
    /// Split the positions of the KV cache over 2, 4 or 8 ranks that hold all of them otherwise: the ranks of a group
    /// for latent attention (MLA); those that have the same KV head for grouped-query attention (on CPUs)
    #[arg(long, env = "REIN_KV_PARALLEL")]
    pub kv_parallel: bool,
    #[command(flatten)]
    pub host: HostTierArgs,
    /// Tokens per KV block [default: 16; with --engine cuda: 64]
    #[arg(long, env = "REIN_BLOCK_SIZE", value_name = "TOKENS", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub block_size: Option<u16>,
    /// Maximum number of running sequences; others wait in the engine's queue
    #[arg(long, env = "REIN_MAX_SEQUENCES", default_value_t = limits::MAX_SEQUENCES as u32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub max_sequences: u32,
    /// Maximum number of sequences in the engine's queue; requests beyond it get status 429
    #[arg(long, env = "REIN_MAX_QUEUE", default_value_t = limits::MAX_QUEUE as u32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_queue: u32,
    /// Maximum number of tokens in one step; longer prompts are computed in chunks [default: 512; with --engine cuda:
    /// 8192]
    #[arg(long, env = "REIN_TOKEN_BUDGET", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub token_budget: Option<u32>,
    /// Seconds after which a running step counts as hung: a worker's group is formed again, and `rein serve` exits with
    /// an error
    #[arg(long, env = "REIN_STEP_DEADLINE", default_value = "60", value_name = "S", value_parser = option_values::deadline)]
    pub step_deadline: f64,
    /// Disable the prefix cache, which shares the KV blocks of equal prompt prefixes
    #[arg(long, env = "REIN_NO_PREFIX_CACHE")]
    pub no_prefix_cache: bool,
    /// Maximum number of draft tokens in one step: what followed the same tokens earlier in the prompt or the answer is
    /// computed before it is drawn (prompt lookup). Answers stay the same; those that repeat text come sooner. 0: none
    /// [default: 8; with --engine cuda or sim: 0]
    #[arg(long, env = "REIN_DRAFT_TOKENS", value_name = "TOKENS", value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub draft_tokens: Option<u16>,
    /// On GPUs, do not compute steps of all sizes while loading: it is ready sooner, but the first steps of each size
    /// are slow, and a large step may find no memory for its activations
    #[arg(long, env = "REIN_NO_PREPARE")]
    pub no_prepare: bool,
    #[command(flatten)]
    pub loras: LoraArgs,
    #[command(flatten)]
    pub sim: SimArgs,
}

/// Where KV blocks go that leave the cache.
#[derive(Debug, Clone, Args)]
pub struct HostTierArgs {
    /// Memory of the host, in GiB, for KV blocks that leave the cache of a GPU: a prompt that begins like one of them
    /// is copied back instead of computed. With --kv-file, the size of the file [default: none]
    #[arg(long, env = "REIN_HOST_KV", value_name = "GIB", value_parser = option_values::gib)]
    pub host_kv: Option<f64>,
    /// File for these blocks instead of memory; they outlive the process. Each rank of a group has its own, with its
    /// number at the end
    #[arg(long, env = "REIN_KV_FILE", value_name = "FILE", requires = "host_kv")]
    pub kv_file: Option<PathBuf>,
}

impl HostTierArgs {
    /// Err: the engine has no use for it.
    pub fn check(&self, engine: EngineKind) -> Result<(), String> {
        match (&self.host_kv, &self.kv_file, engine) {
            (Some(_), None, EngineKind::Cpu) => {
                Err("--host-kv: on the CPU these blocks go to a file: add --kv-file, or \
                                                     give the memory to --kv-memory"
                    .into())
            }
            (Some(_), _, EngineKind::Sim) => Err("--host-kv: --engine sim has --sim-host-blocks instead".into()),
            _ => Ok(()),
        }
    }
}

/// LoRA adapters of the model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "LoRA adapters")]
pub struct LoraArgs {
    /// Comma-separated LoRA adapters, NAME=DIR each. DIR has PEFT's files; a request selects an adapter by its `model`
    #[arg(long, env = "REIN_LORA", value_delimiter = ',', value_name = "NAME=DIR", value_parser = option_values::named_dir)]
    pub lora: Vec<(String, String)>,
    /// Most LoRA adapters that are loaded at the same time [default: 8, or the number of named adapters if it is
    /// larger; 0 if no adapter is named and API clients may load none]
    #[arg(long, env = "REIN_MAX_LORAS", value_name = "N", value_parser = clap::value_parser!(u32).range(0..=limits::MAX_LORAS as i64))]
    pub max_loras: Option<u32>,
    /// The rank for which memory is reserved in each LoRA slot. Adapters of larger ranks are accepted and use more of
    /// that memory
    #[arg(long, env = "REIN_MAX_LORA_RANK", default_value_t = 64, value_name = "RANK", value_parser = clap::value_parser!(u16).range(1..=limits::MAX_LORA_RANK as i64))]
    pub max_lora_rank: u16,
    /// Memory reserved for LoRA adapters on each rank, in MiB [default: enough to fill all slots with adapters of all
    /// modules except experts]
    #[arg(long, env = "REIN_LORA_MEMORY", value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    pub lora_memory: Option<u64>,
}

impl LoraArgs {
    /// Adapters at the same time, where more may come `over_api` or not.
    pub fn slots(&self, over_api: bool) -> usize {
        const USUAL: usize = 8;
        let named = self.lora.len();
        let default = if named > 0 || over_api { USUAL.max(named) } else { 0 };
        self.max_loras.map_or(default, |most| most as usize)
    }

    /// Err: there are more names than places, or one twice.
    pub fn check(&self, over_api: bool) -> Result<(), String> {
        let (named, slots) = (self.lora.len(), self.slots(over_api));
        if named > slots {
            return Err(format!("--lora: names {named} adapters, but --max-loras is {slots}"));
        }
        match self.lora.iter().enumerate().find(|(i, (name, _))| self.lora[..*i].iter().any(|(other, _)| other == name))
        {
            Some((_, (name, _))) => Err(format!("--lora: {name} is given twice")),
            None => Ok(()),
        }
    }
}

/// Cost model of the sim engine: step time = base + prefill tokens * a + decode rows * b.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sim engine (--engine sim)")]
pub struct SimArgs {
    /// Microseconds per step
    #[arg(long, env = "REIN_SIM_STEP_US", default_value_t = 0, value_name = "US")]
    pub sim_step_us: u64,
    /// Additional microseconds per prefill token
    #[arg(long, env = "REIN_SIM_PREFILL_US", default_value_t = 0, value_name = "US")]
    pub sim_prefill_us: u64,
    /// Additional microseconds per decoding sequence
    #[arg(long, env = "REIN_SIM_DECODE_US", default_value_t = 0, value_name = "US")]
    pub sim_decode_us: u64,
    /// Number of KV blocks
    #[arg(long, env = "REIN_SIM_BLOCKS", default_value_t = 65_536, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub sim_blocks: u32,
    /// Number of blocks that leave the cache and are kept
    #[arg(long, env = "REIN_SIM_HOST_BLOCKS", default_value_t = 0, value_name = "N")]
    pub sim_host_blocks: u32,
    /// Seed of the generated tokens
    #[arg(long, env = "REIN_SIM_SEED", default_value_t = 0, value_name = "SEED")]
    pub sim_seed: u64,
}
