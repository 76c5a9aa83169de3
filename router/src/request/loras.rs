//! Loads and unloads LoRA adapters. It must not know HTTP, gRPC or status codes.

use std::sync::Arc;

use rein_control_plane::records::{WantedLora, encode};
use rein_control_plane::{Keys, Store, Transaction};
use rein_proto::internal::{LoadLoraRequest, LoraInfo};

use crate::{
    error::{Error, ErrorKind},
    limits,
};

use super::model::ServedModel;

/// The store of a cluster, whose groups get the adapters that are asked for there.
pub struct LoraStore {
    pub store: Arc<dyn Store>,
    pub keys: Keys,
}

impl LoraStore {
    async fn commit(&self, change: Transaction) -> Result<(), Error> {
        let failed = |cause| Error {
            cause: Some(cause),
            ..Error::unavailable("the cluster's store does not answer; the adapter may be lost when a group restarts")
        };
        match self.store.commit(change).await {
            Ok(_) => Ok(()),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

/// Loads the adapter into all engines of the model, and into those that come later.
pub async fn load(model: &ServedModel, request: LoadLoraRequest, store: Option<&LoraStore>) -> Result<LoraInfo, Error> {
    let lora = model.pool.load_lora(&request).await?;
    if let Some(store) = store {
        let LoadLoraRequest { name, path, .. } = request;
        let wanted = WantedLora { model: model.base_name().to_owned(), name, path };
        let key = store.keys.lora(&wanted.model, &wanted.name);
        store.commit(Transaction::default().put(key, encode(&wanted), None)).await?;
    }
    Ok(lora)
}

/// Unloads it from all engines of the model. Sequences that have it keep it.
pub async fn unload(model: &ServedModel, name: &str, store: Option<&LoraStore>) -> Result<(), Error> {
    if let Some(store) = store {
        // First, so that no group loads it again.
        store.commit(Transaction::default().delete(store.keys.lora(model.base_name(), name))).await?;
    }
    model.pool.unload_lora(name).await
}

/// The name of an adapter that is to be loaded.
pub fn check_name(name: &str) -> Result<(), Error> {
    match name.len() {
        1..=limits::LORA_NAME_BYTES => Ok(()),
        bytes => {
            let most = limits::LORA_NAME_BYTES;
            Err(Error::invalid("lora_name", format!("'lora_name' must have from 1 to {most} bytes, got {bytes}")))
        }
    }
}

pub fn not_loaded(name: &str) -> Error {
    let message = format!("the LoRA adapter '{name}' is not loaded");
    Error { param: Some("lora_name".into()), code: Some("lora_not_found"), ..Error::new(ErrorKind::NotFound, message) }
}
