//! The command line: one struct per command. A value comes from the flag, else from its environment variable, else from
//! the config file. This module declares options; it must not act on them.

pub mod address;
mod api;
mod capacity;
mod chat;
mod cluster;
mod model;
mod tools;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub use self::api::{
    AdmissionArgs, ApiArgs, BlanksArg, EnforcementArg, MasksArg, NetworkArgs, OrderArg, TelemetryArgs, ToolCallArgs,
};
pub use self::capacity::{CapacityArgs, GpuKind};
pub use self::chat::{AskArgs, ChatArgs, RunArgs};
pub use self::cluster::{
    AdapterArgs, ClusterArgs, ControllerArgs, DrainArgs, EngineAddress, EngineClientArgs, RouterArgs, StatusArgs,
    WorkerArgs,
};
pub use self::model::{
    Device, DeviceArgs, DtypeArg, EngineArgs, EngineKind, EngineTask, GpuKernelsArg, KvDtypeArg, LoraArgs, ModelArgs,
    QuantizeArg, WeightArgs,
};
#[cfg(feature = "cuda")]
pub use self::tools::SelftestSection;
pub use self::tools::{
    AcceptArgs, CheckArgs, CompletionsArgs, FormatsArgs, ManArgs, ParseArgs, PullArgs, RenderArgs, ScoreArgs,
    SelftestArgs,
};
use crate::bench::BenchOptions;
use crate::certs::CertsArgs;
use crate::key::KeyArgs;
use crate::monitoring::{AlarmArgs, SelectArgs};
use crate::telemetry::TraceTarget;
use crate::verify::VerifyOptions;

/// Serve mixture-of-experts language models over an OpenAI-compatible HTTP API and gRPC.
#[derive(Debug, Parser)]
#[command(
    name = "rein",
    version,
    after_help = "Every option of a command can also be set in a TOML file (`--config rein.toml`, keys are the long options \
                  without the leading dashes). Most can be set in an environment variable, which the option's help names. \
                  A flag takes precedence over the environment, and the environment over the file.\n\n\
                  Environment variables without a flag:\n  \
                  REIN_LOG=debug                         log level, or a filter such as warn,rein_router=debug\n  \
                  REIN_LOG_FORMAT=json                   logs as JSON lines; logs go to standard error\n  \
                  REIN_TEMPLATE_NOW=2026-01-31T12:00:00  the date that chat templates see\n  \
                  HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE  where models of the Hub come from\n  \
                  HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE   the way there"
)]
pub struct Cli {
    /// TOML file with values for the command's options
    #[arg(long, global = true, env = "REIN_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model from this process: router, engine and ranks together
    Serve(Box<ServeArgs>),
    /// Chat with a model in the terminal
    Chat(Box<ChatArgs>),
    /// Answer one question, for scripts
    Run(Box<RunArgs>),
    /// Run a router: OpenAI HTTP and gRPC in front of a cluster's worker groups
    Router(Box<RouterArgs>),
    /// Run a worker, which holds one or more ranks of a model's worker group
    Worker(Box<WorkerArgs>),
    /// Run an adapter, which lets a cluster's routers use an engine that is already there: vLLM, SGLang or llama-server
    Adapter(Box<AdapterArgs>),
    /// Run a controller, which assigns ranks to workers; of several controllers, one is active
    Controller(Box<ControllerArgs>),
    /// Show a cluster's groups, workers and routers
    ///
    /// TOK/S: tokens that the group generated per second, over the last seconds. KV: share of the KV blocks in use.
    /// IMBALANCE: load of the busiest rank over the mean of all ranks, in the layer where this is highest. EXPERTS: the
    /// highest number of experts per layer that the worker holds. AGE: time since the process started.
    Status(Box<StatusArgs>),
    /// Drain a worker: it takes no new sequences, its open sequences finish or move, and it exits
    Drain(Box<DrainArgs>),
    /// Download a model of the Hugging Face Hub, the files that Rein reads, and print their directory
    Pull(PullArgs),
    /// Print the alarms as rules for Prometheus
    Alarms(AlarmArgs),
    /// Print a dashboard for Grafana
    Dashboard(SelectArgs),
    /// Make an authority, and certificates for the processes of a cluster and for listeners
    Certs(CertsArgs),
    /// Make, list and revoke API keys
    Key(KeyArgs),
    /// Check whether a model's template, format and tokenizer support tool calls
    ///
    /// Weights are not read; with --live, a running server is asked. The exit code is 1 if tool calls would fail.
    Check(CheckArgs),
    /// List the tool-call formats
    Formats(FormatsArgs),
    /// Render conversations to prompts and token ids (JSON lines in and out)
    Render(RenderArgs),
    /// Parse model output into reasoning, text and tool calls (JSON lines in and out)
    Parse(ParseArgs),
    /// Report how much of an output a request's grammar accepts (JSON lines in and out)
    Accept(AcceptArgs),
    /// Show what a model needs on GPUs: memory by kind, KV tokens, and the least time of a decode step
    ///
    /// It reads config.json only and needs no GPU. Exchanges between GPUs, activations and launches are not counted.
    Capacity(CapacityArgs),
    /// Print log-probabilities of given token ids (teacher forcing) as JSON
    Score(ScoreArgs),
    /// Benchmark an OpenAI endpoint: time to first token, inter-token latency, throughput
    Bench(Box<BenchOptions>),
    /// Evaluate an OpenAI endpoint's tool calls: schema accuracy, call decisions, streams, errors
    Verify(Box<VerifyOptions>),
    /// Check that a GPU computes what the CPU does, and measure it
    ///
    /// Each section prints its findings as it ends. The exit code is 1 if one failed.
    Selftest(SelftestArgs),
    /// Print a shell completion script
    Completions(CompletionsArgs),
    /// Write man pages
    Man(ManArgs),
}

impl Command {
    /// Where the command sends traces, and under which service name; None if it sends none.
    pub fn telemetry(&self) -> Option<TraceTarget<'_>> {
        let (telemetry, service) = match self {
            Command::Serve(args) => (&args.api.telemetry, "rein"),
            Command::Router(args) => (&args.api.telemetry, "rein-router"),
            Command::Worker(args) => (&args.telemetry, "rein-worker"),
            _ => return None,
        };
        let endpoint = telemetry.otlp_endpoint.as_deref().filter(|endpoint| !endpoint.is_empty())?;
        Some(TraceTarget { endpoint, service })
    }

    /// The model of the command, and the one that is given without an option.
    pub fn model_mut(&mut self) -> Option<(&mut PathBuf, &mut Option<PathBuf>)> {
        let weights = match self {
            Command::Serve(args) => &mut args.model.weights,
            Command::Score(args) => &mut args.model.weights,
            Command::Worker(args) => &mut args.weights,
            _ => return None,
        };
        Some((&mut weights.model, &mut weights.first))
    }

    /// The options of the public listeners, if the command has them.
    pub fn network_mut(&mut self) -> Option<&mut NetworkArgs> {
        match self {
            Command::Serve(args) => Some(&mut args.api.network),
            Command::Router(args) => Some(&mut args.api.network),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub api: ApiArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Before serving, ask the model a dozen tool questions: which of its calls are read, lost or changed
    #[arg(long, env = "REIN_CHECK_LIVE", help_heading = "Tool calls")]
    pub check_live: bool,
    /// End when standard input is closed: of a process that starts this one
    #[arg(long, hide = true)]
    pub until_stdin_ends: bool,
}
