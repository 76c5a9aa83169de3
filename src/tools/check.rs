//! `rein check`: checks whether a model directory supports tool calls, without reading weights, and with --live what
//! becomes of the calls of a model that a server has loaded.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rein_text::check::{CheckReport, Verdict, check};
use rein_text::model_text::{ModelOverrides, ModelText};

use crate::args::CheckArgs;
use crate::client::Endpoint;
use crate::live::{self, Asked};

/// Time for one answer.
const LIVE_TIMEOUT: Duration = Duration::from_secs(600);

/// Returns exit code 1 if tool calls would fail.
pub fn run(args: &CheckArgs) -> Result<ExitCode, Box<dyn Error>> {
    let of_files = args.model.as_deref().map(|model| of_files(args, model)).transpose()?;
    let of_server = args.live.as_deref().map(|url| of_server(args, url));
    let (report, failed) = match (of_files, of_server) {
        (Some(mut report), Some(Ok(live))) => {
            report.findings.extend(live.findings);
            (report, None)
        }
        (Some(report), live) => (report, live.and_then(Result::err)),
        (None, Some(live)) => (live?, None),
        (None, None) => return Err("set --model DIR, --live [URL] of a running server, or both".into()),
    };
    let out = if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { table(&report) };
    std::io::stdout().write_all(out.as_bytes())?;
    if let Some(error) = failed {
        return Err(error);
    }
    Ok(ExitCode::from(u8::from(report.worst() == Verdict::Broken)))
}

fn of_files(args: &CheckArgs, model: &Path) -> Result<CheckReport, Box<dyn Error>> {
    crate::model_dir::check(model)?;
    let overrides = ModelOverrides {
        template: args.chat_template.clone(),
        tokenizer: args.tokenizer.clone(),
        ..ModelOverrides::from_env()?
    };
    let mut text = ModelText::load(model, &overrides)?;
    let format = text.settle_format(args.format.as_deref().map(super::formats::named).transpose()?);
    Ok(check(&text, format))
}

fn of_server(args: &CheckArgs, url: &str) -> Result<CheckReport, Box<dyn Error>> {
    // As in other commands, a URL may include `/v1`.
    let url = url.trim_end_matches('/').trim_end_matches("/v1");
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err(format!("--live: {url}: must start with http:// or https://").into());
    }
    let endpoint = Endpoint::new(url, args.api_key.as_deref(), args.ca_file.as_deref(), LIVE_TIMEOUT);
    let endpoint = endpoint.map_err(|error| error.to_string().replace("--base-url", "--live"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let given = args.format.as_deref().map(super::formats::named).transpose()?;
    let report = runtime.block_on(live::report(&Asked::Server(Box::new(endpoint)), given, args.live_tokens));
    Ok(report.map_err(|error| format!("--live: {url}: {error}"))?)
}

/// The report for people.
pub fn table(report: &CheckReport) -> String {
    let head = [
        ("model", Some(report.model.as_str())),
        ("revision", report.revision.as_deref()),
        ("template", report.template_sha256.as_deref()),
        ("format", Some(report.format)),
    ];
    let head = head.into_iter().filter_map(|(name, value)| Some(format!("{name:18} {}\n", value?)));
    let row = |finding: &rein_text::check::Finding| {
        let verdict = match finding.verdict {
            Verdict::Fine => "fine",
            Verdict::Warning => "WARNING",
            Verdict::Broken => "BROKEN",
        };
        format!("{:18} {verdict:8} {}\n", finding.check, finding.message)
    };
    head.chain(["\n".to_owned()]).chain(report.findings.iter().map(row)).collect()
}
