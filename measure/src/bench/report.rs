//! The report of a benchmark, as a table and as JSON. It does not measure.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::agents::AgentsReport;
use super::answer::BenchAnswer;
use super::drive::Run;
use super::{BenchError, BenchOptions};
use crate::quantiles::Quantiles;

/// Chunks that follow another within this time came with it, in milliseconds.
const AT_ONCE_MS: f64 = 0.05;

#[derive(Debug, Default, Serialize)]
pub struct BenchReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<Probe>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<BenchTarget>,
    pub levels: Vec<LoadLevel>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents: Option<AgentsReport>,
}

/// The endpoint and the requests.
#[derive(Debug, Serialize)]
pub struct BenchTarget {
    pub base_url: String,
    pub model: String,
    pub endpoint: &'static str,
    pub stream: bool,
    pub prompt_tokens: u32,
    pub shared_prefix: u32,
    pub output_tokens: u32,
    pub ignore_eos: bool,
    pub tools: u32,
    pub seed: u64,
}

/// The results at one concurrency.
#[derive(Debug, Serialize)]
pub struct LoadLevel {
    pub concurrency: u32,
    pub seconds: f64,
    pub answered: usize,
    /// Failed requests by kind.
    pub errors: BTreeMap<String, usize>,
    /// Source of the output token counts: `usage` (the endpoint), `chunks` (one token per chunk) or `mixed`.
    pub tokens_by: &'static str,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub tool_calls: u64,
    pub requests_per_second: f64,
    pub output_tokens_per_second: f64,
    pub total_tokens_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<Quantiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub itl_ms: Option<Quantiles>,
    /// Tokens that arrive at once, on average: more than one if the endpoint, or a proxy, sends them in bursts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_at_once: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpot_ms: Option<Quantiles>,
    pub e2e_ms: Quantiles,
    /// Tokens per second of one stream while it decodes: 1 / the median time per output token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_tokens_per_second: Option<f64>,
    /// `decode_tokens_per_second` over the memory bound; only at concurrency 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_bound: Option<f64>,
}

/// This machine's memory bandwidth, and the decode speed that it allows.
#[derive(Debug, Serialize)]
pub struct Probe {
    pub threads: usize,
    pub bandwidth_bytes_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<Weights>,
    /// Bandwidth over active bytes: the upper bound of the decode speed of one stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_tokens_per_second: Option<f64>,
}

/// The weights of a checkpoint. Active weights are read for each token of one stream: the embedding and the experts to
/// which the token is not routed do not count.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Weights {
    pub total_parameters: f64,
    pub active_parameters: f64,
    pub active_bytes: f64,
}

impl Probe {
    pub fn new(threads: usize, bandwidth_bytes_per_second: f64, weights: Option<Weights>) -> Self {
        let bound = weights.map(|w| bandwidth_bytes_per_second / w.active_bytes.max(1.0));
        Self { threads, bandwidth_bytes_per_second, weights, bound_tokens_per_second: bound }
    }
}

impl LoadLevel {
    pub fn new(concurrency: u32, run: &Run) -> Option<Self> {
        let answers = &run.answers;
        let seconds = run.elapsed.as_secs_f64().max(1e-9);
        let tokens = |a: &BenchAnswer| a.completion_tokens.unwrap_or(a.chunks.len() as u64);
        let by_usage = answers.iter().filter(|a| a.completion_tokens.is_some()).count();
        let output: u64 = answers.iter().map(tokens).sum();
        let prompt: u64 = answers.iter().filter_map(|a| a.prompt_tokens).sum();
        let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
        let tpot = answers.iter().filter_map(|a| {
            let (first, n) = (*a.chunks.first()?, tokens(a));
            (n > 1).then(|| ms(a.last_token.saturating_sub(first)) / (n - 1) as f64)
        });
        let tpot = Quantiles::of(tpot.collect());
        let gaps = || answers.iter().flat_map(|a| a.chunks.windows(2).map(|w| ms(w[1].saturating_sub(w[0]))));
        let streamed = answers.iter().filter(|a| !a.chunks.is_empty()).count();
        let arrivals = streamed + gaps().filter(|gap| *gap > AT_ONCE_MS).count();
        let mut errors = BTreeMap::new();
        for failure in &run.failures {
            *errors.entry(failure.kind()).or_default() += 1;
        }
        Some(Self {
            concurrency,
            seconds,
            answered: answers.len(),
            errors,
            tokens_by: match by_usage {
                n if n == answers.len() => "usage",
                0 => "chunks",
                _ => "mixed",
            },
            prompt_tokens: prompt,
            output_tokens: output,
            tool_calls: answers.iter().map(|a| a.tool_calls).sum(),
            requests_per_second: answers.len() as f64 / seconds,
            output_tokens_per_second: output as f64 / seconds,
            total_tokens_per_second: (output + prompt) as f64 / seconds,
            ttft_ms: Quantiles::of(answers.iter().filter_map(|a| a.chunks.first().map(|d| ms(*d))).collect()),
            itl_ms: Quantiles::of(gaps().collect()),
            tokens_at_once: (streamed > 0).then(|| output as f64 / arrivals as f64),
            decode_tokens_per_second: tpot.filter(|t| t.p50 > 0.0).map(|t| 1e3 / t.p50),
            tpot_ms: tpot,
            e2e_ms: Quantiles::of(answers.iter().map(|a| ms(a.total)).collect())?,
            share_of_bound: None,
        })
    }
}

impl BenchReport {
    pub fn describe(&mut self, base_url: &str, model: &str, o: &BenchOptions) {
        self.target = Some(BenchTarget {
            base_url: base_url.to_owned(),
            model: model.to_owned(),
            endpoint: o.endpoint.name(),
            stream: o.stream,
            prompt_tokens: o.prompt_tokens,
            shared_prefix: o.shared_prefix,
            output_tokens: o.output_tokens,
            ignore_eos: o.ignore_eos,
            tools: o.tools,
            seed: o.seed,
        });
    }

    pub fn add(&mut self, concurrency: u32, run: Run) -> Result<(), BenchError> {
        match LoadLevel::new(concurrency, &run) {
            Some(level) => self.levels.push(level),
            None => {
                let last = run.failures.last().map_or_else(|| "no request was sent".into(), ToString::to_string);
                return Err(BenchError::AllFailed { sent: run.failures.len(), last });
            }
        }
        Ok(())
    }

    /// Sets the share of the memory bound at concurrency 1.
    pub fn relate_to_bound(&mut self) {
        let Some(bound) = self.probe.as_ref().and_then(|p| p.bound_tokens_per_second) else { return };
        for level in self.levels.iter_mut().filter(|l| l.concurrency == 1) {
            level.share_of_bound = level.decode_tokens_per_second.map(|d| d / bound);
        }
    }

    pub fn table(&self) -> String {
        let mut out = String::new();
        if let Some(p) = &self.probe {
            p.describe(&mut out);
        }
        if let Some(agents) = &self.agents {
            out += &agents.table();
        }
        let Some(t) = &self.target else { return out };
        let how = if t.stream { "streamed" } else { "not streamed" };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{} of {} at {}, {how}", t.endpoint, t.model, t.base_url);
        let lengths = (t.prompt_tokens, t.output_tokens);
        let _ = writeln!(out, "prompts of {} tokens, answers of up to {}, {} tools\n", lengths.0, lengths.1, t.tools);
        let mut rows: Vec<(String, Vec<String>)> = Vec::new();
        let mut row = |name: &str, cell: &dyn Fn(&LoadLevel) -> Option<String>| {
            let cells: Vec<_> = self.levels.iter().map(cell).collect();
            if cells.iter().any(Option::is_some) {
                let cells = cells.into_iter().map(|c| c.unwrap_or_else(|| "-".into())).collect();
                rows.push((name.to_owned(), cells));
            }
        };
        row("concurrency", &|l| Some(l.concurrency.to_string()));
        row("answered", &|l| Some(l.answered.to_string()));
        row("failed", &|l| Some(l.errors.values().sum::<usize>().to_string()));
        row("seconds", &|l| Some(format!("{:.2}", l.seconds)));
        row("requests/s", &|l| Some(format!("{:.2}", l.requests_per_second)));
        row("output tokens/s", &|l| Some(format!("{:.1}", l.output_tokens_per_second)));
        row("total tokens/s", &|l| (l.prompt_tokens > 0).then(|| format!("{:.1}", l.total_tokens_per_second)));
        row("prompt tokens, mean", &|l| mean(l.prompt_tokens, l.answered));
        row("output tokens, mean", &|l| mean(l.output_tokens, l.answered));
        row("tool calls", &|l| (t.tools > 0).then(|| l.tool_calls.to_string()));
        type Pick = fn(&LoadLevel) -> Option<Quantiles>;
        let times: [(&str, Pick); 4] = [
            ("time to first token", |l| l.ttft_ms),
            ("inter-token latency", |l| l.itl_ms),
            ("time per output token", |l| l.tpot_ms),
            ("end to end", |l| Some(l.e2e_ms)),
        ];
        for (name, pick) in times {
            row(&format!("{name}, ms p50"), &|l| pick(l).map(|q| format!("{:.2}", q.p50)));
            row("    p90", &|l| pick(l).map(|q| format!("{:.2}", q.p90)));
            row("    p99", &|l| pick(l).map(|q| format!("{:.2}", q.p99)));
        }
        row("decode tokens/s per stream", &|l| l.decode_tokens_per_second.map(|d| format!("{d:.1}")));
        row("share of the memory bound", &|l| l.share_of_bound.map(|s| format!("{:.0} %", s * 100.0)));
        let name_width = rows.iter().map(|(n, _)| n.len()).max().unwrap_or(0);
        let width = rows.iter().flat_map(|(_, c)| c).map(String::len).max().unwrap_or(0);
        for (name, cells) in rows {
            let _ = write!(out, "{name:name_width$}");
            for cell in cells {
                let _ = write!(out, "  {cell:>width$}");
            }
            out.push('\n');
        }
        for level in &self.levels {
            for (kind, n) in &level.errors {
                let _ = writeln!(out, "concurrency {}: {n} x {kind}", level.concurrency);
            }
        }
        for level in &self.levels {
            let is_burst = level.itl_ms.is_some_and(|latency| latency.p50 < AT_ONCE_MS);
            if let Some(tokens) = level.tokens_at_once.filter(|_| is_burst) {
                let _ = writeln!(
                    out,
                    "concurrency {}: {tokens:.1} tokens arrive at once, so most inter-token latencies are 0: compare the \
                     time per output token",
                    level.concurrency
                );
            }
        }
        if self.levels.iter().any(|l| l.tokens_by != "usage") {
            out.push_str("The endpoint reports no usage: output tokens are counted as chunks.\n");
        }
        out
    }
}

fn mean(total: u64, n: usize) -> Option<String> {
    (total > 0 && n > 0).then(|| format!("{:.1}", total as f64 / n as f64))
}

impl Probe {
    fn describe(&self, out: &mut String) {
        let gb = self.bandwidth_bytes_per_second / 1e9;
        let _ = writeln!(out, "memory read bandwidth      {gb:.1} GB/s with {} threads", self.threads);
        if let (Some(w), Some(bound)) = (&self.weights, self.bound_tokens_per_second) {
            let (total, active) = (w.total_parameters / 1e6, w.active_parameters / 1e6);
            let _ = writeln!(out, "parameters                 {total:.1} M, {active:.1} M of them active per token");
            let _ = writeln!(out, "active weights             {:.1} MB", w.active_bytes / 1e6);
            let _ = writeln!(out, "bound for one stream       {bound:.1} tokens/s");
        }
        out.push('\n');
    }
}
