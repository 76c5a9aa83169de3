//! The engine's counters, readable while a step runs.

use std::sync::atomic::{AtomicU64, Ordering};

use rein_proto::internal::EngineStats;

macro_rules! metrics {
    ($($name:ident: $kind:ty),* $(,)?) => {
        /// What `Stats` reports, written by the engine thread after each round.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($name: AtomicU64,)*
        }

        impl Metrics {
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
}
