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
mod tests;
