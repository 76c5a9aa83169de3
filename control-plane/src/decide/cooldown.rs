//! How soon a group may change again: pauses that double while changes follow each other.
//!
//! This module does not know what a change is.

use std::time::Duration;

use crate::limits;

/// The cooldown after a series of changes.
#[derive(Debug, Clone, Copy)]
pub struct Cooldown {
    /// When the last change was seen.
    since: Duration,
    count: u32,
    schedule: Schedule,
}

#[derive(Debug, Clone, Copy)]
struct Schedule {
    first: Duration,
    longest: Duration,
    /// After this many pauses without a change, the series is forgotten.
    calm: u32,
}

const REFORM: Schedule = Schedule { first: limits::REFORM_PAUSE, longest: limits::MAX_REFORM_PAUSE, calm: 2 };
const BLAME: Schedule = Schedule { first: limits::BLAME_PAUSE, longest: limits::MAX_BLAME_PAUSE, calm: 4 };

impl Cooldown {
    /// Starts without any change.
    pub fn new(now: Duration) -> Self {
        Cooldown { since: now, count: 0, schedule: REFORM }
    }

    /// For a worker that has not been blamed yet.
    pub fn for_blame(now: Duration) -> Self {
        Cooldown { since: now, count: 0, schedule: BLAME }
    }

    /// Records a change. Once the last series is forgotten, this is the first change of a new one.
    pub fn after_change(self, now: Duration) -> Self {
        let count = if now >= self.expires() { 1 } else { self.count.saturating_add(1) };
        Cooldown { since: now, count, ..self }
    }

    /// When the last change was seen.
    pub fn since(self) -> Duration {
        self.since
    }

    fn pause(self) -> Duration {
        match self.count {
            0 => Duration::ZERO,
            count => self.schedule.first.saturating_mul(1 << (count - 1).min(16)).min(self.schedule.longest),
        }
    }

    /// When the next change may be made.
    pub fn due(self) -> Duration {
        self.since + self.pause()
    }

    /// As `due`, for a change that no lost worker forces: it waits the shortest pause even if there was no change yet.
    pub fn due_unforced(self) -> Duration {
        self.since + self.pause().max(self.schedule.first)
    }

    /// When the series is forgotten.
    pub fn expires(self) -> Duration {
        self.since + self.schedule.calm * self.pause().max(self.schedule.first)
    }
}
