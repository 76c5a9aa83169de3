//! Computes the figures of a run. It does not know how they are shown in the report.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;

use super::record::{Problem, ProblemKind, Record, ResponseMode};
use super::reference::Reference;
use super::sample::Sample;
use super::store::{ResultStore, Settings};
use crate::quantiles::Quantiles;

#[derive(Debug, Serialize)]
pub struct Summary {
    pub model: String,
    pub base_url: String,
    pub settings: Settings,
    /// The time at which the summary was computed.
    pub date: String,
    pub samples: usize,
    /// Number of requests: one per sample and mode.
    pub responses: usize,
    #[serde(flatten)]
    pub total: OutcomeCounts,
    pub by_mode: BTreeMap<&'static str, OutcomeCounts>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub by_tag: BTreeMap<String, OutcomeCounts>,
    /// Number of responses with each kind of problem.
    pub problems: BTreeMap<ProblemKind, usize>,
    /// Number of failed requests by kind of failure.
    pub failures: BTreeMap<String, usize>,
    pub calls: usize,
    /// The call decisions compared with the reference run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<Trigger>,
    /// The call decisions compared with the samples' expectations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<Trigger>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<PromptTokens>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_comparison: Option<StreamComparison>,
    pub latency_ms: BTreeMap<&'static str, Quantiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<Quantiles>,
}

/// The counts of the vendor verifier, with its names.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct OutcomeCounts {
    pub success_count: usize,
    pub failure_count: usize,
    pub finish_stop: usize,
    pub finish_tool_calls: usize,
    pub finish_others: usize,
    pub finish_others_detail: BTreeMap<String, usize>,
    pub successful_tool_call_count: usize,
    pub schema_validation_error_count: usize,
    /// None if no response has the finish reason `tool_calls`.
    pub schema_accuracy: Option<f64>,
}

impl OutcomeCounts {
    pub fn of<'a>(records: impl IntoIterator<Item = &'a Record>) -> Self {
        let mut counts = Self::default();
        for record in records {
            if !record.answered() {
                counts.failure_count += 1;
                continue;
            }
            counts.success_count += 1;
            match record.finish_reason.as_deref() {
                Some("stop") => counts.finish_stop += 1,
                Some("tool_calls") => {
                    counts.finish_tool_calls += 1;
                    match record.successful_call() {
                        true => counts.successful_tool_call_count += 1,
                        false => counts.schema_validation_error_count += 1,
                    }
                }
                other => {
                    counts.finish_others += 1;
                    *counts.finish_others_detail.entry(other.unwrap_or("none").into()).or_default() += 1;
                }
            }
        }
        counts.schema_accuracy = ratio(counts.successful_tool_call_count, counts.finish_tool_calls);
        counts
    }
}

/// The decision whether to call a tool, as a binary classification. Positive means finish reason `tool_calls`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Trigger {
    pub compared: usize,
    /// Answers to requests that the reference does not have.
    pub unmatched: usize,
    pub true_positive: usize,
    pub false_positive: usize,
    pub false_negative: usize,
    pub true_negative: usize,
    pub tool_call_precision: Option<f64>,
    pub tool_call_recall: Option<f64>,
    pub tool_call_f1: Option<f64>,
}

impl Trigger {
    pub fn of<'a>(records: impl IntoIterator<Item = &'a Record>, right: impl Fn(&Record) -> Option<bool>) -> Self {
        let mut t = Self::default();
        for record in records.into_iter().filter(|r| r.answered()) {
            match (record.triggered(), right(record)) {
                (_, None) => t.unmatched += 1,
                (true, Some(true)) => t.true_positive += 1,
                (true, Some(false)) => t.false_positive += 1,
                (false, Some(true)) => t.false_negative += 1,
                (false, Some(false)) => t.true_negative += 1,
            }
        }
        t.compared = t.true_positive + t.false_positive + t.false_negative + t.true_negative;
        t.tool_call_precision = ratio(t.true_positive, t.true_positive + t.false_positive);
        t.tool_call_recall = ratio(t.true_positive, t.true_positive + t.false_negative);
        // Equal to the harmonic mean of precision and recall, and also defined if one of them is 0 or undefined.
        t.tool_call_f1 = ratio(2 * t.true_positive, 2 * t.true_positive + t.false_positive + t.false_negative);
        t
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PromptTokens {
    pub compared: usize,
    pub equal: usize,
    /// Mean of the reported minus the correct number.
    pub mean_difference: f64,
    pub largest_difference: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StreamComparison {
    /// Samples at temperature 0 with a streamed and an unstreamed answer.
    pub compared: usize,
    pub mismatched: usize,
}

pub fn ratio(part: usize, whole: usize) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Compares the streamed and the unstreamed answer of each sample at temperature 0. Records differences as problems.
pub fn compare_streams(samples: &[Sample], settings: &Settings, store: &mut ResultStore) -> Option<StreamComparison> {
    let mut comparison = StreamComparison { compared: 0, mismatched: 0 };
    for sample in samples {
        let deterministic =
            super::drive::body(sample, settings).get("temperature").and_then(Value::as_f64) == Some(0.0);
        let whole = store.records().get(&(sample.index, ResponseMode::NonStream)).filter(|r| r.answered()).cloned();
        let streamed = store.get_mut(sample.index, ResponseMode::Stream).filter(|r| r.answered());
        let (true, Some(whole), Some(streamed)) = (deterministic, whole, streamed) else { continue };
        let difference = difference(&whole, streamed);
        comparison.compared += 1;
        comparison.mismatched += usize::from(difference.is_some());
        // An interrupted run may have recorded it already.
        streamed.problems.retain(|p| p.kind != ProblemKind::StreamMismatch);
        streamed.problems.extend(difference.map(|message| Problem::new(ProblemKind::StreamMismatch, message)));
    }
    (comparison.compared > 0).then_some(comparison)
}

fn difference(whole: &Record, streamed: &Record) -> Option<String> {
    let reason = |r: &Record| r.finish_reason.clone().unwrap_or_else(|| "none".into());
    let content = |r: &Record| r.content.clone().unwrap_or_default();
    if reason(whole) != reason(streamed) {
        return Some(format!("the finish reason is {} streamed, {} unstreamed", reason(streamed), reason(whole)));
    }
    let parsed = |text: &str| serde_json::from_str::<Value>(text).ok();
    // A call that was truncated by the length limit is not compared: an unstreamed answer may omit it.
    let finished = |r: &Record| {
        let cut = r.finish_reason.as_deref() == Some("length");
        let cut = cut && r.calls.last().is_some_and(|call| parsed(&call.arguments).is_none());
        r.calls.len() - usize::from(cut)
    };
    if finished(whole) != finished(streamed) {
        return Some(format!("{} calls streamed, {} unstreamed", finished(streamed), finished(whole)));
    }
    for (at, (w, s)) in whole.calls.iter().zip(&streamed.calls).take(finished(whole)).enumerate() {
        if w.name != s.name {
            return Some(format!("call {at} is `{}` streamed, `{}` unstreamed", s.name, w.name));
        }
        let equal = w.arguments == s.arguments || parsed(&w.arguments).is_some_and(|v| Some(v) == parsed(&s.arguments));
        if !equal {
            return Some(format!("the arguments of call {at}, `{}`, differ", w.name));
        }
    }
    (content(whole) != content(streamed)).then(|| "the content differs".into())
}

impl Summary {
    pub fn new(
        samples: &[Sample],
        settings: &Settings,
        modes: &[ResponseMode],
        store: &mut ResultStore,
        reference: Option<&Reference>,
    ) -> Self {
        let stream_comparison = compare_streams(samples, settings, store);
        let pairs = || samples.iter().flat_map(|s| modes.iter().map(move |m| (s, *m)));
        let records = store.records();
        let both: Vec<_> = pairs().filter_map(|(s, m)| Some((s, records.get(&(s.index, m))?))).collect();
        let all = || both.iter().map(|(_, r)| *r);
        let mut by_tag: BTreeMap<String, Vec<&Record>> = BTreeMap::new();
        let (mut problems, mut failures): (BTreeMap<ProblemKind, usize>, BTreeMap<String, usize>) = Default::default();
        for (sample, record) in &both {
            for tag in &sample.truth.tags {
                by_tag.entry(tag.clone()).or_default().push(record);
            }
            let kinds: std::collections::BTreeSet<_> = record.problems.iter().map(|p| p.kind).collect();
            kinds.into_iter().for_each(|kind| *problems.entry(kind).or_default() += 1);
            record.failure.iter().for_each(|why| *failures.entry(why.clone()).or_default() += 1);
        }
        let expected: BTreeMap<u64, bool> =
            samples.iter().filter_map(|s| Some((s.index, s.truth.expect.call?))).collect();
        let of_mode = |mode| all().filter(move |r| r.mode == mode);
        let latency = |mode| Quantiles::of(of_mode(mode).filter(|r| r.answered()).map(|r| r.latency_ms).collect());
        Self {
            model: settings.model.clone(),
            base_url: settings.base_url.clone(),
            settings: settings.clone(),
            date: chrono::Utc::now().format("%Y-%m-%d %H:%M UTC").to_string(),
            samples: samples.len(),
            responses: pairs().count(),
            total: OutcomeCounts::of(all()),
            by_mode: modes.iter().map(|m| (m.name(), OutcomeCounts::of(of_mode(*m)))).collect(),
            by_tag: by_tag.into_iter().map(|(tag, records)| (tag, OutcomeCounts::of(records))).collect(),
            problems,
            failures,
            calls: all().map(|r| r.calls.len()).sum(),
            reference: reference.map(|reference| Trigger::of(all(), |r| reference.called(r))),
            expected: (!expected.is_empty()).then(|| Trigger::of(all(), |r| expected.get(&r.sample).copied())),
            prompt_tokens: prompt_tokens(&both),
            stream_comparison,
            latency_ms: modes.iter().filter_map(|m| Some((m.name(), latency(*m)?))).collect(),
            ttft_ms: Quantiles::of(all().filter_map(|r| r.ttft_ms).collect()),
        }
    }

    /// The summary as text for a terminal.
    pub fn table(&self) -> String {
        let mut out = self.figures();
        let mut row = |name: &str, n: &usize| _ = writeln!(out, "{name:26} {n}");
        self.problems.iter().for_each(|(kind, n)| row(&format!("  {}", kind.name()), n));
        out
    }

    /// The same without the problems.
    pub fn figures(&self) -> String {
        let mut out = String::new();
        let c = &self.total;
        let percent = |value: Option<f64>| value.map_or("-".into(), |v| format!("{:.2} %", v * 100.0));
        let mut row = |name: &str, value: String| _ = writeln!(out, "{name:26} {value}");
        row("model", format!("{} at {}", self.model, self.base_url));
        row("samples, responses", format!("{}, {}", self.samples, self.responses));
        row("answered, failed", format!("{}, {}", c.success_count, c.failure_count));
        let finish = (c.finish_stop, c.finish_tool_calls, c.finish_others);
        row("ended: stop, calls, others", format!("{}, {}, {}", finish.0, finish.1, finish.2));
        let of = (c.successful_tool_call_count, c.finish_tool_calls);
        // Answers that end inside a call, at their length or with a call that was withheld, have other finish reasons.
        let accuracy = percent(c.schema_accuracy);
        row("schema accuracy", format!("{accuracy} ({} of {} that end with calls)", of.0, of.1));
        for (name, trigger) in [("reference", &self.reference), ("expectation", &self.expected)] {
            if let Some(t) = trigger {
                let all = [t.tool_call_f1, t.tool_call_precision, t.tool_call_recall].map(percent);
                let text = format!("F1 {}, precision {}, recall {} over {}", all[0], all[1], all[2], t.compared);
                row(&format!("calls against {name}"), text);
            }
        }
        if let Some(p) = &self.prompt_tokens {
            row("correct prompt tokens", format!("{} of {}", p.equal, p.compared));
        }
        if let Some(s) = &self.stream_comparison {
            row("streamed = unstreamed", format!("{} of {}", s.compared - s.mismatched, s.compared));
        }
        for (why, n) in &self.failures {
            row(&format!("  failed with {why}"), n.to_string());
        }
        out
    }
}

fn prompt_tokens(both: &[(&Sample, &Record)]) -> Option<PromptTokens> {
    let pairs = both.iter().filter_map(|(s, r)| Some((s.truth.prompt_tokens?, r.usage?.prompt_tokens?)));
    let differences: Vec<i64> = pairs.map(|(truth, counted)| counted as i64 - truth as i64).collect();
    (!differences.is_empty()).then(|| PromptTokens {
        compared: differences.len(),
        equal: differences.iter().filter(|d| **d == 0).count(),
        mean_difference: differences.iter().sum::<i64>() as f64 / differences.len() as f64,
        largest_difference: differences.iter().map(|d| d.unsigned_abs()).max().unwrap_or(0),
    })
}
