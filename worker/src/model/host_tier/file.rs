//! A file of KV blocks, which outlives the process: a header, then a record for each place. What does not match its
//! header, its checksum or its content is as good as empty.
//!
//! All numbers are little-endian. Header (4096 bytes): magic, fingerprint, nonce, places, tokens of a block, bytes of a
//! block, checksum of those. Record (whole pages): nonce, content, whether it has a parent, parent, length of the salt,
//! number of tokens, checksum of the bytes, checksum of the record's head; the salt; the tokens; the bytes. Where ranks
//! share the positions, a file has the records of its rank's places, and the leader's then the heads of all others.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rein_kernels::{KvSplit, Result as KernelResult};
use rein_proto::internal::BlockSave;
use rustix::fs::{FallocateFlags, fallocate};
use xxhash_rust::xxh3::xxh3_64;

use super::{KeptBlock, LoadError, error};
use crate::bytes::ByteCount;
use crate::limits::MAX_KEPT_SALT;

const MAGIC: u64 = u64::from_le_bytes(*b"REINKV1\n");
const PAGE: usize = 4096;
/// Words of a record before the salt.
const HEAD: usize = 8;
const SALT: usize = MAX_KEPT_SALT;

/// Which places a file has.
#[derive(Debug, Clone, Copy)]
pub struct FilePart {
    pub split: KvSplit,
    /// It is the index: it says what all places hold.
    pub leads: bool,
}

pub struct TierFile {
    file: File,
    part: FilePart,
    nonce: u64,
    /// With bytes.
    places: usize,
    size: usize,
    bytes: usize,
    head: Vec<u8>,
}

fn words<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (chunks, _) = bytes.get(..8 * N)?.as_chunks::<8>();
    let mut words = [0; N];
    words.iter_mut().zip(chunks).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
    Some(words)
}

fn push(words: &[u64], to: &mut Vec<u8>) {
    to.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

impl TierFile {
    /// Opens or makes the file. `gather` gets what this rank says and returns what all ranks say, for what they have
    /// kept counts only if all have it. Also what it holds.
    pub fn open(
        path: &Path,
        [places, size, bytes]: [usize; 3],
        part: FilePart,
        fingerprint: u64,
        gather: impl FnOnce(Vec<u8>) -> KernelResult<Vec<Vec<u8>>>,
    ) -> Result<(Self, Vec<KeptBlock>), LoadError> {
        let io = |source: io::Error| error(format!("{}: {source}", path.display()));
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let file = options.map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(error(format!("{} is in use by another process", path.display())));
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        let known = [MAGIC, fingerprint, places as u64, size as u64, bytes as u64];
        // Not 0, which says that there is nothing.
        let fresh = StdRng::from_os_rng().random_range(1..=u64::MAX);
        let mut header = vec![0; PAGE];
        // A short file has no header.
        let read = file.read_exact_at(&mut header, 0).ok().and_then(|()| words::<7>(&header));
        let kept = read.filter(|&[magic, print, _, places, size, bytes, sum]| {
            [magic, print, places, size, bytes] == known && sum == xxh3_64(&header[..48])
        });
        let mut said = Vec::new();
        push(&[kept.map_or(0, |header| header[2]), fresh], &mut said);
        let all = gather(said)?;
        let nonces: Option<Vec<[u64; 2]>> = all.iter().map(|said| words::<2>(said)).collect();
        let nonces = nonces.unwrap_or_default();
        let first = nonces.first().copied().unwrap_or([0, fresh]);
        let same = first[0] != 0 && nonces.iter().all(|own| own[0] == first[0]);
        let nonce = if same { first[0] } else { first[1] };
        let tier = TierFile { file, part, nonce, places, size, bytes, head: Vec::new() };
        if !same {
            let mut header = Vec::with_capacity(PAGE);
            push(&[MAGIC, fingerprint, nonce, places as u64, size as u64, bytes as u64], &mut header);
            push(&[xxh3_64(&header)], &mut header);
            header.resize(PAGE, 0);
            tier.file.set_len(0).map_err(io)?;
            tier.file.write_all_at(&header, 0).map_err(io)?;
        }
        tier.reserve().map_err(|source| {
            error(format!("cannot reserve {} at {}: {source}", ByteCount(tier.end()), path.display()))
        })?;
        let all = if same { places * part.split.ranks } else { 0 };
        let kept = (0..all as u32).filter_map(|place| tier.kept(place)).collect();
        Ok((tier, kept))
    }

    fn stride(&self) -> usize {
        (self.head_bytes() + self.bytes).next_multiple_of(PAGE)
    }

    fn head_bytes(&self) -> usize {
        8 * HEAD + SALT + 4 * self.size
    }

    /// Where a place's record is, or its head alone. None: it is not in this file.
    fn at(&self, place: u32) -> Option<u64> {
        let FilePart { split: KvSplit { rank, ranks }, leads } = self.part;
        let place = place as usize;
        let at = match place % ranks == rank {
            true => place / ranks * self.stride(),
            false if leads => self.places * self.stride() + place * self.head_bytes(),
            false => return None,
        };
        Some((PAGE + at) as u64)
    }

    fn end(&self) -> u64 {
        let heads = if self.part.leads && self.part.split.ranks > 1 { self.places * self.part.split.ranks } else { 0 };
        (PAGE + self.places * self.stride() + heads * self.head_bytes()) as u64
    }

    /// So that a full disk is found now, not by a write.
    fn reserve(&self) -> io::Result<()> {
        Ok(fallocate(&self.file, FallocateFlags::empty(), 0, self.end())?)
    }

    /// Writes what a place holds from now on. `bytes`: None if another rank has them.
    pub fn write(&mut self, save: &BlockSave, bytes: Option<&[u8]>) -> io::Result<()> {
        let Some(at) = self.at(save.place) else { return Ok(()) };
        let salt = save.salt.as_bytes();
        self.head.clear();
        if salt.len() > SALT || save.tokens.len() > self.size {
            return Err(io::Error::other(format!("a salt of {} bytes", salt.len())));
        }
        let lengths = [salt.len() as u64, save.tokens.len() as u64];
        let sum = bytes.map_or(0, xxh3_64);
        let [parents, parent] = save.parent.map_or([0, 0], |parent| [1, parent]);
        push(&[self.nonce, save.content, parents, parent, lengths[0], lengths[1], sum, 0], &mut self.head);
        self.head.extend_from_slice(salt);
        self.head.resize(8 * HEAD + SALT, 0);
        self.head.extend(save.tokens.iter().flat_map(|token| token.to_le_bytes()));
        self.head.resize(self.head_bytes(), 0);
        let sum = xxh3_64(&self.head);
        self.head[8 * (HEAD - 1)..8 * HEAD].copy_from_slice(&sum.to_le_bytes());
        if let Some(bytes) = bytes {
            self.file.write_all_at(bytes, at + self.head.len() as u64)?;
        }
        self.file.write_all_at(&self.head, at)
    }

    /// The head of a place's record, if it is whole.
    fn head(&self, place: u32) -> Option<([u64; HEAD], Vec<u8>)> {
        let mut head = vec![0; self.head_bytes()];
        self.file.read_exact_at(&mut head, self.at(place)?).ok()?;
        let words = words::<HEAD>(&head)?;
        head[8 * (HEAD - 1)..8 * HEAD].fill(0);
        (words[0] == self.nonce && words[HEAD - 1] == xxh3_64(&head)).then_some((words, head))
    }

    fn kept(&self, place: u32) -> Option<KeptBlock> {
        let ([_, content, parents, parent, salt, tokens, ..], head) = self.head(place)?;
        let (salts, rest) = head[8 * HEAD..].split_at(SALT);
        let salt = String::from_utf8(salts.get(..salt as usize)?.to_vec()).ok()?;
        let tokens = rest.as_chunks::<4>().0.get(..tokens as usize)?;
        let tokens = tokens.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        Some(KeptBlock { place, content, parent: (parents == 1).then_some(parent), salt, tokens })
    }

    /// Reads a place. False: it does not hold this content, whole.
    pub fn read(&self, place: u32, content: u64, to: &mut [u8]) -> bool {
        let whole = self.head(place).filter(|(head, _)| head[1] == content);
        let Some(((head, before), at)) = whole.zip(self.at(place)) else { return false };
        let read = self.file.read_exact_at(to, at + before.len() as u64);
        read.is_ok() && xxh3_64(to) == head[6]
    }
}
