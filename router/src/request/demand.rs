//! How many requests of each model wait and run: what an autoscaler reads.
//!
//! A request waits from the moment when its model is known until an engine has begun to compute it. Then it runs until
//! it ends. This module does not know engines.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use crate::metrics::Samples;

#[derive(Debug, Default)]
struct Counts {
    waiting: AtomicUsize,
    running: AtomicUsize,
}

/// The requests of all models.
#[derive(Debug, Default)]
pub struct ModelDemand(Mutex<BTreeMap<String, Arc<Counts>>>);

/// A request that counts until it is dropped.
#[derive(Debug)]
pub struct CountedRequest {
    counts: Arc<Counts>,
    runs: AtomicBool,
}

impl ModelDemand {
    fn models(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Counts>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self, model: &str) -> Arc<Counts> {
        let mut models = self.models();
        if let Some(counts) = models.get(model) {
            return counts.clone();
        }
        models.entry(model.to_owned()).or_default().clone()
    }

    /// A request of this model waits. The name is that of a served or expected model, which bounds their number.
    pub fn enter(&self, model: &str) -> CountedRequest {
        let counts = self.counts(model);
        counts.waiting.fetch_add(1, Ordering::Relaxed);
        CountedRequest { counts, runs: AtomicBool::new(false) }
    }

    /// Writes the counts of these models, and of all that had requests.
    pub fn write(&self, samples: &mut Samples<'_>, models: impl Iterator<Item = String>) -> fmt::Result {
        models.for_each(|model| drop(self.counts(&model)));
        let of = |count: fn(&Counts) -> &AtomicUsize| -> Vec<_> {
            let models = self.models();
            models
                .iter()
                .map(|(name, counts)| ([("model", name.clone())], count(counts).load(Ordering::Relaxed)))
                .collect()
        };
        let help = "Requests of the model that no engine computes yet: in the router's queue, in an engine's queue, or \
            waiting for an engine";
        samples.gauge("rein_model_requests_waiting", help, of(|counts| &counts.waiting))?;
        let help = "Requests of the model that an engine computes";
        samples.gauge("rein_model_requests_running", help, of(|counts| &counts.running))
    }
}

impl CountedRequest {
    /// An engine has begun to compute the request.
    pub fn run(&self) {
        if !self.runs.swap(true, Ordering::Relaxed) {
            self.counts.running.fetch_add(1, Ordering::Relaxed);
            self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        let count = if *self.runs.get_mut() { &self.counts.running } else { &self.counts.waiting };
        count.fetch_sub(1, Ordering::Relaxed);
    }
}
