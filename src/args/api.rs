//! Options of the public API: listeners, tool calls, admission, telemetry. Shared by `serve` and `router`.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Args, ValueEnum};
use rein_router::{Origin, ResponsesStoreMode};

use super::address::{ListenAddr, listen_host};
use crate::option_values;
use crate::tls::TlsArgs;

#[derive(Debug, Clone, Args)]
pub struct ApiArgs {
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Comma-separated further names of models, NAME=MODEL each: requests for NAME get MODEL
    #[arg(long, env = "REIN_ALIAS", value_delimiter = ',', value_name = "NAME=MODEL", value_parser = option_values::alias, help_heading = "Network")]
    pub alias: Vec<(String, String)>,
    /// Allow API clients to load and unload LoRA adapters. A client may name any directory on the engines' machines
    #[arg(long, env = "REIN_LORA_API", help_heading = "LoRA adapters")]
    pub lora_api: bool,
    #[command(flatten)]
    pub tool_calls: ToolCallArgs,
    #[command(flatten)]
    pub admission: AdmissionArgs,
    #[command(flatten)]
    pub responses: ResponsesArgs,
    #[command(flatten)]
    pub tls: TlsArgs,
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

/// Listeners, and how long they drain.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Network")]
pub struct NetworkArgs {
    /// Address of the HTTP API: HOST:PORT, `:PORT` (all IPv4 interfaces) or `PORT` (127.0.0.1); port 0 picks a free
    /// port
    #[arg(long, env = "REIN_HTTP", default_value = "127.0.0.1:8000", value_name = "ADDR")]
    pub http: ListenAddr,
    // No environment variables for these two: Kubernetes sets REIN_PORT to a URL where a service is named `rein`.
    /// Host of the HTTP API: replaces the host in --http
    #[arg(long, value_name = "HOST", value_parser = listen_host)]
    pub host: Option<String>,
    /// Port of the HTTP API: replaces the port in --http
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Address of the gRPC API, in the same forms as --http
    #[arg(long, env = "REIN_GRPC", default_value = "127.0.0.1:50051", value_name = "ADDR")]
    pub grpc: ListenAddr,
    /// Comma-separated origins of web pages that may use the HTTP API (CORS), such as https://chat.example; `*` allows
    /// all [default: none]
    #[arg(long, env = "REIN_CORS_ORIGIN", value_delimiter = ',', value_name = "ORIGINS")]
    pub cors_origin: Vec<Origin>,
    /// Seconds that open requests may take to finish after SIGTERM
    #[arg(long, env = "REIN_DRAIN_SECONDS", default_value_t = 30, value_name = "S", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub drain_seconds: u64,
}

impl NetworkArgs {
    /// Applies `--host` and `--port` to `--http`, unless `--http` comes from a stronger source: a flag overrides the
    /// config file's `host` and `port`. `source` gives where the value of an option comes from.
    pub fn apply_host_and_port(&mut self, source: impl Fn(&str) -> Option<ValueSource>) {
        let applies = |id| source(id) >= source("http");
        if let Some(host) = self.host.take().filter(|_| applies("host")) {
            self.http = self.http.with_host(host);
        }
        if let Some(port) = self.port.take().filter(|_| applies("port")) {
            self.http = self.http.with_port(port);
        }
    }
}

/// How much of a tool call the grammar enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EnforcementArg {
    /// Only declared tools, with arguments that satisfy their schemas
    #[value(name = "names+arguments")]
    NamesAndArguments,
    /// Only declared tools, with any JSON object as arguments
    Names,
    /// Only what the request asks for: a `tool_choice` other than `auto`, `strict` tools, a response format
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OrderArg {
    /// The schema's, as OpenAI and vLLM do: a model that writes `reasoning` first thinks before it answers
    Schema,
    /// The model's
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BlanksArg {
    /// A run of them, or a line break with indentation
    Any,
    /// At most a space after a comma or a colon
    Few,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MasksArg {
    /// After a refused token, and for some steps after several refusals
    OnRefusal,
    /// At every step; slower, for comparisons
    Always,
}

/// How conversations are rendered, and how tool calls are enforced.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Chat template and tool calls")]
pub struct ToolCallArgs {
    /// Chat template file to use instead of the model's
    #[arg(long, env = "REIN_CHAT_TEMPLATE", value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Tool-call format: a name that `rein formats` lists, or a JSON file [default: detected from the model directory]
    #[arg(long, env = "REIN_FORMAT", value_name = "NAME|FILE")]
    pub format: Option<String>,
    /// What is enforced on tool calls; a request's `strict` can ask for more
    #[arg(long, env = "REIN_ENFORCEMENT", value_enum, default_value_t = EnforcementArg::NamesAndArguments)]
    pub enforcement: EnforcementArg,
    /// Order of the properties of an answer's objects, where a request gives a JSON Schema for the answer
    #[arg(long, env = "REIN_ANSWER_ORDER", value_enum, default_value_t = OrderArg::Schema)]
    pub answer_order: OrderArg,
    /// Order of the properties in arguments of tool calls
    #[arg(long, env = "REIN_ARGUMENT_ORDER", value_enum, default_value_t = OrderArg::Any)]
    pub argument_order: OrderArg,
    /// Blanks between the tokens of an answer in JSON; a request's `structured_outputs` or `guided_whitespace_pattern`
    /// comes first
    #[arg(long, env = "REIN_ANSWER_BLANKS", value_enum, default_value_t = BlanksArg::Any)]
    pub answer_blanks: BlanksArg,
    /// When the engine samples under a grammar mask
    #[arg(long, env = "REIN_MASKS", value_enum, default_value_t = MasksArg::OnRefusal)]
    pub masks: MasksArg,
    /// Encode control tokens in the text of messages as control tokens instead of as plain text
    #[arg(long, env = "REIN_ALLOW_CONTROL_TOKENS")]
    pub allow_control_tokens: bool,
    /// Accept requests with tools even if the chat template does not show tools to the model
    #[arg(long, env = "REIN_ALLOW_DROPPED_TOOLS")]
    pub allow_dropped_tools: bool,
    /// Maximum number of tools of a request, while calls are enforced; a large number takes long to compile
    #[arg(long, env = "REIN_MAX_TOOLS", default_value_t = rein_grammar::MAX_TOOLS as u32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub max_tools: u32,
}

/// Who may send requests, and how many are served at once.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Admission")]
pub struct AdmissionArgs {
    /// File with the accepted API keys (TOML, see `rein key`) [default: no key is required]
    #[arg(long, env = "REIN_API_KEYS", value_name = "FILE")]
    pub api_keys: Option<PathBuf>,
    /// Maximum number of requests in flight, where each choice counts; others wait in the router's queue
    #[arg(long, env = "REIN_MAX_IN_FLIGHT", default_value_t = rein_router::limits::IN_FLIGHT, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_in_flight: u32,
    /// Maximum number of requests in the router's queue; requests beyond it get status 429
    #[arg(long, env = "REIN_MAX_QUEUED", default_value_t = rein_router::limits::QUEUED, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub max_queued: u32,
    /// Seconds without progress in reading the answer after which a client's request is ended
    #[arg(long, env = "REIN_CLIENT_STALL_TIMEOUT", default_value_t = rein_router::limits::CLIENT_STALL.as_secs(), value_name = "S", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub client_stall_timeout: u64,
    /// Seconds for which engines hold the KV blocks of an answer that ended in tool calls, because its conversation
    /// comes back. Once a conversation's tools have run, twice the median of their times counts. 0: not at all
    #[arg(long, env = "REIN_TOOL_HOLD", default_value_t = rein_router::limits::FIRST_TOOL_HOLD.as_secs(), value_name = "S", value_parser = clap::value_parser!(u64).range(0..=600))]
    pub tool_hold: u64,
    /// Memory that requests share, in MiB: bodies, prompts, grammars, kept responses and unread answers. With less than
    /// 24 GiB, some of their limits are smaller than the largest [default: what is free on the machine, or left by the
    /// limit of the container]
    #[arg(long, env = "REIN_REQUEST_MEMORY", value_name = "MIB", value_parser = clap::value_parser!(u32).range(64..))]
    pub request_memory: Option<u32>,
}

/// What `/v1/responses` keeps.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Responses API")]
pub struct ResponsesArgs {
    /// Where responses are kept for clients that fetch or continue them: `memory`, `off`, or a directory, which several
    /// routers may share [default: memory in `rein serve`, off in `rein router`]
    #[arg(long, env = "REIN_RESPONSES_STORE", value_name = "memory|off|DIR")]
    pub responses_store: Option<ResponsesStoreMode>,
}

/// Where traces go.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Telemetry")]
pub struct TelemetryArgs {
    /// OpenTelemetry collector for traces (OTLP over gRPC), such as http://127.0.0.1:4317 [default: no traces].
    /// OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and OTEL_TRACES_SAMPLER_ARG (share of traces to keep, 0 to 1) also
    /// apply
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL", value_parser = option_values::collector)]
    pub otlp_endpoint: Option<String>,
}
