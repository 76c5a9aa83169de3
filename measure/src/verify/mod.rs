//! `rein verify`: sends the requests of a samples file to an OpenAI endpoint and validates its tool calls, with the
//! metrics of Moonshot's K2 Vendor Verifier. Also generates samples files and compares runs. It does not know whether
//! the endpoint is Rein's. docs/reference/verify.md defines every figure.

mod answer;
mod compare;
mod drive;
mod generate;
mod page;
mod plot;
mod proof;
mod record;
mod reference;
mod report;
mod sample;
mod store;
mod summary;
#[cfg(test)]
mod tests;
mod validate;

use std::cell::RefCell;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::client::{ApiDialect, ClientError, Endpoint};
use crate::progress;
use crate::terminal;
use compare::Comparison;
use record::ResponseMode;
use reference::Reference;
use store::{ResultStore, Settings};
use summary::Summary;

/// The exit code when the schema accuracy is below `--min-schema-accuracy`. 1 is an error, 2 an invalid command line.
const LOW_ACCURACY: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StreamArg {
    /// Send each sample twice, with and without streaming
    Both,
    Only,
    Never,
}

impl StreamArg {
    fn modes(self) -> &'static [ResponseMode] {
        match self {
            StreamArg::Both => &[ResponseMode::NonStream, ResponseMode::Stream],
            StreamArg::Only => &[ResponseMode::Stream],
            StreamArg::Never => &[ResponseMode::NonStream],
        }
    }
}

#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "rein verify [OPTIONS] <URL> [URL...]\n       \
                      rein verify [OPTIONS] --samples <FILE> --out <DIR>\n       \
                      rein verify --generate <N> [--seed <SEED>] --out <FILE>\n       \
                      rein verify --compare <DIR> <DIR>... --out <DIR>",
    after_help = "Examples:\n  rein verify http://127.0.0.1:8000\n  rein verify http://engine:8001 http://rein:8000\n  \
                        rein verify --generate 200 --out samples.jsonl\n  rein verify --base-url http://host:8000/v1 \
                        --samples samples.jsonl --out result --min-schema-accuracy 0.99\n  rein verify \
                        --compare result other --out compared\n\nThe directory of --out gets \
                        results.jsonl, summary.json and report.html. Exit code 3: below --min-schema-accuracy."
)]
pub struct VerifyOptions {
    /// Endpoints to verify with generated samples, `/v1` may be left out; several are compared
    #[arg(value_name = "URL", conflicts_with_all = ["base_url", "generate", "compare", "reference"])]
    pub urls: Vec<String>,
    /// URL of the endpoint, including `/v1` [default: http://127.0.0.1:8000/v1; gRPC: http://127.0.0.1:50051]
    #[arg(long, env = "REIN_VERIFY_BASE_URL", value_name = "URL")]
    pub base_url: Option<String>,
    /// Protocol of the endpoint
    #[arg(long, value_enum, default_value_t = ApiDialect::Openai)]
    pub dialect: ApiDialect,
    /// Model to request [default: the first in the endpoint's list]
    #[arg(long, env = "REIN_VERIFY_MODEL", value_name = "NAME")]
    pub model: Option<String>,
    /// Samples file: chat requests as JSON lines (docs/reference/verify.md)
    #[arg(long, value_name = "FILE", required_unless_present_any = ["generate", "compare", "urls"])]
    pub samples: Option<PathBuf>,
    /// Directory for the results or the comparison; with --generate, the samples file to write [default: with URLs,
    /// rein-verify- and the time]
    // Empty: none is given.
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true, value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub out: PathBuf,
    /// Results of another run, or its directory, whose call decisions count as correct
    #[arg(long, value_name = "FILE")]
    pub reference: Option<PathBuf>,
    /// Compare the results of these runs (their --out directories) without sending requests
    #[arg(long, value_name = "DIR", num_args = 2.., conflicts_with_all = ["samples", "reference", "generate"])]
    pub compare: Vec<PathBuf>,
    /// Whether to stream the answers; gRPC answers are always streamed
    #[arg(long, value_enum, default_value_t = StreamArg::Both, default_value_if("dialect", "grpc", "only"))]
    pub stream: StreamArg,
    /// Number of concurrent requests
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub concurrency: u32,
    /// Maximum number of retries after a failed connection, a timeout, HTTP 408, 409, 425, 429 or 5xx
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub retries: u32,
    /// Seconds after which a request counts as failed
    #[arg(long, value_name = "S", default_value = "600", value_parser = crate::option_values::seconds)]
    pub timeout: f64,
    /// Continue an interrupted run in --out; `false` starts over
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub resume: bool,
    /// Use only the first N samples
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Sampling temperature, replaces the samples'
    #[arg(long, value_name = "T")]
    pub temperature: Option<f64>,
    /// Maximum answer length in tokens, replaces the samples'
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,
    /// JSON object whose members are added to each request body
    #[arg(long, value_name = "JSON", value_parser = crate::option_values::object)]
    pub extra_body: Option<Map<String, Value>>,
    /// Header to send, `name: value`; can be repeated
    #[arg(long, value_name = "HEADER")]
    pub header: Vec<String>,
    /// API key, sent as a bearer token
    #[arg(long, env = "OPENAI_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// File with certificates (PEM) to trust in addition to the public authorities
    #[arg(long, env = "SSL_CERT_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Exit with code 3 if the schema accuracy is lower than this, or no response calls a tool
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub min_schema_accuracy: Option<f64>,
    /// Print the summary as JSON on standard output, and the table on standard error
    #[arg(long)]
    pub json: bool,
    /// Write N samples of increasing difficulty to --out, without sending requests
    #[arg(long, value_name = "N", conflicts_with_all = ["samples", "reference"], value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub generate: Option<u32>,
    /// Seed of --generate
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub seed: u64,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.0..=1.0).contains(&s) => Ok(s),
        _ => Err("must be a number from 0 to 1".into()),
    }
}

#[derive(Debug, Error)]
pub enum VerifyError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{0}")]
    Option(String),
    #[error("{option}: cannot read {path}: {source}")]
    Read { option: &'static str, path: PathBuf, source: std::io::Error },
    #[error("--out: cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("--out: cannot render the report: {0}")]
    Page(#[from] minijinja::Error),
    #[error("{path}: line {number}: {reason}")]
    Line { path: PathBuf, number: u64, reason: String },
    #[error("--samples: {0} is empty; expected at least one sample")]
    NoSamples(PathBuf),
    #[error(
        "--out: {dir} has results of another run ({why}); set another directory, or start over with --resume false"
    )]
    OtherRun { dir: PathBuf, why: String },
    #[error("all {sent} requests failed; the last error: {last}")]
    AllFailed { sent: usize, last: String },
}

/// Runs the command: generates samples, compares runs, or verifies an endpoint.
pub fn run(options: VerifyOptions) -> Result<ExitCode, Box<dyn Error>> {
    if !options.urls.is_empty() {
        return prove(&options);
    }
    if options.out.as_os_str().is_empty() {
        return Err(
            "--out: must name a directory, or a file with --generate; only `rein verify URL` has a default".into()
        );
    }
    if let Some(n) = options.generate {
        let write = |source| VerifyError::Write { path: options.out.clone(), source };
        std::fs::write(&options.out, generate::lines(n, options.seed)).map_err(write)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !options.compare.is_empty() {
        let comparison = Comparison::load(&options.compare)?;
        let page = comparison.write(&options.out)?;
        print(&options, &comparison, &format!("{}\n{}\n", comparison.table(), page.display()));
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let summary = runtime.block_on(verify(&options))?;
    let table = format!("{}\n{}\n", summary.table(), options.out.join(store::REPORT).display());
    print(&options, &summary, &table);
    Ok(verdict(&options, &summary))
}

/// Verifies the endpoints of the command line, one after the other, and compares them.
fn prove(options: &VerifyOptions) -> Result<ExitCode, Box<dyn Error>> {
    let runs = proof::runs(options)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut ending = ExitCode::SUCCESS;
    for run in &runs {
        let summary = runtime.block_on(verify(run))?;
        let (reasons, report) = (proof::reasons(&run.out)?, run.out.join(store::REPORT));
        print(run, &summary, &format!("{}{reasons}{}\n\n", summary.figures(), report.display()));
        let verdict = verdict(run, &summary);
        if verdict != ExitCode::SUCCESS {
            ending = verdict;
        }
    }
    if let Some((comparison, page)) = proof::compared(&runs)? {
        print(options, &comparison, &format!("{}\n{}\n", comparison.table(), page.display()));
    }
    Ok(ending)
}

fn print(options: &VerifyOptions, figures: &impl serde::Serialize, table: &str) {
    if options.json {
        eprint!("{table}");
        print!("{}", store::pretty(figures));
    } else {
        print!("{table}");
    }
}

fn verdict(options: &VerifyOptions, summary: &Summary) -> ExitCode {
    let Some(least) = options.min_schema_accuracy else { return ExitCode::SUCCESS };
    match summary.total.schema_accuracy {
        Some(accuracy) if accuracy >= least => ExitCode::SUCCESS,
        Some(accuracy) => {
            terminal::err(format_args!(
                "rein: --min-schema-accuracy: the schema accuracy must be at least {least}, got {accuracy}"
            ));
            ExitCode::from(LOW_ACCURACY)
        }
        None => {
            terminal::err("rein: --min-schema-accuracy: no response called a tool, so there is no schema accuracy");
            ExitCode::from(LOW_ACCURACY)
        }
    }
}

/// Sends the samples without a result, and writes results, summary and report.
async fn verify(options: &VerifyOptions) -> Result<Summary, VerifyError> {
    // Read before the run, so that a wrong path is reported at once.
    let samples = sample::load(options.samples.as_deref().unwrap_or(std::path::Path::new("-")))?;
    let reference = options.reference.as_deref().map(Reference::load).transpose()?;
    if options.dialect == ApiDialect::Grpc && options.stream != StreamArg::Only {
        return Err(VerifyError::Option(
            "--stream: must be `only` with --dialect grpc, because gRPC answers are always streamed".into(),
        ));
    }
    let url = options.base_url.as_deref().unwrap_or(options.dialect.default_url());
    let timeout = Duration::from_secs_f64(options.timeout);
    let endpoint = Endpoint::new(url, options.api_key.as_deref(), options.ca_file.as_deref(), timeout)?;
    let mut endpoint = endpoint.with_dialect(options.dialect)?;
    for header in &options.header {
        endpoint.header(header)?;
    }
    let model = match &options.model {
        Some(model) => model.clone(),
        None => endpoint.first_model().await?,
    };
    let settings = Settings {
        base_url: url.to_owned(),
        model,
        temperature: options.temperature,
        max_tokens: options.max_tokens,
        extra_body: options.extra_body.clone(),
    };
    let store = RefCell::new(ResultStore::open(&options.out, &settings, &samples, options.resume)?);
    let wanted = options.limit.map_or(samples.len(), |n| samples.len().min(n as usize));
    let samples = &samples[..wanted];
    let bar = progress::bar(Some(0), "{elapsed} [{bar:30}] {pos}/{len} responses, {eta} left, {msg}");
    drive::run(&endpoint, options, &settings, samples, &store, &bar).await?;
    bar.finish_and_clear();
    let mut store = store.into_inner();
    let summary = Summary::new(samples, &settings, options.stream.modes(), &mut store, reference.as_ref());
    store.finish()?;
    if summary.total.success_count == 0 {
        let failed = store.records().values().rev().find_map(|r| r.problems.first());
        let last = failed.map_or_else(|| "no request was sent".into(), |p| p.message.clone());
        return Err(VerifyError::AllFailed { sent: summary.total.failure_count, last });
    }
    store.write(store::SUMMARY, &store::pretty(&summary))?;
    store.write(store::REPORT, &report::html(&summary, samples, options.stream.modes(), &store)?)?;
    Ok(summary)
}
