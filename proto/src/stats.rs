//! The metrics of an engine, for routers and workers. This module does not know how they are exported.

use crate::internal::EngineStats;

pub struct Number {
    /// Name without a prefix.
    pub name: &'static str,
    /// `gauge` or `counter`.
    pub kind: &'static str,
    pub help: &'static str,
    pub read: fn(&EngineStats) -> u64,
}

const fn gauge(name: &'static str, help: &'static str, read: fn(&EngineStats) -> u64) -> Number {
    Number { name, kind: "gauge", help, read }
}

const fn counter(name: &'static str, help: &'static str, read: fn(&EngineStats) -> u64) -> Number {
    Number { name, kind: "counter", help, read }
}

pub const NUMBERS: [Number; 13] = [
    gauge("running_sequences", "Sequences in the batch.", |s| s.running as u64),
    gauge("waiting_sequences", "Sequences in the queue.", |s| s.waiting as u64),
    gauge("used_blocks", "KV blocks in use.", |s| s.used_blocks as u64),
    gauge("blocks", "KV blocks in total.", |s| s.total_blocks as u64),
    counter("steps_total", "Steps executed.", |s| s.steps),
    counter("prefill_tokens_total", "Prompt tokens computed.", |s| s.prefill_tokens),
    counter("cached_tokens_total", "Prompt tokens taken from the prefix cache.", |s| s.cached_tokens),
    counter("generated_tokens_total", "Tokens drawn.", |s| s.generated_tokens),
    counter("preemptions_total", "Sequences that were preempted.", |s| s.preemptions),
    counter("steers_total", "Steers received.", |s| s.steers),
    counter("rewound_tokens_total", "Tokens rewound by steers.", |s| s.rewound_tokens),
    counter("held_steps_total", "Steps in which a row waited for its steer.", |s| s.held_steps),
    counter("cancelled_total", "Sequences whose router closed the stream.", |s| s.cancelled),
];
