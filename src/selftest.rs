//! `rein selftest`: checks that the devices of this machine compute what the CPU does.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use rein_kernels::cuda::selftest::{self, Row};
use rein_kernels::cuda::{CudaDevice, Driver};
use serde::{Deserialize, Serialize};

use crate::args::{SelftestArgs, SelftestSection};
use crate::terminal;

/// What a run found; `--resume` reads it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Report {
    version: String,
    device: String,
    sections: BTreeMap<String, Section>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Section {
    passed: bool,
    seconds: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    rows: Vec<ReportRow>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct ReportRow {
    name: String,
    value: String,
    passed: bool,
}

/// The exit code is 1 if a section failed.
pub fn run(args: &SelftestArgs) -> Result<ExitCode, Box<dyn Error>> {
    let driver = Driver::open()?;
    let device = driver.device(args.device)?;
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        device: device.properties.name.clone(),
        sections: BTreeMap::new(),
    };
    if let Some(path) = &args.resume {
        report.sections = passed_before(path, &report)?;
    }
    for section in &args.sections {
        let name = section.name();
        if report.sections.contains_key(name) {
            terminal::out(format_args!("{name}: passed before"));
            continue;
        }
        let found = execute(*section, &driver, &device);
        terminal::out(markdown(name, &found));
        report.sections.insert(name.to_owned(), found);
        // After every section, so that a run which is cut off leaves what it found.
        if let Some(path) = args.report.as_ref().or(args.resume.as_ref()) {
            write_report(path, &report)?;
        }
    }
    let passed = report.sections.values().all(|section| section.passed);
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn execute(section: SelftestSection, driver: &Driver, device: &CudaDevice) -> Section {
    let begin = Instant::now();
    let result = match section {
        SelftestSection::Device => selftest::device(driver, device).map_err(|error| error.to_string()),
        SelftestSection::Ptx => selftest::ptx(device).map_err(|error| error.to_string()),
        SelftestSection::Ops => selftest::ops(device).map_err(|error| error.to_string()),
    };
    let seconds = begin.elapsed().as_secs_f64();
    match result {
        Ok(rows) => Section {
            passed: rows.iter().all(|row| row.passed),
            seconds,
            error: None,
            rows: rows.into_iter().map(|Row { name, value, passed }| ReportRow { name, value, passed }).collect(),
        },
        Err(error) => Section { passed: false, seconds, error: Some(error), rows: Vec::new() },
    }
}

/// The sections of an earlier report that need not run again.
fn passed_before(path: &Path, now: &Report) -> Result<BTreeMap<String, Section>, Box<dyn Error>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        // The first run with this option.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(format!("--resume: cannot read {}: {error}", path.display()).into()),
    };
    let before: Report = serde_json::from_str(&text)
        .map_err(|error| format!("--resume: {} is not a report of `rein selftest`: {error}", path.display()))?;
    if (&before.version, &before.device) != (&now.version, &now.device) {
        return Err(format!(
            "--resume: {} is of rein {} on {}, this is rein {} on {}",
            path.display(),
            before.version,
            before.device,
            now.version,
            now.device
        )
        .into());
    }
    Ok(before.sections.into_iter().filter(|(_, section)| section.passed).collect())
}

fn write_report(path: &Path, report: &Report) -> Result<(), Box<dyn Error>> {
    let failed = |error: std::io::Error| format!("cannot write the report {}: {error}", path.display());
    std::fs::write(path, serde_json::to_string_pretty(report)? + "\n").map_err(failed)?;
    let mut page = format!("# rein {} on {}\n", report.version, report.device);
    for (name, section) in &report.sections {
        page += "\n";
        page += &markdown(name, section);
    }
    std::fs::write(path.with_extension("md"), page).map_err(failed)?;
    Ok(())
}

fn markdown(name: &str, section: &Section) -> String {
    let verdict = if section.passed { "passed" } else { "failed" };
    let mut page = format!("## {name}: {verdict} ({:.1} s)\n\n", section.seconds);
    if let Some(error) = &section.error {
        page += &format!("{error}\n");
        return page;
    }
    page += "| | | |\n|---|---|---|\n";
    for row in &section.rows {
        let verdict = if row.passed { "" } else { "failed" };
        // Writing to a string cannot fail.
        let _ = writeln!(page, "| {} | {} | {verdict} |", row.name, row.value);
    }
    page
}
