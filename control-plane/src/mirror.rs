//! A local copy of all keys under a prefix. While the store is unreachable, the last known state stays.
//!
//! This module does not know what the keys mean.

use std::{convert::Infallible, sync::Arc};

use futures::StreamExt;
use tokio::{sync::watch, task::AbortHandle};

use crate::{
    backoff::Backoff,
    store::{ChangeStream, Snapshot, Store, StoreError},
};

/// Follows the store until the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Mirror {
    view: watch::Receiver<Arc<Snapshot>>,
    _task: Arc<Following>,
}

#[derive(Debug)]
struct Following(AbortHandle);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Mirror {
    /// Empty at revision 0 until the store has been read. `who` seeds the retry jitter.
    pub fn new(store: Arc<dyn Store>, who: &str, prefix: impl Into<String>) -> Self {
        let (sender, view) = watch::channel(Arc::new(Snapshot::default()));
        let task = tokio::spawn(follow(store, Backoff::new(who), prefix.into(), sender));
        Mirror { view, _task: Arc::new(Following(task.abort_handle())) }
    }

    pub fn view(&self) -> Arc<Snapshot> {
        self.view.borrow().clone()
    }

    /// Waits for a state that this clone's `changed` has not returned before.
    pub async fn changed(&mut self) -> Arc<Snapshot> {
        match self.view.changed().await {
            Ok(()) => self.view.borrow_and_update().clone(),
            // The task ends only with the last clone.
            Err(_) => std::future::pending().await,
        }
    }

    /// Waits until the store has been read.
    pub async fn read(&mut self) -> Arc<Snapshot> {
        loop {
            let view = self.view.borrow_and_update().clone();
            if view.revision > 0 {
                return view;
            }
            self.changed().await;
        }
    }
}

/// All keys under a prefix, and a stream of every later change.
///
/// The keys are read again once the watch exists. If the store was reset between the read and the watch, its revisions
/// start over, and the watch would wait for a far revision. After that point, a reset ends the watch.
pub(crate) async fn read_and_watch(store: &dyn Store, prefix: &str) -> Result<(Snapshot, ChangeStream), StoreError> {
    let before = store.read(prefix).await?.revision;
    let changes = store.watch(prefix, before).await?;
    let snapshot = store.read(prefix).await?;
    if snapshot.revision < before {
        return Err(StoreError::Unavailable("the store was reset during the read".into()));
    }
    let known = snapshot.revision;
    let later = changes.filter(move |changes| {
        let seen = changes.as_ref().is_ok_and(|changes| changes.revision <= known);
        async move { !seen }
    });
    Ok((snapshot, later.boxed()))
}

async fn follow(store: Arc<dyn Store>, mut backoff: Backoff, prefix: String, view: watch::Sender<Arc<Snapshot>>) {
    loop {
        let error = watch_once(&*store, &prefix, &view, &mut backoff).await;
        let message = match view.borrow().revision {
            0 => "cannot reach the store",
            _ => "lost the watch of the store; keeping the last known state",
        };
        backoff.failed(message, &error);
        backoff.wait().await;
    }
}

/// Reads everything, then watches. A broken watch is not resumed at its revision: a store that was reset may reuse
/// revisions for other changes, so a read is needed anyway. A mirror promises the current state, not each change on the
/// way.
async fn watch_once(
    store: &dyn Store,
    prefix: &str,
    view: &watch::Sender<Arc<Snapshot>>,
    backoff: &mut Backoff,
) -> StoreError {
    let mut session = async || -> Result<Infallible, StoreError> {
        let (snapshot, mut changes) = read_and_watch(store, prefix).await?;
        backoff.reset();
        // Published even if it looks the same: keys may have been deleted and put again meanwhile.
        view.send_replace(Arc::new(snapshot));
        while let Some(changes) = changes.next().await {
            let changes = changes?;
            view.send_modify(|known| Arc::make_mut(known).apply(changes));
        }
        Err(StoreError::Unavailable("the watch ended".into()))
    };
    match session().await {
        Err(error) => error,
        Ok(never) => match never {},
    }
}
