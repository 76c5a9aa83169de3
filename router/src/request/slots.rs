//! A request whose client does not read gives up its in-flight slots, and waits for them when the client reads again.
//! Its sequences learn only then that the client reads.

use tokio::{sync::watch, time::Instant};

use crate::{admission::HeldSlots, client_state::ClientState, error::Error};

pub struct SlotsWhileRead {
    client: watch::Receiver<ClientState>,
    /// What the sequences know of the client.
    told: watch::Sender<ClientState>,
    slots: HeldSlots,
    deadline: Instant,
}

/// Why a request ends that waits for its client.
pub enum Gone {
    TimedOut,
    Failed(Error),
}

impl SlotsWhileRead {
    pub fn new(client: watch::Receiver<ClientState>, slots: HeldSlots, deadline: Instant) -> Self {
        SlotsWhileRead { client, told: watch::Sender::new(ClientState::Reading), slots, deadline }
    }

    pub fn told(&self) -> watch::Receiver<ClientState> {
        self.told.subscribe()
    }

    /// Follows the client until the request must end. Cancel-safe.
    pub async fn follow(&mut self) -> Gone {
        loop {
            let client = *self.client.borrow_and_update();
            if client != *self.told.borrow() {
                match client {
                    ClientState::Reading => {
                        if let Err(error) = self.slots.take_back(self.deadline).await {
                            return Gone::Failed(error);
                        }
                    }
                    ClientState::Stalled => self.slots.give_up(),
                    ClientState::TimedOut => return Gone::TimedOut,
                }
                self.told.send_replace(client);
            }
            if self.client.changed().await.is_err() {
                // The sender is dropped: the state never changes again.
                std::future::pending().await
            }
        }
    }
}
