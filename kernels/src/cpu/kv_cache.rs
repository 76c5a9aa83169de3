//! Paged keys and values. It does not know attention.

use half::bf16;

use super::memory::{Arena, Block};
use crate::backend::{CacheForm, KvSplit, Span};
use crate::error::{KernelError, Result};
use crate::quant::{e4m3_scale, to_e4m3};

/// Paged keys and values of one layer: `width_k` and `width_v` numbers per block and position.
#[derive(Debug)]
pub struct KvCache {
    pub blocks: usize,
    pub block_size: usize,
    pub width_k: usize,
    pub width_v: usize,
    pub(super) form: CacheForm,
    /// None: all positions are here.
    pub(super) split: Option<KvSplit>,
    pub(super) k: Block,
    pub(super) v: Block,
    /// Of codes: for each position the scales of its key, then those of its value.
    scales: Block,
}

impl KvCache {
    pub fn new(
        arena: &Arena,
        blocks: usize,
        block_size: usize,
        widths: [usize; 2],
        form: CacheForm,
    ) -> Result<KvCache> {
        if block_size == 0 {
            return Err(KernelError::Shape { op: "cache", what: "block_size must be at least 1".into() });
        }
        if let CacheForm::Fp8 { sharing } = form
            && (0..2).any(|i| sharing[i] > 0 && !widths[i].is_multiple_of(sharing[i]))
        {
            let what = format!("entries of {widths:?} numbers cannot share scales by {sharing:?}");
            return Err(KernelError::Shape { op: "cache", what });
        }
        let room = |numbers: usize, bytes: usize| {
            let n =
                blocks.checked_mul(block_size).and_then(|n| n.checked_mul(numbers)).and_then(|n| n.checked_mul(bytes));
            arena.take(n.ok_or_else(|| KernelError::OutOfMemory(format!("KV cache of {blocks} blocks")))?)
        };
        let [k, v] = widths.map(|width| room(width, form.number_bytes()));
        let scales = room(form.scales(widths).iter().sum(), size_of::<f32>())?;
        Ok(KvCache {
            blocks,
            block_size,
            width_k: widths[0],
            width_v: widths[1],
            form,
            split: None,
            k: k?,
            v: v?,
            scales,
        })
    }

    fn widths(&self) -> [usize; 2] {
        [self.width_k, self.width_v]
    }

    /// How many numbers of a key's entry, or of a value's, share a scale. 0: there is none.
    pub(super) fn sharing(&self, in_v: bool) -> usize {
        match self.form {
            CacheForm::F32 | CacheForm::Bf16 => 0,
            CacheForm::Fp8 { sharing } => sharing[usize::from(in_v)],
        }
    }

    /// The scale of the numbers from `offset` on of the entry at a place. 1 without scales.
    #[inline(always)]
    pub(super) fn scale(&self, place: usize, in_v: bool, offset: usize) -> f32 {
        let sharing = self.sharing(in_v);
        if sharing == 0 {
            return 1.0;
        }
        let [of_k, of_v] = self.form.scales(self.widths());
        let at = place * (of_k + of_v) + if in_v { of_k } else { 0 } + offset / sharing;
        assert!(4 * at < self.scales.len(), "scale {at} of a cache of {} bytes of them", self.scales.len());
        // SAFETY: checked above; the memory is initialized and aligned, and writers need `&mut self`.
        unsafe { self.scales.ptr().cast::<f32>().add(at).read() }
    }

    /// Where the keys, the values and the scales of a block are, and how many bytes each takes.
    fn parts(&self, block: u32) -> [(*mut u8, usize); 3] {
        assert!((block as usize) < self.blocks, "block {block} of a cache of {} blocks", self.blocks);
        let number = self.form.number_bytes();
        let scales = self.form.scales(self.widths()).iter().sum::<usize>() * size_of::<f32>();
        let parts = [(&self.k, self.width_k * number), (&self.v, self.width_v * number), (&self.scales, scales)];
        parts.map(|(part, bytes)| {
            let bytes = self.block_size * bytes;
            (part.ptr().wrapping_add(block as usize * bytes), bytes)
        })
    }

    /// Bytes of a block: keys, values, then scales.
    pub fn block_bytes(&self) -> usize {
        self.block_size * self.form.position_bytes(self.widths())
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
        let block = blocks[position / self.block_size] as usize / self.split.map_or(1, |split| split.ranks);
        assert!(block < self.blocks, "block {block} of a cache of {} blocks", self.blocks);
        block * self.block_size + position % self.block_size
    }

    /// Stores the rows of the spans: row r of k is `k[r * width_k..]`; likewise for v.
    pub fn write(&mut self, spans: &[Span], k: &[f32], v: &[f32]) {
        for span in spans {
            let split = self.split;
            for i in (0..span.len).filter(|i| split.is_none_or(|split| split.owns(span.start + i))) {
                let (row, place) = (span.row + i, self.place(span.blocks, span.start + i));
                for (in_v, x) in [(false, k), (true, v)] {
                    let width = self.widths()[usize::from(in_v)];
                    self.write_entry(place, in_v, &x[row * width..][..width]);
                }
            }
        }
    }

    fn write_entry(&mut self, place: usize, in_v: bool, x: &[f32]) {
        let (block, width) = if in_v { (&self.v, self.width_v) } else { (&self.k, self.width_k) };
        assert_eq!(x.len(), width, "an entry of a cache");
        // SAFETY: place is below blocks * block_size, and the block has room for that many widths of numbers; `&mut
        // self` keeps readers out; the start is 64-byte aligned.
        unsafe {
            match self.form {
                CacheForm::F32 => {
                    let to = block.ptr().cast::<f32>().add(place * width);
                    std::ptr::copy_nonoverlapping(x.as_ptr(), to, width);
                }
                CacheForm::Bf16 => {
                    let to = block.ptr().cast::<bf16>().add(place * width);
                    for (j, x) in x.iter().enumerate() {
                        to.add(j).write(bf16::from_f32(*x));
                    }
                }
                CacheForm::Fp8 { sharing } => {
                    let to = block.ptr().add(place * width);
                    let [of_k, of_v] = self.form.scales(self.widths());
                    let scales = self.scales.ptr().cast::<f32>();
                    let first = place * (of_k + of_v) + if in_v { of_k } else { 0 };
                    let scaled = sharing[usize::from(in_v)];
                    for (group, x) in x.chunks(if scaled == 0 { width.max(1) } else { scaled }).enumerate() {
                        let mut scale = 1.0;
                        if scaled > 0 {
                            scale = e4m3_scale(x.iter().fold(0.0, |most: f32, x| most.max(x.abs())));
                            scales.add(first + group).write(scale);
                        }
                        for (j, x) in x.iter().enumerate() {
                            to.add(group * scaled + j).write(to_e4m3(x / scale));
                        }
                    }
                }
            }
        }
    }
}
