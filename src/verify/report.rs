//! report.html: the run for people. One file, without scripts and without anything from elsewhere.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use super::plot::{self, Bar, Part, PlotLine, escape};
use super::record::{Mode, Problem, ProblemKind, Record};
use super::sample::Sample;
use super::store::ResultStore;
use super::summary::{Counts, Summary, Trigger};

/// Examples of each kind of problem.
const EXAMPLES: usize = 10;
/// As much of the arguments as an example shows.
const SNIPPET_CHARS: usize = 240;

pub const STYLE: &str = "\
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2126;--soft:#5b6670;--line:#dfe3e7;--panel:#f6f7f9;\
--good:#1f7a4d;--bad:#b3261e;--stop:#4a78b5;--other:#b98a1f;--fail:#6e6e78;--on:#fff}\
@media(prefers-color-scheme:dark){:root{--bg:#15181c;--fg:#e4e7ea;--soft:#98a3ad;--line:#333a41;--panel:#1e2328;\
--good:#4fb583;--bad:#f0766c;--stop:#7ba7e0;--other:#d9b04c;--fail:#8f8f9a;--on:#15181c}}\
*{box-sizing:border-box}body{margin:0 auto;max-width:60rem;padding:2rem 1rem 4rem;background:var(--bg);color:var(--fg);\
font:15px/1.5 system-ui,sans-serif}h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}\
p{margin:.4rem 0}.soft{color:var(--soft)}a{color:inherit}\
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(10rem,1fr));gap:.7rem;margin:1.2rem 0}\
.tile{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:.7rem .9rem}\
.tile b{display:block;font-size:1.5rem;font-weight:600;font-variant-numeric:tabular-nums}.tile span{color:var(--soft);font-size:.85rem}\
svg{width:100%;height:auto;display:block}svg text{fill:var(--fg);font:13px system-ui,sans-serif}svg text.tick{fill:var(--soft);font-size:12px}\
svg text.on{fill:var(--on);text-anchor:middle}.track{fill:var(--panel)}.grid{stroke:var(--line)}\
rect.good{fill:var(--good)}rect.bad{fill:var(--bad)}rect.stop{fill:var(--stop)}rect.other{fill:var(--other)}rect.fail{fill:var(--fail)}\
polyline{fill:none;stroke-width:2}.a{stroke:var(--stop)}.b{stroke:var(--good)}.c{stroke:var(--other);stroke-dasharray:5 3}line.a,line.b,line.c{stroke-width:2}\
.legend{color:var(--soft);font-size:.85rem}.legend span{margin-right:1rem;white-space:nowrap}.legend svg{display:inline-block;width:.75rem;margin-right:.35rem;vertical-align:-1px}\
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.88rem}th,td{text-align:left;vertical-align:top;padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--line)}\
th{color:var(--soft);font-weight:500}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td.text{overflow-wrap:anywhere;min-width:14rem}\
code{font:12.5px/1.4 ui-monospace,monospace;overflow-wrap:anywhere}details{border-bottom:1px solid var(--line);padding:.45rem 0}\
summary{cursor:pointer}summary b{font-variant-numeric:tabular-nums}";

const OUTCOMES: [Part; 5] = [
    Part { name: "valid tool calls", class: "good" },
    Part { name: "invalid tool calls", class: "bad" },
    Part { name: "stop", class: "stop" },
    Part { name: "other finish reasons", class: "other" },
    Part { name: "no answer", class: "fail" },
];

fn outcomes(c: &Counts) -> Vec<usize> {
    let calls = [c.successful_tool_call_count, c.schema_validation_error_count];
    calls.into_iter().chain([c.finish_stop, c.finish_others, c.failure_count]).collect()
}

pub fn percent(value: Option<f64>) -> String {
    value.map_or("–".into(), |v| format!("{:.2} %", v * 100.0))
}

pub fn html(summary: &Summary, samples: &[Sample], modes: &[Mode], store: &ResultStore) -> String {
    let pairs = samples.iter().flat_map(|s| modes.iter().map(move |m| (s.index, *m)));
    let records: Vec<&Record> = pairs.filter_map(|key| store.records().get(&key)).collect();
    let mut out = String::new();
    head(&mut out, summary);
    tiles(&mut out, summary);
    out.push_str("<h2>How the responses ended</h2>");
    let mut rows: Vec<_> = summary.by_mode.iter().map(|(mode, c)| ((*mode).to_owned(), outcomes(c))).collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    out += &plot::stacks("Responses by outcome", &OUTCOMES, &rows);
    others(&mut out, &summary.total);
    for (name, text, trigger) in [
        ("the reference run", "positive: the reference finished with tool_calls", &summary.reference),
        ("the samples' expectations", "positive: the sample expects a call", &summary.expected),
    ] {
        if let Some(trigger) = trigger {
            confusion(&mut out, name, text, trigger);
        }
    }
    by_tag(&mut out, samples, &summary.by_tag);
    problems(&mut out, summary, &records);
    times(&mut out, summary, &records);
    footer(&mut out, summary);
    out
}

fn head(out: &mut String, s: &Summary) {
    let (model, url) = (escape(&s.model), escape(&s.base_url));
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>Verification of {model}</title><style>{STYLE}</style>\
         <h1>{model}</h1><p class=\"soft\">{url} · {} samples, {} responses · {}</p>",
        s.samples, s.responses, s.date
    );
}

fn tiles(out: &mut String, s: &Summary) {
    let c = &s.total;
    let calls = format!("{} of {} tool-call responses", c.successful_tool_call_count, c.finish_tool_calls);
    let mut all = vec![(percent(c.schema_accuracy), "schema accuracy", calls)];
    for (name, trigger) in [("F1 against reference", &s.reference), ("F1 against expectation", &s.expected)] {
        if let Some(t) = trigger {
            let note = format!("precision {}, recall {}", percent(t.tool_call_precision), percent(t.tool_call_recall));
            all.push((percent(t.tool_call_f1), name, note));
        }
    }
    all.push((c.success_count.to_string(), "answered", format!("{} failed", c.failure_count)));
    if let Some(x) = &s.stream_comparison {
        let note = format!("of {} pairs at temperature 0", x.compared);
        all.push(((x.compared - x.mismatched).to_string(), "stream = non-stream", note));
    }
    if let Some(p) = &s.prompt_tokens {
        let note = format!("of {}; largest difference {}", p.compared, p.largest_difference);
        all.push((p.equal.to_string(), "prompt tokens right", note));
    }
    if let Some(t) = &s.ttft_ms {
        all.push((format!("{:.0} ms", t.p50), "time to first token", format!("p50; p99 {:.0} ms", t.p99)));
    }
    out.push_str("<div class=\"tiles\">");
    for (value, name, note) in all {
        let _ = write!(out, "<div class=\"tile\"><span>{name}</span><b>{value}</b><span>{note}</span></div>");
    }
    out.push_str("</div>");
}

fn others(out: &mut String, c: &Counts) {
    if !c.finish_others_detail.is_empty() {
        let all: Vec<_> = c.finish_others_detail.iter().map(|(name, n)| format!("{} {n}", escape(name))).collect();
        let _ = write!(out, "<p class=\"soft\">Other finish reasons: {}.</p>", all.join(", "));
    }
}

fn confusion(out: &mut String, name: &str, text: &str, t: &Trigger) {
    let _ = write!(
        out,
        "<h2>Whether to call, against {name}</h2><p class=\"soft\">{} responses compared, {} without counterpart; {text}.</p>\
         <div class=\"wide\"><table><tr><th></th><th class=\"n\">call was right</th><th class=\"n\">no call was right</th></tr>\
         <tr><td>called</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\
         <tr><td>did not call</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr></table></div>\
         <p>Precision {}, recall {}, F1 {}.</p>",
        t.compared,
        t.unmatched,
        t.true_positive,
        t.false_positive,
        t.false_negative,
        t.true_negative,
        percent(t.tool_call_precision),
        percent(t.tool_call_recall),
        percent(t.tool_call_f1)
    );
}

/// In the order in which the samples have them: first tags first, easy ones before hard ones.
fn by_tag(out: &mut String, samples: &[Sample], tags: &BTreeMap<String, Counts>) {
    let longest = samples.iter().map(|s| s.truth.tags.len()).max().unwrap_or(0);
    let mut order: Vec<&String> = Vec::new();
    let mut seen = HashSet::new();
    for place in 0..longest {
        order.extend(samples.iter().filter_map(|s| s.truth.tags.get(place)).filter(|tag| seen.insert(*tag)));
    }
    let bars: Vec<Bar> = order
        .into_iter()
        .filter_map(|tag| {
            let c = tags.get(tag)?;
            let share = c.schema_accuracy?;
            let figure = format!("{:.1} % of {}", share * 100.0, c.finish_tool_calls);
            let class = if share < 1.0 { "bad" } else { "good" };
            Some(Bar { name: tag.clone(), share, figure, class })
        })
        .collect();
    if !bars.is_empty() {
        out.push_str("<h2>Schema accuracy by tag</h2>");
        *out += &plot::bars("Schema accuracy by tag of the samples", &bars);
    }
}

fn problems(out: &mut String, s: &Summary, records: &[&Record]) {
    out.push_str("<h2>Problems</h2>");
    if s.problems.is_empty() {
        out.push_str("<p>None.</p>");
        return;
    }
    let mut kinds: Vec<(ProblemKind, usize)> = s.problems.iter().map(|(k, n)| (*k, *n)).collect();
    kinds.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let most = kinds[0].1.max(1) as f64;
    let bar = |(kind, n): &(ProblemKind, usize)| Bar {
        name: kind.name(),
        share: *n as f64 / most,
        figure: n.to_string(),
        class: if kind.fails_call() { "bad" } else { "other" },
    };
    *out += &plot::bars("Responses with each kind of problem", &kinds.iter().map(bar).collect::<Vec<_>>());
    out.push_str("<p class=\"soft\">Responses with each kind. Red ones make a tool call unsuccessful in the schema accuracy.</p>");
    if !s.failures.is_empty() {
        let all: Vec<_> = s.failures.iter().map(|(why, n)| format!("{} {n}", escape(why))).collect();
        let _ = write!(out, "<p class=\"soft\">Unanswered: {}.</p>", all.join(", "));
    }
    for (kind, n) in kinds {
        let _ = write!(
            out,
            "<details><summary><b>{n}</b> {} <span class=\"soft\">{}</span></summary><div class=\"wide\"><table>\
             <tr><th class=\"n\">sample</th><th>mode</th><th>tool</th><th>path</th><th>what</th><th>sent</th></tr>",
            kind.name(),
            escape(kind.meaning())
        );
        let found = records.iter().flat_map(|r| r.problems.iter().map(move |p| (r, p))).filter(|(_, p)| p.kind == kind);
        for (record, problem) in found.take(EXAMPLES) {
            let _ = write!(
                out,
                "<tr><td class=\"n\">{}</td><td>{}</td><td><code>{}</code></td><td><code>{}</code></td>\
                 <td class=\"text\">{}</td><td class=\"text\"><code>{}</code></td></tr>",
                record.sample,
                record.mode.name(),
                escape(problem.tool.as_deref().unwrap_or_default()),
                escape(problem.path.as_deref().unwrap_or_default()),
                escape(&problem.message),
                escape(&snippet(record, problem))
            );
        }
        out.push_str("</table></div></details>");
    }
}

/// What the endpoint sent there.
fn snippet(record: &Record, problem: &Problem) -> String {
    let text = match problem.call.and_then(|at| record.calls.get(at)) {
        Some(call) => &call.arguments,
        None => record.content.as_deref().unwrap_or_default(),
    };
    match text.char_indices().nth(SNIPPET_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn times(out: &mut String, s: &Summary, records: &[&Record]) {
    let latency = |mode| records.iter().filter(|r| r.answered() && r.mode == mode).map(|r| r.latency_ms).collect();
    let lines = [
        PlotLine { name: "whole answer, not streamed", class: "a", values: latency(Mode::NonStream) },
        PlotLine { name: "whole answer, streamed", class: "b", values: latency(Mode::Stream) },
        PlotLine { name: "first token", class: "c", values: records.iter().filter_map(|r| r.ttft_ms).collect() },
    ];
    out.push_str("<h2>Times</h2>");
    *out += &plot::distributions("Share of responses within a time", &lines);
    out.push_str("<div class=\"wide\"><table><tr><th></th><th class=\"n\">mean</th><th class=\"n\">p50</th><th class=\"n\">p90</th><th class=\"n\">p99</th><th class=\"n\">max</th></tr>");
    let ttft = s.ttft_ms.iter().map(|q| ("first token".to_owned(), q));
    for (name, q) in s.latency_ms.iter().map(|(mode, q)| (format!("whole answer, {mode}"), q)).chain(ttft) {
        let cells: String =
            [q.mean, q.p50, q.p90, q.p99, q.max].map(|v| format!("<td class=\"n\">{v:.0} ms</td>")).concat();
        let _ = write!(out, "<tr><td>{name}</td>{cells}</tr>");
    }
    out.push_str("</table></div>");
}

fn footer(out: &mut String, s: &Summary) {
    out.push_str(
        "<h2>Definitions</h2><p>Schema accuracy: of the responses with finish reason tool_calls, the share in which every call names a declared \
         tool and has arguments that are JSON and satisfy the tool's schema. F1: of the decision to call (finish reason tool_calls), against \
         the reference. Both as Moonshot's K2 Vendor Verifier defines them. Times count from sending the request.</p>",
    );
    let all = escape(&s.settings.sampling());
    let version = env!("CARGO_PKG_VERSION");
    let _ = writeln!(out, "<p class=\"soft\">Sampling: {all}. Made by rein {version}.</p></html>");
}
