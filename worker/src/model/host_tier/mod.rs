//! The host tier of one rank: copies of KV blocks that left the cache, in memory or in a file. A place knows which
//! content it holds and a checksum of its bytes, so a block that was damaged, or of which another rank has another
//! content, is computed again. The leader decides what is where.

mod file;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rein_kernels::collective::ControlLink;
use rein_kernels::{Backend, KernelError, KvSplit, Result as KernelResult};
use rein_proto::internal::{BlockLoad, BlockSave};
use xxhash_rust::xxh3::xxh3_64;

use crate::blocks::{HostShape, KeptBlock};
use crate::bytes::ByteCount;
use crate::checkpoint::LoadError;
use file::{FilePart, TierFile};

use super::network::Network;

/// How much of the host a process gives to its ranks' places.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostLimits {
    /// Bytes of all ranks of this process together. 0: no host tier.
    pub bytes: usize,
    /// None: in memory.
    pub file: Option<PathBuf>,
}

/// The host tier of a rank of a group.
pub struct HostTier<B: Backend> {
    /// Of a block on this rank.
    bytes: usize,
    store: Store<B>,
    /// Which blocks and places are this rank's.
    split: KvSplit,
}

enum Store<B: Backend> {
    Memory {
        memory: B::HostMemory,
        /// The content and the checksum of each place.
        held: Vec<Option<(u64, u64)>>,
    },
    File {
        file: TierFile,
        /// A block on its way.
        staged: B::HostMemory,
    },
}

impl<B: Backend> HostTier<B> {
    /// Makes room on all ranks of a group, whose `here` ranks of this process share the limit. `fingerprint`: of all
    /// that the bytes depend on. None: there is no host tier.
    pub fn open(
        network: &mut Network<B>,
        limits: &HostLimits,
        here: usize,
        fingerprint: u64,
    ) -> Result<Option<(Self, HostShape)>, LoadError> {
        let bytes = network.block_bytes();
        let size = network.state_size().block_size;
        let places = limits.bytes / here.max(1) / bytes.max(1);
        let places = least(network.backend().control(), places)?;
        if places == 0 {
            // All ranks have the same limit, or none has a tier.
            return match limits.bytes {
                0 => Ok(None),
                room => Err(error(format!(
                    "{} for {here} ranks hold no KV block, which takes {} on each",
                    ByteCount(room as u64),
                    ByteCount(bytes as u64)
                ))),
            };
        }
        let (rank, ranks) = (network.backend().rank(), network.backend().ranks());
        let split = KvSplit::new(rank, network.state_size().kv_ranks).unwrap_or(KvSplit::WHOLE);
        let total = bytes.checked_mul(places).ok_or_else(|| error("is too large".into()))?;
        let (store, kept, next_content) = match &limits.file {
            None => {
                let memory = network
                    .backend()
                    .host_memory(total)
                    .map_err(|why| error(format!("cannot have {} of host memory: {why}", ByteCount(total as u64))))?;
                (Store::Memory { memory, held: vec![None; places] }, Vec::new(), 0)
            }
            Some(path) => {
                let path = of_rank(path, rank, ranks);
                let of_rank = fingerprint ^ ((rank as u64) << 32 | ranks as u64);
                let part = FilePart { split, leads: rank == 0 };
                let (file, kept) = TierFile::open(&path, [places, size, bytes], part, of_rank, |own| {
                    network.backend().control().gather_bytes(&own)
                })?;
                let staged = network.backend().host_memory(bytes)?;
                let next = kept.iter().map(|kept| kept.content + 1).max().unwrap_or(0);
                let next = of_all(network.backend().control(), next)?.into_iter().max().unwrap_or(next);
                (Store::File { file, staged }, if rank == 0 { kept } else { Vec::new() }, next)
            }
        };
        let outlives = matches!(store, Store::File { .. });
        let shape = HostShape { places: places * split.ranks, outlives, kept: Arc::new(kept), next_content };
        Ok(Some((HostTier { bytes, store, split }, shape)))
    }

    /// Copies blocks to their places, then begins to copy others from theirs, until `settle`. Returns the places that
    /// do not hold what is wanted.
    pub fn begin(
        &mut self,
        network: &mut Network<B>,
        saves: &[BlockSave],
        loads: &[BlockLoad],
    ) -> KernelResult<Vec<u32>> {
        let (bytes, split) = (self.bytes, self.split);
        // Most steps copy nothing, and need not wait for the device.
        if saves.is_empty() && loads.is_empty() {
            return Ok(Vec::new());
        }
        // A block and a place as this rank numbers them. None: they are another rank's.
        let KvSplit { rank, ranks } = split;
        let own = |block: u32, place: u32| {
            (block as usize % ranks == rank).then(|| (block / ranks as u32, place as usize / ranks))
        };
        match &mut self.store {
            Store::Memory { memory, held } => {
                let of = |place: usize| place * bytes..(place + 1) * bytes;
                let mut saved = Vec::new();
                for save in saves {
                    let Some((block, place)) = own(save.block, save.place) else { continue };
                    held[place] = None;
                    network.save_block(block, memory, place * bytes)?;
                    saved.push((place, save.content));
                }
                if !saved.is_empty() {
                    network.backend().settle(memory)?;
                }
                for (place, content) in saved {
                    held[place] = Some((content, xxh3_64(&memory[of(place)])));
                }
                let mut lost = Vec::new();
                for load in loads {
                    let Some((block, place)) = own(load.block, load.place) else { continue };
                    let whole =
                        |&(content, sum): &(u64, u64)| content == load.content && sum == xxh3_64(&memory[of(place)]);
                    match held[place].as_ref().is_some_and(whole) {
                        true => network.load_block(block, memory, place * bytes)?,
                        false => lost.push(load.place),
                    }
                }
                Ok(lost)
            }
            Store::File { file, staged } => {
                network.backend().settle(staged)?;
                for save in saves {
                    let own = own(save.block, save.place);
                    if let Some((block, _)) = own {
                        network.save_block(block, staged, 0)?;
                        network.backend().settle(staged)?;
                    }
                    if let Err(why) = file.write(save, own.map(|_| &**staged)) {
                        // It is computed again when it is wanted.
                        tracing::warn!(place = save.place, %why, "a KV block was not kept in the file");
                    }
                }
                let mut lost = Vec::new();
                for load in loads {
                    let Some((block, _)) = own(load.block, load.place) else { continue };
                    match file.read(load.place, load.content, staged) {
                        true => {
                            network.load_block(block, staged, 0)?;
                            network.backend().settle(staged)?;
                        }
                        false => lost.push(load.place),
                    }
                }
                Ok(lost)
            }
        }
    }

    /// Waits until all is copied. Returns the places that are lost on any rank.
    pub fn settle(&self, network: &Network<B>, lost: &[u32]) -> KernelResult<Vec<u32>> {
        let memory = match &self.store {
            Store::Memory { memory, .. } => memory,
            Store::File { staged, .. } => staged,
        };
        network.backend().settle(memory)?;
        let own: Vec<u8> = lost.iter().flat_map(|place| place.to_le_bytes()).collect();
        let all = network.backend().control().gather_bytes(&own)?;
        let mut all: Vec<u32> =
            all.iter().flat_map(|lost| lost.as_chunks::<4>().0).map(|place| u32::from_le_bytes(*place)).collect();
        all.sort_unstable();
        all.dedup();
        if !all.is_empty() {
            let (rank, here, all) = (network.backend().rank(), lost.len(), all.len());
            tracing::warn!(rank, here, all, "KV blocks in the host tier are damaged, and are computed again");
        }
        Ok(all)
    }
}

/// The number of the rank that has the least.
pub fn least(control: &dyn ControlLink, number: usize) -> KernelResult<usize> {
    Ok(of_all(control, number as u64)?.into_iter().min().map_or(number, |least| least as usize))
}

/// The numbers of all ranks.
fn of_all(control: &dyn ControlLink, number: u64) -> KernelResult<Vec<u64>> {
    let read = |bytes: &Vec<u8>| match <[u8; 8]>::try_from(&**bytes) {
        Ok(bytes) => Ok(u64::from_le_bytes(bytes)),
        Err(_) => Err(KernelError::Shape { op: "KV blocks", what: format!("8 bytes expected, got {}", bytes.len()) }),
    };
    control.gather_bytes(&number.to_le_bytes())?.iter().map(read).collect()
}

fn error(what: String) -> LoadError {
    LoadError::Option { option: "host_kv", what }
}

/// Each rank of a group has a file of its own.
fn of_rank(path: &Path, rank: usize, ranks: usize) -> PathBuf {
    match ranks {
        1 => path.to_owned(),
        ranks => {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{rank}-of-{ranks}"));
            name.into()
        }
    }
}
