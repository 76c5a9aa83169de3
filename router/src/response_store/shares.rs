//! Which responses are kept: the newest of each API key within its bounds, and within those of all keys together. It
//! does not know where responses are.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    time::SystemTime,
};

use super::{ResponseLimits, expired};

struct Entry {
    id: String,
    bytes: usize,
    at: SystemTime,
}

/// Responses of one API key, from the oldest to the newest.
#[derive(Default)]
struct Share {
    order: VecDeque<Entry>,
    bytes: usize,
}

impl Share {
    fn pop(&mut self) -> Option<Entry> {
        let oldest = self.order.pop_front()?;
        self.bytes -= oldest.bytes;
        Some(oldest)
    }
}

/// By API key `C`.
pub struct Shares<C> {
    of: HashMap<C, Share>,
    count: usize,
    bytes: usize,
}

impl<C: Hash + Eq + Clone> Shares<C> {
    pub fn new() -> Self {
        Shares { of: HashMap::new(), count: 0, bytes: 0 }
    }

    pub fn add(&mut self, caller: C, id: String, bytes: usize, at: SystemTime) {
        let share = self.of.entry(caller).or_default();
        share.order.push_back(Entry { id, bytes, at });
        share.bytes += bytes;
        self.count += 1;
        self.bytes += bytes;
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.count
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Does nothing if there is no such response.
    pub fn remove(&mut self, caller: &C, id: &str) {
        let Some(share) = self.of.get_mut(caller) else { return };
        let Some(at) = share.order.iter().rposition(|entry| entry.id == id) else { return };
        let removed = share.order.remove(at).map_or(0, |entry| entry.bytes);
        share.bytes -= removed;
        self.count -= 1;
        self.bytes -= removed;
        if share.order.is_empty() {
            self.of.remove(caller);
        }
    }

    /// Removes what is too old, then the oldest of each key that is over its bounds. If all keys together are over
    /// theirs, the key that holds the most loses its oldest: no key loses a response while another one holds more.
    pub fn trim(&mut self, limits: &ResponseLimits, now: SystemTime) -> Vec<(C, String)> {
        let mut dropped = Vec::new();
        for (caller, share) in &mut self.of {
            while let Some(oldest) = share.order.front() {
                let over = share.order.len() > limits.count_per_key || share.bytes > limits.bytes_per_key;
                if !over && !expired(oldest.at, limits.age, now) {
                    break;
                }
                dropped.extend(share.pop().map(|entry| (caller.clone(), entry)));
            }
        }
        let gone = |dropped: &[(C, Entry)]| dropped.iter().map(|(_, entry)| entry.bytes).sum::<usize>();
        self.count -= dropped.len();
        self.bytes -= gone(&dropped);
        while self.count > limits.count || self.bytes > limits.bytes {
            let many = self.count > limits.count;
            let held = |share: &Share| if many { share.order.len() } else { share.bytes };
            let Some((caller, share)) = self.of.iter_mut().max_by_key(|(_, share)| held(share)) else { break };
            let Some(oldest) = share.pop() else { break };
            self.count -= 1;
            self.bytes -= oldest.bytes;
            dropped.push((caller.clone(), oldest));
        }
        self.of.retain(|_, share| !share.order.is_empty());
        dropped.into_iter().map(|(caller, entry)| (caller, entry.id)).collect()
    }
}
