//! What a router counts of its generations.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    metrics::{Histogram, write_counters, write_gauges},
    request::{grammar_session::GuideStats, outcomes::Outcomes},
};

#[derive(Default)]
pub struct RequestMetrics {
    pub first_token: Histogram,
    pub inter_token: Histogram,
    pub duration: Histogram,
    pub prompt_tokens: AtomicU64,
    pub cached_tokens: AtomicU64,
    pub generated_tokens: AtomicU64,
    pub abandoned: AtomicU64,
    pub stalled: AtomicU64,
    pub open_streams: AtomicU64,
    pub grammar: GrammarMetrics,
    pub outcomes: Outcomes,
}

impl RequestMetrics {
    /// `models`: the names of those that are served, and their formats.
    pub fn write<'a>(&self, out: &mut String, models: impl Iterator<Item = (&'a str, &'static str)> + Clone) {
        write_counters(
            out,
            [
                ("rein_prompt_tokens_total", "Prompt tokens of admitted sequences.", &self.prompt_tokens),
                (
                    "rein_cached_tokens_total",
                    "Prompt tokens of admitted sequences found in the prefix cache.",
                    &self.cached_tokens,
                ),
                ("rein_generated_tokens_total", "Generated tokens that counted.", &self.generated_tokens),
                ("rein_abandoned_total", "Streams whose client left before the end.", &self.abandoned),
                ("rein_stalled_total", "Streams that ended because their client did not read.", &self.stalled),
            ],
        );
        let open = self.open_streams.load(Ordering::Relaxed);
        write_gauges(out, [("rein_open_streams", "Generations that are running.", open)]);
        self.first_token.write(out, "rein_time_to_first_token_seconds", "From the request to its first token.");
        self.inter_token.write(out, "rein_inter_token_latency_seconds", "Between tokens of one choice.");
        self.duration.write(out, "rein_generation_duration_seconds", "From the request to its end.");
        self.grammar.write(out);
        self.outcomes.write(out, models);
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
