//! What an engine behind an adapter is asked and does, as metrics. It does not know how they are exported.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;
use rein_proto::internal::EngineStats;

use crate::course::CourseStats;
use crate::draw::{DrawReason, DrawRequest};

/// Upper bounds of the seconds from a Steer to the token after it.
const REFUSAL_SECONDS: [f64; 10] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];
/// Upper bounds of the number of ids that a mask allows.
const MASK_WIDTHS: [f64; 8] = [2.0, 8.0, 32.0, 128.0, 512.0, 1024.0, 8192.0, 65_536.0];

/// Counts of an engine, from its start.
#[derive(Debug)]
pub struct EngineCounters {
    requests: [AtomicU64; DrawReason::ALL.len()],
    pub recomputed_tokens: AtomicU64,
    pub cached_tokens: AtomicU64,
    pub prefill_tokens: AtomicU64,
    pub aborts: AtomicU64,
    pub redraws: AtomicU64,
    pub running: AtomicU64,
    pub cancelled: AtomicU64,
    pub steers: AtomicU64,
    pub rewound: AtomicU64,
    pub generated: AtomicU64,
    /// From a Steer with a mask to the token after it.
    pub refusal_seconds: Histogram,
    /// Number of ids that masks allow.
    pub mask_widths: Histogram,
}

impl Default for EngineCounters {
    fn default() -> Self {
        EngineCounters {
            requests: Default::default(),
            recomputed_tokens: AtomicU64::default(),
            cached_tokens: AtomicU64::default(),
            prefill_tokens: AtomicU64::default(),
            aborts: AtomicU64::default(),
            redraws: AtomicU64::default(),
            running: AtomicU64::default(),
            cancelled: AtomicU64::default(),
            steers: AtomicU64::default(),
            rewound: AtomicU64::default(),
            generated: AtomicU64::default(),
            refusal_seconds: Histogram::new(REFUSAL_SECONDS),
            mask_widths: Histogram::new(MASK_WIDTHS),
        }
    }
}

pub fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl EngineCounters {
    pub fn requested(&self, request: &DrawRequest) {
        let place = DrawReason::ALL.iter().position(|why| *why == request.why);
        if let Some(counter) = place.and_then(|place| self.requests.get(place)) {
            add(counter, 1);
        }
        if let Some(width) = request.width {
            self.mask_widths.observe(width as f64);
        }
    }

    pub fn refused(&self, time: Duration) {
        self.refusal_seconds.observe(time.as_secs_f64());
    }

    /// Adds what a sequence has done between two looks.
    pub fn add_course(&self, before: CourseStats, now: CourseStats) {
        add(&self.steers, now.steers - before.steers);
        add(&self.rewound, now.rewound - before.rewound);
        add(&self.redraws, now.redraws - before.redraws);
        add(&self.generated, now.generated - before.generated);
    }

    pub fn requests(&self) -> impl Iterator<Item = (DrawReason, u64)> {
        DrawReason::ALL.into_iter().zip(&self.requests).map(|(why, count)| (why, count.load(Ordering::Relaxed)))
    }

    /// As an engine of Rein's own reports it. Steps are requests.
    pub fn stats(&self, slots: u32, blocks: u32) -> EngineStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let open = read(&self.running);
        let running = open.min(slots.into());
        let held = self.requests().find(|(why, _)| *why == DrawReason::Held).map_or(0, |(_, count)| count);
        EngineStats {
            running: running as u32,
            waiting: (open - running) as u32,
            used_blocks: 0,
            total_blocks: blocks,
            steps: self.requests().map(|(_, count)| count).sum(),
            prefill_tokens: read(&self.prefill_tokens),
            cached_tokens: read(&self.cached_tokens),
            generated_tokens: read(&self.generated),
            preemptions: 0,
            steers: read(&self.steers),
            rewound_tokens: read(&self.rewound),
            held_steps: held,
            cancelled: read(&self.cancelled),
            ..EngineStats::default()
        }
    }
}
