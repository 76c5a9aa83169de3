//! What a node waits for beside the store. Each wait never ends while there is nothing to wait for.

use rein_control_plane::records::LinkReport;
use rein_kernels::collective::tcp::Abort;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::probe::Probing;
use super::seat::{SeatError, TakenSeat};

pub async fn probe_report(probing: &mut Option<Probing>) -> LinkReport {
    match probing {
        Some(probing) => probing.changed().await,
        None => std::future::pending().await,
    }
}

pub async fn finished(taking: &mut Option<JoinHandle<Result<TakenSeat, SeatError>>>) -> Result<TakenSeat, SeatError> {
    let Some(handle) = taking else { return std::future::pending().await };
    let taken = handle.await;
    *taking = None;
    taken.unwrap_or_else(|panic| Err(SeatError::because(format!("taking the seat panicked: {panic}"), None)))
}

pub async fn group_aborted(ended: &mut Option<oneshot::Receiver<Abort>>) -> Abort {
    let Some(receiver) = ended else { return std::future::pending().await };
    let told = receiver.await;
    *ended = None;
    match told {
        Ok(abort) => abort,
        Err(_) => std::future::pending().await,
    }
}
