//! `rein verify`: asks an endpoint, ours or another, what a samples file holds, and judges its tool calls by the
//! metrics of Moonshot's K2 Vendor Verifier; or makes such a file. docs/reference/verify.md explains every figure.

mod answer;
mod compare;
mod drive;
mod generate;
mod judge;
mod page;
mod plot;
mod record;
mod reference;
mod report;
mod sample;
mod store;
mod summary;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::client::{ApiDialect, ClientError, Endpoint};
use crate::progress;
use crate::terminal;
use compare::Comparison;
use record::Mode;
use reference::Reference;
use store::{ResultStore, Settings};
use summary::Summary;

/// The exit code of a run that worked and found too little accuracy. 1 is an error, 2 a wrong command line.
const TOO_INACCURATE: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StreamArg {
    /// Each sample is asked twice
    Both,
    Only,
    Never,
}

impl StreamArg {
    fn modes(self) -> &'static [Mode] {
        match self {
            StreamArg::Both => &[Mode::NonStream, Mode::Stream],
            StreamArg::Only => &[Mode::Stream],
            StreamArg::Never => &[Mode::NonStream],
        }
    }
}

#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "rein verify [OPTIONS] --samples <FILE> --out <DIR>\n       \
                      rein verify --generate <N> [--seed <SEED>] --out <FILE>\n       \
                      rein verify --compare <DIR> <DIR>... --out <DIR>",
    after_help = "Examples:\n  rein verify --generate 200 --out samples.jsonl\n  rein verify --base-url http://host:8000/v1 \
                        --samples samples.jsonl --out result --min-schema-accuracy 0.99\n  rein verify \
                        --compare result other --out compared\n\nThe directory of --out gets \
                        results.jsonl, summary.json and report.html. Exit code 3: below --min-schema-accuracy."
)]
pub struct VerifyOptions {
    /// Endpoint, with its `/v1` [default: http://127.0.0.1:8000/v1; gRPC: http://127.0.0.1:50051]
    #[arg(long, env = "REIN_VERIFY_BASE_URL", value_name = "URL")]
    pub base_url: Option<String>,
    /// How to speak to the endpoint
    #[arg(long, value_enum, default_value_t = ApiDialect::Openai)]
    pub dialect: ApiDialect,
    /// Model to ask for [default: the first that the endpoint lists]
    #[arg(long, env = "REIN_VERIFY_MODEL", value_name = "NAME")]
    pub model: Option<String>,
    /// Samples, JSON lines: chat requests, the vendor verifier's or ours (docs/reference/verify.md)
    #[arg(long, value_name = "FILE", required_unless_present_any = ["generate", "compare"])]
    pub samples: Option<PathBuf>,
    /// Directory of the results or of the comparison; with --generate, the file of samples to write
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Results of another run, or its directory, to compare with: who calls where
    #[arg(long, value_name = "FILE")]
    pub reference: Option<PathBuf>,
    /// Ask nobody: put the results of these runs (their --out directories) beside each other
    #[arg(long, value_name = "DIR", num_args = 2.., conflicts_with_all = ["samples", "reference", "generate"])]
    pub compare: Vec<PathBuf>,
    /// How to ask; over gRPC every answer is a stream
    #[arg(long, value_enum, default_value_t = StreamArg::Both, default_value_if("dialect", "grpc", "only"))]
    pub stream: StreamArg,
    /// Requests kept open at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub concurrency: u32,
    /// Times to ask again after a refused connection, a timeout, HTTP 408, 409, 425, 429 or 5xx
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub retries: u32,
    /// Seconds after which a request counts as failed
    #[arg(long, value_name = "S", default_value = "600", value_parser = crate::args::values::seconds)]
    pub timeout: f64,
    /// Go on where an interrupted run in --out stopped; `false` starts over
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub resume: bool,
    /// Use the first N samples only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Sampling temperature instead of the samples'
    #[arg(long, value_name = "T")]
    pub temperature: Option<f64>,
    /// Longest answer in tokens instead of the samples'
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,
    /// JSON object whose members are added to each request body
    #[arg(long, value_name = "JSON", value_parser = crate::args::values::object)]
    pub extra_body: Option<Map<String, Value>>,
    /// Header to send, `name: value`; may be given several times
    #[arg(long, value_name = "HEADER")]
    pub header: Vec<String>,
    /// Sent as bearer token
    #[arg(long, env = "OPENAI_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// PEM file of certificates to trust besides the public ones
    #[arg(long, env = "SSL_CERT_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Fail with exit code 3 when the schema accuracy is less, or no response calls a tool
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub min_schema_accuracy: Option<f64>,
    /// Print the summary as JSON on standard output, and the table on standard error
    #[arg(long)]
    pub json: bool,
    /// Write N samples of growing difficulty to --out instead of asking anybody
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
    #[error("--out: cannot make the page: {0}")]
    Page(#[from] minijinja::Error),
    #[error("{path}: line {number}: {reason}")]
    Line { path: PathBuf, number: u64, reason: String },
    #[error("--samples: {0} has no samples")]
    NoSamples(PathBuf),
    #[error(
        "--out: {dir} has results of another run ({why}); name another directory, or start over with --resume false"
    )]
    OtherRun { dir: PathBuf, why: String },
    #[error("no request of {sent} was answered; the last failed with: {last}")]
    AllFailed { sent: usize, last: String },
}

/// Asks, prints, writes: the whole command.
pub fn run(options: VerifyOptions) -> Result<ExitCode, Box<dyn Error>> {
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
                "rein: the schema accuracy is {accuracy}, less than --min-schema-accuracy {least}"
            ));
            ExitCode::from(TOO_INACCURATE)
        }
        None => {
            terminal::err("rein: no response called a tool: there is no schema accuracy for --min-schema-accuracy");
            ExitCode::from(TOO_INACCURATE)
        }
    }
}

/// Asks what is missing and writes the directory.
async fn verify(options: &VerifyOptions) -> Result<Summary, VerifyError> {
    // Files first: a wrong path should not cost a run.
    let samples = sample::load(options.samples.as_deref().unwrap_or(std::path::Path::new("-")))?;
    let reference = options.reference.as_deref().map(Reference::load).transpose()?;
    if options.dialect == ApiDialect::Grpc && options.stream != StreamArg::Only {
        return Err(VerifyError::Option(
            "--stream must be `only` with --dialect grpc: every answer is a stream".into(),
        ));
    }
    let url = options.base_url.as_deref().unwrap_or(options.dialect.default_url());
    let timeout = Duration::from_secs_f64(options.timeout);
    let endpoint = Endpoint::new(url, options.api_key.as_deref(), options.ca_file.as_deref(), timeout)?;
    let mut endpoint = endpoint.speak(options.dialect)?;
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
