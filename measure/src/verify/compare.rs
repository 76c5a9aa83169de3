//! `rein verify --compare`: compares the results of several runs, as a table, JSON and an HTML page. It sends no
//! requests.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use super::VerifyError;
use super::page::{self, percent};
use super::record::Record;
use super::reference::Reference;
use super::store::{RESULTS, RUN, SUMMARY, Settings, pretty};
use super::summary::{OutcomeCounts, Trigger, ratio};

const PAGE: &str = "compare.html";
const DATA: &str = "compare.json";

/// The figures of one run, and its call decisions compared with the first run's.
#[derive(Debug, Serialize)]
pub struct Compared {
    pub name: String,
    pub settings: Settings,
    /// The share of requests that were answered.
    pub success_rate: Option<f64>,
    #[serde(flatten)]
    pub counts: OutcomeCounts,
    /// The call decisions compared with the first run's. None for the first run.
    pub trigger: Option<Trigger>,
    /// The F1 of the call decisions against the samples' expectations, if they have any.
    pub expected_f1: Option<f64>,
}

#[derive(Debug, Serialize)]
pub struct Comparison {
    pub runs: Vec<Compared>,
    /// Answers of the other runs to samples that the first run does not have.
    pub unmatched: usize,
}

impl Comparison {
    /// Loads the directories of runs. The runs may have different samples: answers to samples that the first run does
    /// not have are counted as unmatched.
    pub fn load(dirs: &[PathBuf]) -> Result<Self, VerifyError> {
        let mut runs = Vec::new();
        let mut first: Option<Reference> = None;
        for dir in dirs {
            let records: Vec<Record> = records(&dir.join(RESULTS))?.into_iter().map(|(_, record)| record).collect();
            let counts = OutcomeCounts::of(&records);
            runs.push(Compared {
                name: name(dir),
                settings: json(&dir.join(RUN))?,
                success_rate: ratio(counts.success_count, counts.success_count + counts.failure_count),
                trigger: first.as_ref().map(|first| Trigger::of(&records, |record| first.called(record))),
                // An interrupted run has no summary.
                expected_f1: json::<Value>(&dir.join(SUMMARY))
                    .ok()
                    .and_then(|s| s.pointer("/expected/tool_call_f1")?.as_f64()),
                counts,
            });
            if first.is_none() {
                first = Some(Reference::load(dir)?);
            }
        }
        let unmatched = runs.iter().filter_map(|run| run.trigger.as_ref()).map(|trigger| trigger.unmatched).sum();
        Ok(Comparison { runs, unmatched })
    }

    /// The name of each row, and its value for each run.
    fn rows(&self) -> Vec<(&'static str, Vec<String>)> {
        let row = |name, value: &dyn Fn(&Compared) -> String| (name, self.runs.iter().map(value).collect());
        let mut rows = vec![
            row("endpoint", &|r| r.settings.base_url.clone()),
            row("model", &|r| r.settings.model.clone()),
            row("sampling", &|r| r.settings.sampling()),
            row("success rate", &|r| percent(r.success_rate)),
            row("answered", &|r| r.counts.success_count.to_string()),
            row("failed", &|r| r.counts.failure_count.to_string()),
            row("finish: stop", &|r| r.counts.finish_stop.to_string()),
            row("finish: tool_calls", &|r| r.counts.finish_tool_calls.to_string()),
            row("finish: others", &|r| r.counts.finish_others.to_string()),
            row("successful tool calls", &|r| r.counts.successful_tool_call_count.to_string()),
            row("schema errors", &|r| r.counts.schema_validation_error_count.to_string()),
            row("schema accuracy", &|r| percent(r.counts.schema_accuracy)),
        ];
        let expected = self.runs.iter().all(|run| run.expected_f1.is_some());
        let trigger = |r: &Compared, of: &dyn Fn(&Trigger) -> String| r.trigger.as_ref().map_or("reference".into(), of);
        // Where the samples say what is right, no run has to.
        if !expected {
            rows.push(row("calls, F1", &|r| trigger(r, &|t| percent(t.tool_call_f1))));
            rows.push(row("calls, precision", &|r| trigger(r, &|t| percent(t.tool_call_precision))));
            rows.push(row("calls, recall", &|r| trigger(r, &|t| percent(t.tool_call_recall))));
        }
        if self.runs.iter().any(|run| run.expected_f1.is_some()) {
            rows.push(row("calls as expected, F1", &|r| percent(r.expected_f1)));
        }
        rows
    }

    /// The comparison as text for a terminal.
    pub fn table(&self) -> String {
        let mut rows = vec![("", self.runs.iter().map(|run| run.name.clone()).collect::<Vec<_>>())];
        rows.extend(self.rows());
        let width = |column: usize| rows.iter().map(|(_, cells)| cells[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.runs.len()).map(width).collect();
        let mut out = String::new();
        for (name, cells) in &rows {
            let cells: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            let _ = writeln!(out, "{name:22} {}", cells.join("  ").trim_end());
        }
        out
    }

    fn html(&self) -> Result<String, minijinja::Error> {
        page::render(&json!({
            "title": format!("Comparison of {} runs", self.runs.len()),
            "runs": self.runs.iter().map(|run| &run.name).collect::<Vec<_>>(),
            "rows": self.rows(),
            "unmatched": self.unmatched,
            "version": env!("CARGO_PKG_VERSION"),
        }))
    }

    /// Writes the HTML page and the JSON file. Returns the path of the page.
    pub fn write(&self, dir: &Path) -> Result<PathBuf, VerifyError> {
        let write = |path: PathBuf, text: String| match std::fs::write(&path, text) {
            Ok(()) => Ok(path),
            Err(source) => Err(VerifyError::Write { path, source }),
        };
        std::fs::create_dir_all(dir).map_err(|source| VerifyError::Write { path: dir.into(), source })?;
        write(dir.join(DATA), pretty(self))?;
        write(dir.join(PAGE), self.html()?)
    }
}

fn name(dir: &Path) -> String {
    let named = |dir: &Path| Some(dir.file_name()?.to_string_lossy().into_owned());
    named(dir).or_else(|| named(&dir.canonicalize().ok()?)).unwrap_or_else(|| dir.display().to_string())
}

fn text(path: &Path) -> Result<String, VerifyError> {
    std::fs::read_to_string(path).map_err(|source| VerifyError::Read { option: "--compare", path: path.into(), source })
}

fn json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, VerifyError> {
    let bad =
        |e: serde_json::Error| VerifyError::Line { path: path.into(), number: e.line() as u64, reason: e.to_string() };
    serde_json::from_str(&text(path)?).map_err(bad)
}

/// The last record for each sample and mode, with its line.
pub fn records(path: &Path) -> Result<Vec<(u64, Record)>, VerifyError> {
    let mut records = std::collections::BTreeMap::new();
    for (number, line) in (1..).zip(text(path)?.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let bad = |e: serde_json::Error| VerifyError::Line { path: path.into(), number, reason: e.to_string() };
        let record: Record = serde_json::from_str(line).map_err(bad)?;
        records.insert((record.sample, record.mode), (number, record));
    }
    Ok(records.into_values().collect())
}
