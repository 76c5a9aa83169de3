//! LoRA adapters that an engine loads while it runs.

use std::sync::Arc;

use rein_proto::internal::LoraInfo;
use tokio::sync::oneshot;

use super::EngineThread;
use crate::lora::{Lora, NoLoraSlot};

impl EngineThread {
    pub(super) fn load_lora(
        &mut self,
        [name, path]: [String; 2],
        lora: Arc<Lora>,
        reply: oneshot::Sender<Result<LoraInfo, NoLoraSlot>>,
    ) {
        match self.loras.load(&name, &path, lora) {
            Ok(slot) => drop(self.lora_replies.insert(slot, reply)),
            // The caller may have given up.
            Err(full) => drop(reply.send(Err(full))),
        }
    }

    pub(super) fn lora_arrived(&mut self, slot: u32) {
        let Some(info) = self.loras.arrived(slot) else { return };
        tracing::info!(name = info.name, slot, rank = info.rank, "loaded a LoRA adapter");
        self.publish_loras();
        if let Some(reply) = self.lora_replies.remove(&slot) {
            // The caller may have given up.
            let _ = reply.send(Ok(info));
        }
    }

    pub(super) fn publish_loras(&self) {
        self.vitals.loras.send_replace(self.loras.ready().cloned().collect());
    }
}
