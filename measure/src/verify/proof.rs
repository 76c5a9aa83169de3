//! `rein verify URL [URL...]`: the proof in one command. It writes samples, sends them to each endpoint, and prints
//! what each run says and how they differ. Schemas and expectations judge; no run is the truth.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::compare::{Comparison, records};
use super::store::RESULTS;
use super::{VerifyError, VerifyOptions, generate};
use crate::client::with_version;

/// Samples, unless a file or --limit says otherwise.
const SAMPLES: u32 = 100;
const SAMPLES_FILE: &str = "samples.jsonl";
/// Longest message of a problem in the table.
const MOST_CHARS: usize = 100;

/// The options of one run for each URL.
pub fn runs(options: &VerifyOptions) -> Result<Vec<VerifyOptions>, VerifyError> {
    let out = match options.out.as_os_str().is_empty() {
        true => PathBuf::from(chrono::Local::now().format("rein-verify-%Y%m%d-%H%M%S").to_string()),
        false => options.out.clone(),
    };
    std::fs::create_dir_all(&out).map_err(|source| VerifyError::Write { path: out.clone(), source })?;
    let samples = match &options.samples {
        Some(samples) => samples.clone(),
        None => {
            let path = out.join(SAMPLES_FILE);
            let lines = generate::lines(options.limit.unwrap_or(SAMPLES), options.seed);
            std::fs::write(&path, lines).map_err(|source| VerifyError::Write { path: path.clone(), source })?;
            path
        }
    };
    let run = |(i, url): (usize, &String)| VerifyOptions {
        base_url: Some(with_version(url)),
        samples: Some(samples.clone()),
        out: out.join(format!("{}-{}", i + 1, place(url))),
        urls: Vec::new(),
        ..options.clone()
    };
    Ok(options.urls.iter().enumerate().map(run).collect())
}

/// The directory of all runs, after [`runs`].
fn directory(runs: &[VerifyOptions]) -> &Path {
    runs.first().and_then(|run| run.out.parent()).unwrap_or(Path::new("."))
}

/// Compares the runs, if there are several: the table, and the page.
pub fn compared(runs: &[VerifyOptions]) -> Result<Option<(Comparison, PathBuf)>, VerifyError> {
    if runs.len() < 2 {
        return Ok(None);
    }
    let dirs: Vec<PathBuf> = runs.iter().map(|run| run.out.clone()).collect();
    let comparison = Comparison::load(&dirs)?;
    let page = comparison.write(directory(runs))?;
    Ok(Some((comparison, page)))
}

/// For each kind of problem of a run, how many answers have it, the first of them, and its line in the results.
pub fn reasons(dir: &Path) -> Result<String, VerifyError> {
    let path = dir.join(RESULTS);
    let mut found: Vec<(String, usize, String)> = Vec::new();
    for (line, record) in records(&path)? {
        let mut seen = Vec::new();
        for problem in &record.problems {
            let kind = problem.kind.name();
            if seen.contains(&kind) {
                continue;
            }
            seen.push(kind.clone());
            match found.iter_mut().find(|(known, ..)| *known == kind) {
                Some((_, count, _)) => *count += 1,
                None => {
                    let tool = problem.tool.as_ref().map_or_else(String::new, |tool| format!("{tool}: "));
                    let message: String = format!("{tool}{}", problem.message).chars().take(MOST_CHARS).collect();
                    found.push((kind, 1, format!("{message}  ({}:{line})", path.display())));
                }
            }
        }
    }
    found.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let mut out = String::new();
    for (kind, count, first) in found {
        let _ = writeln!(out, "  {count:5} {kind:20} first: {first}");
    }
    Ok(out)
}

/// Host and port as the name of a directory.
fn place(url: &str) -> String {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or(host);
    host.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '-' }).collect()
}
