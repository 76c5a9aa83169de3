//! The engine's counters, readable while a step runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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

/// Seconds; the upper ends of the buckets of [`StepTimes`].
pub const STEP_SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// How long steps took, written by the engine thread.
#[derive(Debug, Default)]
pub struct StepTimes {
    buckets: [AtomicU64; STEP_SECONDS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

/// [`StepTimes`] at a moment.
#[derive(Debug, Clone, PartialEq)]
pub struct StepTimesSeen {
    /// Steps per end of [`STEP_SECONDS`]; those that took longer are in none.
    pub buckets: [u64; STEP_SECONDS.len()],
    pub count: u64,
    pub time: Duration,
}

impl StepTimes {
    pub fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        if let Some(bucket) = STEP_SECONDS.iter().position(|&end| seconds <= end) {
            self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    pub fn seen(&self) -> StepTimesSeen {
        StepTimesSeen {
            buckets: std::array::from_fn(|i| self.buckets[i].load(Ordering::Relaxed)),
            count: self.count.load(Ordering::Relaxed),
            time: Duration::from_micros(self.micros.load(Ordering::Relaxed)),
        }
    }
}
