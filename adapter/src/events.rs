//! Block events that vLLM and SGLang publish over ZMQ: which blocks their prefix cache stored and removed. A block is
//! named by the engine's own hash and comes with its tokens, from which the hash of engine.proto follows. It does not
//! know sequences.
//!
//! A message has a topic, a number that counts up, and a batch in MessagePack: `[time, events, ...]`. Events are maps
//! with `type`; older releases of SGLang write arrays that begin with it. SGLang reports each page by itself, and its
//! pages have one token by default, so several of them make a block.

use std::collections::HashMap;
use std::sync::Weak;

use rein_proto::block_hash;
use rmpv::Value;
use tokio::time::{sleep, timeout};
use zeromq::{Socket, SocketRecv, SubSocket, ZmqMessage};

use crate::feed::{CacheChange, CacheFeed};
use crate::join::Joined;
use crate::limits;

/// An engine's own hash of a block.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum EngineBlock {
    Number(i128),
    Bytes(Vec<u8>),
}

impl EngineBlock {
    fn of(value: &Value) -> Option<EngineBlock> {
        match value {
            Value::Integer(number) => Some(EngineBlock::Number(match number.as_u64() {
                Some(number) => number.into(),
                None => number.as_i64()?.into(),
            })),
            Value::Binary(bytes) => Some(EngineBlock::Bytes(bytes.clone())),
            _ => None,
        }
    }
}

/// The end of a chain of the engine's blocks.
#[derive(Debug, Clone)]
struct ChainEnd {
    /// The hash of the last whole block, or the root.
    hash: u64,
    /// The tokens after it, if the engine's blocks are smaller.
    rest: Vec<u32>,
}

impl ChainEnd {
    fn root(salt: &str) -> Self {
        ChainEnd { hash: block_hash::root(salt), rest: Vec::new() }
    }

    /// The end after more tokens, and whether they complete a block.
    fn after(&self, tokens: &[u32], block_size: usize) -> (Self, bool) {
        let rest = [&self.rest[..], tokens].concat();
        match rest.len() == block_size {
            true => (ChainEnd { hash: block_hash::after(self.hash, &rest), rest: Vec::new() }, true),
            false => (ChainEnd { hash: self.hash, rest }, false),
        }
    }
}

/// Reads an engine's events in order.
#[derive(Debug)]
pub struct EventReader {
    /// Tokens per block of the engine, and per block of the changes: a multiple.
    engine_block: usize,
    block_size: usize,
    known: HashMap<EngineBlock, ChainEnd>,
    /// Number of the last message.
    last: Option<u64>,
}

impl EventReader {
    pub fn new(joined: &Joined) -> Self {
        Self::of_blocks(joined.engine_block, joined.block_size)
    }

    fn of_blocks(engine_block: u32, block_size: u32) -> Self {
        EventReader {
            engine_block: engine_block.max(1) as usize,
            block_size: block_size.max(1) as usize,
            known: HashMap::new(),
            last: None,
        }
    }

    /// The changes of one message. A lost message costs blocks that the router does not know; a lower number means that
    /// the engine began again.
    pub fn read(&mut self, number: u64, batch: &[u8]) -> Result<Vec<CacheChange>, String> {
        let mut changes = Vec::new();
        if self.last.is_some_and(|last| number <= last) {
            self.clear(&mut changes);
        }
        self.last = Some(number);
        let value = rmpv::decode::read_value(&mut &*batch).map_err(|error| error.to_string())?;
        let events = value.as_array().and_then(|batch| batch.get(1)).and_then(Value::as_array);
        for event in events.ok_or("a batch must be an array of a time and events")? {
            self.event(event, &mut changes)?;
        }
        Ok(changes)
    }

    fn clear(&mut self, changes: &mut Vec<CacheChange>) {
        self.known.clear();
        changes.push(CacheChange::Cleared);
    }

    fn event(&mut self, event: &Value, changes: &mut Vec<CacheChange>) -> Result<(), String> {
        let kind = field(event, "type", 0).and_then(Value::as_str).ok_or("an event must have a type")?;
        // A model with several kinds of attention has groups of layers; the first one stands for all.
        let group = field(event, "group_idx", usize::MAX).and_then(Value::as_u64).unwrap_or(0);
        match kind {
            "BlockStored" if group == 0 => self.stored(event, changes),
            "BlockRemoved" if group == 0 => {
                // A chain is removed from its end, so a block is gone with the part that completed it.
                for block in blocks(event)? {
                    let complete = self.known.remove(&block).filter(|end| end.rest.is_empty());
                    changes.extend(complete.map(|end| CacheChange::Removed(end.hash)));
                }
                Ok(())
            }
            "AllBlocksCleared" => {
                self.clear(changes);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn stored(&mut self, event: &Value, changes: &mut Vec<CacheChange>) -> Result<(), String> {
        let size = field(event, "block_size", 4).and_then(Value::as_u64);
        if size != Some(self.engine_block as u64) {
            return Err(format!("block_size must be {}, got {size:?}", self.engine_block));
        }
        let ids = field(event, "token_ids", 3).and_then(Value::as_array).ok_or("token_ids must be an array")?;
        let ids: Option<Vec<u32>> = ids.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect();
        let ids = ids.ok_or("token_ids must be token ids")?;
        let parent = match field(event, "parent_block_hash", 2).filter(|parent| !parent.is_nil()) {
            Some(parent) => {
                let parent = EngineBlock::of(parent).ok_or("parent_block_hash must be a number or bytes")?;
                self.known.get(&parent).cloned()
            }
            None => salt(event).map(|salt| ChainEnd::root(&salt)),
        };
        // Its parent was stored before the first message, or it has an adapter or an image.
        let Some(mut end) = parent else { return Ok(()) };
        for (block, tokens) in blocks(event)?.into_iter().zip(ids.chunks_exact(self.engine_block)) {
            let (next, complete) = end.after(tokens, self.block_size);
            end = next;
            if self.known.len() >= limits::REPORTED_BLOCKS {
                self.clear(changes);
            }
            self.known.insert(block, end.clone());
            if complete {
                changes.push(CacheChange::Stored(end.hash));
            }
        }
        Ok(())
    }
}

/// A field of an event: by name in a map, by place in an array.
fn field<'a>(event: &'a Value, name: &str, place: usize) -> Option<&'a Value> {
    match event {
        Value::Map(fields) => fields.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value),
        Value::Array(fields) => fields.get(place),
        _ => None,
    }
}

fn blocks(event: &Value) -> Result<Vec<EngineBlock>, String> {
    let blocks = field(event, "block_hashes", 1).and_then(Value::as_array).ok_or("block_hashes must be an array")?;
    blocks
        .iter()
        .map(EngineBlock::of)
        .collect::<Option<_>>()
        .ok_or_else(|| "block_hashes must be numbers or bytes".into())
}

/// The cache salt of a first block: SGLang's `cache_salt`, vLLM's extra key. None: something else is part of its hash.
fn salt(event: &Value) -> Option<String> {
    if field(event, "lora_name", usize::MAX).or(field(event, "lora_id", 5)).is_some_and(|lora| !lora.is_nil()) {
        return None;
    }
    if let Some(salt) = field(event, "cache_salt", usize::MAX).filter(|salt| !salt.is_nil()) {
        return salt.as_str().map(str::to_owned);
    }
    let keys = field(event, "extra_keys", usize::MAX).and_then(Value::as_array).and_then(|keys| keys.first());
    match keys.and_then(Value::as_array).map(Vec::as_slice) {
        None | Some([]) => Some(String::new()),
        Some([salt]) => salt.as_str().map(str::to_owned),
        Some(_) => None,
    }
}

fn parts(message: &ZmqMessage) -> Option<(u64, &[u8])> {
    let number = <[u8; 8]>::try_from(message.get(1)?.as_ref()).ok()?;
    Some((u64::from_be_bytes(number), message.get(2)?.as_ref()))
}

/// Keeps the feed as the engine at `HOST:PORT` reports, until the feed is dropped.
pub async fn follow_events(address: String, mut reader: EventReader, feed: Weak<CacheFeed>) {
    let (mut socket, mut silent) = (SubSocket::new(), false);
    loop {
        let Some(feed) = feed.upgrade() else { return };
        log_silence(&feed, &address, &mut silent);
        drop(feed);
        match timeout(limits::CALL_TIME, socket.connect(&format!("tcp://{address}"))).await {
            Ok(Ok(())) => break,
            Ok(Err(error)) => tracing::debug!(address, %error, "the engine's block events cannot be reached yet"),
            Err(_) => {}
        }
        sleep(limits::EVENT_RETRY).await;
    }
    if let Err(error) = socket.subscribe("").await {
        tracing::warn!(address, %error, "the engine's block events cannot be subscribed to");
        return;
    }
    let mut misread = false;
    loop {
        let received = timeout(limits::EVENT_RETRY, socket.recv()).await;
        let Some(feed) = feed.upgrade() else { return };
        match received {
            Ok(Ok(message)) => {
                let changes = match parts(&message) {
                    Some((number, batch)) => reader.read(number, batch),
                    None => Err("a message must have a topic, a number of 8 bytes and a batch".into()),
                };
                match changes {
                    Ok(changes) => feed.apply(&changes),
                    Err(error) if !std::mem::replace(&mut misread, true) => {
                        tracing::warn!(address, error, "a block event of the engine is not understood");
                    }
                    Err(_) => {}
                }
            }
            // It connects again by itself.
            Ok(Err(error)) => {
                tracing::debug!(address, %error, "the engine's block events were interrupted");
                sleep(limits::EVENT_RETRY).await;
            }
            Err(_) => {}
        }
        log_silence(&feed, &address, &mut silent);
    }
}

fn log_silence(feed: &CacheFeed, address: &str, silent: &mut bool) {
    match (std::mem::replace(silent, feed.silent()), *silent) {
        (false, true) => {
            tracing::warn!(address, "the engine publishes no block events; its cache is guessed from its prompts");
        }
        (true, false) => tracing::info!(address, "the engine publishes block events again"),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
