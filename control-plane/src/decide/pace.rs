//! How soon a group may be changed again: pauses that double while changes follow each other, whatever they are for. It does
//! not know what a change is.

use std::time::Duration;

use crate::limits;

/// Changes of one thing that followed each other without a calm time in between.
#[derive(Debug, Clone, Copy)]
pub struct Series {
    /// When the last one was seen.
    since: Duration,
    count: u32,
}

impl Series {
    /// A thing that is new at this time, and has not changed yet.
    pub fn begin(now: Duration) -> Self {
        Series { since: now, count: 0 }
    }

    /// It has changed. After a time twice as long as the pause, it counts as the first change.
    pub fn next(self, now: Duration) -> Self {
        let count = if now >= self.calm() { 1 } else { self.count.saturating_add(1) };
        Series { since: now, count }
    }

    /// When the last change was seen.
    pub fn since(self) -> Duration {
        self.since
    }

    fn pause(self) -> Duration {
        match self.count {
            0 => Duration::ZERO,
            count => limits::REFORM_PAUSE.saturating_mul(1 << (count - 1).min(16)).min(limits::REFORM_PAUSE_LONGEST),
        }
    }

    /// When the next change may be made.
    pub fn due(self) -> Duration {
        self.since + self.pause()
    }

    /// As `due`, for a change that nobody's loss demands: it waits also after the beginning.
    pub fn due_later(self) -> Duration {
        self.since + self.pause().max(limits::REFORM_PAUSE)
    }

    /// When what has happened does not count any more.
    pub fn calm(self) -> Duration {
        self.since + 2 * self.pause().max(limits::REFORM_PAUSE)
    }
}
