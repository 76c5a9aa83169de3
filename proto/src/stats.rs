//! The metrics of an engine, for routers and workers. This module does not know how they are exported.

use crate::internal::EngineStats;

pub struct Number {
    /// Name without a prefix, and for counters without `_total`.
    pub name: &'static str,
    pub kind: NumberKind,
    /// One sentence or more, without the last full stop.
    pub help: &'static str,
    pub read: fn(&EngineStats) -> u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberKind {
    Gauge,
    Counter,
}

const fn gauge(name: &'static str, help: &'static str, read: fn(&EngineStats) -> u64) -> Number {
    Number { name, kind: NumberKind::Gauge, help, read }
}

const fn counter(name: &'static str, help: &'static str, read: fn(&EngineStats) -> u64) -> Number {
    Number { name, kind: NumberKind::Counter, help, read }
}

pub const NUMBERS: [Number; 20] = [
    gauge("running_sequences", "Sequences in the batch", |s| s.running as u64),
    gauge("waiting_sequences", "Sequences in the queue", |s| s.waiting as u64),
    gauge("used_blocks", "KV blocks in use", |s| s.used_blocks as u64),
    gauge("blocks", "KV blocks in total", |s| s.total_blocks as u64),
    counter("steps", "Steps executed", |s| s.steps),
    counter("prefill_tokens", "Prompt tokens computed", |s| s.prefill_tokens),
    counter("cached_tokens", "Prompt tokens taken from the prefix cache", |s| s.cached_tokens),
    counter("generated_tokens", "Tokens drawn, those refused later included", |s| s.generated_tokens),
    counter("preemptions", "Sequences that were preempted", |s| s.preemptions),
    counter("steers", "Steers received", |s| s.steers),
    counter("rewound_tokens", "Tokens rewound by steers", |s| s.rewound_tokens),
    counter("held_steps", "Steps in which a row waited for its steer", |s| s.held_steps),
    counter("cancelled", "Sequences whose router closed the stream", |s| s.cancelled),
    counter("draft_tokens", "Draft tokens: computed before they were drawn", |s| s.draft_tokens),
    counter("accepted_tokens", "Draft tokens that were then drawn", |s| s.accepted_tokens),
    gauge("held_blocks", "Cached KV blocks of conversations whose tool runs", |s| s.held_blocks as u64),
    gauge("host_blocks", "KV blocks in the host tier", |s| s.host_blocks as u64),
    gauge("host_places", "KV blocks that the host tier can hold", |s| s.host_places as u64),
    counter("restored_tokens", "Prompt tokens copied back from the host tier", |s| s.restored_tokens),
    counter("damaged_blocks", "KV blocks that were damaged in the host tier, and computed again", |s| s.damaged_blocks),
];
