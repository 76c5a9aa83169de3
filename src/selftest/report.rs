//! The report of a run: JSON that `--resume` reads, and a Markdown page. It does not know what sections check.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::path::Path;

use rein_kernels::cuda::selftest::Row;
use serde::{Deserialize, Serialize};

/// What a run found.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub version: String,
    pub device: String,
    pub sections: BTreeMap<String, Section>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Section {
    pub passed: bool,
    /// Smaller sets than for a GPU.
    #[serde(default)]
    pub reduced: bool,
    pub seconds: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub rows: Vec<ReportRow>,
}

/// One line of a section.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReportRow {
    pub name: String,
    pub value: String,
    pub passed: bool,
    /// What the value says, for programs. Names end with the unit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub numbers: BTreeMap<String, f64>,
}

impl ReportRow {
    pub fn new(name: impl Into<String>, value: impl Into<String>, passed: bool) -> Self {
        ReportRow { name: name.into(), value: value.into(), passed, numbers: BTreeMap::new() }
    }

    pub fn with<'a>(mut self, numbers: impl IntoIterator<Item = (&'a str, f64)>) -> Self {
        self.numbers.extend(numbers.into_iter().map(|(name, number)| (name.to_owned(), number)));
        self
    }
}

impl From<Row> for ReportRow {
    fn from(Row { name, value, passed, numbers }: Row) -> Self {
        ReportRow::new(name, value, passed).with(numbers)
    }
}

impl Section {
    pub fn new(found: Result<Vec<ReportRow>, Box<dyn Error>>, seconds: f64, reduced: bool) -> Self {
        match found {
            Ok(rows) => {
                // A section without rows has checked nothing, so it does not pass.
                let passed = !rows.is_empty() && rows.iter().all(|row| row.passed);
                Section { passed, reduced, seconds, error: None, rows }
            }
            Err(error) => Section { passed: false, reduced, seconds, error: Some(error.to_string()), rows: Vec::new() },
        }
    }

    pub fn markdown(&self, name: &str) -> String {
        let verdict = if self.passed { "passed" } else { "failed" };
        let reduced = if self.reduced { ", reduced sets" } else { "" };
        let mut page = format!("## {name}: {verdict} ({:.1} s{reduced})\n\n", self.seconds);
        if let Some(error) = &self.error {
            page += &format!("{error}\n");
            return page;
        }
        page += "| | | |\n|---|---|---|\n";
        for row in &self.rows {
            let verdict = if row.passed { "" } else { "failed" };
            // Writing to a string cannot fail.
            let _ = writeln!(page, "| {} | {} | {verdict} |", row.name, row.value);
        }
        page
    }
}

impl Report {
    /// The sections of an earlier report of this version and device that need not run again: those that passed, and
    /// not with smaller sets than this run's.
    pub fn passed_before(&self, path: &Path, reduced: bool) -> Result<BTreeMap<String, Section>, Box<dyn Error>> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            // The first run with this option.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(error) => return Err(format!("--resume: cannot read {}: {error}", path.display()).into()),
        };
        let before: Report = serde_json::from_str(&text)
            .map_err(|error| format!("--resume: {} is not a report of `rein selftest`: {error}", path.display()))?;
        if (&before.version, &before.device) != (&self.version, &self.device) {
            return Err(format!(
                "--resume: {} is of rein {} on {}, this is rein {} on {}",
                path.display(),
                before.version,
                before.device,
                self.version,
                self.device
            )
            .into());
        }
        let holds = |section: &Section| section.passed && (reduced || !section.reduced);
        Ok(before.sections.into_iter().filter(|(_, section)| holds(section)).collect())
    }

    pub fn write(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        let failed = |error: std::io::Error| format!("cannot write the report {}: {error}", path.display());
        std::fs::write(path, serde_json::to_string_pretty(self)? + "\n").map_err(failed)?;
        let mut page = format!("# rein {} on {}\n", self.version, self.device);
        for (name, section) in &self.sections {
            page += "\n";
            page += &section.markdown(name);
        }
        std::fs::write(path.with_extension("md"), page).map_err(failed)?;
        Ok(())
    }
}
