//! The command line. One struct per command; values come from flags, then `REIN_*` variables, then the config file.

pub mod listen;
pub mod values;

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use rein_router::{Origin, RoutePolicy};
use rein_worker::limits;

use self::listen::ListenAddr;
use crate::bench::BenchOptions;
use crate::key::KeyArgs;
use crate::telemetry::LogTarget;
use crate::tls::{PeerArgs, TlsArgs};
use crate::verify::VerifyOptions;

#[derive(Debug, Parser)]
#[command(
    name = "rein",
    version,
    about = "Serves mixture-of-experts language models over OpenAI HTTP and gRPC.",
    after_help = "Every option of `serve` can also stand in a TOML file (--config rein.toml, keys as the flags without \
                  dashes in front) or in the environment (REIN_TP=2). A flag wins over the environment, which wins over the file.\n\
                  REIN_LOG=debug logs more (to standard error), REIN_LOG_FORMAT=json as JSON lines. \
                  REIN_TEMPLATE_NOW=2026-01-31T12:00:00 sets the clock that chat templates see."
)]
pub struct Cli {
    /// TOML file with default values for the command's options
    #[arg(long, global = true, env = "REIN_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model from this process: router, engine and ranks together
    Serve(Box<ServeArgs>),
    /// Serve a cluster's models: OpenAI HTTP and gRPC in front of its worker groups
    Router(Box<RouterArgs>),
    /// Hold ranks of a model, alone or in a group with other workers of the cluster
    Worker(Box<WorkerArgs>),
    /// Decide who is which rank of which group; of several one is active
    Controller(Box<ControllerArgs>),
    /// Show who is in a cluster: workers, groups, ranks, load, epochs
    Status(Box<StatusArgs>),
    /// Ask a worker to leave: its group does without it, open sequences finish or go on elsewhere
    Drain(Box<DrainArgs>),
    /// Log-probabilities of given token ids (teacher forcing), as JSON
    Score(ScoreArgs),
    /// Render conversations to prompts and token ids, JSON lines in and out
    Render(RenderArgs),
    /// Say how much of an output a request's grammar accepts, JSON lines in and out
    Accept(AcceptArgs),
    /// Check that a model's template, format and tokenizer are fit for tool calls
    Check(CheckArgs),
    /// List the tool-call formats: names, models, ids, what is guaranteed
    Formats(FormatsArgs),
    /// Read a model's output into reasoning, text and tool calls, JSON lines in and out
    Parse(ParseArgs),
    /// Make an API key and its entry for the file of `--api-keys`
    Key(KeyArgs),
    /// Measure an OpenAI endpoint: time to first token, inter-token latency, throughput
    Bench(Box<BenchOptions>),
    /// Judge an OpenAI endpoint's tool calls: schema accuracy, whether it calls when it should, streams, errors
    Verify(Box<VerifyOptions>),
}

impl Command {
    /// Commands that answer requests tell of them: where to, and as what.
    pub fn telemetry(&self) -> Option<LogTarget<'_>> {
        let (telemetry, service) = match self {
            Command::Serve(args) => (&args.api.telemetry, "rein"),
            Command::Router(args) => (&args.api.telemetry, "rein-router"),
            Command::Worker(args) => (&args.telemetry, "rein-worker"),
            _ => return None,
        };
        let endpoint = telemetry.otlp_endpoint.as_deref().filter(|endpoint| !endpoint.is_empty())?;
        Some(LogTarget { endpoint, service })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineKind {
    /// The model on this machine's processors
    Cpu,
    /// No weights: seeded or scripted tokens at the pace of a cost model
    Sim,
}

/// What holds tool calls to their declarations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EnforcementArg {
    /// Only declared tools, and arguments that satisfy their schemas
    #[value(name = "names+arguments")]
    NamesAndArguments,
    /// Only declared tools, with any JSON object
    Names,
    /// Nothing is enforced unless a request asks for it; calls are parsed leniently
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MasksArg {
    /// After a refused token, and for a while after several
    OnRefusal,
    /// At every step: slower, for comparison
    Always,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DtypeArg {
    /// What the checkpoint holds
    Auto,
    F32,
    Bf16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum QuantizeArg {
    None,
    Int8,
}

/// Which weights, and in what types.
#[derive(Debug, Clone, Args)]
pub struct WeightArgs {
    /// Checkpoint directory as published on the Hub (config.json, safetensors, tokenizer, template)
    #[arg(long, env = "REIN_MODEL", value_name = "DIR")]
    pub model: PathBuf,
    /// Type in which weights are kept and multiplied
    #[arg(long, env = "REIN_DTYPE", value_enum, default_value_t = DtypeArg::Auto)]
    pub dtype: DtypeArg,
    /// Quantize weights while loading
    #[arg(long, env = "REIN_QUANTIZE", value_enum, default_value_t = QuantizeArg::None)]
    pub quantize: QuantizeArg,
    /// Compute threads of all ranks of this process together [default: all cores]
    #[arg(long, env = "REIN_THREADS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Seconds after which a read of the checkpoint that returns nothing is given up, and loading with it
    #[arg(long, env = "REIN_READ_TIMEOUT", default_value = "60", value_name = "S", value_parser = values::deadline)]
    pub read_timeout: f64,
}

impl WeightArgs {
    /// Whether nothing is said about how weights are loaded.
    pub fn is_default(&self) -> bool {
        self.dtype == DtypeArg::Auto && self.quantize == QuantizeArg::None && self.threads.is_none()
    }
}

/// How a checkpoint is loaded in one process; shared by `serve` and `score`.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    #[command(flatten)]
    pub weights: WeightArgs,
    /// Ranks that share the model (tensor and expert parallel); must divide the attention heads
    #[arg(long, env = "REIN_TP", default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub tp: u16,
}

#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub api: ApiArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// What clients meet: listeners, and how requests are read and held to their tools.
#[derive(Debug, Clone, Args)]
pub struct ApiArgs {
    /// Address of the OpenAI HTTP interface: HOST:PORT, `:PORT` (every IPv4 interface) or `PORT` (127.0.0.1); port 0 takes a
    /// free one
    #[arg(long, env = "REIN_HTTP", default_value = "127.0.0.1:8000", value_name = "ADDR")]
    pub http: ListenAddr,
    /// Address of the gRPC interface, in the same forms; port 0 takes a free one
    #[arg(long, env = "REIN_GRPC", default_value = "127.0.0.1:50051", value_name = "ADDR")]
    pub grpc: ListenAddr,
    /// Origins of web pages that may use the HTTP interface (CORS), such as https://chat.example, with commas between them;
    /// `*`: every page [default: none]
    #[arg(long, env = "REIN_CORS_ORIGIN", value_delimiter = ',', value_name = "ORIGINS")]
    pub cors_origin: Vec<Origin>,
    /// Chat template file instead of the model's own
    #[arg(long, env = "REIN_CHAT_TEMPLATE", value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Tool-call format, one of `rein formats` or a file [default: as the model directory tells]
    #[arg(long, env = "REIN_FORMAT", value_name = "NAME")]
    pub format: Option<String>,
    /// What tool calls are held to; a tool's or response format's `strict` may ask for more
    #[arg(long, env = "REIN_ENFORCEMENT", value_enum, default_value_t = EnforcementArg::NamesAndArguments)]
    pub enforcement: EnforcementArg,
    /// When the engine draws under a mask
    #[arg(long, env = "REIN_MASKS", value_enum, default_value_t = MasksArg::OnRefusal)]
    pub masks: MasksArg,
    /// Let control tokens that messages spell become control tokens; else they stay text
    #[arg(long, env = "REIN_ALLOW_CONTROL_TOKENS")]
    pub allow_control_tokens: bool,
    /// Answer requests with tools though the chat template does not show these to the model; else they are refused
    #[arg(long, env = "REIN_ALLOW_DROPPED_TOOLS")]
    pub allow_dropped_tools: bool,
    /// Seconds that open requests get to finish after SIGTERM
    #[arg(long, env = "REIN_DRAIN_SECONDS", default_value_t = 30, value_name = "S", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub drain_seconds: u64,
    #[command(flatten)]
    pub admission: AdmissionArgs,
    #[command(flatten)]
    pub tls: TlsArgs,
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

/// Who may ask, and how much at once.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Admission")]
pub struct AdmissionArgs {
    /// File of the API keys that may ask (TOML, see `rein key`); without it everybody may
    #[arg(long, env = "REIN_API_KEYS", value_name = "FILE")]
    pub api_keys: Option<PathBuf>,
    /// Requests that are answered at once; more wait for their turn
    #[arg(long, env = "REIN_MAX_IN_FLIGHT", default_value_t = rein_router::limits::IN_FLIGHT, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_in_flight: u32,
    /// Requests that may wait for their turn before others are refused with 429
    #[arg(long, env = "REIN_MAX_QUEUED", default_value_t = rein_router::limits::QUEUED, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub max_queued: u32,
    /// Seconds after which a request ends whose client does not read its answer
    #[arg(long, env = "REIN_CLIENT_STALL_TIMEOUT", default_value_t = rein_router::limits::CLIENT_STALL.as_secs(), value_name = "S", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub client_stall_timeout: u64,
}

/// Where traces go.
#[derive(Debug, Clone, Args)]
pub struct TelemetryArgs {
    /// OpenTelemetry collector (OTLP over gRPC, such as http://127.0.0.1:4317) for traces; without one there are none.
    /// OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and OTEL_TRACES_SAMPLER_ARG (0 to 1: the part that is kept) count too
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL", value_parser = values::collector)]
    pub otlp_endpoint: Option<String>,
}

/// What executes steps, and how many.
#[derive(Debug, Clone, Args)]
pub struct EngineArgs {
    /// What executes the steps
    #[arg(long, env = "REIN_ENGINE", value_enum, default_value_t = EngineKind::Cpu)]
    pub engine: EngineKind,
    /// Name under which the model is served [default: the directory's]
    #[arg(long, env = "REIN_SERVED_NAME", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub served_name: Option<String>,
    /// Longest prompt plus answer in tokens [default: the model's]
    #[arg(long, env = "REIN_MAX_CONTEXT", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_context: Option<u32>,
    /// Memory for the KV cache in MiB; no more is taken than --max-sequences of --max-context tokens can fill [default: a
    /// quarter of what is free]
    #[arg(long, env = "REIN_KV_MEMORY", value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    pub kv_memory: Option<u64>,
    /// Tokens per KV block
    #[arg(long, env = "REIN_BLOCK_SIZE", default_value_t = 16, value_name = "TOKENS", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub block_size: u16,
    /// Sequences that run at once; more wait
    #[arg(long, env = "REIN_MAX_SEQUENCES", default_value_t = limits::MAX_SEQUENCES as u32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub max_sequences: u32,
    /// Sequences that may wait before requests are refused with 429
    #[arg(long, env = "REIN_MAX_QUEUE", default_value_t = limits::MAX_QUEUE as u32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_queue: u32,
    /// Tokens that one step computes at most; long prompts are cut into chunks of it
    #[arg(long, env = "REIN_TOKEN_BUDGET", default_value_t = limits::STEP_TOKENS as u32, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub token_budget: u32,
    /// Do not share the KV blocks of equal prompt prefixes
    #[arg(long, env = "REIN_NO_PREFIX_CACHE")]
    pub no_prefix_cache: bool,
    #[command(flatten)]
    pub sim: SimArgs,
}

/// Which cluster, and the etcd that holds it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Endpoints of etcd, with commas between them
    #[arg(long, env = "REIN_ETCD", default_value = "127.0.0.1:2379", value_delimiter = ',', value_name = "ENDPOINTS", value_parser = values::etcd)]
    pub etcd: Vec<String>,
    /// Name of the cluster: letters, digits, `-`, `_` and `.`, of which the first is a letter or digit
    #[arg(long, env = "REIN_CLUSTER", default_value = "default", value_name = "NAME")]
    pub cluster: String,
    /// PEM file with the authority that signed etcd's certificates; makes the connection a TLS one
    #[arg(long, env = "REIN_ETCD_CA", value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,
    /// PEM file with this process's certificate for etcd
    #[arg(long, env = "REIN_ETCD_CERT", value_name = "FILE", requires = "etcd_key")]
    pub etcd_cert: Option<PathBuf>,
    /// PEM file with the certificate's key
    #[arg(long, env = "REIN_ETCD_KEY", value_name = "FILE", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
    /// Name in etcd's certificates, where it is not the endpoint's
    #[arg(long, env = "REIN_ETCD_NAME", value_name = "NAME", requires = "etcd_ca")]
    pub etcd_name: Option<String>,
    /// User of etcd; the password comes from REIN_ETCD_PASSWORD or --etcd-password-file
    #[arg(long, env = "REIN_ETCD_USER", value_name = "USER")]
    pub etcd_user: Option<String>,
    /// File with the user's password
    #[arg(long, env = "REIN_ETCD_PASSWORD_FILE", value_name = "FILE", requires = "etcd_user")]
    pub etcd_password_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct RouterArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub peer: PeerArgs,
    #[command(flatten)]
    pub api: ApiArgs,
    /// How a sequence gets its group: cache-aware, least-load, power-of-two, round-robin or random
    #[arg(long, env = "REIN_POLICY", default_value = "cache-aware", value_name = "POLICY")]
    pub policy: RoutePolicy,
    /// Milliseconds after which a sequence whose prompt is still not computed is given to a second group, too; the first
    /// to answer has it [default: never]
    #[arg(long, env = "REIN_HEDGE_AFTER", value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub hedge_after: Option<u64>,
    /// Directories with text files (config.json, tokenizer, template) of models, served under the directory's name; other
    /// models' come from their workers
    #[arg(long, env = "REIN_MODEL", value_delimiter = ',', value_name = "DIRS")]
    pub model: Vec<PathBuf>,
    /// Name of this router in the cluster [default: host name and port]
    #[arg(long, env = "REIN_ID", value_name = "NAME")]
    pub id: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct WorkerArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub peer: PeerArgs,
    #[command(flatten)]
    pub weights: WeightArgs,
    /// Ranks of a group. Workers of one model form groups as they join; what does not fill one is a spare
    #[arg(long, env = "REIN_GROUP_SIZE", default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub group_size: u16,
    /// Copies of much used experts that each rank has room for, in each layer, beyond an even share of all experts
    #[arg(long, env = "REIN_REDUNDANT_EXPERTS", default_value_t = 0, value_name = "N")]
    pub redundant_experts: u16,
    /// Devices, with commas between them: this process holds a rank on each
    #[arg(long, env = "REIN_DEVICES", default_value = "cpu", value_delimiter = ',', value_name = "DEVICES")]
    pub devices: Vec<Device>,
    /// Address of the gRPC services for routers; port 0 takes a free one
    #[arg(long, env = "REIN_LISTEN", default_value = "127.0.0.1:0", value_name = "ADDR")]
    pub listen: ListenAddr,
    /// Address at which the ranks of other workers link; port 0 takes a free one [default: the host of --listen]
    #[arg(long, env = "REIN_MESH", value_name = "ADDR")]
    pub mesh: Option<ListenAddr>,
    /// Host under which others reach this process [default: that of --listen]
    #[arg(long, env = "REIN_ADVERTISE", value_name = "HOST", value_parser = values::host)]
    pub advertise: Option<String>,
    /// Address of the HTTP interface for operators (/metrics, /health, /ready; plain, without keys); port 0 takes a free one [default: none]
    #[arg(long, env = "REIN_HTTP", value_name = "ADDR")]
    pub http: Option<ListenAddr>,
    /// Name of this worker in the cluster [default: host name and port]
    #[arg(long, env = "REIN_ID", value_name = "NAME")]
    pub id: Option<String>,
    /// Workers in this process, each with a name and a port of its own: for load tests with the sim engine
    #[arg(long, env = "REIN_REPLICAS", default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub replicas: u16,
    /// Seconds after which a step has hung, and its group is put together anew
    #[arg(long, env = "REIN_STEP_DEADLINE", default_value = "60", value_name = "S", value_parser = values::deadline)]
    pub step_deadline: f64,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

/// Where a rank computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Device {
    Cpu,
}

#[derive(Debug, Clone, Args)]
pub struct ControllerArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Workers per model that are kept aside to take the place of lost ones, rather than made into one more group
    #[arg(long, env = "REIN_SPARES", default_value_t = 0, value_name = "N")]
    pub spares: usize,
    /// Seconds between two layouts of a group's experts, at least; 0: they stay where they are
    #[arg(long, env = "REIN_REBALANCE_EVERY", default_value_t = 60, value_name = "SECONDS")]
    pub rebalance_every: u64,
    /// Experts of a layer move where its busiest rank has more than this times the mean of all ranks
    #[arg(long, env = "REIN_REBALANCE_ABOVE", default_value = "1.1", value_name = "FACTOR", value_parser = values::factor)]
    pub rebalance_above: f64,
    /// Address of the HTTP interface for operators (/metrics, /health, /ready; plain, without keys); port 0 takes a free one [default: none]
    #[arg(long, env = "REIN_HTTP", value_name = "ADDR")]
    pub http: Option<ListenAddr>,
    /// Name of this controller in the cluster [default: host name and process id]
    #[arg(long, env = "REIN_ID", value_name = "NAME")]
    pub id: Option<String>,
}

/// IMBALANCE is what the busiest rank of the group's worst layer of experts has to do, over the mean of all ranks; EXPERTS
/// is how many experts a worker holds in the layer of which it holds most; KV is how full the KV cache is.
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Show it again at every change
    #[arg(long)]
    pub watch: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub struct DrainArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Name of the worker, as `rein status` shows it
    #[arg(value_name = "WORKER")]
    pub worker: String,
    /// Do not wait until it has left
    #[arg(long)]
    pub no_wait: bool,
}

/// Cost model of the sim engine: step time = base + prefill tokens * a + decode rows * b.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sim engine")]
pub struct SimArgs {
    /// Microseconds that every step takes
    #[arg(long, env = "REIN_SIM_STEP_US", default_value_t = 0, value_name = "US")]
    pub sim_step_us: u64,
    /// Microseconds per prefill token
    #[arg(long, env = "REIN_SIM_PREFILL_US", default_value_t = 0, value_name = "US")]
    pub sim_prefill_us: u64,
    /// Microseconds per decoding sequence
    #[arg(long, env = "REIN_SIM_DECODE_US", default_value_t = 0, value_name = "US")]
    pub sim_decode_us: u64,
    /// KV blocks
    #[arg(long, env = "REIN_SIM_BLOCKS", default_value_t = 65_536, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub sim_blocks: u32,
    /// Seed of the emitted tokens
    #[arg(long, env = "REIN_SIM_SEED", default_value_t = 0, value_name = "SEED")]
    pub sim_seed: u64,
}

#[derive(Debug, Clone, Args)]
pub struct ScoreArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// JSON array of token ids; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    pub tokens: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub struct RenderArgs {
    /// Model directory: its template and its tokenizer
    #[arg(long, env = "REIN_MODEL", value_name = "DIR", required_unless_present_any = ["template", "tokenizer"])]
    pub model: Option<PathBuf>,
    /// Chat template file instead of the model's
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
    /// Directory with a tokenizer instead of the model's
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct AcceptArgs {
    /// The tool-call format by its name
    #[arg(long, value_name = "NAME")]
    pub format: String,
    /// Directory with a tokenizer
    #[arg(long, value_name = "DIR")]
    pub tokenizer: PathBuf,
}

/// Exit code 1: tool calls would fail. Weights are not read.
#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// Model directory (config.json, tokenizer, template)
    #[arg(long, env = "REIN_MODEL", value_name = "DIR")]
    pub model: PathBuf,
    /// Chat template file instead of the model's
    #[arg(long, env = "REIN_CHAT_TEMPLATE", value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Directory with a tokenizer instead of the model's
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
    /// Tool-call format, one of `rein formats` or a file [default: as the model directory tells]
    #[arg(long, env = "REIN_FORMAT", value_name = "NAME")]
    pub format: Option<String>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub struct FormatsArgs {
    /// As JSON
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,
    /// As the page docs/reference/formats.md
    #[arg(long)]
    pub markdown: bool,
}

#[derive(Debug, Clone, Args)]
pub struct ParseArgs {
    /// Name of a format (see `rein formats`), or a JSON file that holds one
    #[arg(long, value_name = "NAME|FILE")]
    pub format: String,
    /// Directory with the tokenizer, for lines with token_ids
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
    /// The other way round: from reasoning, content and tool_calls to the text that the model would have written
    #[arg(long, conflicts_with = "tokenizer")]
    pub render: bool,
}
