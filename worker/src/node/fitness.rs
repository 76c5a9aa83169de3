//! Whether a worker could still take a seat: a spare whose checkpoint somebody has written to is of no use, and says so before
//! it is needed.

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::limits::CHECKPOINT_LOOK;
use super::{Node, NodeError, Work};
use crate::checkpoint::LoadError;

#[derive(Default)]
pub struct Fitness {
    looked: Option<Instant>,
    looking: Option<JoinHandle<Result<(), LoadError>>>,
    warned: bool,
}

impl Node {
    /// Ends a worker without a seat that could take none. One that has its weights goes on until it has to read again.
    pub(super) async fn look_after_checkpoint(&mut self) {
        let Work::Model(model) = &self.work else { return };
        let fitness = &mut self.fitness;
        if let Some(done) = fitness.looking.take_if(|looking| looking.is_finished()) {
            // Whatever else is wrong, loading will tell.
            let changed = done.await.ok().and_then(Result::err).filter(LoadError::is_final);
            if let Some(changed) = changed {
                if self.now.is_none() && self.taking.is_none() {
                    self.unfit = Some(NodeError::Checkpoint(changed.to_string()));
                } else if !std::mem::replace(&mut fitness.warned, true) {
                    tracing::error!(
                        "{changed}; this worker serves with what it has loaded, and ends when it has to read again"
                    );
                }
            }
        }
        // A look that hangs is one that has not ended; it counts when something is to be loaded.
        if fitness.looking.is_none() && fitness.looked.is_none_or(|at| at.elapsed() >= CHECKPOINT_LOOK) {
            fitness.looked = Some(Instant::now());
            let model = model.clone();
            fitness.looking = Some(tokio::task::spawn_blocking(move || model.unwritten()));
        }
    }
}
