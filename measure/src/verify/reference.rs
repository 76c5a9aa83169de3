//! The results of another run, used as reference: of `rein verify` or of the vendor verifier.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::VerifyError;
use super::record::{Record, ResponseMode};
use super::sample::hash_unnormalized;
use super::store::RESULTS;

/// The fields of a line that are used. `rein verify` writes `sample` and `hash`, the vendor verifier `data_index` and
/// `request`.
#[derive(Debug, Deserialize)]
struct Row {
    #[serde(alias = "data_index")]
    sample: Option<u64>,
    hash: Option<String>,
    mode: Option<ResponseMode>,
    request: Option<Map<String, Value>>,
    status: Option<String>,
    finish_reason: Option<String>,
}

#[derive(Debug)]
struct Decision {
    sample: Option<u64>,
    mode: Option<ResponseMode>,
    called: bool,
}

#[derive(Debug)]
pub struct Reference {
    by_hash: HashMap<String, Vec<Decision>>,
    /// Decisions of lines without a request.
    by_sample: HashMap<u64, bool>,
}

impl Reference {
    /// Loads a results file, or the one in the directory of a run.
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
            // The vendor verifier's own hash cannot be used, because it includes the model.
            match (row.request.as_ref().map(hash_unnormalized).or(row.hash), row.sample) {
                (Some(hash), _) => reference.by_hash.entry(hash).or_default().push(decision),
                (None, Some(sample)) => _ = reference.by_sample.insert(sample, called),
                (None, None) => return Err(bad("needs `hash`, `request`, `sample` or `data_index`".into())),
            }
        }
        Ok(reference)
    }

    /// Whether the reference called a tool for the request of this record. None if it does not have the request.
    pub fn called(&self, record: &Record) -> Option<bool> {
        match self.by_hash.get(&record.hash) {
            // Several lines may have the same request.
            Some(all) => {
                let nearness = |d: &&Decision| (d.sample == Some(record.sample), d.mode == Some(record.mode));
                all.iter().max_by_key(nearness).map(|d| d.called)
            }
            None => self.by_sample.get(&record.sample).copied(),
        }
    }
}
