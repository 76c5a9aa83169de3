//! Another run of the same samples, to compare with: one of ours, or the vendor verifier's results.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::VerifyError;
use super::record::{Mode, Record};
use super::sample::hash_foreign;
use super::store::RESULTS;

/// What of a line matters. Ours has `sample` and `hash`; the vendor verifier's `data_index` and `request`.
#[derive(Debug, Deserialize)]
struct Row {
    #[serde(alias = "data_index")]
    sample: Option<u64>,
    hash: Option<String>,
    mode: Option<Mode>,
    request: Option<Map<String, Value>>,
    status: Option<String>,
    finish_reason: Option<String>,
}

#[derive(Debug)]
struct Decision {
    sample: Option<u64>,
    mode: Option<Mode>,
    called: bool,
}

#[derive(Debug)]
pub struct Reference {
    by_hash: HashMap<String, Vec<Decision>>,
    /// Lines that do not tell what was asked.
    by_sample: HashMap<u64, bool>,
}

impl Reference {
    /// From a results file, or the directory of a run.
    pub fn load(path: &Path) -> Result<Self, VerifyError> {
        let path = if path.is_dir() { path.join(RESULTS) } else { path.to_owned() };
        let text = std::fs::read_to_string(&path);
        let text = text.map_err(|source| VerifyError::Read { option: "--reference", path: path.clone(), source })?;
        let mut reference = Self { by_hash: HashMap::new(), by_sample: HashMap::new() };
        for (number, line) in (1..).zip(text.lines()).filter(|(_, l)| !l.trim().is_empty()) {
            let bad = |reason| VerifyError::Line { path: path.clone(), number, reason };
            let row: Row = serde_json::from_str(line).map_err(|e| bad(e.to_string()))?;
            if row.status.as_deref().is_some_and(|s| s != "ok" && s != "success") {
                continue;
            }
            let called = row.finish_reason.as_deref() == Some("tool_calls");
            let decision = Decision { sample: row.sample, mode: row.mode, called };
            // The vendor verifier's own hash covers the model and is of no use here.
            match (row.request.as_ref().map(hash_foreign).or(row.hash), row.sample) {
                (Some(hash), _) => reference.by_hash.entry(hash).or_default().push(decision),
                (None, Some(sample)) => _ = reference.by_sample.insert(sample, called),
                (None, None) => return Err(bad("has neither `hash`, `request`, `sample` nor `data_index`".into())),
            }
        }
        Ok(reference)
    }

    /// Whether the reference called a tool where this record did or did not.
    pub fn called(&self, record: &Record) -> Option<bool> {
        match self.by_hash.get(&record.hash) {
            // The same question may stand in several lines.
            Some(all) => {
                let nearness = |d: &&Decision| (d.sample == Some(record.sample), d.mode == Some(record.mode));
                all.iter().max_by_key(nearness).map(|d| d.called)
            }
            None => self.by_sample.get(&record.sample).copied(),
        }
    }
}
