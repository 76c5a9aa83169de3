//! The last known state of all keys under a prefix. A store that cannot be reached changes nothing in it.

use std::{convert::Infallible, sync::Arc};

use futures::StreamExt;
use tokio::{sync::watch, task::AbortHandle};

use crate::{
    retry::Backoff,
    store::{Snapshot, Store, StoreError, Watch},
};

/// Follows until the last clone is dropped.
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
    /// Empty at revision 0 until the store has been read. Who follows decides when it tries again, not to be in step.
    pub fn new(store: Arc<dyn Store>, who: &str, prefix: impl Into<String>) -> Self {
        let (sender, view) = watch::channel(Arc::new(Snapshot::default()));
        let task = tokio::spawn(follow(store, Backoff::new(who), prefix.into(), sender));
        Mirror { view, _task: Arc::new(Following(task.abort_handle())) }
    }

    pub fn view(&self) -> Arc<Snapshot> {
        self.view.borrow().clone()
    }

    /// The next state that has not been returned by this clone's `changed` before.
    pub async fn changed(&mut self) -> Arc<Snapshot> {
        match self.view.changed().await {
            Ok(()) => self.view.borrow_and_update().clone(),
            // The task ends with the last clone only.
            Err(_) => std::future::pending().await,
        }
    }

    /// Once the store has been read.
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

/// All keys under a prefix, and every change from there on.
///
/// They are read again once the watch is there: a store that begins anew between a read and the watch counts its
/// revisions from the start, and the watch would wait for one that is far away. After that, losing everything ends it.
pub(crate) async fn sight(store: &dyn Store, prefix: &str) -> Result<(Snapshot, Watch), StoreError> {
    let before = store.read(prefix).await?.revision;
    let changes = store.watch(prefix, before).await?;
    let snapshot = store.read(prefix).await?;
    if snapshot.revision < before {
        return Err(StoreError::Unavailable("it began anew while it was read".into()));
    }
    let known = snapshot.revision;
    let later = changes.filter(move |changes| {
        let told = changes.as_ref().is_ok_and(|changes| changes.revision <= known);
        async move { !told }
    });
    Ok((snapshot, later.boxed()))
}

async fn follow(store: Arc<dyn Store>, mut backoff: Backoff, prefix: String, view: watch::Sender<Arc<Snapshot>>) {
    loop {
        let error = watch_once(&*store, &prefix, &view, &mut backoff).await;
        backoff.failed("lost sight of the store; the last known state stays", &error);
        backoff.wait().await;
    }
}

/// Reads all and watches from there: the watch that broke is not taken up at its revision, whether the store still keeps the
/// changes since then or not. A store that has begun anew may count that revision again, of other changes, so it would have to
/// be read anyway; and nothing is lost that a mirror promises, which is what there is now and not each change on the way.
async fn watch_once(
    store: &dyn Store,
    prefix: &str,
    view: &watch::Sender<Arc<Snapshot>>,
    backoff: &mut Backoff,
) -> StoreError {
    let mut session = async || -> Result<Infallible, StoreError> {
        let (snapshot, mut changes) = sight(store, prefix).await?;
        backoff.reset();
        // Also if it looks as before: what came and went meanwhile is news for who put it.
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
