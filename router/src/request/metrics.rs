//! Metrics of a router's generations and grammars.

use std::{fmt, sync::atomic::AtomicU64, time::Duration};

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

use rein_text::tokenize::PromptCacheStats;

use crate::{
    metrics::{Durations, Samples},
    request::{grammar_session::GrammarStats, outcomes::Outcomes},
};

#[derive(Default)]
pub struct RequestMetrics {
    pub first_token: Durations,
    pub inter_token: Durations,
    pub duration: Durations,
    pub prompt_tokens: Counter,
    pub cached_tokens: Counter,
    pub generated_tokens: Counter,
    pub abandoned: Counter,
    pub stalled: Counter,
    pub open_streams: Gauge,
    pub grammar: GrammarMetrics,
    pub outcomes: Outcomes,
}

impl RequestMetrics {
    pub fn register(&self, registry: &mut Registry) {
        for (name, help, counter) in [
            ("rein_prompt_tokens", "Prompt tokens of admitted sequences", &self.prompt_tokens),
            ("rein_cached_tokens", "Prompt tokens of admitted sequences found in a prefix cache", &self.cached_tokens),
            ("rein_generated_tokens", "Accepted tokens, drawn or forced", &self.generated_tokens),
            ("rein_abandoned", "Streams that the client closed before the end", &self.abandoned),
            (
                "rein_stalled",
                "Streams that ended because the client did not read for `--client-stall-timeout`",
                &self.stalled,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
        registry.register("rein_open_streams", "Running generations", self.open_streams.clone());
        for (name, help, durations) in [
            ("rein_time_to_first_token_seconds", "Time from the request to its first token", &self.first_token),
            ("rein_inter_token_latency_seconds", "Time between tokens of one choice", &self.inter_token),
            ("rein_generation_duration_seconds", "Time from the request to its end", &self.duration),
        ] {
            durations.register(registry, name, help);
        }
        self.grammar.register(registry);
        self.outcomes.register(registry);
    }
}

/// Writes the counters of the models' prompt caches.
pub fn write_prompt_caches(samples: &mut Samples<'_>, caches: &[(String, PromptCacheStats)]) -> fmt::Result {
    let labels = |model: &String| [("model", model.clone())];
    let help = "Memory of the model's prompt cache";
    samples.gauge("rein_prompt_cache_bytes", help, caches.iter().map(|(m, stats)| (labels(m), stats.bytes as u64)))?;
    let help = "Bytes of rendered prompts whose tokens were in the prompt cache";
    samples.counter(
        "rein_prompt_cache_hit_bytes",
        help,
        caches.iter().map(|(m, stats)| (labels(m), stats.hit_bytes)),
    )?;
    let help = "Bytes of rendered prompts that were tokenized";
    samples.counter(
        "rein_prompt_cache_missed_bytes",
        help,
        caches.iter().map(|(m, stats)| (labels(m), stats.missed_bytes)),
    )
}

/// Metrics that show whether tool calls are valid and what grammars cost.
#[derive(Default)]
pub struct GrammarMetrics {
    /// Sums of all requests' [`GrammarStats`].
    checked: Counter,
    refused: Counter,
    forced: Counter,
    held: Counter,
    masks: Counter,
    seconds: Counter<f64, AtomicU64>,
    /// Finished calls that violate their schema in a part that the grammar does not enforce.
    pub invalid_calls: Counter,
    /// Finished responses that violate their schema, choices or regular expression.
    pub invalid_responses: Counter,
    /// Compile times; cached grammars count too.
    pub compile: Durations,
}

impl GrammarMetrics {
    pub fn add(&self, stats: &GrammarStats) {
        for (counter, value) in [
            (&self.checked, stats.checked),
            (&self.refused, stats.refused),
            (&self.forced, stats.forced),
            (&self.held, stats.held),
            (&self.masks, stats.masks),
        ] {
            counter.inc_by(value);
        }
        self.seconds.inc_by(Duration::from_nanos(stats.nanos).as_secs_f64());
    }

    fn register(&self, registry: &mut Registry) {
        for (name, help, counter) in [
            ("rein_grammar_tokens_checked", "Drawn tokens that a grammar checked", &self.checked),
            (
                "rein_grammar_tokens_refused",
                "Drawn tokens that a grammar refused; each rewinds its sequence by a few tokens",
                &self.refused,
            ),
            ("rein_grammar_tokens_forced", "Tokens that a grammar forced, so they were not drawn", &self.forced),
            ("rein_grammar_held_steps", "Steps that waited for a mask", &self.held),
            ("rein_grammar_masks", "Masks computed", &self.masks),
            (
                "rein_grammar_invalid_calls",
                "Finished calls that violate their schema; not delivered as calls",
                &self.invalid_calls,
            ),
            (
                "rein_grammar_invalid_responses",
                "Finished responses that violate their schema, choices or regular expression: answers with \
                `invalid_response`",
                &self.invalid_responses,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
        registry.register("rein_grammar_seconds", "Time spent in grammars", self.seconds.clone());
        let help = "Time to compile a request's grammar; cached grammars count too";
        self.compile.register(registry, "rein_grammar_compile_seconds", help);
    }
}
