//! Waits until the ranks of this process have loaded. It does not know what they load.

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::thread::{LoadedRoom, RankReport};
use crate::checkpoint::{LoadError, Reads};
use crate::limits::STALL_CHECK_INTERVAL;

/// Owns the report queue, so that ranks which continue after a failure do not wait for a reader. Returns what the
/// ranks agreed on.
pub fn await_loaded(
    reports: Receiver<RankReport>,
    ranks: usize,
    total: u64,
    reads: &Reads,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<LoadedRoom, LoadError> {
    let (mut read, mut waiting, mut agreed) = (0, ranks, LoadedRoom::default());
    let mut failure: Option<LoadError> = None;
    while waiting > 0 {
        match reports.recv_timeout(STALL_CHECK_INTERVAL) {
            Ok(RankReport::Read(bytes)) => {
                read += bytes;
                progress(read.min(total), total);
            }
            Ok(RankReport::Loaded(Ok(room))) => {
                waiting -= 1;
                // Rank 0 alone knows what the host tier holds.
                if room.host.kept.len() >= agreed.host.kept.len() {
                    agreed = room;
                }
            }
            Ok(RankReport::Loaded(Err(error))) => {
                waiting -= 1;
                // Reports the first cause rather than the ranks that were aborted because of it.
                let aborted =
                    |error: &LoadError| matches!(error, LoadError::Kernel(rein_kernels::KernelError::Aborted(_)));
                if failure.as_ref().is_none_or(|known| aborted(known) && !aborted(&error)) {
                    failure = Some(error);
                }
            }
            Err(RecvTimeoutError::Timeout) => reads.stalled().map_or(Ok(()), Err)?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(LoadError::Rank { rank: 0, what: "a rank ended while it was loading".into() });
            }
        }
    }
    if let Some(error) = failure {
        return Err(error);
    }
    progress(total, total);
    Ok(agreed)
}
