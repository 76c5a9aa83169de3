//! Checks that a worker's checkpoint is unchanged: a spare whose checkpoint was overwritten could not load, and reports
//! that before it is needed.

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::limits::CHECKPOINT_LOOK;
use super::{Node, NodeError, Workload};
use crate::checkpoint::LoadError;

#[derive(Default)]
pub struct CheckpointWatch {
    looked: Option<Instant>,
    looking: Option<JoinHandle<Result<(), LoadError>>>,
    warned: bool,
}

impl Node {
    /// Ends a worker without a seat whose checkpoint has changed. A worker that has loaded continues until it has to
    /// read again.
    pub(super) async fn check_checkpoint(&mut self) {
        let Workload::Model(model) = &self.work else { return };
        let checkpoint_watch = &mut self.checkpoint_watch;
        if let Some(done) = checkpoint_watch.looking.take_if(|looking| looking.is_finished()) {
            // Other errors are reported by loading.
            let changed = done.await.ok().and_then(Result::err).filter(LoadError::is_final);
            if let Some(changed) = changed {
                if self.now.is_none() && self.taking.is_none() {
                    self.fatal = Some(NodeError::Checkpoint(changed.to_string()));
                } else if !std::mem::replace(&mut checkpoint_watch.warned, true) {
                    tracing::error!(
                        "{changed}; this worker continues with the loaded weights and ends when it has to read them again"
                    );
                }
            }
        }
        // A check that hangs has not ended; loading will report it.
        if checkpoint_watch.looking.is_none()
            && checkpoint_watch.looked.is_none_or(|at| at.elapsed() >= CHECKPOINT_LOOK)
        {
            checkpoint_watch.looked = Some(Instant::now());
            let model = model.clone();
            checkpoint_watch.looking = Some(tokio::task::spawn_blocking(move || model.check_unmodified()));
        }
    }
}
