//! Ends a membership: streams are ended, ranks are joined, weights are returned. A rank that cannot be joined keeps its
//! threads and weights, so the process must then end. This module does not decide when a membership ends.

use rein_control_plane::epoch;
use rein_control_plane::records::{RankFailure, encode};
use tokio::time::{sleep, timeout};

use super::limits::ENGINE_END;
use super::seat::RETURN_TIME;
use super::{Node, NodeError, Workload};

impl Node {
    /// Reports that this epoch of the group has ended, and waits for the controller's decision.
    pub(super) async fn report_failure(&mut self, reason: String, suspect: Option<usize>) {
        let Some(now) = &self.now else { return };
        let (group, rank, epoch) = (now.group.clone(), now.rank, epoch::number(now.record.epoch()));
        tracing::warn!(group, epoch, suspect, reason, "left the group");
        let keys = self.options.keys.clone();
        self.session.remove(&keys.ready(&group, rank));
        self.session.put(
            keys.trouble(&group, rank),
            encode(&RankFailure { epoch: now.record.epoch(), suspect, reason: reason.clone() }),
        );
        self.end(&reason).await;
        self.publish_record();
    }

    /// Ends the current membership; its weights are returned.
    async fn end(&mut self, reason: &str) {
        let Some(now) = &mut self.now else { return };
        now.links.cut(reason);
        now.migration = None;
        now.loras = None;
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
                    tracing::warn!("the engine is still in a step; ending its streams without it");
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
                self.fatal = Some(NodeError::Stuck(format!(
                    "a rank did not stop within the step deadline after its group ended ({reason})"
                )));
                return;
            }
        }
        if ran && let Workload::Model(_) = self.work {
            let returned_weights = self.returned_weights.1.clone();
            let return_weights = self.returned_weights.0.clone();
            let wait = move || {
                let until = std::time::Instant::now() + RETURN_TIME;
                let mut back = Vec::new();
                while back.len() < ranks
                    && let Ok(resident) = returned_weights.recv_deadline(until)
                {
                    back.push(resident);
                }
                back.into_iter().for_each(|resident| drop(return_weights.send(resident)));
            };
            // Weights that do not come back are read again.
            let _ = tokio::task::spawn_blocking(wait).await;
        }
    }

    /// Waits as long as a step may take: a rank that is still running then never ends.
    async fn patience(&self) {
        tokio::select! {
            () = sleep(ENGINE_END + self.options.step_deadline) => {}
            () = self.leaves() => {}
        }
    }

    /// A leaving worker does not wait for a rank that may hang.
    async fn leaves(&self) {
        // If the sender is gone, the process is ending.
        let _ = self.leave.clone().wait_for(|leave| *leave).await;
        sleep(2 * ENGINE_END).await;
    }

    /// Leaves the current seat, if there is one.
    pub(super) async fn leave_seat(&mut self, reason: &str) {
        let Some(now) = &self.now else { return };
        let (group, rank) = (now.group.clone(), now.rank);
        self.listener.fence(&group, now.record.epoch() + 1);
        now.links.cut(reason);
        if let Some(mut taking) = self.taking.take() {
            // Loading runs to its end, unless the process is leaving.
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
                Some(Err(error)) => tracing::error!(%error, "taking the seat panicked"),
                None => tracing::warn!("leaving while weights are still loading"),
            }
        }
        self.end(reason).await;
        self.now = None;
        let keys = &self.options.keys;
        let of_leader = [keys.load(&group), keys.experts(&group), keys.group_loras(&group)];
        for key in [keys.ready(&group, rank), keys.trouble(&group, rank)].into_iter().chain(of_leader) {
            self.session.remove(&key);
        }
    }
}
