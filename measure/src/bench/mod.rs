//! `rein bench`: measures the speed of an OpenAI endpoint and the memory bandwidth of this machine. It does not know
//! whether the endpoint is Rein's. docs/reference/bench.md defines every figure.

mod agents;
mod answer;
mod drive;
mod probe;
mod prompt;
mod report;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use thiserror::Error;

use crate::client::{ApiDialect, ClientError, Endpoint, with_version};
use crate::progress;
use report::BenchReport;

/// Duration of the memory probe in seconds.
const PROBE_SECONDS: f64 = 2.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EndpointKind {
    Chat,
    Completions,
}

impl EndpointKind {
    fn name(self) -> &'static str {
        match self {
            EndpointKind::Chat => "chat",
            EndpointKind::Completions => "completions",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TraceKind {
    /// Conversations that call a tool at each turn and come back with its result
    Agents,
}

#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Examples:\n  rein bench --concurrency 1,8 --prompt-tokens 128 --output-tokens 64\n  rein bench \
                        --base-url http://host:8000/v1 --duration 30 --json result.json\n  rein bench --probe --model-dir models/demo\n  rein bench --trace agents --sessions 20 --turns 12"
)]
pub struct BenchOptions {
    /// The same as --base-url, `/v1` may be left out
    #[arg(value_name = "URL", conflicts_with = "base_url")]
    pub url: Option<String>,
    /// URL of the endpoint, including `/v1` [default: http://127.0.0.1:8000/v1; gRPC: http://127.0.0.1:50051]
    #[arg(long, env = "REIN_BENCH_BASE_URL", value_name = "URL")]
    pub base_url: Option<String>,
    /// Protocol of the endpoint
    #[arg(long, value_enum, default_value_t = ApiDialect::Openai)]
    pub dialect: ApiDialect,
    /// Model to request [default: the first in the endpoint's list]
    #[arg(long, env = "REIN_BENCH_MODEL", value_name = "NAME")]
    pub model: Option<String>,
    /// API key, sent as a bearer token
    #[arg(long, env = "OPENAI_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// File with certificates (PEM) to trust in addition to the public authorities
    #[arg(long, env = "SSL_CERT_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Number of concurrent requests; several values are measured one after the other
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [1], value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub concurrency: Vec<u32>,
    /// Requests per concurrency [default: 4 times the concurrency, at least 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub requests: Option<u32>,
    /// Seconds per concurrency, instead of --requests
    #[arg(long, value_name = "S", conflicts_with = "requests", value_parser = crate::option_values::seconds)]
    pub duration: Option<f64>,
    /// Requests sent before the measurement; they also calibrate the number of words per prompt
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub warmup: u32,
    /// Prompt length in tokens, including the chat template
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub prompt_tokens: u32,
    /// Number of tokens at the start of the prompt that all prompts share
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub shared_prefix: u32,
    /// Send random token ids below this number instead of words (completions only)
    #[arg(long, value_name = "VOCAB", value_parser = clap::value_parser!(u32).range(2..))]
    pub prompt_ids: Option<u32>,
    /// Answer length in tokens (max_tokens)
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub output_tokens: u32,
    /// Send `ignore_eos`, so that answers have full length; not every endpoint supports it
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub ignore_eos: bool,
    /// API endpoint to measure
    #[arg(long, value_enum, default_value_t = EndpointKind::Chat)]
    pub endpoint: EndpointKind,
    /// Number of generated tools in each request (chat only)
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub tools: u32,
    /// Stream the answers; without streaming, the time to first token is not measured
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub stream: bool,
    /// Sampling temperature [default: the endpoint's]
    #[arg(long, value_name = "T")]
    pub temperature: Option<f64>,
    /// JSON object whose members are added to each request body
    #[arg(long, value_name = "JSON", value_parser = crate::option_values::object)]
    pub extra: Option<serde_json::Map<String, serde_json::Value>>,
    /// Seed of the prompts
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub seed: u64,
    /// Replay a trace instead of equal requests
    #[arg(long, value_enum, value_name = "TRACE", conflicts_with_all = ["requests", "duration", "concurrency", "prompt_ids"])]
    pub trace: Option<TraceKind>,
    /// Number of agents in the trace, which run at the same time
    #[arg(long, value_name = "N", default_value_t = 20, requires = "trace", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub sessions: u32,
    /// Turns of each agent
    #[arg(long, value_name = "N", default_value_t = 12, requires = "trace", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub turns: u32,
    /// Prompt length of an agent's last turn in tokens
    #[arg(long, value_name = "N", default_value_t = 8192, requires = "trace", value_parser = clap::value_parser!(u32).range(64..=1_000_000))]
    pub trace_tokens: u32,
    /// Mean time that an agent's tool takes, in seconds
    #[arg(long, value_name = "S", default_value = "1", requires = "trace", value_parser = crate::option_values::seconds)]
    pub tool_time: f64,
    /// Seconds after which a request counts as failed
    #[arg(long, value_name = "S", default_value = "600", value_parser = crate::option_values::seconds)]
    pub timeout: f64,
    /// Write the report as JSON to this file; with `-`, to standard output, and the table to standard error
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Measure this machine's memory bandwidth; with --base-url, then measure the endpoint
    #[arg(long)]
    pub probe: bool,
    /// Checkpoint directory; its active weights give the upper bound of the decode speed
    #[arg(long, value_name = "DIR", requires = "probe")]
    pub model_dir: Option<PathBuf>,
    /// Bytes per weight in memory, if they differ from the checkpoint: 1 for int8, 4 for f32 [default: as stored]
    #[arg(long, value_name = "BYTES", requires = "model_dir", value_parser = crate::option_values::seconds)]
    pub weight_bytes: Option<f64>,
    /// Threads of the memory probe [default: all cores]
    #[arg(long, value_name = "N", requires = "probe", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub probe_threads: Option<u16>,
}

#[derive(Debug, Error)]
pub enum BenchError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{0}")]
    Option(String),
    #[error("all {sent} requests failed; the last error: {last}")]
    AllFailed { sent: usize, last: String },
    #[error("--model-dir: {path}: {reason}")]
    ModelDir { path: PathBuf, reason: String },
    #[error("memory probe: {0}")]
    Probe(String),
}

/// Measures, prints the table and writes the JSON report.
pub fn run(options: BenchOptions) -> Result<(), Box<dyn Error>> {
    let to_stdout = options.json.as_deref() == Some(Path::new("-"));
    let probe = if options.probe { Some(probe_machine(&options)?) } else { None };
    let mut report = BenchReport { probe, ..BenchReport::default() };
    if !options.probe || options.base_url.is_some() || options.url.is_some() {
        // One thread is enough, and leaves the other cores to an endpoint on the same machine.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(measure(&options, &mut report))?;
        report.relate_to_bound();
    }
    let table = report.table();
    if to_stdout {
        write!(std::io::stderr(), "{table}")?;
    } else {
        write!(std::io::stdout(), "{table}")?;
    }
    if let Some(path) = &options.json {
        let json = serde_json::to_string_pretty(&report)?;
        if to_stdout {
            writeln!(std::io::stdout(), "{json}")?;
        } else {
            std::fs::write(path, json + "\n").map_err(|e| format!("--json: cannot write {}: {e}", path.display()))?;
        }
    }
    Ok(())
}

fn probe_machine(options: &BenchOptions) -> Result<report::Probe, BenchError> {
    // Read before the probe, so that a wrong path is reported at once.
    let weights = match &options.model_dir {
        Some(dir) => Some(probe::active_weights(dir, options.weight_bytes)?),
        None => None,
    };
    let threads = match options.probe_threads {
        Some(n) => usize::from(n),
        None => std::thread::available_parallelism().map_or(1, |n| n.get()),
    };
    let bytes_per_second = probe::bandwidth(threads, PROBE_SECONDS)?;
    Ok(report::Probe::new(threads, bytes_per_second, weights))
}

/// Measures the endpoint at each concurrency and adds the results to the report.
pub async fn measure(options: &BenchOptions, report: &mut BenchReport) -> Result<(), BenchError> {
    if options.endpoint == EndpointKind::Chat && options.prompt_ids.is_some() {
        return Err(BenchError::Option("--prompt-ids needs --endpoint completions".into()));
    }
    if options.endpoint == EndpointKind::Completions && options.tools > 0 {
        return Err(BenchError::Option("--tools needs --endpoint chat".into()));
    }
    if options.dialect == ApiDialect::Grpc && (options.endpoint != EndpointKind::Chat || !options.stream) {
        return Err(BenchError::Option("--dialect grpc needs --endpoint chat and --stream true".into()));
    }
    if matches!(options.dialect, ApiDialect::Messages | ApiDialect::Responses) && options.endpoint != EndpointKind::Chat
    {
        let dialect = if options.dialect == ApiDialect::Messages { "messages" } else { "responses" };
        return Err(BenchError::Option(format!("--dialect {dialect} needs --endpoint chat")));
    }
    let named = options.url.as_deref().map(|url| match options.dialect {
        ApiDialect::Grpc => url.to_owned(),
        _ => with_version(url),
    });
    let url = named.or(options.base_url.clone()).unwrap_or(options.dialect.default_url().into());
    let timeout = Duration::from_secs_f64(options.timeout);
    let endpoint = Endpoint::new(&url, options.api_key.as_deref(), options.ca_file.as_deref(), timeout)?;
    let endpoint = endpoint.with_dialect(options.dialect)?;
    let model = match &options.model {
        Some(model) => model.clone(),
        None => endpoint.first_model().await?,
    };
    if options.trace == Some(TraceKind::Agents) {
        let bar = progress::bar(Some(u64::from(options.sessions * options.turns)), "[{bar:30}] {pos}/{len} turns");
        let agents = agents::run(&endpoint, options, &model, &bar).await;
        bar.finish_and_clear();
        report.agents = Some(agents?);
        return Ok(());
    }
    let mut requests = prompt::BenchRequests::new(options, &model);
    drive::warm_up(&endpoint, &mut requests, options.warmup, options.prompt_tokens).await?;
    report.describe(&url, &model, options);
    for &concurrency in &options.concurrency {
        let until = match options.duration {
            Some(s) => drive::StopCondition::Elapsed(Duration::from_secs_f64(s)),
            None => drive::StopCondition::Sent(options.requests.unwrap_or_else(|| (concurrency * 4).max(8)) as usize),
        };
        let bar = progress(concurrency, until);
        let run = drive::run(&endpoint, &requests, concurrency, until, &bar).await;
        bar.finish_and_clear();
        report.add(concurrency, run)?;
    }
    Ok(())
}

fn progress(concurrency: u32, until: drive::StopCondition) -> ProgressBar {
    let bar = match until {
        drive::StopCondition::Sent(n) => {
            progress::bar(Some(n as u64), "{prefix} [{bar:30}] {pos}/{len} requests, {msg}")
        }
        drive::StopCondition::Elapsed(_) => progress::bar(None, "{prefix} {elapsed}: {pos} requests, {msg}"),
    };
    bar.with_prefix(format!("concurrency {concurrency}"))
}
