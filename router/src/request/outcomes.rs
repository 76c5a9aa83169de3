//! How choices ended and how their calls came out, counted per model.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{Arc, Mutex, PoisonError},
};

use rein_proto::v1::FinishReason;

use crate::{
    error::Error,
    metrics::escaped,
    request::{
        metrics::RequestMetrics,
        transcript::{CallReport, Outcome},
    },
};

/// How a choice ends whose client left, or whose request was given up.
const CANCELLED: &str = "cancelled";
/// How a choice ends with an error that has no code.
const ERROR: &str = "error";
/// Reasons that every model shows from the start: an alarm sees a counter rise only if it was there before.
const REASONS: [&str; 5] = ["stop", "length", "tool_calls", CANCELLED, ERROR];

/// A model's name and the value of a second label.
type Counts = Mutex<BTreeMap<(String, &'static str), u64>>;

#[derive(Default)]
pub struct Outcomes {
    finished: Counts,
    calls: Counts,
    malformed: Counts,
}

fn add(counts: &Counts, model: &str, label: &'static str, count: u64) {
    if count > 0 {
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((model.to_owned(), label)).or_default() += count;
    }
}

impl Outcomes {
    /// Counts the outcomes of the calls of one choice.
    pub(crate) fn calls(&self, model: &str, format: &'static str, report: &CallReport) {
        for outcome in Outcome::ALL {
            add(&self.calls, model, outcome.name(), report.outcomes[outcome as usize]);
        }
        add(&self.malformed, model, format, report.malformed.len() as u64);
    }

    /// `models`: the names of those that are served, and their formats.
    pub fn write<'a>(&self, out: &mut String, models: impl Iterator<Item = (&'a str, &'static str)> + Clone) {
        let every = |labels: &[&'static str]| {
            let labels = labels.to_vec();
            models.clone().flat_map(move |(model, _)| labels.clone().into_iter().map(move |label| (model, label)))
        };
        let reasons = every(&REASONS);
        let outcomes = every(&Outcome::ALL.map(Outcome::name));
        write(out, "rein_finished_total", "reason", "Choices by how they ended.", &self.finished, reasons);
        write(out, "rein_tool_calls_total", "outcome", "Tool calls by outcome.", &self.calls, outcomes);
        let help = "Texts where a call belongs that could not be read as one.";
        write(out, "rein_malformed_total", "format", help, &self.malformed, models);
    }
}

fn write<'a>(
    out: &mut String,
    name: &str,
    label: &str,
    help: &str,
    counts: &Counts,
    known: impl Iterator<Item = (&'a str, &'static str)>,
) {
    let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for (model, value) in known {
        counts.entry((model.to_owned(), value)).or_default();
    }
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter");
    for ((model, value), count) in counts {
        let _ = writeln!(out, "{name}{{model=\"{}\",{label}=\"{value}\"}} {count}", escaped(&model));
    }
}

/// The choices of one request that have not ended. Each is counted exactly once; those that are left when this is
/// dropped ended with the request.
pub struct Unfinished {
    metrics: Arc<RequestMetrics>,
    model: String,
    left: u32,
    /// How the request ended that did not let its choices end.
    reason: &'static str,
}

impl Unfinished {
    pub fn new(metrics: Arc<RequestMetrics>, model: &str, choices: u32) -> Self {
        Unfinished { metrics, model: model.to_owned(), left: choices, reason: CANCELLED }
    }

    /// A choice has ended in its own way.
    pub fn finished(&mut self, reason: FinishReason) {
        self.left = self.left.saturating_sub(1);
        add(&self.metrics.outcomes.finished, &self.model, finish_reason(reason), 1);
    }

    /// The request ends with this error, and all its choices with it.
    pub fn failed(&mut self, error: &Error) {
        self.reason = error.code.unwrap_or(ERROR);
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        add(&self.metrics.outcomes.finished, &self.model, self.reason, self.left.into());
    }
}

pub fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::Stop | FinishReason::Unspecified => "stop",
    }
}
