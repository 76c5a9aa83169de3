//! How a membership ends: the streams are told, the ranks are joined, the weights come home. A rank that cannot be joined
//! holds its threads and its weights for good, so the process is of no more use then.

use rein_control_plane::records::{Trouble, encode};
use tokio::time::{sleep, timeout};

use super::limits::ENGINE_END;
use super::seat::HOMECOMING;
use super::{Node, NodeError, Work};

impl Node {
    /// The group of this epoch is over: says so, and waits for what the controller makes of it.
    pub(super) async fn trouble(&mut self, reason: String, suspect: Option<usize>) {
        let Some(now) = &self.now else { return };
        let (group, rank, epoch) = (now.group.clone(), now.rank, now.record.epoch());
        tracing::warn!(group, epoch, ?suspect, reason, "the group is over");
        let keys = self.options.keys.clone();
        self.session.remove(&keys.ready(&group, rank));
        self.session.put(keys.trouble(&group, rank), encode(&Trouble { epoch, suspect, reason: reason.clone() }));
        self.end(&reason).await;
        self.say();
    }

    /// Ends what the present membership runs; the weights come home.
    async fn end(&mut self, reason: &str) {
        let Some(now) = &mut self.now else { return };
        now.links.cut(reason);
        now.relayout = None;
        self.switch.set(None);
        self.ended = None;
        let (engine, taken, ranks) = (now.engine.take(), now.taken.take(), now.ranks);
        let (ran, _) = (engine.is_some() || taken.is_some(), now.mirror.take());
        // Rank threads end with the links: the engine joins those of a leader, the others are joined here.
        let ends = async {
            if let Some(engine) = &engine {
                let abort = engine.abort();
                tokio::pin!(abort);
                if timeout(ENGINE_END, &mut abort).await.is_err() {
                    tracing::warn!("the engine is still in a step; its streams end without it");
                    engine.give_up(reason);
                    abort.await;
                }
            }
            if tokio::task::spawn_blocking(move || drop(taken)).await.is_err() {
                tracing::error!("a rank panicked");
            }
        };
        tokio::select! {
            biased;
            () = ends => {}
            () = self.patience() => {
                self.unfit = Some(NodeError::Stuck(format!("a rank goes on though its group is over ({reason})")));
                return;
            }
        }
        if ran && let Work::Model(_) = self.work {
            let homes = self.homes.1.clone();
            let home = self.homes.0.clone();
            let wait = move || {
                let until = std::time::Instant::now() + HOMECOMING;
                let mut back = Vec::new();
                while back.len() < ranks
                    && let Ok(resident) = homes.recv_deadline(until)
                {
                    back.push(resident);
                }
                back.into_iter().for_each(|resident| drop(home.send(resident)));
            };
            // They are read again if they do not come.
            let _ = tokio::task::spawn_blocking(wait).await;
        }
    }

    /// As long as a step may take: what has not ended by then never will.
    async fn patience(&self) {
        tokio::select! {
            () = sleep(ENGINE_END + self.options.step_deadline) => {}
            () = self.leaves() => {}
        }
    }

    /// Whoever is asked to leave does not wait for what may hang.
    async fn leaves(&self) {
        // The one who asks is gone: that is a request, too.
        let _ = self.leave.clone().wait_for(|leave| *leave).await;
        sleep(2 * ENGINE_END).await;
    }

    /// Leaves the present seat, if there is one.
    pub(super) async fn stand_up(&mut self, reason: &str) {
        let Some(now) = &self.now else { return };
        let (group, rank) = (now.group.clone(), now.rank);
        self.listener.fence(&group, now.record.epoch() + 1);
        now.links.cut(reason);
        if let Some(mut taking) = self.taking.take() {
            // Loading goes on to its end; a process that leaves cuts it short.
            let taken = tokio::select! {
                biased;
                taken = &mut taking => Some(taken),
                () = self.leaves() => None,
            };
            match taken {
                Some(Ok(Ok(taken))) => {
                    if let Some(now) = &mut self.now {
                        (now.engine, now.taken) = (taken.engine.clone(), Some(taken));
                    }
                }
                Some(Ok(Err(_))) => {}
                Some(Err(error)) => tracing::error!(%error, "taking the seat failed"),
                None => tracing::warn!("still loading"),
            }
        }
        self.end(reason).await;
        self.now = None;
        let keys = &self.options.keys;
        for key in [keys.ready(&group, rank), keys.trouble(&group, rank), keys.load(&group), keys.experts(&group)] {
            self.session.remove(&key);
        }
    }
}
