//! The load reports of a group's leader: when a report is due, and its contents. It does not know the store.

use rein_control_plane::records::Load;
use rein_proto::internal::EngineStats;
use tokio::time::Instant;

use super::limits::LOAD_INTERVAL;

/// A report, and what the next one is compared with.
pub struct LoadReport {
    pub load: Load,
    at: Instant,
    generated_tokens: u64,
}

impl LoadReport {
    /// The next report: every [`LOAD_INTERVAL`], and at once when the group becomes busy or idle.
    pub fn due(last: Option<&LoadReport>, now: Instant, epoch: u64, stats: &EngineStats) -> Option<Self> {
        let idle = |running: u32, waiting: u32| running + waiting == 0;
        let is_due = |last: &LoadReport| {
            let was_idle = idle(last.load.running, last.load.waiting);
            now - last.at >= LOAD_INTERVAL || was_idle != idle(stats.running, stats.waiting)
        };
        if !last.is_none_or(is_due) {
            return None;
        }
        let rate = |last: &LoadReport| {
            let tokens = stats.generated_tokens.saturating_sub(last.generated_tokens);
            let seconds = (now - last.at).as_secs_f64();
            if seconds > 0.0 { (tokens as f64 / seconds).round() as u32 } else { 0 }
        };
        let load = Load {
            epoch,
            running: stats.running,
            waiting: stats.waiting,
            used_blocks: stats.used_blocks,
            total_blocks: stats.total_blocks,
            tokens_per_second: last.map_or(0, rate),
        };
        Some(LoadReport { load, at: now, generated_tokens: stats.generated_tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(running: u32, generated_tokens: u64) -> EngineStats {
        EngineStats { running, generated_tokens, ..EngineStats::default() }
    }

    #[test]
    fn reports_come_at_an_interval_and_when_the_group_becomes_busy_or_idle() {
        let began = Instant::now();
        let due = |last: &LoadReport, after, stats| LoadReport::due(Some(last), began + after, 1, &stats);
        let first = LoadReport::due(None, began, 1, &stats(0, 50)).expect("the first report is due");
        assert_eq!(first.load.tokens_per_second, 0);
        assert!(due(&first, LOAD_INTERVAL / 2, stats(0, 50)).is_none());
        let busy = due(&first, LOAD_INTERVAL / 2, stats(1, 50)).expect("it became busy");
        assert!(due(&busy, LOAD_INTERVAL, stats(1, 150)).is_none());
        let later = due(&busy, LOAD_INTERVAL * 3 / 2, stats(1, 250)).expect("the interval is over");
        assert_eq!(later.load.tokens_per_second, 40);
        let idle = due(&later, LOAD_INTERVAL * 2, stats(0, 300)).expect("it became idle");
        assert_eq!(idle.load.tokens_per_second, 20);
    }
}
