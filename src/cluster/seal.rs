//! The key with which the routers of a cluster seal what clients keep between requests. The first router creates it.
//! Routers put it back into a store that lost it.

use std::sync::Arc;
use std::time::Duration;

use rein_control_plane::records::{decode, encode};
use rein_control_plane::store::{KeyCondition, Store, StoreError, Transaction};
use rein_router::seal::{KEY_BYTES, Seal, random_key};
use tokio::time::sleep;

/// Pause between attempts until the key is known.
const RETRY: Duration = Duration::from_secs(1);
/// How often a router checks that the store still has the key.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

type Key = [u8; KEY_BYTES];

/// Sets the key and keeps it in the store. Never returns.
pub async fn share(seal: Seal, store: Arc<dyn Store>, key: String) {
    let mut own: Option<Key> = None;
    let mut warned = false;
    loop {
        match agree(&*store, &key, own).await {
            Ok(agreed) => {
                seal.set(&agreed);
                let other = *own.get_or_insert(agreed) != agreed;
                if other && !std::mem::replace(&mut warned, true) {
                    tracing::warn!("another seal key is in the store; restart this router to use it");
                }
                sleep(CHECK_INTERVAL).await;
            }
            Err(error) => {
                tracing::debug!(%error, "the seal key is not known yet");
                sleep(RETRY).await;
            }
        }
    }
}

/// The store's key; this router's, or a new one, if the store has none.
async fn agree(store: &dyn Store, key: &str, own: Option<Key>) -> Result<Key, StoreError> {
    let snapshot = store.read(key).await?;
    if let Some(known) = snapshot.entries.get(key).and_then(|entry| decode::<Key>(&entry.value).ok()) {
        return Ok(known);
    }
    let new = own.unwrap_or_else(random_key);
    let absent = match snapshot.entries.get(key) {
        None => KeyCondition::Absent(key.to_owned()),
        // It is no key.
        Some(entry) => KeyCondition::At(key.to_owned(), entry.revision),
    };
    match store.commit(Transaction::default().when(absent).put(key, encode(&new), None)).await? {
        Some(_) => Ok(new),
        None => Err(StoreError::Unavailable("another router writes the seal key".into())),
    }
}

#[cfg(test)]
mod tests;
