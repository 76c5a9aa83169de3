//! Whether the client of a generation reads its answer. It does not know how this is measured.

use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientState {
    Reading,
    /// It has read nothing for `STALL_GRACE`: its sequences give up their engines until it reads again.
    Stalled,
    /// It has read nothing for the client stall timeout: the request ends.
    TimedOut,
}

/// Waits until the client is in this state. Cancel-safe.
pub async fn wait_for_state(client: &mut watch::Receiver<ClientState>, wanted: ClientState) {
    if client.wait_for(|client| *client == wanted).await.is_err() {
        // The sender is dropped: the state never changes again.
        std::future::pending().await
    }
}
