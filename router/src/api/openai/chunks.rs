//! State of one stream's chunks: the beginning of each choice, and the usage so far.

use std::collections::BTreeMap;

use rein_proto::v1::{self, chat_event::Event};

use super::{DeliveryOptions, wire::Usage};

/// The state for encoding the events of one answer as chunks.
///
/// The beginning of a choice (its role, the prompt's ids and logprobs) is sent with its first content, because clients
/// measure the time to the first token by the first chunk.
pub struct Chunks {
    pub(super) delivery: DeliveryOptions,
    /// The client asked for token ids.
    pub(super) token_ids: bool,
    /// The stream's id, model and creation time.
    pub(super) start: v1::Started,
    /// Choices whose beginning has not been sent.
    unsent: BTreeMap<u32, v1::Started>,
    prompt_tokens: u32,
    completion_tokens: u32,
}

impl Chunks {
    pub fn new(delivery: DeliveryOptions, token_ids: bool) -> Self {
        Chunks {
            delivery,
            token_ids,
            start: v1::Started::default(),
            unsent: BTreeMap::new(),
            prompt_tokens: 0,
            completion_tokens: 0,
        }
    }

    /// Updates the state. Must be called with every event, before it is encoded.
    pub(super) fn observe(&mut self, event: &v1::ChatEvent) {
        self.completion_tokens += event.token_ids.len() as u32;
        let Some(Event::Start(started)) = &event.event else { return };
        self.prompt_tokens += started.prompt_token_ids.len() as u32;
        if self.start.id.is_empty() {
            self.start = v1::Started { prompt_token_ids: Vec::new(), prompt_logprobs: Vec::new(), ..started.clone() };
        }
        let mut started = started.clone();
        if !self.token_ids {
            started.prompt_token_ids.clear();
        }
        self.unsent.insert(event.choice, started);
    }

    /// The beginning of the choice, if it has not been sent. The caller sends it.
    pub(super) fn beginning(&mut self, choice: u32) -> Option<v1::Started> {
        self.unsent.remove(&choice)
    }

    /// The usage of a chunk. None: not requested. Some(None): null, because the last chunk has it.
    pub(super) fn usage(&self, event: &v1::ChatEvent) -> Option<Option<Usage>> {
        match &event.event {
            Some(Event::Usage(total)) => Some(total.usage.as_ref().map(Usage::from)),
            _ if self.delivery.continuous_usage => {
                Some(Some(Usage::so_far(self.prompt_tokens, self.completion_tokens)))
            }
            _ => self.delivery.include_usage.then_some(None),
        }
    }

    /// Whether an event without content has token ids or logprobs to send.
    pub(super) fn has_token_details(&self, event: &v1::ChatEvent) -> bool {
        (self.token_ids && !event.token_ids.is_empty()) || !event.logprobs.is_empty()
    }
}
