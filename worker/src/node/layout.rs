//! Experts that move while their group serves: a member loads what the placement says now, the leader goes over to a
//! layout that all have loaded, and says how much each expert is used.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rein_control_plane::rebalance::worst;
use rein_control_plane::records::{ExpertLoad, GroupRecord, Keys, decode};
use rein_control_plane::{Placement, Revision, Snapshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::limits::{EXPERTS_CHANGE, EXPERTS_HALF_LIFE, EXPERTS_LOOK, EXPERTS_TELL, LAYOUT_RETRY};
use super::ready::said;
use crate::checkpoint::LoadError;
use crate::rank::Layouts;

/// What the group's key said last, so that it is read once.
#[derive(Default)]
pub struct Known {
    revision: Revision,
    pub record: Option<Arc<GroupRecord>>,
}

impl Known {
    /// The placement as the store has it.
    pub fn read(&mut self, view: &Snapshot, key: &str) -> Option<Revision> {
        let entry = view.entries.get(key)?;
        if self.revision != entry.revision {
            self.revision = entry.revision;
            let record = decode(&entry.value).inspect_err(|error| tracing::error!(key, %error, "cannot be read"));
            self.record = record.ok().map(Arc::new);
        }
        Some(entry.revision)
    }
}

struct Loading {
    placement: Arc<Placement>,
    task: JoinHandle<Result<bool, LoadError>>,
}

pub struct Relayout {
    layouts: Arc<Layouts>,
    /// Loaded last.
    layout: u64,
    loading: Option<Loading>,
    stop: Arc<AtomicBool>,
    retry: Option<Instant>,
    usage: Usage,
    told: Option<Told>,
}

/// What the cluster knows of how experts are used.
struct Told {
    at: Instant,
    layout: u64,
    imbalance: f64,
}

impl Relayout {
    pub fn new(layouts: Arc<Layouts>, layout: u64) -> Self {
        let usage = Usage::new(layouts.counts().unwrap_or_default());
        Relayout { layouts, layout, loading: None, stop: Arc::default(), retry: None, usage, told: None }
    }

    /// Loads what is wanted, if that is something else. What has been loaded since the last call. An error: this process
    /// cannot load any other either.
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
                    tracing::info!(layout, "experts loaded");
                    self.layout = layout;
                    return Ok(Some(loading.placement));
                }
                Ok(Ok(false)) => {}
                Ok(Err(error)) if error.is_final() => return Err(error),
                Ok(Err(error)) => tracing::error!(layout, %error, "the layout cannot be loaded; the present one stays"),
                Err(error) => tracing::error!(layout, %error, "loading a layout failed"),
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

    /// The leader's: goes over to the layout of the record once all members have loaded it.
    pub fn lead(&self, view: &Snapshot, keys: &Keys, group: &str, record: &GroupRecord) {
        let layout = record.placement.layout;
        if layout == self.layout && record.is_ready(Some(layout), said(keys, group, view)) {
            self.layouts.switch(layout);
        }
    }

    /// The leader's: how much experts are used, if that is worth saying: it is large, and the store keeps what was.
    pub fn usage(&mut self, record: &GroupRecord) -> Option<ExpertLoad> {
        let now = Instant::now();
        let rows = self.usage.add(now, || self.layouts.counts())?;
        let (layout, imbalance) = (self.layouts.used(), worst(&record.placement, &rows));
        let known = |told: &Told| {
            let same = told.layout == layout && (told.imbalance - imbalance).abs() < EXPERTS_CHANGE;
            same && now < told.at + EXPERTS_TELL
        };
        if self.told.as_ref().is_some_and(known) {
            return None;
        }
        self.told = Some(Told { at: now, layout, imbalance });
        Some(ExpertLoad { epoch: record.epoch(), layout, rows })
    }
}

impl Drop for Relayout {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A moving window over counts that only grow.
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
        if passed < EXPERTS_LOOK {
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
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn older_rows_count_less() {
        let mut usage = Usage::new(vec![vec![], vec![10, 0]]);
        let began = Instant::now();
        let counted = |a, b| Some(vec![vec![], vec![a, b]]);
        assert_eq!(usage.add(began + EXPERTS_LOOK / 2, || counted(20, 0)), None, "too early");
        assert_eq!(usage.add(began + EXPERTS_LOOK, || counted(10, 0)), None, "nothing new");
        let later = began + EXPERTS_HALF_LIFE;
        assert_eq!(usage.add(later, || counted(110, 40)), Some(vec![vec![], vec![100, 40]]));
        assert_eq!(usage.add(later + EXPERTS_HALF_LIFE, || counted(110, 50)), Some(vec![vec![], vec![50, 30]]));
    }
}
