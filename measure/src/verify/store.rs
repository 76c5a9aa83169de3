//! The directory of a run: its settings (run.json) and results (results.jsonl), from which an interrupted run can
//! continue. It does not know what the results mean.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::VerifyError;
use super::record::{Record, ResponseMode};
use super::sample::Sample;

pub const RUN: &str = "run.json";
pub const RESULTS: &str = "results.jsonl";
pub const SUMMARY: &str = "summary.json";
pub const REPORT: &str = "report.html";

/// The settings of a run. Results of runs with different settings are not mixed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub base_url: String,
    pub model: String,
    pub temperature: Option<f64>,
    pub max_tokens: Option<u32>,
    pub extra_body: Option<Map<String, Value>>,
}

impl Settings {
    /// The settings that replace the samples', as text.
    pub fn sampling(&self) -> String {
        let all = [
            self.temperature.map(|t| format!("temperature {t}")),
            self.max_tokens.map(|n| format!("max_tokens {n}")),
            self.extra_body.clone().map(|body| format!("extra body {}", Value::Object(body))),
        ];
        let all: Vec<_> = all.into_iter().flatten().collect();
        if all.is_empty() { "from the samples".into() } else { all.join(", ") }
    }

    /// The first setting that differs.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        let differs = [
            ("--base-url", self.base_url != other.base_url),
            ("--model", self.model != other.model),
            ("--temperature", self.temperature != other.temperature),
            ("--max-tokens", self.max_tokens != other.max_tokens),
            ("--extra-body", self.extra_body != other.extra_body),
        ];
        differs.into_iter().find(|(_, differs)| *differs).map(|(name, _)| name)
    }
}

pub struct ResultStore {
    dir: PathBuf,
    /// The last record for each sample and mode.
    records: BTreeMap<(u64, ResponseMode), Record>,
    file: File,
}

impl ResultStore {
    /// Opens the directory. With `resume`, loads its records.
    pub fn open(dir: &Path, settings: &Settings, samples: &[Sample], resume: bool) -> Result<Self, VerifyError> {
        let write = |path: &Path, source| VerifyError::Write { path: path.into(), source };
        std::fs::create_dir_all(dir).map_err(|e| write(dir, e))?;
        let (run, results) = (dir.join(RUN), dir.join(RESULTS));
        let records = if resume { load(dir, settings, samples)? } else { BTreeMap::new() };
        std::fs::write(&run, pretty(settings)).map_err(|e| write(&run, e))?;
        replace(&results, &lines(&records)).map_err(|e| write(&results, e))?;
        let file = OpenOptions::new().append(true).open(&results).map_err(|e| write(&results, e))?;
        Ok(Self { dir: dir.into(), records, file })
    }

    pub fn answered(&self, sample: u64, mode: ResponseMode) -> bool {
        self.records.get(&(sample, mode)).is_some_and(Record::answered)
    }

    pub fn records(&self) -> &BTreeMap<(u64, ResponseMode), Record> {
        &self.records
    }

    pub fn get_mut(&mut self, sample: u64, mode: ResponseMode) -> Option<&mut Record> {
        self.records.get_mut(&(sample, mode))
    }

    /// Adds a record, and writes it to the file at once.
    pub fn add(&mut self, record: Record) -> Result<(), VerifyError> {
        let path = || self.dir.join(RESULTS);
        self.file.write_all(line(&record).as_bytes()).map_err(|source| VerifyError::Write { path: path(), source })?;
        self.records.insert((record.sample, record.mode), record);
        Ok(())
    }

    /// Rewrites the results in order, without outdated records.
    pub fn finish(&self) -> Result<(), VerifyError> {
        self.write(RESULTS, &lines(&self.records))
    }

    pub fn write(&self, name: &str, text: &str) -> Result<(), VerifyError> {
        let path = self.dir.join(name);
        replace(&path, text).map_err(|source| VerifyError::Write { path, source })
    }
}

/// Replaces the file atomically.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let part = path.with_extension("part");
    std::fs::write(&part, text)?;
    std::fs::rename(&part, path)
}

pub fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("records are plain data") + "\n"
}

fn line(record: &Record) -> String {
    serde_json::to_string(record).expect("records are plain data") + "\n"
}

fn lines(records: &BTreeMap<(u64, ResponseMode), Record>) -> String {
    records.values().map(line).collect()
}

fn load(
    dir: &Path,
    settings: &Settings,
    samples: &[Sample],
) -> Result<BTreeMap<(u64, ResponseMode), Record>, VerifyError> {
    let other = |why: String| VerifyError::OtherRun { dir: dir.into(), why };
    let path = dir.join(RESULTS);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(source) => return Err(VerifyError::Read { option: "--out", path, source }),
    };
    let past = std::fs::read_to_string(dir.join(RUN)).ok();
    let past: Settings = past
        .and_then(|text| serde_json::from_str(&text).ok())
        .ok_or_else(|| other(format!("{RUN} is missing or invalid")))?;
    if let Some(name) = past.difference(settings) {
        return Err(other(format!("{name} differs")));
    }
    let hashes: HashMap<u64, &str> = samples.iter().map(|s| (s.index, s.hash.as_str())).collect();
    let mut records = BTreeMap::new();
    let mut rows = (1..).zip(text.lines()).peekable();
    while let Some((number, row)) = rows.next() {
        let record: Record = match serde_json::from_str(row) {
            Ok(record) => record,
            // An interrupted run may have written half of the last line.
            Err(_) if rows.peek().is_none() => break,
            Err(e) => return Err(VerifyError::Line { path, number, reason: e.to_string() }),
        };
        if hashes.get(&record.sample) != Some(&record.hash.as_str()) {
            return Err(other(format!("sample {} has changed", record.sample)));
        }
        records.insert((record.sample, record.mode), record);
    }
    Ok(records)
}
