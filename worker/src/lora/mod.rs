//! Low-rank adapters (LoRA, arXiv:2106.09685) of a model's linear modules, and their slots in an engine. It does not
//! know files, steps or devices.

mod slots;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use rein_proto::internal::LoraPart;

use crate::checkpoint::LoadError;
pub use slots::{LoraSlots, NoLoraSlot};

/// Where the adapters of an executor's model come from.
pub trait LoraSource: std::fmt::Debug + Send + Sync {
    /// The adapter in a directory.
    fn read(&self, dir: &Path) -> Result<Lora, LoadError>;
    /// Bytes that all adapters together may take on a rank.
    fn room(&self) -> usize;
}

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
