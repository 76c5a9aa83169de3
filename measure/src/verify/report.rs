//! Collects the variables of report.html for the report of a run. It computes no figures.

use std::cmp::Reverse;
use std::collections::HashSet;

use serde::Serialize;

use super::page;
use super::plot::{self, Plot};
use super::record::{Problem, ProblemKind, Record, ResponseMode};
use super::sample::Sample;
use super::store::ResultStore;
use super::summary::{OutcomeCounts, Summary};
use crate::quantiles::Quantiles;

/// Maximum number of examples per kind of problem.
const EXAMPLES: usize = 10;
/// Maximum length of the arguments or content of an example.
const SNIPPET_CHARS: usize = 240;

/// Names and CSS classes of the outcomes of responses, in the order of [`row`].
const OUTCOMES: [(&str, &str); 5] = [
    ("valid tool calls", "good"),
    ("invalid tool calls", "bad"),
    ("stop", "stop"),
    ("other finish reasons", "other"),
    ("no answer", "fail"),
];

/// The variables of the template.
#[derive(Serialize)]
struct Report<'a> {
    title: String,
    summary: &'a Summary,
    outcomes: [Part; OUTCOMES.len()],
    modes: Vec<Row>,
    tags: Vec<Bar>,
    problems: Vec<ProblemRow>,
    times: Option<Plot>,
    quantiles: Vec<(String, &'a Quantiles)>,
    sampling: String,
    version: &'static str,
}

#[derive(Serialize)]
struct Bar {
    name: String,
    /// Share of the whole width.
    share: f64,
    figure: String,
    class: &'static str,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    parts: Vec<Part>,
}

#[derive(Serialize, Default)]
struct Part {
    name: &'static str,
    class: &'static str,
    count: usize,
    /// Share of the row.
    share: f64,
    /// Sum of the shares of the parts before this one.
    before: f64,
}

/// One kind of problem, with its bar and examples.
#[derive(Serialize)]
struct ProblemRow {
    #[serde(flatten)]
    bar: Bar,
    meaning: &'static str,
    examples: Vec<Example>,
}

#[derive(Serialize)]
struct Example {
    sample: u64,
    mode: &'static str,
    tool: String,
    path: String,
    message: String,
    sent: String,
}

pub fn html(
    summary: &Summary,
    samples: &[Sample],
    modes: &[ResponseMode],
    store: &ResultStore,
) -> Result<String, minijinja::Error> {
    let pairs = samples.iter().flat_map(|s| modes.iter().map(move |m| (s.index, *m)));
    let records: Vec<&Record> = pairs.filter_map(|key| store.records().get(&key)).collect();
    let latency = |mode| records.iter().filter(|r| r.answered() && r.mode == mode).map(|r| r.latency_ms).collect();
    let times = plot::distributions([
        ("whole answer, not streamed", "a", latency(ResponseMode::NonStream)),
        ("whole answer, streamed", "b", latency(ResponseMode::Stream)),
        ("first token", "c", records.iter().filter_map(|r| r.ttft_ms).collect()),
    ]);
    let first_token = summary.ttft_ms.iter().map(|q| ("first token".to_owned(), q));
    let whole = summary.latency_ms.iter().map(|(mode, q)| (format!("whole answer, {mode}"), q));
    page::render(&Report {
        title: format!("Verification of {}", summary.model),
        summary,
        outcomes: OUTCOMES.map(|(name, class)| Part { name, class, ..Part::default() }),
        modes: summary.by_mode.iter().map(|(mode, counts)| row(mode, counts)).collect(),
        tags: by_tag(summary, samples),
        problems: problems(summary, &records),
        times,
        quantiles: whole.chain(first_token).collect(),
        sampling: summary.settings.sampling(),
        version: env!("CARGO_PKG_VERSION"),
    })
}

fn row(name: &'static str, c: &OutcomeCounts) -> Row {
    let calls = [c.successful_tool_call_count, c.schema_validation_error_count];
    let counts = calls.into_iter().chain([c.finish_stop, c.finish_others, c.failure_count]);
    let all = counts.clone().sum::<usize>().max(1) as f64;
    let mut before = 0.0;
    let part = |((name, class), count): ((&'static str, &'static str), usize)| {
        let share = count as f64 / all;
        before += share;
        Part { name, class, count, share, before: before - share }
    };
    Row { name, parts: OUTCOMES.into_iter().zip(counts).map(part).collect() }
}

/// The bars of the tags, in the order of the samples: all first tags, then all second tags.
fn by_tag(summary: &Summary, samples: &[Sample]) -> Vec<Bar> {
    let longest = samples.iter().map(|s| s.truth.tags.len()).max().unwrap_or(0);
    let mut order: Vec<&String> = Vec::new();
    let mut seen = HashSet::new();
    for place in 0..longest {
        order.extend(samples.iter().filter_map(|s| s.truth.tags.get(place)).filter(|tag| seen.insert(*tag)));
    }
    let bar = |tag: &String| {
        let counts = summary.by_tag.get(tag)?;
        let share = counts.schema_accuracy?;
        let figure = format!("{:.1} % of {}", share * 100.0, counts.finish_tool_calls);
        Some(Bar { name: tag.clone(), share, figure, class: if share < 1.0 { "bad" } else { "good" } })
    };
    order.into_iter().filter_map(bar).collect()
}

/// The problems by kind, most frequent first.
fn problems(summary: &Summary, records: &[&Record]) -> Vec<ProblemRow> {
    let mut kinds: Vec<(ProblemKind, usize)> = summary.problems.iter().map(|(kind, count)| (*kind, *count)).collect();
    kinds.sort_by_key(|(_, count)| Reverse(*count));
    let most = kinds.first().map_or(1, |(_, most)| (*most).max(1)) as f64;
    let found = |(kind, count): (ProblemKind, usize)| {
        let of_kind =
            records.iter().flat_map(|r| r.problems.iter().map(move |p| (*r, p))).filter(|(_, p)| p.kind == kind);
        ProblemRow {
            bar: Bar {
                name: kind.name(),
                share: count as f64 / most,
                figure: count.to_string(),
                class: if kind.fails_call() { "bad" } else { "other" },
            },
            meaning: kind.meaning(),
            examples: of_kind.take(EXAMPLES).map(|(record, problem)| example(record, problem)).collect(),
        }
    };
    kinds.into_iter().map(found).collect()
}

fn example(record: &Record, problem: &Problem) -> Example {
    let sent = match problem.call.and_then(|at| record.calls.get(at)) {
        Some(call) => &call.arguments,
        None => record.content.as_deref().unwrap_or_default(),
    };
    Example {
        sample: record.sample,
        mode: record.mode.name(),
        tool: problem.tool.clone().unwrap_or_default(),
        path: problem.path.clone().unwrap_or_default(),
        message: problem.message.clone(),
        sent: match sent.char_indices().nth(SNIPPET_CHARS) {
            Some((end, _)) => format!("{}…", &sent[..end]),
            None => sent.to_owned(),
        },
    }
}
