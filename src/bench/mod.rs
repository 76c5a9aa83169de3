//! `rein bench`: drives an OpenAI endpoint, ours or another, and says how fast it answers; and measures what this
//! machine's memory allows at best. docs/reference/bench.md explains every figure.

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

use crate::client::{ApiDialect, ClientError, Endpoint};
use crate::progress;
use report::BenchReport;

/// Seconds that the memory is read for, per probe.
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

#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Examples:\n  rein bench --concurrency 1,8 --prompt-tokens 128 --output-tokens 64\n  rein bench \
                        --base-url http://host:8000/v1 --duration 30 --json result.json\n  rein bench --probe --model-dir models/demo"
)]
pub struct BenchOptions {
    /// Endpoint, with its `/v1` [default: http://127.0.0.1:8000/v1; gRPC: http://127.0.0.1:50051]
    #[arg(long, env = "REIN_BENCH_BASE_URL", value_name = "URL")]
    pub base_url: Option<String>,
    /// How to speak to the endpoint
    #[arg(long, value_enum, default_value_t = ApiDialect::Openai)]
    pub dialect: ApiDialect,
    /// Model to ask for [default: the first that the endpoint lists]
    #[arg(long, env = "REIN_BENCH_MODEL", value_name = "NAME")]
    pub model: Option<String>,
    /// Sent as bearer token
    #[arg(long, env = "OPENAI_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// PEM file of certificates to trust besides the public ones
    #[arg(long, env = "SSL_CERT_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Requests kept open at once; several values are measured one after the other
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [1], value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub concurrency: Vec<u32>,
    /// Requests per concurrency [default: 4 per open request, at least 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub requests: Option<u32>,
    /// Seconds per concurrency, instead of a number of requests
    #[arg(long, value_name = "S", conflicts_with = "requests", value_parser = crate::args::values::seconds)]
    pub duration: Option<f64>,
    /// Requests sent before measuring; they also tell how many words of prompt make the wanted number of tokens
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub warmup: u32,
    /// Prompt length in tokens, chat template included
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub prompt_tokens: u32,
    /// Start every prompt with this many tokens in common; otherwise prompts differ from the first word on
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub shared_prefix: u32,
    /// Send random token ids below this number instead of words (completions only)
    #[arg(long, value_name = "VOCAB", value_parser = clap::value_parser!(u32).range(2..))]
    pub prompt_ids: Option<u32>,
    /// BenchAnswer length in tokens (max_tokens)
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub output_tokens: u32,
    /// Ask not to stop before the answer has its length; not every endpoint knows `ignore_eos`
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub ignore_eos: bool,
    /// Interface to drive
    #[arg(long, value_enum, default_value_t = EndpointKind::Chat)]
    pub endpoint: EndpointKind,
    /// Declare this many generated tools in each request (chat only)
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub tools: u32,
    /// Stream the answers; without, there is no time to first token
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub stream: bool,
    /// Sampling temperature [default: the endpoint's]
    #[arg(long, value_name = "T")]
    pub temperature: Option<f64>,
    /// JSON object whose members are added to each request body
    #[arg(long, value_name = "JSON", value_parser = crate::args::values::object)]
    pub extra: Option<serde_json::Map<String, serde_json::Value>>,
    /// Seed of the prompts
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub seed: u64,
    /// Seconds after which a request counts as failed
    #[arg(long, value_name = "S", default_value = "600", value_parser = crate::args::values::seconds)]
    pub timeout: f64,
    /// Write the report as JSON; `-` is standard output, and moves the table to standard error
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Measure this machine's memory bandwidth; with --base-url, before the endpoint
    #[arg(long)]
    pub probe: bool,
    /// Checkpoint directory, whose active weights bound the decode speed
    #[arg(long, value_name = "DIR", requires = "probe")]
    pub model_dir: Option<PathBuf>,
    /// Bytes per weight in memory where they are not kept as stored: 1 for int8, 4 for f32 [default: as stored]
    #[arg(long, value_name = "BYTES", requires = "model_dir", value_parser = crate::args::values::seconds)]
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
    #[error("no request of {sent} was answered; the last failed with: {last}")]
    AllFailed { sent: usize, last: String },
    #[error("--model-dir: {path}: {reason}")]
    ModelDir { path: PathBuf, reason: String },
    #[error("memory probe: {0}")]
    Probe(String),
}

/// Measures, prints, writes: the whole command.
pub fn run(options: BenchOptions) -> Result<(), Box<dyn Error>> {
    let to_stdout = options.json.as_deref() == Some(Path::new("-"));
    let probe = if options.probe { Some(probe_machine(&options)?) } else { None };
    let mut report = BenchReport { probe, ..BenchReport::default() };
    if !options.probe || options.base_url.is_some() {
        // One thread: enough for what is measured, and it leaves the other cores to an endpoint on the same machine.
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
    // The directory first: a wrong path should not cost seconds.
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

/// Drives the endpoint at each concurrency and adds what was measured to the report.
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
    let url = options.base_url.as_deref().unwrap_or(options.dialect.default_url());
    let timeout = Duration::from_secs_f64(options.timeout);
    let endpoint = Endpoint::new(url, options.api_key.as_deref(), options.ca_file.as_deref(), timeout)?;
    let endpoint = endpoint.speak(options.dialect)?;
    let model = match &options.model {
        Some(model) => model.clone(),
        None => endpoint.first_model().await?,
    };
    let mut work = prompt::BenchRequests::new(options, &model);
    drive::warm_up(&endpoint, &mut work, options.warmup, options.prompt_tokens).await?;
    report.describe(url, &model, options);
    for &concurrency in &options.concurrency {
        let until = match options.duration {
            Some(s) => drive::Until::Elapsed(Duration::from_secs_f64(s)),
            None => drive::Until::Sent(options.requests.unwrap_or_else(|| (concurrency * 4).max(8)) as usize),
        };
        let bar = progress(concurrency, until);
        let run = drive::run(&endpoint, &work, concurrency, until, &bar).await;
        bar.finish_and_clear();
        report.add(concurrency, run)?;
    }
    Ok(())
}

fn progress(concurrency: u32, until: drive::Until) -> ProgressBar {
    let bar = match until {
        drive::Until::Sent(n) => progress::bar(Some(n as u64), "{prefix} [{bar:30}] {pos}/{len} requests, {msg}"),
        drive::Until::Elapsed(_) => progress::bar(None, "{prefix} {elapsed}: {pos} requests, {msg}"),
    };
    bar.with_prefix(format!("concurrency {concurrency}"))
}
