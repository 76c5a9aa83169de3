//! The engine's counters, readable while a step runs. This module does not know how they are shown.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::histogram::Histogram;
use rein_proto::internal::EngineStats;

macro_rules! metrics {
    ($($name:ident: $kind:ty),* $(,)?) => {
        /// The counters that `Stats` reports. The engine thread writes them after each round.
        #[derive(Debug, Default)]
        pub struct EngineMetrics {
            $($name: AtomicU64,)*
        }

        impl EngineMetrics {
            pub fn publish(&self, stats: &EngineStats) {
                $(self.$name.store(stats.$name.into(), Ordering::Relaxed);)*
            }

            pub fn snapshot(&self) -> EngineStats {
                EngineStats { $($name: self.$name.load(Ordering::Relaxed) as $kind,)* }
            }
        }
    };
}

metrics! {
    running: u32,
    waiting: u32,
    used_blocks: u32,
    total_blocks: u32,
    steps: u64,
    prefill_tokens: u64,
    cached_tokens: u64,
    generated_tokens: u64,
    preemptions: u64,
    steers: u64,
    rewound_tokens: u64,
    held_steps: u64,
    cancelled: u64,
    host_blocks: u32,
    host_places: u32,
    restored_tokens: u64,
    damaged_blocks: u64,
    held_blocks: u32,
    draft_tokens: u64,
    accepted_tokens: u64,
}

/// Upper bounds of the buckets of step durations, in seconds.
const STEP_SECONDS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// Durations of steps in seconds. The engine thread writes them.
pub fn step_times() -> Histogram {
    Histogram::new(STEP_SECONDS)
}
