//! What the chunks of one stream have in common: its beginning, and the usage so far.

use std::collections::BTreeMap;

use rein_proto::v1::{self, chat_event::Event};

use super::{DeliveryOptions, wire::Usage};

/// Encodes the events of one answer as the payloads of its stream.
///
/// How a choice begins (its role, the prompt's ids and logprobs) goes out with its first content: clients take the time
/// of the first chunk for the time to the first token.
pub struct Chunks {
    pub(super) delivery: DeliveryOptions,
    /// The client asked for token ids.
    pub(super) token_ids: bool,
    /// The stream's id, model and time.
    pub(super) start: v1::Started,
    /// Choices of which nothing has been sent.
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

    /// To be called with every event, before it is encoded.
    pub(super) fn note(&mut self, event: &v1::ChatEvent) {
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

    /// How the choice began, if this is the first of it that is sent.
    pub(super) fn beginning(&mut self, choice: u32) -> Option<v1::Started> {
        self.unsent.remove(&choice)
    }

    /// The usage of a chunk. None: none was asked for. Some(None): null, because it comes at the end.
    pub(super) fn usage(&self, event: &v1::ChatEvent) -> Option<Option<Usage>> {
        match &event.event {
            Some(Event::Usage(total)) => Some(total.usage.as_ref().map(Usage::from)),
            _ if self.delivery.continuous_usage => {
                Some(Some(Usage::so_far(self.prompt_tokens, self.completion_tokens)))
            }
            _ => self.delivery.include_usage.then_some(None),
        }
    }

    /// Whether an event without content has something to tell all the same.
    pub(super) fn reports(&self, event: &v1::ChatEvent) -> bool {
        (self.token_ids && !event.token_ids.is_empty()) || !event.logprobs.is_empty()
    }
}
