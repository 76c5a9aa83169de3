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
    pace: Pace,
}

#[derive(Debug, Clone, Copy)]
struct Pace {
    first: Duration,
    longest: Duration,
    /// After so many pauses what has happened does not count any more.
    calm: u32,
}

const REFORM: Pace = Pace { first: limits::REFORM_PAUSE, longest: limits::REFORM_PAUSE_LONGEST, calm: 2 };
const BLAME: Pace = Pace { first: limits::BLAME_PAUSE, longest: limits::BLAME_PAUSE_LONGEST, calm: 4 };

impl Series {
    /// A thing that is new at this time, and has not changed yet.
    pub fn begin(now: Duration) -> Self {
        Series { since: now, count: 0, pace: REFORM }
    }

    /// A worker that has not been blamed yet.
    pub fn blameless(now: Duration) -> Self {
        Series { since: now, count: 0, pace: BLAME }
    }

    /// It has changed. After a calm time, it counts as the first change.
    pub fn next(self, now: Duration) -> Self {
        let count = if now >= self.calm() { 1 } else { self.count.saturating_add(1) };
        Series { since: now, count, ..self }
    }

    /// When the last change was seen.
    pub fn since(self) -> Duration {
        self.since
    }

    fn pause(self) -> Duration {
        match self.count {
            0 => Duration::ZERO,
            count => self.pace.first.saturating_mul(1 << (count - 1).min(16)).min(self.pace.longest),
        }
    }

    /// When the next change may be made.
    pub fn due(self) -> Duration {
        self.since + self.pause()
    }

    /// As `due`, for a change that nobody's loss demands: it waits also after the beginning.
    pub fn due_later(self) -> Duration {
        self.since + self.pause().max(self.pace.first)
    }

    /// When what has happened does not count any more.
    pub fn calm(self) -> Duration {
        self.since + self.pace.calm * self.pause().max(self.pace.first)
    }
}
