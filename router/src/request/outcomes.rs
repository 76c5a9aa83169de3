//! Counts, per model, how choices ended and the outcomes of their tool calls.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use rein_control_plane::records::LostCalls;
use rein_proto::v1::FinishReason;
use tokio::time::Instant;

use crate::request::transcript::{CallOutcome, CallReport};

/// The reason of choices whose client disconnected or whose request was dropped.
pub const CANCELLED: &str = "cancelled";
/// The reason of choices that ended with an error without a code.
pub const ERROR: &str = "error";
/// Reasons that are exported from the start, at 0, because an alarm sees no rise in a counter that appears with 1.
const REASONS: [&str; 5] = ["stop", "length", "tool_calls", CANCELLED, ERROR];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FinishedLabels {
    model: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabels {
    model: String,
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

/// How often the log tells of calls that a model's format does not read.
const TELL_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Outcomes {
    finished: Family<FinishedLabels, Counter>,
    calls: Family<CallLabels, Counter>,
    malformed: Family<MalformedLabels, Counter>,
    lookalikes: Family<MalformedLabels, Counter>,
    own_results: Family<MalformedLabels, Counter>,
    narrowed: Family<ModelLabels, Counter>,
    lost: Mutex<BTreeMap<String, Lost>>,
}

/// A model's calls that were delivered as text.
#[derive(Default)]
struct Lost {
    calls: LostCalls,
    /// When the log last told of them.
    told: Option<Instant>,
}

impl Outcomes {
    pub fn register(&self, registry: &mut Registry) {
        let help = "Choices by how they ended: `stop`, `length`, `tool_calls`, `cancelled` (the client disconnected), \
            the `code` of the error that ended the request, or `error` if it has none. Each choice of a request that passed \
            validation counts once, even if no engine accepted it";
        registry.register("rein_finished", help, self.finished.clone());
        let help = "Tool calls by outcome: `valid`, `incomplete` (the answer ended inside the call), \
            `malformed` (the call broke off or could not be parsed), `invalid` (it names no declared tool or its \
            arguments violate the tool's schema; delivered if `--enforcement` does not prevent it)";
        registry.register("rein_tool_calls", help, self.calls.clone());
        let help = "Texts in place of a call that could not be parsed: the entries of `malformed` in answers";
        registry.register("rein_malformed", help, self.malformed.clone());
        let help = "Answers whose text has a call of a declared tool in a form that the model's format does not read, \
            such as a JSON object in a code block. The log names a `--format` that reads it";
        registry.register("rein_lookalike_calls", help, self.lookalikes.clone());
        let help = "Answers in which the model wrote a tool's result itself, with the marker of its template";
        registry.register("rein_self_written_results", help, self.own_results.clone());
        let help = "Objects in the schemas of requests' tools that declare members and do not say whether they take others: \
            the grammar takes the declared ones only";
        registry.register("rein_narrowed_objects", help, self.narrowed.clone());
    }

    /// Exports the counters of a newly served model, at 0.
    pub fn add_model(&self, model: &str, format: &'static str) {
        REASONS.iter().for_each(|reason| self.count_finished(model, reason, 0));
        self.count_calls(model, format, &CallReport::default());
        self.count_narrowed(model, 0);
    }

    /// Counts the objects of a request's tools that the grammar closes.
    pub fn count_narrowed(&self, model: &str, objects: u64) {
        self.narrowed.get_or_create(&ModelLabels { model: model.to_owned() }).inc_by(objects);
    }

    pub fn count_finished(&self, model: &str, reason: &'static str, choices: u64) {
        self.finished.get_or_create(&FinishedLabels { model: model.to_owned(), reason }).inc_by(choices);
    }

    /// Counts the outcomes of the calls of one choice.
    pub(crate) fn count_calls(&self, model: &str, format: &'static str, report: &CallReport) {
        for outcome in CallOutcome::ALL {
            let labels = CallLabels { model: model.to_owned(), outcome: outcome.name() };
            self.calls.get_or_create(&labels).inc_by(report.outcomes[outcome as usize]);
        }
        let labels = MalformedLabels { model: model.to_owned(), format };
        self.malformed.get_or_create(&labels).inc_by(report.malformed.len() as u64);
        self.lookalikes.get_or_create(&labels).inc_by(report.lookalike.is_some().into());
        self.own_results.get_or_create(&labels).inc_by(report.own_result.into());
    }

    /// The models whose calls were delivered as text.
    pub fn lost_calls(&self) -> BTreeMap<String, LostCalls> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.iter().map(|(model, lost)| (model.clone(), lost.calls.clone())).collect()
    }

    /// Notes a call that was delivered as text, and logs it once in a while for each model.
    pub(crate) fn tell_of_lost_calls(&self, model: &str, format: &str, report: &CallReport, now: Instant) {
        let Some((tool, reads)) = &report.lookalike else { return };
        {
            let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            let lost = lost.entry(model.to_owned()).or_default();
            lost.calls.answers += 1;
            lost.calls.format = reads.map(|reads| reads.name.to_owned());
            if lost.told.is_some_and(|last| now.duration_since(last) < TELL_INTERVAL) {
                return;
            }
            lost.told = Some(now);
        }
        let hint =
            reads.map_or_else(|| "no format reads it".to_owned(), |reads| format!("--format {} reads it", reads.name));
        tracing::warn!(
            model,
            format,
            tool,
            hint,
            "an answer has a call of a declared tool that the format does not read"
        );
    }
}

pub fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::Stop | FinishReason::Unspecified => "stop",
    }
}
