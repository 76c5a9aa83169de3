//! Counters and histograms in the Prometheus text format.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rein_proto::{
    internal::EngineStats,
    stats::{NUMBERS, Number, NumberKind},
};

use crate::{guide::GuideStats, model::now, outcomes::Outcomes};

/// Seconds; the upper ends of the buckets of every histogram.
const BUCKETS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

#[derive(Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS.len()],
    count: AtomicU64,
    nanos: AtomicU64,
}

impl Histogram {
    pub fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        if let Some(bucket) = BUCKETS.iter().position(|&end| seconds <= end) {
            self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub fn write(&self, out: &mut String, name: &str, help: &str) {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        let count = self.count.load(Ordering::Relaxed);
        let mut below = 0;
        for (bucket, end) in self.buckets.iter().zip(BUCKETS) {
            below += bucket.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}_bucket{{le=\"{end}\"}} {below}");
        }
        let seconds = Duration::from_nanos(self.nanos.load(Ordering::Relaxed)).as_secs_f64();
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {seconds}\n{name}_count {count}");
    }
}

pub struct Metrics {
    /// Seconds since 1970.
    began: u64,
    /// By surface, endpoint and status.
    requests: Mutex<BTreeMap<(&'static str, &'static str, u16), u64>>,
    pub first_token: Histogram,
    pub inter_token: Histogram,
    pub duration: Histogram,
    pub prompt_tokens: AtomicU64,
    pub cached_tokens: AtomicU64,
    pub generated_tokens: AtomicU64,
    pub abandoned: AtomicU64,
    pub stalled: AtomicU64,
    pub parked: AtomicU64,
    pub connections_cut: Arc<AtomicU64>,
    pub resumed: AtomicU64,
    pub resume_failed: AtomicU64,
    pub open_streams: AtomicU64,
    pub grammar: GrammarMetrics,
    pub outcomes: Outcomes,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            began: now(),
            requests: Mutex::default(),
            first_token: Histogram::default(),
            inter_token: Histogram::default(),
            duration: Histogram::default(),
            prompt_tokens: AtomicU64::default(),
            cached_tokens: AtomicU64::default(),
            generated_tokens: AtomicU64::default(),
            abandoned: AtomicU64::default(),
            stalled: AtomicU64::default(),
            parked: AtomicU64::default(),
            connections_cut: Arc::default(),
            resumed: AtomicU64::default(),
            resume_failed: AtomicU64::default(),
            open_streams: AtomicU64::default(),
            grammar: GrammarMetrics::default(),
            outcomes: Outcomes::default(),
        }
    }
}

/// The promise in numbers: tool calls are valid, and the grammar is off the token path.
#[derive(Default)]
pub struct GrammarMetrics {
    /// Of all requests' [`GuideStats`].
    checked: AtomicU64,
    refused: AtomicU64,
    forced: AtomicU64,
    held: AtomicU64,
    masks: AtomicU64,
    nanos: AtomicU64,
    /// Finished calls that broke their schema where the grammar is laxer.
    pub invalid_calls: AtomicU64,
    /// Finished responses that broke theirs.
    pub invalid_responses: AtomicU64,
    /// From rules to a grammar; cached ones count too.
    pub compile: Histogram,
}

impl GrammarMetrics {
    pub fn add(&self, stats: &GuideStats) {
        for (counter, value) in [
            (&self.checked, stats.checked),
            (&self.refused, stats.refused),
            (&self.forced, stats.forced),
            (&self.held, stats.held),
            (&self.masks, stats.masks),
            (&self.nanos, stats.nanos),
        ] {
            counter.fetch_add(value, Ordering::Relaxed);
        }
    }

    fn write(&self, out: &mut String) {
        for (name, help, value) in [
            ("tokens_checked", "Drawn tokens that a grammar judged.", &self.checked),
            ("tokens_refused", "Drawn tokens that a grammar refused; each rewinds its sequence.", &self.refused),
            ("tokens_forced", "Tokens that a grammar left no choice about and that were not drawn.", &self.forced),
            ("held_steps", "Steps that waited for a mask.", &self.held),
            ("masks", "Masks computed.", &self.masks),
            ("invalid_calls", "Finished calls that broke their schema; they are not delivered.", &self.invalid_calls),
            (
                "invalid_responses",
                "Finished responses that broke their schema, choices or regular expression.",
                &self.invalid_responses,
            ),
        ] {
            let value = value.load(Ordering::Relaxed);
            let name = format!("rein_grammar_{name}_total");
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
        }
        let seconds = Duration::from_nanos(self.nanos.load(Ordering::Relaxed)).as_secs_f64();
        let name = "rein_grammar_seconds_total";
        let _ = writeln!(out, "# HELP {name} Time spent in grammars.\n# TYPE {name} counter\n{name} {seconds}");
        self.compile.write(
            out,
            "rein_grammar_compile_seconds",
            "From a request's rules to its grammar, cached or not.",
        );
    }
}

/// What `/metrics` says of one engine.
pub struct EngineReport {
    pub model: String,
    /// The group that it leads; a number where there are none.
    pub engine: String,
    pub epoch: u64,
    pub stats: Option<EngineStats>,
}

/// How many engines of a model have each standing.
pub struct PoolReport {
    pub model: String,
    pub format: &'static str,
    pub standings: [(&'static str, usize); 3],
    pub kinds: usize,
}

impl Metrics {
    pub fn request(&self, surface: &'static str, endpoint: &'static str, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((surface, endpoint, status)).or_default() += 1;
    }

    pub fn write(&self, in_flight: usize, limit: u32, pools: &[PoolReport], engines: &[EngineReport]) -> String {
        let mut out = String::new();
        self.write_process(&mut out);
        let _ = writeln!(
            out,
            "# HELP rein_requests_total Requests by surface, endpoint and status.\n# TYPE rein_requests_total counter"
        );
        for ((surface, endpoint, status), count) in &*self.requests.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = writeln!(
                out,
                "rein_requests_total{{surface=\"{surface}\",endpoint=\"{endpoint}\",status=\"{status}\"}} {count}"
            );
        }
        for (name, help, value) in [
            ("rein_prompt_tokens_total", "Prompt tokens of admitted sequences.", &self.prompt_tokens),
            (
                "rein_cached_tokens_total",
                "Prompt tokens of admitted sequences found in the prefix cache.",
                &self.cached_tokens,
            ),
            ("rein_generated_tokens_total", "Generated tokens that counted.", &self.generated_tokens),
            ("rein_abandoned_total", "Streams whose client left before the end.", &self.abandoned),
            ("rein_stalled_total", "Streams that ended because their client did not read.", &self.stalled),
            (
                "rein_parked_total",
                "Sequences that gave up their engine because their client did not read.",
                &self.parked,
            ),
            (
                "rein_stalled_connections_total",
                "Connections that were cut because the client did not read.",
                &self.connections_cut,
            ),
            ("rein_resumed_total", "Sequences that went on after their engine was lost.", &self.resumed),
            ("rein_resume_failed_total", "Sequences that lost their engine and found no other.", &self.resume_failed),
        ] {
            let value = value.load(Ordering::Relaxed);
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
        }
        for (name, help, value) in [
            ("rein_open_streams", "Generations that are running.", self.open_streams.load(Ordering::Relaxed)),
            ("rein_requests_in_flight", "Admitted requests.", in_flight as u64),
            ("rein_requests_in_flight_limit", "Requests in flight above which 429 is answered.", u64::from(limit)),
        ] {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
        }
        self.first_token.write(&mut out, "rein_time_to_first_token_seconds", "From the request to its first token.");
        self.inter_token.write(&mut out, "rein_inter_token_latency_seconds", "Between tokens of one choice.");
        self.duration.write(&mut out, "rein_generation_duration_seconds", "From the request to its end.");
        self.grammar.write(&mut out);
        self.outcomes.write(&mut out, pools.iter().map(|pool| (pool.model.as_str(), pool.format)));
        write_pools(&mut out, pools);
        write_engines(&mut out, engines);
        out
    }

    fn write_process(&self, out: &mut String) {
        let version = env!("CARGO_PKG_VERSION");
        let _ = writeln!(
            out,
            "# HELP rein_build_info Always 1; the version is a label.\n# TYPE rein_build_info gauge\n\
             rein_build_info{{version=\"{version}\"}} 1"
        );
        let name = "process_start_time_seconds";
        let help = "When this process began to serve, in seconds since 1970.";
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {}", self.began);
    }
}

pub fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn write_pools(out: &mut String, pools: &[PoolReport]) {
    let help = "Engines of a model, by what membership says of them.";
    let _ = writeln!(out, "# HELP rein_engines {help}\n# TYPE rein_engines gauge");
    for PoolReport { model, standings, .. } in pools {
        for (standing, count) in standings {
            let _ = writeln!(out, "rein_engines{{model=\"{}\",standing=\"{standing}\"}} {count}", escaped(model));
        }
    }
    let help = "Kinds of a model's engines (checkpoint, types, group size); more than 1: answers depend on where they are computed.";
    let _ = writeln!(out, "# HELP rein_engine_kinds {help}\n# TYPE rein_engine_kinds gauge");
    for PoolReport { model, kinds, .. } in pools {
        let _ = writeln!(out, "rein_engine_kinds{{model=\"{}\"}} {kinds}", escaped(model));
    }
}

fn write_engines(out: &mut String, engines: &[EngineReport]) {
    let label =
        |report: &EngineReport| format!("{{model=\"{}\",engine=\"{}\"}}", escaped(&report.model), report.engine);
    let _ = writeln!(out, "# HELP rein_engine_up Whether the engine answers.\n# TYPE rein_engine_up gauge");
    for report in engines {
        let _ = writeln!(out, "rein_engine_up{} {}", label(report), u8::from(report.stats.is_some()));
    }
    let help = "The placement epoch of the engine's group.";
    let _ = writeln!(out, "# HELP rein_engine_epoch {help}\n# TYPE rein_engine_epoch gauge");
    for report in engines {
        let _ = writeln!(out, "rein_engine_epoch{} {}", label(report), report.epoch);
    }
    for Number { name, kind, help, read } in NUMBERS {
        let (name, kind) = match kind {
            NumberKind::Gauge => (name.to_owned(), "gauge"),
            NumberKind::Counter => (format!("{name}_total"), "counter"),
        };
        let _ = writeln!(out, "# HELP rein_engine_{name} {help}.\n# TYPE rein_engine_{name} {kind}");
        for report in engines {
            if let Some(stats) = &report.stats {
                let _ = writeln!(out, "rein_engine_{name}{} {}", label(report), read(stats));
            }
        }
    }
}

#[cfg(test)]
mod tests;
