//! How choices ended and how their calls came out, counted per model.

use std::sync::Arc;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use rein_proto::v1::FinishReason;

use crate::{
    error::Error,
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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FinishedLabels {
    model: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    model: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MalformedLabels {
    model: String,
    format: &'static str,
}

#[derive(Default)]
pub struct Outcomes {
    finished: Family<FinishedLabels, Counter>,
    calls: Family<CallLabels, Counter>,
    malformed: Family<MalformedLabels, Counter>,
}

impl Outcomes {
    pub fn register(&self, registry: &mut Registry) {
        let help = "Choices by how they ended: `stop`, `length`, `tool_calls`, `cancelled` (the client left), the `code` of \
            the error that ended the request, or `error` where it has none. Each choice of a request that passed \
            validation counts once, also if no engine took it";
        registry.register("rein_finished", help, self.finished.clone());
        let help = "Tool calls by outcome: `valid` (delivered), `incomplete` (the answer ended inside the call), \
            `malformed` (the call broke off or could not be read), `invalid` (its arguments break the tool's schema)";
        registry.register("rein_tool_calls", help, self.calls.clone());
        let help = "Texts where a call belongs that could not be read as one: the entries of `malformed` in answers";
        registry.register("rein_malformed", help, self.malformed.clone());
    }

    /// A model is served: it shows its counters from now on.
    pub fn serves(&self, model: &str, format: &'static str) {
        REASONS.iter().for_each(|reason| self.finish(model, reason, 0));
        self.calls(model, format, &CallReport::default());
    }

    fn finish(&self, model: &str, reason: &'static str, choices: u64) {
        self.finished.get_or_create(&FinishedLabels { model: model.to_owned(), reason }).inc_by(choices);
    }

    /// Counts the outcomes of the calls of one choice.
    pub(crate) fn calls(&self, model: &str, format: &'static str, report: &CallReport) {
        for outcome in Outcome::ALL {
            let labels = CallLabels { model: model.to_owned(), outcome: outcome.name() };
            self.calls.get_or_create(&labels).inc_by(report.outcomes[outcome as usize]);
        }
        let labels = MalformedLabels { model: model.to_owned(), format };
        self.malformed.get_or_create(&labels).inc_by(report.malformed.len() as u64);
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
        self.metrics.outcomes.finish(&self.model, finish_reason(reason), 1);
    }

    /// The request ends with this error, and all its choices with it.
    pub fn failed(&mut self, error: &Error) {
        self.reason = error.code.unwrap_or(ERROR);
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.left > 0 {
            self.metrics.outcomes.finish(&self.model, self.reason, self.left.into());
        }
    }
}

pub fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::Stop | FinishReason::Unspecified => "stop",
    }
}
