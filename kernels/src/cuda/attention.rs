//! The paged cache, and attention over it. It does not know models.

use super::args::{AttentionArgs, CacheFp8Args, CacheWriteArgs};
use super::batch::PlacedBatch;
use super::error::shape;
use super::flash::{CachedHeads, FlashPlan, HeadScales};
use super::form::Element;
use super::latent::{LATENT_SHARING, WorkOf};
use super::low_rank::DeviceLowRank;
use super::op_stream::OpStream;
use super::operand::Batched;
use super::piece_lists::LatentWork;
use super::plan::{LaunchPlan, int};
use super::tensor::DeviceTensor;
use super::weights::{DeviceExpansion, DeviceVector};
use super::{CudaDevice, DeviceBuffer};
use crate::backend::{CacheForm, GqaSpec, KvSplit, MlaSpec};
use crate::error::{KernelError, Result};

/// The widest value that `attention` adds up.
const WIDEST_VALUE: usize = 1024;

/// Paged keys and values of one layer: two entries of `widths` numbers for each position.
#[derive(Debug)]
pub struct DeviceCache {
    block_size: usize,
    widths: [usize; 2],
    form: CacheForm,
    /// Of the activations.
    element: Element,
    k: DeviceBuffer,
    v: DeviceBuffer,
    /// Of codes: for each position the scales of its key, then those of its value.
    scales: DeviceBuffer,
    /// Of its positions over ranks.
    pub(super) split: Option<KvSplit>,
}

/// A part of the query vectors, and the part of the cached entries that it is multiplied with.
#[derive(Clone, Copy)]
pub(super) struct CachedPart {
    pub address: u64,
    pub stride: usize,
    pub head_stride: usize,
    pub width: usize,
    pub cache: u64,
    pub entry: usize,
    /// Distance of the KV heads within an entry.
    pub head: usize,
}

/// `group` heads share the entries of a KV head. `window` 0: all positions before a row's are visible.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    heads: usize,
    group: usize,
    window: usize,
    scale: f32,
    /// The scores of sinks; 0: there are none.
    sinks: u64,
}

impl Heads {
    /// All share an entry.
    pub fn of_latents(heads: usize, scale: f32) -> Heads {
        Heads { heads, group: heads, window: 0, scale, sinks: 0 }
    }
}

impl DeviceCache {
    /// `element`: of the activations.
    pub(super) fn new(
        device: &CudaDevice,
        [blocks, block_size]: [usize; 2],
        widths: [usize; 2],
        form: CacheForm,
        element: Element,
    ) -> Result<DeviceCache> {
        if block_size == 0 {
            return Err(shape("cache", "block_size must be at least 1".into()));
        }
        let element = match form {
            CacheForm::F32 => Element::F32,
            CacheForm::Bf16 => Element::Bf16,
            CacheForm::Fp8 { .. } => element,
        };
        let places = blocks.checked_mul(block_size).filter(|&places| places < u32::MAX as usize);
        let places = places.ok_or_else(|| KernelError::OutOfMemory(format!("KV cache of {blocks} blocks")))?;
        let buffer = |width: usize| device.allocate(places * width * form.number_bytes());
        let scales = device.allocate(places * form.scales(widths).iter().sum::<usize>() * size_of::<f32>())?;
        Ok(DeviceCache {
            block_size,
            widths,
            form,
            element,
            k: buffer(widths[0])?,
            v: buffer(widths[1])?,
            scales,
            split: None,
        })
    }

    /// Of codes: how many numbers of a key and of a value share a scale, and how many scales both have.
    fn scaling(&self) -> Option<([usize; 2], [usize; 2])> {
        match self.form {
            CacheForm::F32 | CacheForm::Bf16 => None,
            CacheForm::Fp8 { sharing } => Some((sharing, self.form.scales(self.widths))),
        }
    }

    /// The absorbed queries with the latents, and the rotated ones with the rotated keys: addresses, and the distances
    /// of rows and heads.
    pub(super) fn latent_parts(&self, queries: [u64; 2], strides: [[usize; 2]; 2]) -> [CachedPart; 2] {
        let caches = [&self.k, &self.v].map(DeviceBuffer::address);
        std::array::from_fn(|i| CachedPart {
            address: queries[i],
            stride: strides[i][0],
            head_stride: strides[i][1],
            width: self.widths[i],
            cache: caches[i],
            entry: self.widths[i],
            head: 0,
        })
    }

    pub(super) fn element(&self) -> Element {
        self.element
    }

    pub(super) fn has_codes(&self) -> bool {
        self.scaling().is_some()
    }

    /// For the fast kernel, without queries.
    pub(super) fn work(&self, scale: f32) -> WorkOf {
        WorkOf {
            heads: 0,
            block_size: self.block_size,
            scale,
            latent: self.k.address(),
            rope: self.v.address(),
            scales: self.scaling().map(|_| self.scales.address()),
            q_latent: 0,
            q_latent_strides: [0; 2],
            q_rope: 0,
            q_rope_strides: [0; 2],
        }
    }

    /// Where the keys, the values and the scales of a block are, and how many bytes each takes.
    pub(super) fn block_parts(&self, block: u32) -> [(u64, usize); 3] {
        let (number, scales) = (self.form.number_bytes(), self.form.scales(self.widths).iter().sum::<usize>());
        let parts = [
            (&self.k, self.widths[0] * number),
            (&self.v, self.widths[1] * number),
            (&self.scales, scales * size_of::<f32>()),
        ];
        parts.map(|(part, bytes)| {
            let bytes = self.block_size * bytes;
            let end = (block as usize + 1) * bytes;
            assert!(end <= part.bytes(), "block {block} of a cache of {} bytes", part.bytes());
            (part.address() + (end - bytes) as u64, bytes)
        })
    }
}

/// Without a place for the result.
pub(super) fn attention_args(
    batch: &PlacedBatch,
    [a, b]: [CachedPart; 2],
    value: CachedPart,
    of: Heads,
    cache: &DeviceCache,
) -> AttentionArgs {
    let Heads { group, window, scale, sinks, .. } = of;
    assert!(value.width <= WIDEST_VALUE, "values of {} numbers, at most {WIDEST_VALUE}", value.width);
    let parts = &batch.parts;
    // Latents are values too.
    let latent = value.cache == a.cache;
    let (sharing, [of_k, of_v]) = cache.scaling().unwrap_or_default();
    AttentionArgs {
        qa: a.address,
        qb: b.address,
        cache_a: a.cache,
        cache_b: b.cache,
        cache_value: value.cache,
        out: 0,
        sequences: parts.sequences,
        positions: parts.positions,
        tables: parts.tables,
        a_entry: a.entry,
        b_entry: b.entry,
        value_entry: value.entry,
        qa_stride: int(a.stride),
        qa_head_stride: int(a.head_stride),
        width_a: int(a.width),
        a_head: int(a.head),
        qb_stride: int(b.stride),
        qb_head_stride: int(b.head_stride),
        width_b: int(b.width),
        b_head: int(b.head),
        value_width: int(value.width),
        value_head: int(value.head),
        group: int(group),
        table_stride: int(batch.shape.table_stride),
        block_size: int(cache.block_size),
        window: int(window),
        scale,
        scales: cache.scales.address(),
        scales_of_place: int(of_k + of_v),
        a_sharing: int(sharing[0].max(1)),
        value_sharing: int(sharing[usize::from(!latent)].max(1)),
        value_first: if latent { 0 } else { int(of_k) },
        sinks,
    }
}

impl OpStream {
    /// Stores latents and rotated keys of the batch, without attention.
    pub(super) fn store_latent(&self, batch: &PlacedBatch, rows: [&DeviceTensor; 2], cache: &DeviceCache) {
        self.write_cache(batch, rows, cache);
    }

    /// Stores the rows of the batch.
    fn write_cache(&self, batch: &PlacedBatch, [k, v]: [&DeviceTensor; 2], cache: &DeviceCache) {
        assert_eq!([k.cols, v.cols], cache.widths, "cache widths");
        assert_eq!((k.element, v.element), (cache.element, cache.element), "cache type");
        assert_eq!(cache.block_size, batch.block_size, "caches have blocks of one size");
        let parts = &batch.parts;
        if let Some((sharing, [of_k, of_v])) = cache.scaling() {
            let entries = [(k, &cache.k, sharing[0], of_k, 0), (v, &cache.v, sharing[1], of_v, of_k)];
            for (x, codes, sharing, scales, first) in entries {
                let args = CacheFp8Args {
                    x: x.address,
                    codes: codes.address(),
                    scales: cache.scales.address(),
                    positions: parts.positions,
                    places: parts.places,
                    width: int(x.cols),
                    stride: int(x.stride),
                    sharing: int(sharing),
                    scales_of_place: int(of_k + of_v),
                    first_scale: int(first),
                };
                // SAFETY: as below; groups of numbers that share a scale are an entry.
                unsafe { self.launch(&LaunchPlan::cache_fp8(cache.element, x.rows, scales.max(1)), &args) };
            }
            return;
        }
        let args = CacheWriteArgs {
            x: [k.address, v.address],
            caches: [cache.k.address(), cache.v.address()],
            places: parts.places,
            width: [int(k.cols), int(v.cols)],
            stride: [int(k.stride), int(v.stride)],
        };
        // SAFETY: `begin` has compared the places with the cache; k and v have a row for each.
        unsafe { self.launch(&LaunchPlan::cache_write(cache.element, k.rows), &args) };
    }

    fn attend(
        &self,
        batch: &PlacedBatch,
        parts: [CachedPart; 2],
        value: CachedPart,
        of: Heads,
        cache: &DeviceCache,
    ) -> DeviceTensor {
        let rows = batch.shape.rows;
        let out = self.tensor(rows, of.heads * value.width, cache.element);
        let args = AttentionArgs { out: out.address, ..attention_args(batch, parts, value, of, cache) };
        let (codes, width) = (cache.has_codes(), parts.iter().map(|part| part.width).sum());
        let plan = LaunchPlan::attention(cache.element, codes, rows, of.heads, width);
        // SAFETY: `begin` has compared blocks and positions with the cache; queries and out have a row for each of the
        // batch.
        unsafe { self.launch(&plan, &args) };
        out
    }

    #[allow(clippy::too_many_arguments)]
    pub fn gqa_attention(
        &self,
        batch: &PlacedBatch,
        q: &DeviceTensor,
        k: &DeviceTensor,
        v: &DeviceTensor,
        sinks: Option<&DeviceVector>,
        cache: &DeviceCache,
        spec: &GqaSpec,
    ) -> DeviceTensor {
        let GqaSpec { heads, kv_heads, head_dim, scale, window } = *spec;
        assert!(kv_heads > 0 && heads % kv_heads == 0 && q.cols == heads * head_dim, "gqa_attention: {spec:?}");
        assert_eq!(cache.widths, [kv_heads * head_dim; 2], "gqa_attention: k and v");
        assert_eq!((batch.shape.rows, q.element), (q.rows, cache.element), "gqa_attention: rows");
        assert!(sinks.is_none_or(|sinks| sinks.len == heads), "gqa_attention: a sink for each head");
        let sinks = sinks.map_or(0, |sinks| sinks.data.address());
        self.write_cache(batch, [k, v], cache);
        if let Some(plan) = FlashPlan::new(spec, cache.element, q.stride) {
            let scaling = cache.scaling().map(|(sharing, [of_k, of_v])| HeadScales {
                scales: cache.scales.address(),
                of_place: of_k + of_v,
                sharing: sharing[0],
                value_first: of_k,
            });
            let (k, v) = (cache.k.address(), cache.v.address());
            let heads = CachedHeads { k, v, block_size: cache.block_size, scaling };
            return self.flash(batch, q, heads, sinks, spec, plan);
        }
        let entry = kv_heads * head_dim;
        let key = CachedPart {
            address: q.address,
            stride: q.stride,
            head_stride: head_dim,
            width: head_dim,
            cache: cache.k.address(),
            entry,
            head: head_dim,
        };
        let value = CachedPart { cache: cache.v.address(), ..key };
        let none = CachedPart { width: 0, ..key };
        let of = Heads { heads, group: heads / kv_heads, window: window.unwrap_or(0), scale, sinks };
        self.attend(batch, [key, none], value, of, cache)
    }

    /// `mix`: the mean of the latents that each absorbed query sees, [rows, heads * kv_rank].
    #[allow(clippy::too_many_arguments)]
    pub fn attend_latent(
        &self,
        batch: &PlacedBatch,
        q: &DeviceTensor,
        [latent, k_rope]: [&DeviceTensor; 2],
        DeviceExpansion { heads: held, to_latent, to_value }: &DeviceExpansion,
        adapters: Option<[&DeviceLowRank; 2]>,
        cache: &DeviceCache,
        spec: &MlaSpec,
        mix: impl FnOnce(&DeviceTensor) -> DeviceTensor,
    ) -> DeviceTensor {
        let MlaSpec { heads, nope_dim, rope_dim, v_dim, kv_rank, .. } = *spec;
        let q_dim = nope_dim + rope_dim;
        assert_eq!((q.cols, *held), (heads * q_dim, heads), "mla_attention: heads");
        assert_eq!(cache.widths, [kv_rank, rope_dim], "mla_attention: cache widths");
        assert_eq!((batch.shape.rows, q.element), (q.rows, cache.element), "mla_attention: rows");
        self.write_cache(batch, [latent, k_rope], cache);
        let query = self.product_by_head(q, to_latent, Batched { heads, outs: kv_rank, ins: nope_dim, x_head: q_dim });
        if let Some([of_query, _]) = adapters {
            self.add_by_head(batch, heads, (q, q_dim, nope_dim), &query, of_query);
        }
        let mixed = mix(&query);
        let to_heads = Batched { heads, outs: v_dim, ins: kv_rank, x_head: kv_rank };
        let out = self.product_by_head(&mixed, to_value, to_heads);
        if let Some([_, of_value]) = adapters {
            self.add_by_head(batch, heads, (&mixed, kv_rank, kv_rank), &out, of_value);
        }
        out
    }

    /// Over a cache that has all positions.
    pub fn mix_latents(
        &self,
        batch: &PlacedBatch,
        q: &DeviceTensor,
        query: &DeviceTensor,
        cache: &DeviceCache,
        spec: &MlaSpec,
    ) -> DeviceTensor {
        let MlaSpec { heads, nope_dim, rope_dim, kv_rank, scale, .. } = *spec;
        let q_dim = nope_dim + rope_dim;
        let positions = batch.shape.table_stride * cache.block_size;
        let work = LatentWork::new(batch.shape.rows, heads, [kv_rank, rope_dim], positions, 1);
        let plain_rows = [q.stride, q_dim, nope_dim].iter().all(|width| width.is_multiple_of(8));
        if let Some(work) = work.filter(|_| plain_rows && self.takes_fast(cache)) {
            let of = WorkOf {
                heads,
                q_latent: query.address,
                q_latent_strides: [heads * kv_rank, kv_rank],
                q_rope: q.columns(nope_dim, 0).address,
                q_rope_strides: [q.stride, q_dim],
                ..cache.work(scale)
            };
            return self.fast_latent(batch, work, of);
        }
        let rotated = q.columns(nope_dim, 0).address;
        let parts = cache.latent_parts([query.address, rotated], [[query.stride, kv_rank], [q.stride, q_dim]]);
        self.attend(batch, parts, parts[0], Heads::of_latents(heads, scale), cache)
    }

    /// Whether the fast kernel reads it.
    pub(super) fn takes_fast(&self, cache: &DeviceCache) -> bool {
        let fits = cache.scaling().is_none_or(|(sharing, _)| sharing == [LATENT_SHARING, 0]);
        self.fast.is_some() && cache.element == Element::Bf16 && fits
    }
}
