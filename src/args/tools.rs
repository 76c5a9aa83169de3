//! Options of the commands that read files or standard input and print.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use clap_complete::Shell;

use super::{DeviceArgs, GpuKernelsArg, ModelArgs};
use crate::{live, option_values};

#[derive(Debug, Clone, Args)]
pub struct ScoreArgs {
    /// File with a JSON array of token ids; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    pub tokens: PathBuf,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub on: DeviceArgs,
}

#[derive(Debug, Clone, Args)]
pub struct RenderArgs {
    /// Model directory, for its template and tokenizer
    #[arg(long, env = "REIN_MODEL", value_name = "DIR", required_unless_present_any = ["template", "tokenizer"])]
    pub model: Option<PathBuf>,
    /// Chat template file to use instead of the model's
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
    /// Directory with the tokenizer to use instead of the model's
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct AcceptArgs {
    /// Tool-call format: a name that `rein formats` lists, or a JSON file
    #[arg(long, value_name = "NAME|FILE")]
    pub format: String,
    /// Directory with the tokenizer
    #[arg(long, value_name = "DIR")]
    pub tokenizer: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// Model directory: config.json, tokenizer, chat template
    #[arg(long, env = "REIN_MODEL", value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Chat template file to use instead of the model's
    #[arg(long, env = "REIN_CHAT_TEMPLATE", value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Directory with the tokenizer to use instead of the model's
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
    /// Tool-call format: a name that `rein formats` lists, or a JSON file [default: detected from the model directory]
    #[arg(long, env = "REIN_FORMAT", value_name = "NAME|FILE")]
    pub format: Option<String>,
    /// Ask the first model of this server a dozen tool questions: which of its calls are read, lost or changed
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = "http://127.0.0.1:8000")]
    pub live: Option<String>,
    /// API key for --live
    #[arg(long, env = "OPENAI_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// File with certificates (PEM) for --live, to trust in addition to the public authorities
    #[arg(long, env = "SSL_CERT_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Most tokens of an answer to --live
    #[arg(long, default_value_t = live::TOKENS, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub live_tokens: u32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub struct PullArgs {
    /// The model: ORG/NAME, or ORG/NAME@REVISION with a branch, a tag or a commit
    ///
    /// HF_HOME or HF_HUB_CACHE is the cache, HF_ENDPOINT the server, HF_TOKEN a token for private and gated models.
    /// With HF_HUB_OFFLINE=1 nothing is downloaded.
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Without the weights: what a router, an adapter and `rein check` read
    #[arg(long)]
    pub text_only: bool,
}

#[derive(Debug, Clone, Args)]
pub struct FormatsArgs {
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,
    /// Print the formats page of the documentation
    #[arg(long)]
    pub markdown: bool,
}

#[derive(Debug, Clone, Args)]
pub struct ParseArgs {
    /// Tool-call format: a name that `rein formats` lists, or a JSON file
    #[arg(long, value_name = "NAME|FILE")]
    pub format: String,
    /// Directory with the tokenizer, for lines with token_ids
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
    /// The reverse: from reasoning, content and tool_calls to the text that the model would write
    #[arg(long, conflicts_with = "tokenizer")]
    pub render: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SelftestEngine {
    /// An NVIDIA GPU
    Cuda,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SelftestSection {
    /// Properties, copy bandwidth, rate of bf16 products, cost of a launch
    Device,
    /// Each machine instruction that the kernels use, bit for bit against the CPU
    Ptx,
    /// Every op of a model against the CPU backend, over many shapes
    Ops,
    /// The fast kernels against the plain ones, at the widths of a large model
    Fast,
    /// Every small model against the CPU: logprobs and greedy tokens
    Models,
    /// Every small model over several ranks on the device, against one rank; what a sum over ranks costs
    Ranks,
    /// A row's bits over batches, chunks and the prefix cache
    Invariance,
    /// Steered, rewound, masked, preempted and resumed sequences against the same ones alone
    Engine,
    /// Times of loading, prefill, decoding, and enforced output
    Bench,
    /// Times of one rank of Kimi K2 over eight GPUs, in FP8 and int4
    Slice,
}

impl SelftestSection {
    /// The newest sections first: an interrupted run has then checked the newest code.
    const ORDER: [SelftestSection; 10] = [
        Self::Fast,
        Self::Slice,
        Self::Ranks,
        Self::Ops,
        Self::Models,
        Self::Invariance,
        Self::Engine,
        Self::Bench,
        Self::Device,
        Self::Ptx,
    ];
}

#[cfg(feature = "cuda")]
impl SelftestSection {
    pub fn name(self) -> &'static str {
        match self {
            SelftestSection::Device => "device",
            SelftestSection::Ptx => "ptx",
            SelftestSection::Ops => "ops",
            SelftestSection::Fast => "fast",
            SelftestSection::Models => "models",
            SelftestSection::Ranks => "ranks",
            SelftestSection::Invariance => "invariance",
            SelftestSection::Engine => "engine",
            SelftestSection::Bench => "bench",
            SelftestSection::Slice => "slice",
        }
    }

    /// Whether --reduced changes it.
    pub fn has_sets(self) -> bool {
        !matches!(self, SelftestSection::Device | SelftestSection::Ptx | SelftestSection::Ops | SelftestSection::Fast)
    }
}

#[derive(Debug, Clone, Args)]
pub struct SelftestArgs {
    /// Backend to check
    #[arg(long, value_enum, default_value_t = SelftestEngine::Cuda)]
    pub engine: SelftestEngine,
    /// Index of the device, among those that CUDA_VISIBLE_DEVICES leaves
    #[arg(long, default_value_t = 0, value_name = "INDEX")]
    pub device: usize,
    /// Kernels of models, ranks, invariance, engine, bench and slice
    #[arg(long, value_enum, default_value_t = GpuKernelsArg::Fast, value_name = "KERNELS")]
    pub gpu_kernels: GpuKernelsArg,
    /// Sections to run, in the order given
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SECTIONS", default_values_t = SelftestSection::ORDER)]
    pub sections: Vec<SelftestSection>,
    /// Directory with the small model directories of models, ranks, invariance, engine and bench
    #[arg(long, default_value = "tests/fixtures/models", value_name = "DIR")]
    pub fixtures: PathBuf,
    /// Seconds after which a check that reports nothing counts as hung. A section begins no check after three times as
    /// long
    #[arg(long, default_value = "30", value_name = "S", value_parser = option_values::deadline)]
    pub check_time: f64,
    /// Smaller sets, for a device that is emulated; the report marks them
    #[arg(long)]
    pub reduced: bool,
    /// JSON file for the report, written after each section; a Markdown page is written beside it
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Report of an earlier run whose passed sections are not run again; without --report, it is updated
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Run the checks of the one section from this one on, in this process, and print what they find as JSON
    #[arg(long, hide = true, value_name = "N")]
    pub from_check: Option<usize>,
}

#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// Shell to complete commands for
    #[arg(value_enum)]
    pub shell: Shell,
}

#[derive(Debug, Clone, Args)]
pub struct ManArgs {
    /// Directory for the pages, rein.1, rein-serve.1 and so on; it is created if it is missing
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}
