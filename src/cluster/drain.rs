//! The command `rein drain`: asks a worker to leave and waits for it. It does not know how a worker leaves.

use std::error::Error;

use rein_control_plane::records::{Drain, WorkerRecord, decode, encode};
use rein_control_plane::{Mirror, Transaction};

use super::{keep_alive, keys, store, store_error};
use crate::args::DrainArgs;
use crate::terminal;

pub fn run(args: DrainArgs) -> Result<(), Box<dyn Error>> {
    let (keys, store) = (keys(&args.cluster)?, store(&args.cluster)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let key = keys.worker(&args.worker);
        let there = |snapshot: &rein_control_plane::Snapshot| snapshot.entries.contains_key(&key);
        let snapshot = store.read(&key).await.map_err(|error| store_error(&args.cluster, error))?;
        let Some(entry) = snapshot.entries.get(&key) else {
            let cluster = &args.cluster.cluster;
            return Err(
                format!("cluster {cluster} has no worker {:?}; `rein status` lists its workers", args.worker).into()
            );
        };
        // A worker whose record cannot be decoded can be asked too.
        let incarnation = decode::<WorkerRecord>(&entry.value).map_or(u64::MAX, |record| record.incarnation);
        let asked = encode(&Drain { incarnation });
        store.commit(Transaction::default().put(keys.drain(&args.worker), asked, None)).await?;
        terminal::out(format_args!("rein: {} was asked to leave", args.worker));
        if args.no_wait {
            return Ok(());
        }
        let _alive = keep_alive(store.clone(), key.clone());
        let mut mirror = Mirror::new(store.clone(), "drain", key.clone());
        let mut view = mirror.read().await;
        while there(&view) {
            view = mirror.changed().await;
        }
        // A worker deletes the request before it leaves.
        let asked = keys.drain(&args.worker);
        match store.read(&asked).await?.entries.contains_key(&asked) {
            false => terminal::out(format_args!("rein: {} has left", args.worker)),
            true => terminal::out(format_args!(
                "rein: {} left without draining: it was killed, hung, or lost its connection to etcd",
                args.worker
            )),
        }
        Ok(())
    })
}
