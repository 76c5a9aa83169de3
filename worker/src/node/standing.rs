//! The state of a worker, as it knows it.

use std::sync::Arc;

use rein_control_plane::records::GroupRecord;
use tokio::time::Instant;

#[derive(Debug, Clone, Default)]
pub enum WorkerStanding {
    /// The store does not have its registration.
    #[default]
    Unknown,
    /// Another worker is registered under its id.
    Displaced,
    Spare,
    /// It could not load and does not offer itself for a while.
    Away,
    /// It is taking a seat, or waits for the controller after its group ended.
    Seating,
    Leads,
    Follows {
        group: String,
        record: Arc<GroupRecord>,
    },
    Leaving,
}

impl WorkerStanding {
    pub fn name(&self) -> &'static str {
        match self {
            WorkerStanding::Unknown => "unknown",
            WorkerStanding::Displaced => "displaced",
            WorkerStanding::Spare => "spare",
            WorkerStanding::Away => "away",
            WorkerStanding::Seating => "seating",
            WorkerStanding::Leads => "leads",
            WorkerStanding::Follows { .. } => "follows",
            WorkerStanding::Leaving => "leaving",
        }
    }

    fn is_like(&self, other: &WorkerStanding) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// The current state, since when, and the epoch of the last seat.
#[derive(Debug, Clone)]
pub struct CurrentStanding {
    pub standing: WorkerStanding,
    pub since: Instant,
    pub epoch: u64,
}

impl Default for CurrentStanding {
    fn default() -> Self {
        CurrentStanding { standing: WorkerStanding::Unknown, since: Instant::now(), epoch: 0 }
    }
}

impl CurrentStanding {
    pub fn becomes(&mut self, standing: WorkerStanding, epoch: u64) {
        if !self.standing.is_like(&standing) {
            self.since = Instant::now();
        }
        (self.standing, self.epoch) = (standing, epoch);
    }
}
