//! The LoRA adapters of the group that a worker leads: those of its own options, and those that routers have asked for.
//! It does not know files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rein_control_plane::records::{GroupLoras, LoraRecord, WantedLora, decode};
use rein_control_plane::{Mirror, Store};
use rein_proto::internal::{LoadLoraRequest, LoraInfo};
use tokio::task::JoinHandle;

use super::NodeOptions;
use crate::service::{EngineService, LoraError};

/// Time until an adapter that could not be loaded is tried again.
const RETRY: Duration = Duration::from_secs(30);

/// An adapter by name, and its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedLora {
    pub name: String,
    pub path: String,
}

type Loaded = (NamedLora, Result<LoraInfo, LoraError>);

/// Makes the engine's adapters what they shall be.
pub struct LoraKeeper {
    model: String,
    own: Vec<NamedLora>,
    wanted: Mirror,
    /// At most one is loaded at a time.
    loading: Option<JoinHandle<Loaded>>,
    failed: BTreeMap<String, (NamedLora, Instant)>,
    /// Those that this keeper has seen asked for; they leave when they are no more.
    asked: BTreeSet<String>,
    /// What the group told last.
    told: Option<GroupLoras>,
}

impl LoraKeeper {
    pub fn new(store: Arc<dyn Store>, NodeOptions { keys, id, loras, .. }: &NodeOptions, model: &str) -> Self {
        LoraKeeper {
            model: model.to_owned(),
            own: loras.clone(),
            wanted: Mirror::new(store, id, keys.loras()),
            loading: None,
            failed: BTreeMap::new(),
            asked: BTreeSet::new(),
            told: None,
        }
    }

    /// By name. What routers ask for goes before the worker's own. None: the store has not been read yet.
    fn wishes(&self) -> Option<(BTreeMap<String, NamedLora>, BTreeSet<String>)> {
        let view = self.wanted.view();
        if view.revision == 0 {
            return None;
        }
        let mut wishes: BTreeMap<String, NamedLora> =
            self.own.iter().map(|lora| (lora.name.clone(), lora.clone())).collect();
        let mut asked = BTreeSet::new();
        for entry in view.entries.values() {
            let Ok(WantedLora { model, name, path }) = decode(&entry.value) else { continue };
            if model == self.model {
                asked.insert(name.clone());
                wishes.insert(name.clone(), NamedLora { name, path });
            }
        }
        Some((wishes, asked))
    }

    /// Takes the next step, and never waits. What the group is to tell of its adapters, if that has changed.
    pub async fn follow(&mut self, engine: &EngineService, epoch: u64) -> Option<GroupLoras> {
        self.step(engine).await;
        let record = |LoraInfo { name, digest, path, rank }| LoraRecord { name, digest, path, rank };
        let report = GroupLoras { epoch, loras: engine.loras().into_iter().map(record).collect() };
        (self.told.as_ref() != Some(&report)).then(|| self.told.insert(report).clone())
    }

    async fn step(&mut self, engine: &EngineService) {
        if let Some(loading) = self.loading.take_if(|loading| loading.is_finished()) {
            match loading.await {
                Ok((_, Ok(_))) => {}
                Ok((lora, Err(error))) => {
                    let NamedLora { name, path } = &lora;
                    tracing::error!(name, path, %error, "a LoRA adapter cannot be loaded; trying again later");
                    self.failed.insert(name.clone(), (lora, Instant::now()));
                }
                Err(panic) => tracing::error!(%panic, "loading a LoRA adapter panicked"),
            }
        }
        if self.loading.is_some() {
            return;
        }
        let Some((wishes, asked)) = self.wishes() else { return };
        let loaded = engine.loras();
        let gone = |lora: &&LoraInfo| self.asked.contains(&lora.name) && !wishes.contains_key(&lora.name);
        for lora in loaded.iter().filter(gone) {
            // The engine may have stopped: then it has none.
            let _ = engine.unload_lora(lora.name.clone()).await;
        }
        self.asked = asked;
        let has = |wish: &NamedLora| loaded.iter().any(|lora| (&lora.name, &lora.path) == (&wish.name, &wish.path));
        let waits = |wish: &NamedLora| {
            let failed = self.failed.get(&wish.name);
            failed.is_some_and(|(lora, at)| lora == wish && at.elapsed() < RETRY)
        };
        if let Some(next) = wishes.into_values().find(|wish| !has(wish) && !waits(wish)) {
            let engine = engine.clone();
            self.loading = Some(tokio::spawn(async move {
                let NamedLora { name, path } = next.clone();
                let loaded = engine.load_lora(LoadLoraRequest { name, path, replace: true }).await;
                (next, loaded)
            }));
        }
    }
}
