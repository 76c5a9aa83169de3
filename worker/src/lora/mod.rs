//! Low-rank adapters (LoRA, arXiv:2106.09685) of a model's linear modules: read from PEFT's files, and kept by slot. It
//! does not know steps or devices.

mod config;
mod files;
mod limits;
mod slots;

use std::sync::Arc;

use bytes::Bytes;
use rein_proto::internal::LoraPart;

pub use files::LoraReader;
pub use limits::LoraLimits;
pub use slots::{LoraSlots, NoLoraSlot};

/// An adapter in memory, until the ranks have it.
#[derive(Debug)]
pub struct Lora {
    /// Of its files.
    pub digest: u64,
    /// The largest of its modules.
    pub rank: usize,
    /// On the rank that needs most.
    pub bytes: usize,
    pub modules: Vec<LoraModule>,
}

/// Of one module, whole.
#[derive(Debug, Clone)]
pub struct LoraModule {
    pub module: Arc<str>,
    pub rank: usize,
    /// Little-endian f32: [rank, in].
    pub down: Bytes,
    /// [out, rank], with the adapter's scale.
    pub up: Bytes,
}

impl LoraModule {
    pub fn part(self, slot: u32) -> LoraPart {
        let LoraModule { module, rank, down, up } = self;
        LoraPart { slot, module: module.to_string(), rank: rank as u32, down, up }
    }
}
