//! `rein check`: checks whether a model directory supports tool calls. It reads no weights.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use rein_text::check::{CheckReport, Verdict, check};
use rein_text::model_text::{ModelOverrides, ModelText};

use crate::args::CheckArgs;

/// Returns exit code 1 if tool calls would fail.
pub fn run(args: &CheckArgs) -> Result<ExitCode, Box<dyn Error>> {
    crate::model_dir::check(&args.model)?;
    let overrides = ModelOverrides {
        template: args.chat_template.clone(),
        tokenizer: args.tokenizer.clone(),
        ..ModelOverrides::from_env()?
    };
    let mut text = ModelText::load(&args.model, &overrides)?;
    let format = text.settle_format(args.format.as_deref().map(super::formats::named).transpose()?);
    let report = check(&text, format);
    let out = if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { table(&report) };
    std::io::stdout().write_all(out.as_bytes())?;
    Ok(ExitCode::from(u8::from(report.worst() == Verdict::Broken)))
}

fn table(report: &CheckReport) -> String {
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
