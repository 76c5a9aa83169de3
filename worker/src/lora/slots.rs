//! Which adapter is in which slot, and what the ranks still have to get. It does not know files.

use std::collections::VecDeque;
use std::sync::Arc;

use rein_proto::internal::{LoraInfo, LoraPart};

use super::Lora;

/// About so many bytes of adapters go with a step.
const STEP_BYTES: usize = 8 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoraState {
    /// The ranks do not have all of it yet.
    Coming,
    Ready,
    /// Emptied when the last sequence that has it has ended.
    Leaving,
}

#[derive(Debug)]
struct Slot {
    info: LoraInfo,
    bytes: usize,
    state: LoraState,
    /// Open sequences.
    users: usize,
}

/// The adapters of an engine.
#[derive(Debug)]
pub struct LoraSlots {
    slots: Vec<Option<Slot>>,
    /// Bytes of a rank.
    room: usize,
    pending: VecDeque<Pending>,
}

#[derive(Debug)]
enum Pending {
    Part(Box<LoraPart>),
    /// All parts of this slot have been sent.
    Whole(u32),
}

impl Pending {
    fn slot(&self) -> u32 {
        match self {
            Pending::Part(part) => part.slot,
            Pending::Whole(slot) => *slot,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoLoraSlot {
    #[error("all {0} LoRA slots are taken; unload an adapter, or raise --max-loras")]
    Slots(usize),
    #[error(
        "the loaded LoRA adapters leave {left} of {room} bytes, this one needs {bytes}; unload one, or raise --lora-memory"
    )]
    Room { left: usize, room: usize, bytes: usize },
}

impl LoraSlots {
    pub fn new(slots: usize, room: usize) -> Self {
        LoraSlots { slots: (0..slots).map(|_| None).collect(), room, pending: VecDeque::new() }
    }

    /// Those that new sequences can get.
    pub fn ready(&self) -> impl Iterator<Item = &LoraInfo> {
        let ready = self.slots.iter().flatten().filter(|slot| slot.state == LoraState::Ready);
        ready.map(|slot| &slot.info)
    }

    /// Its slot, which a new sequence takes.
    pub fn open(&mut self, name: &str, digest: u64) -> Option<u32> {
        let ready =
            |slot: &Slot| slot.state == LoraState::Ready && slot.info.name == name && slot.info.digest == digest;
        let at = self.slots.iter().position(|slot| slot.as_ref().is_some_and(ready))?;
        self.slots[at].as_mut()?.users += 1;
        Some(at as u32)
    }

    /// A sequence that had this slot has ended.
    pub fn close(&mut self, slot: u32) {
        let Some(Some(held)) = self.slots.get_mut(slot as usize) else { return };
        held.users = held.users.saturating_sub(1);
        self.sweep(slot);
    }

    /// Takes a slot, into which the ranks get the adapter with the next steps.
    pub fn load(&mut self, name: &str, path: &str, lora: Arc<Lora>) -> Result<u32, NoLoraSlot> {
        let used: usize = self.slots.iter().flatten().map(|slot| slot.bytes).sum();
        let free = self.slots.iter().position(Option::is_none).ok_or(NoLoraSlot::Slots(self.slots.len()))?;
        if used + lora.bytes > self.room {
            return Err(NoLoraSlot::Room { left: self.room.saturating_sub(used), room: self.room, bytes: lora.bytes });
        }
        let info =
            LoraInfo { name: name.to_owned(), digest: lora.digest, path: path.to_owned(), rank: lora.rank as u32 };
        self.slots[free] = Some(Slot { info, bytes: lora.bytes, state: LoraState::Coming, users: 0 });
        let slot = free as u32;
        let parts = lora.modules.iter().map(|module| Pending::Part(Box::new(module.clone().part(slot))));
        self.pending.extend(parts);
        self.pending.push_back(Pending::Whole(slot));
        Ok(slot)
    }

    /// New sequences no longer get it. False: there is none of this name.
    pub fn unload(&mut self, name: &str) -> bool {
        let named = |slot: &Option<Slot>| {
            slot.as_ref().is_some_and(|slot| slot.state == LoraState::Ready && slot.info.name == name)
        };
        let Some(at) = self.slots.iter().position(named) else { return false };
        self.leave(at as u32);
        true
    }

    fn leave(&mut self, slot: u32) {
        if let Some(Some(held)) = self.slots.get_mut(slot as usize) {
            held.state = LoraState::Leaving;
        }
        self.sweep(slot);
    }

    fn sweep(&mut self, slot: u32) {
        let gone = |held: &Slot| held.state == LoraState::Leaving && held.users == 0;
        if self.slots.get(slot as usize).is_some_and(|held| held.as_ref().is_some_and(gone)) {
            self.slots[slot as usize] = None;
            self.pending.push_back(Pending::Part(Box::new(LoraPart { slot, ..LoraPart::default() })));
        }
    }

    /// Whether a step has to bring something to the ranks.
    pub fn has_parts(&self) -> bool {
        !self.pending.is_empty()
    }

    /// What goes with the next step, and the slots that are whole after it.
    pub fn take_parts(&mut self) -> (Vec<LoraPart>, Vec<u32>) {
        let (mut parts, mut whole, mut bytes) = (Vec::new(), Vec::new(), 0);
        while bytes < STEP_BYTES {
            match self.pending.pop_front() {
                Some(Pending::Part(part)) => {
                    bytes += part.down.len() + part.up.len();
                    parts.push(*part);
                }
                Some(Pending::Whole(slot)) => whole.push(slot),
                None => break,
            }
        }
        (parts, whole)
    }

    /// A step that brought parts of this slot failed, so nobody knows what the ranks have: it is emptied.
    pub fn lost(&mut self, slot: u32) {
        self.pending.retain(|pending| pending.slot() != slot);
        self.slots[slot as usize] = None;
        self.pending.push_back(Pending::Part(Box::new(LoraPart { slot, ..LoraPart::default() })));
    }

    /// The ranks have all of it. An adapter of the same name leaves.
    pub fn arrived(&mut self, slot: u32) -> Option<LoraInfo> {
        let info = self.slots.get(slot as usize)?.as_ref()?.info.clone();
        self.unload(&info.name);
        let held = self.slots[slot as usize].as_mut()?;
        held.state = LoraState::Ready;
        Some(info)
    }
}

#[cfg(test)]
mod tests;
