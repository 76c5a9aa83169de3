//! Whether the client of a generation reads its answer.

use tokio::sync::watch;

/// What a generation knows of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientState {
    Reads,
    /// It has not read for a while: nothing is to be computed for it.
    Away,
    /// It has not read for so long that the request is over.
    Gone,
}

/// Returns when this is so, or if it is. Cancel-safe.
pub async fn becomes(client: &mut watch::Receiver<ClientState>, wanted: ClientState) {
    if client.wait_for(|client| *client == wanted).await.is_err() {
        // Nobody watches the client any more.
        std::future::pending().await
    }
}
