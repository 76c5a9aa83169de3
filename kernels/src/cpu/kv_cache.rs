//! Paged keys and values. It does not know attention.

use half::bf16;

use super::memory::{Arena, Block};
use crate::backend::Span;
use crate::error::{KernelError, Result};

/// Paged keys and values of one layer: `width_k` and `width_v` numbers per block and position.
#[derive(Debug)]
pub struct KvCache {
    pub blocks: usize,
    pub block_size: usize,
    pub width_k: usize,
    pub width_v: usize,
    /// Numbers are bf16, not f32.
    pub(super) half: bool,
    pub(super) k: Block,
    pub(super) v: Block,
}

impl KvCache {
    pub fn new(arena: &Arena, blocks: usize, block_size: usize, width: (usize, usize), half: bool) -> Result<KvCache> {
        if block_size == 0 {
            return Err(KernelError::Shape { op: "cache", what: "block_size must be at least 1".into() });
        }
        let bytes = |width: usize| {
            let size = if half { 2usize } else { 4 };
            let n = blocks.checked_mul(block_size).and_then(|n| n.checked_mul(width)).and_then(|n| n.checked_mul(size));
            n.ok_or_else(|| KernelError::OutOfMemory(format!("KV cache of {blocks} blocks")))
        };
        let (k, v) = (arena.take(bytes(width.0)?)?, arena.take(bytes(width.1)?)?);
        Ok(KvCache { blocks, block_size, width_k: width.0, width_v: width.1, half, k, v })
    }

    /// Where the keys and the values of a block are, and how many bytes each takes.
    fn parts(&self, block: u32) -> [(*mut u8, usize); 2] {
        assert!((block as usize) < self.blocks, "block {block} of a cache of {} blocks", self.blocks);
        [(&self.k, self.width_k), (&self.v, self.width_v)].map(|(part, width)| {
            let bytes = self.block_size * width * if self.half { 2 } else { 4 };
            (part.ptr().wrapping_add(block as usize * bytes), bytes)
        })
    }

    /// Bytes of a block: keys, then values.
    pub fn block_bytes(&self) -> usize {
        self.parts(0).iter().map(|(_, bytes)| bytes).sum()
    }

    /// Copies a block to `to`, which has its bytes.
    pub fn save(&self, block: u32, mut to: &mut [u8]) {
        for (part, bytes) in self.parts(block) {
            let (head, rest) = to.split_at_mut(bytes);
            // SAFETY: the part lies in the cache, which is initialized; writers need `&mut self`.
            head.copy_from_slice(unsafe { std::slice::from_raw_parts(part, bytes) });
            to = rest;
        }
    }

    /// Copies a block from `from`, which has its bytes.
    pub fn load(&mut self, block: u32, mut from: &[u8]) {
        for (part, bytes) in self.parts(block) {
            let (head, rest) = from.split_at(bytes);
            // SAFETY: the part lies in the cache; `&mut self` keeps readers out.
            unsafe { std::ptr::copy_nonoverlapping(head.as_ptr(), part, bytes) };
            from = rest;
        }
    }

    /// Index of a position among all positions of the cache.
    pub(super) fn place(&self, blocks: &[u32], position: usize) -> usize {
        let block = blocks[position / self.block_size] as usize;
        assert!(block < self.blocks, "block {block} of a cache of {} blocks", self.blocks);
        block * self.block_size + position % self.block_size
    }

    /// Stores the rows of the spans: row r of k is `k[r * width_k..]`; likewise for v.
    pub fn write(&mut self, spans: &[Span], k: &[f32], v: &[f32]) {
        for span in spans {
            for i in 0..span.len {
                let (row, place) = (span.row + i, self.place(span.blocks, span.start + i));
                for (block, width, x) in [(&self.k, self.width_k, k), (&self.v, self.width_v, v)] {
                    let x = &x[row * width..][..width];
                    // SAFETY: place is below blocks * block_size, and the block has room for that many widths of
                    // numbers; `&mut self` keeps readers out; the start is 64-byte aligned.
                    unsafe {
                        if self.half {
                            let to = block.ptr().cast::<bf16>().add(place * width);
                            for (j, x) in x.iter().enumerate() {
                                to.add(j).write(bf16::from_f32(*x));
                            }
                        } else {
                            let to = block.ptr().cast::<f32>().add(place * width);
                            std::ptr::copy_nonoverlapping(x.as_ptr(), to, width);
                        }
                    }
                }
            }
        }
    }
}
