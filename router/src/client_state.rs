//! Whether the client of a generation reads its answer. It does not know how this is measured.

use tokio::sync::watch;

/// Whether the client reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientState {
    Reads,
    /// It has read nothing for `STALL_GRACE`: its sequences give up their engines until it reads again.
    Away,
    /// It has read nothing for the client stall timeout: the request ends.
    Gone,
}

/// Waits until the client is in this state. Cancel-safe.
pub async fn becomes(client: &mut watch::Receiver<ClientState>, wanted: ClientState) {
    if client.wait_for(|client| *client == wanted).await.is_err() {
        // The sender is dropped: the state never changes again.
        std::future::pending().await
    }
}
