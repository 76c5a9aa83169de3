//! The LoRA adapters of one engine, as its record tells and as this router has changed them. It does not know engines.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rein_proto::internal::LoraInfo;
use tokio::time::Instant;

use crate::limits;

#[derive(Debug)]
pub struct EngineLoras(Mutex<Known>);

#[derive(Debug)]
struct Known {
    loras: Arc<Vec<LoraInfo>>,
    /// What this router did, by name; None: it unloaded the adapter. The engine's record follows.
    recent: Vec<(String, Option<LoraInfo>, Instant)>,
}

impl EngineLoras {
    pub fn new(loras: Vec<LoraInfo>) -> Self {
        EngineLoras(Mutex::new(Known { loras: Arc::new(loras), recent: Vec::new() }))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self) -> Arc<Vec<LoraInfo>> {
        self.known().loras.clone()
    }

    /// This router has loaded an adapter, or unloaded it.
    pub fn changed(&self, name: &str, lora: Option<LoraInfo>) {
        let mut known = self.known();
        known.recent.retain(|(recent, ..)| recent != name);
        known.recent.push((name.to_owned(), lora, Instant::now()));
        let loras = known.loras.to_vec();
        known.apply(loras);
    }

    /// The engine's record has these.
    pub fn told(&self, loras: &[LoraInfo]) {
        let mut known = self.known();
        known.recent.retain(|(.., at)| at.elapsed() < limits::LORA_SETTLE);
        known.apply(loras.to_vec());
    }
}

impl Known {
    fn apply(&mut self, mut loras: Vec<LoraInfo>) {
        for (name, lora, _) in &self.recent {
            loras.retain(|known| known.name != *name);
            loras.extend(lora.clone());
        }
        if *self.loras != loras {
            self.loras = Arc::new(loras);
        }
    }
}

#[cfg(test)]
mod tests;
