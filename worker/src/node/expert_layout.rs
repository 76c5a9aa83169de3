//! Moves experts while a group serves: a member loads the placement's layout, the leader switches to a layout that all
//! have loaded, and publishes how much each expert is used. It does not decide where experts go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rein_control_plane::rebalance::worst;
use rein_control_plane::records::{ExpertLoad, GroupRecord, Keys, decode};
use rein_control_plane::{Placement, Revision, Snapshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::limits::{EXPERTS_CHANGE, EXPERTS_CHECK_INTERVAL, EXPERTS_HALF_LIFE, EXPERTS_INTERVAL, LAYOUT_RETRY};
use super::readiness::member_readiness;
use crate::checkpoint::LoadError;
use crate::rank::Layouts;

/// The group's record as last read, so that each value is decoded once.
#[derive(Default)]
pub struct StoredRecord {
    revision: Revision,
    pub record: Option<Arc<GroupRecord>>,
}

impl StoredRecord {
    /// Reads the placement in the store.
    pub fn read(&mut self, view: &Snapshot, key: &str) -> Option<Revision> {
        let entry = view.entries.get(key)?;
        if self.revision != entry.revision {
            self.revision = entry.revision;
            match decode(&entry.value) {
                Ok(record) => self.record = Some(Arc::new(record)),
                // The controller writes it again.
                Err(_) => tracing::error!(key, bytes = entry.value.len(), "cannot decode the placement"),
            }
        }
        Some(entry.revision)
    }
}

struct Loading {
    placement: Arc<Placement>,
    task: JoinHandle<Result<bool, LoadError>>,
}

pub struct ExpertMigration {
    layouts: Arc<Layouts>,
    /// The layout loaded last.
    layout: u64,
    loading: Option<Loading>,
    stop: Arc<AtomicBool>,
    retry: Option<Instant>,
    usage: Usage,
    told: Option<PublishedUsage>,
}

/// What was published of the use of experts.
struct PublishedUsage {
    at: Instant,
    layout: u64,
    imbalance: f64,
}

impl ExpertMigration {
    pub fn new(layouts: Arc<Layouts>, layout: u64) -> Self {
        let usage = Usage::new(layouts.counts().unwrap_or_default());
        ExpertMigration { layouts, layout, loading: None, stop: Arc::default(), retry: None, usage, told: None }
    }

    /// Starts to load `wanted` if it is another layout. Returns the placement that was loaded since the last call. An
    /// error means that this process can load no other layout either.
    pub async fn follow(&mut self, wanted: &Placement) -> Result<Option<Arc<Placement>>, LoadError> {
        if self.loading.is_some()
            && let Some(stalled) = self.layouts.stalled()
        {
            return Err(stalled);
        }
        if let Some(loading) = self.loading.take_if(|loading| loading.task.is_finished()) {
            let layout = loading.placement.layout;
            match loading.task.await {
                Ok(Ok(true)) => {
                    tracing::info!(layout, "loaded the experts of a new layout");
                    self.layout = layout;
                    return Ok(Some(loading.placement));
                }
                Ok(Ok(false)) => {}
                Ok(Err(error)) if error.is_final() => return Err(error),
                Ok(Err(error)) => tracing::error!(layout, %error, "cannot load the layout; keeping the current one"),
                Err(error) => tracing::error!(layout, %error, "loading a layout panicked"),
            }
            self.retry = Some(Instant::now() + LAYOUT_RETRY);
        }
        let waits = self.retry.is_some_and(|retry| Instant::now() < retry);
        if self.loading.is_none() && wanted.layout != self.layout && !waits {
            let (placement, layouts, stop) = (Arc::new(wanted.clone()), self.layouts.clone(), self.stop.clone());
            let goal = placement.clone();
            let task = tokio::task::spawn_blocking(move || layouts.load(&goal, &stop));
            self.loading = Some(Loading { placement, task });
        }
        Ok(None)
    }

    /// For the leader: switches to the record's layout once all members have loaded it.
    pub fn lead(&self, view: &Snapshot, keys: &Keys, group: &str, record: &GroupRecord) {
        let layout = record.placement.layout;
        if layout == self.layout && record.is_ready(Some(layout), member_readiness(keys, group, view)) {
            self.layouts.switch(layout);
        }
    }

    /// For the leader: the use of experts, if it changed enough to be published. It is large, and the store keeps
    /// history.
    pub fn usage(&mut self, record: &GroupRecord) -> Option<ExpertLoad> {
        let now = Instant::now();
        let rows = self.usage.add(now, || self.layouts.counts())?;
        let (layout, imbalance) = (self.layouts.used(), worst(&record.placement, &rows));
        let known = |told: &PublishedUsage| {
            let same = told.layout == layout && (told.imbalance - imbalance).abs() < EXPERTS_CHANGE;
            same && now < told.at + EXPERTS_INTERVAL
        };
        if self.told.as_ref().is_some_and(known) {
            return None;
        }
        self.told = Some(PublishedUsage { at: now, layout, imbalance });
        Some(ExpertLoad { epoch: record.epoch(), layout, rows })
    }
}

impl Drop for ExpertMigration {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Exponentially decaying counts, from counters that only grow.
struct Usage {
    last: Vec<Vec<u64>>,
    rows: Vec<Vec<f64>>,
    at: Instant,
}

impl Usage {
    fn new(last: Vec<Vec<u64>>) -> Self {
        let rows = last.iter().map(|layer| vec![0.0; layer.len()]).collect();
        Usage { last, rows, at: Instant::now() }
    }

    fn add(&mut self, now: Instant, counts: impl FnOnce() -> Option<Vec<Vec<u64>>>) -> Option<Vec<Vec<u32>>> {
        let passed = now.duration_since(self.at);
        if passed < EXPERTS_CHECK_INTERVAL {
            return None;
        }
        let counts = counts()?;
        if counts == self.last {
            return None;
        }
        self.at = now;
        let fades = 0.5f64.powf(passed.as_secs_f64() / EXPERTS_HALF_LIFE.as_secs_f64());
        for ((rows, counts), last) in self.rows.iter_mut().zip(&counts).zip(&self.last) {
            for ((rows, count), last) in rows.iter_mut().zip(counts).zip(last) {
                *rows = *rows * fades + (count - last) as f64;
            }
        }
        self.last = counts;
        Some(self.rows.iter().map(|layer| layer.iter().map(|rows| *rows as u32).collect()).collect())
    }
}

#[cfg(test)]
mod tests;
