//! Paged attention with an online softmax in f32. A query row processes the positions it sees in tiles of 64, at
//! multiples of 64 from the start of its sequence, so its result does not depend on chunks, blocks or other rows.

mod numbers;

use std::cell::RefCell;

use half::bf16;
use numbers::{CachedNumber, Fp8Code, permute};

use super::kv_cache::KvCache;
use super::pool::{SharedPtr, ThreadPool};
use super::simd::{Isa, Simd, simd_fn};
use crate::backend::{CacheForm, Span};
use crate::kv_split::{TILE, lane_of};

/// Target number of query vectors (rows times heads) per work item.
const QUERIES: usize = 32;

/// A run of `width` numbers at `offset` of each position's entry in k, or in v.
#[derive(Debug, Clone, Copy)]
pub struct EntryField {
    pub in_v: bool,
    pub offset: usize,
    pub width: usize,
}

/// A part of the query vectors, and the part of the cached entry that it is multiplied with. Row r, head h of the
/// query is at `q[r * row_stride + h * head_stride + offset..]`.
#[derive(Debug, Clone, Copy)]
pub struct QueryPart<'a> {
    pub q: &'a [f32],
    pub row_stride: usize,
    pub head_stride: usize,
    pub offset: usize,
    pub width: usize,
}

/// What heads attend to: `kv_heads` groups of `group` heads; the keys and values of group g are `keys(g)` and
/// `value(g)`.
pub struct AttentionPlan<'a> {
    pub parts: &'a [QueryPart<'a>],
    pub kv_heads: usize,
    pub group: usize,
    /// For each part, the field of the entry, given the group.
    pub keys: &'a (dyn Fn(usize) -> Vec<EntryField> + Sync),
    pub value: &'a (dyn Fn(usize) -> EntryField + Sync),
    pub scale: f32,
    pub window: Option<usize>,
    /// For each head a score that takes a share of the softmax, with no value.
    pub sinks: Option<&'a [f32]>,
    /// None: over all positions.
    pub lane: Option<LanePart>,
}

/// Attention over the positions of a lane. Results are sums that are not divided yet; what they are divided by goes to
/// `weights`: for each row and head the largest score, and the sum of the weights relative to it.
#[derive(Clone, Copy)]
pub struct LanePart {
    pub lane: usize,
    pub weights: SharedPtr<f32>,
}

/// Heads `heads` of group `group` for rows `rows` of a span (counted from the span's start).
struct Item<'a> {
    span: &'a Span<'a>,
    group: usize,
    heads: std::ops::Range<usize>,
    rows: std::ops::Range<usize>,
}

#[derive(Default)]
struct Scratch {
    q: Vec<f32>,
    scores: Vec<f32>,
    out: Vec<f32>,
    max: Vec<f32>,
    sum: Vec<f32>,
    decay: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Attends for all spans. The result of row r, head h (of kv_heads * group) goes to `out[(r * heads + h) * width..]`,
/// where width is the value's.
pub fn attend(pool: &ThreadPool, isa: Isa, cache: &KvCache, spans: &[Span], plan: &AttentionPlan, out: &mut [f32]) {
    let total: usize = spans.iter().map(|s| s.len).sum();
    // Heads of a group share the reading of keys: keep them together unless threads would idle.
    let units = total * plan.kv_heads;
    let split = pool.threads().div_ceil(units.max(1)).clamp(1, plan.group.div_ceil(4).max(1));
    let heads_per_item = plan.group.div_ceil(split).min(QUERIES);
    let rows_per_item = (QUERIES / heads_per_item).max(1);
    let mut items = Vec::new();
    for span in spans {
        for from in (0..span.len).step_by(rows_per_item) {
            for group in 0..plan.kv_heads {
                for head in (0..plan.group).step_by(heads_per_item) {
                    let heads = head..plan.group.min(head + heads_per_item);
                    items.push(Item { span, group, heads, rows: from..span.len.min(from + rows_per_item) });
                }
            }
        }
    }
    // Longest first.
    items.sort_by_key(|item| std::cmp::Reverse(item.span.start + item.rows.end));
    let width = (plan.value)(0).width;
    let need = spans.iter().map(|s| s.row + s.len).max().unwrap_or(0) * plan.kv_heads * plan.group * width;
    if total * plan.kv_heads * plan.group * width < out.len() {
        // Rows of no span.
        out.fill(0.0);
    }
    assert!(out.len() >= need, "attention output has {} numbers, needs {need}", out.len());
    let out = SharedPtr(out.as_mut_ptr());
    pool.run(items.len(), &|i| {
        SCRATCH.with_borrow_mut(|scratch| {
            // SAFETY: `isa` was detected; items write disjoint (row, head) parts of out, which has room for all.
            unsafe {
                match cache.form {
                    CacheForm::F32 => attend_f32(isa, cache, plan, &items[i], scratch, out.get()),
                    CacheForm::Bf16 => attend_bf16(isa, cache, plan, &items[i], scratch, out.get()),
                    CacheForm::Fp8 { .. } => attend_fp8(isa, cache, plan, &items[i], scratch, out.get()),
                }
            }
        });
    });
}

/// Fields whose numbers share a scale.
fn fields_of_scales(cache: &KvCache, fields: Vec<EntryField>) -> Vec<EntryField> {
    if !matches!(cache.form, CacheForm::Fp8 { .. }) {
        return fields;
    }
    let parts = |field: EntryField| {
        let step = match cache.sharing(field.in_v) {
            0 => field.width,
            sharing => sharing - field.offset % sharing,
        };
        let step = step.clamp(1, field.width.max(1));
        let part =
            move |at: usize| EntryField { offset: field.offset + at, width: step.min(field.width - at), ..field };
        (0..field.width).step_by(step).map(part)
    };
    fields.into_iter().flat_map(parts).collect()
}

#[inline(always)]
unsafe fn attend_fp8_generic<S: Simd>(
    cache: &KvCache,
    plan: &AttentionPlan,
    item: &Item,
    scratch: &mut Scratch,
    out: *mut f32,
) {
    // SAFETY: the cache holds codes; the rest is the caller's promise.
    unsafe { item_generic::<S, Fp8Code>(cache, plan, item, scratch, out) }
}

#[inline(always)]
unsafe fn attend_f32_generic<S: Simd>(
    cache: &KvCache,
    plan: &AttentionPlan,
    item: &Item,
    scratch: &mut Scratch,
    out: *mut f32,
) {
    // SAFETY: the cache holds f32; the rest is the caller's promise.
    unsafe { item_generic::<S, f32>(cache, plan, item, scratch, out) }
}

#[inline(always)]
unsafe fn attend_bf16_generic<S: Simd>(
    cache: &KvCache,
    plan: &AttentionPlan,
    item: &Item,
    scratch: &mut Scratch,
    out: *mut f32,
) {
    // SAFETY: the cache holds bf16; the rest is the caller's promise.
    unsafe { item_generic::<S, bf16>(cache, plan, item, scratch, out) }
}

simd_fn!(fn attend_fp8(cache: &KvCache, plan: &AttentionPlan, item: &Item, scratch: &mut Scratch, out: *mut f32) = attend_fp8_generic);
simd_fn!(fn attend_f32(cache: &KvCache, plan: &AttentionPlan, item: &Item, scratch: &mut Scratch, out: *mut f32) = attend_f32_generic);
simd_fn!(fn attend_bf16(cache: &KvCache, plan: &AttentionPlan, item: &Item, scratch: &mut Scratch, out: *mut f32) = attend_bf16_generic);

#[inline(always)]
unsafe fn item_generic<S: Simd, T: CachedNumber>(
    cache: &KvCache,
    plan: &AttentionPlan,
    item: &Item,
    scratch: &mut Scratch,
    out: *mut f32,
) {
    let heads = item.heads.len();
    let queries = item.rows.len() * heads;
    // Queries are processed in eights; few queries as one, two or four.
    let padded = if queries > 4 { queries.next_multiple_of(8) } else { queries.next_power_of_two() };
    let value = (plan.value)(item.group);
    let keys = fields_of_scales(cache, (plan.keys)(item.group));
    let q_width: usize = plan.parts.iter().map(|p| p.width.next_multiple_of(16)).sum();
    let out_width = value.width.next_multiple_of(16);

    let Scratch { q, scores, out: acc, max, sum, decay } = scratch;
    q.clear();
    q.resize(padded * q_width, 0.0);
    acc.clear();
    acc.resize(padded * out_width, 0.0);
    scores.resize(padded * TILE, 0.0);
    max.clear();
    max.resize(padded, f32::NEG_INFINITY);
    sum.clear();
    sum.resize(padded, 0.0);
    decay.clear();
    decay.resize(padded, 1.0);

    for (r, row) in item.rows.clone().enumerate() {
        for (h, head) in item.heads.clone().enumerate() {
            let mut at = (r * heads + h) * q_width;
            for part in plan.parts {
                let from = (item.span.row + row) * part.row_stride
                    + (item.group * plan.group + head) * part.head_stride
                    + part.offset;
                permute::<T>(&part.q[from..from + part.width], &mut q[at..at + part.width], false);
                at += part.width.next_multiple_of(16);
            }
        }
    }

    let last = item.span.start + item.rows.end - 1;
    let first_seen = |position: usize| plan.window.map_or(0, |w| (position + 1).saturating_sub(w));
    let start = first_seen(item.span.start + item.rows.start) / TILE * TILE;
    let mut places = [0usize; TILE];
    let in_lane = |from: &usize| plan.lane.is_none_or(|part| lane_of(*from) == part.lane);
    for from in (start..=last).step_by(TILE).filter(in_lane) {
        let count = TILE.min(last + 1 - from);
        for (j, place) in places.iter_mut().enumerate() {
            // The list is padded with its last entry, whose extra scores are masked below.
            *place = cache.place(item.span.blocks, from + j.min(count - 1));
        }
        // SAFETY: q has padded * q_width numbers and scores padded * TILE; places lie in the cache.
        unsafe {
            match padded {
                1 => score_tile::<S, T, 1, 16>(cache, &keys, &places, count, q, q_width, scores),
                2 => score_tile::<S, T, 2, 8>(cache, &keys, &places, count, q, q_width, scores),
                4 => score_tile::<S, T, 4, 4>(cache, &keys, &places, count, q, q_width, scores),
                _ => score_tile::<S, T, 8, 2>(cache, &keys, &places, count, q, q_width, scores),
            }
        }
        for i in 0..queries {
            let position = item.span.start + item.rows.start + i / heads;
            let low = first_seen(position).saturating_sub(from).min(TILE);
            let high = (position + 1).saturating_sub(from).min(TILE);
            let row = &mut scores[i * TILE..][..TILE];
            // SAFETY: the row has TILE numbers.
            unsafe { softmax_step::<S>(row, low, high, plan.scale, &mut max[i], &mut sum[i], &mut decay[i]) };
        }
        // SAFETY: acc has padded * out_width numbers, out_width being the value's width rounded up to 16.
        unsafe {
            match padded {
                1 => value_tile::<S, T, 1, 4>(cache, value, &places[..count], scores, decay, acc, out_width),
                _ if !S::MANY_REGISTERS => {
                    value_tile::<S, T, 2, 2>(cache, value, &places[..count], scores, decay, acc, out_width)
                }
                2 => value_tile::<S, T, 2, 4>(cache, value, &places[..count], scores, decay, acc, out_width),
                4 => value_tile::<S, T, 4, 4>(cache, value, &places[..count], scores, decay, acc, out_width),
                _ => value_tile::<S, T, 8, 2>(cache, value, &places[..count], scores, decay, acc, out_width),
            }
        }
    }

    let all_heads = plan.kv_heads * plan.group;
    for (r, row) in item.rows.clone().enumerate() {
        for (h, head) in item.heads.clone().enumerate() {
            let i = r * heads + h;
            let to = ((item.span.row + row) * all_heads + item.group * plan.group + head) * value.width;
            // SAFETY: the caller's out has room for every row and head; this item alone writes these.
            let to = unsafe { std::slice::from_raw_parts_mut(out.add(to), value.width) };
            permute::<T>(&acc[i * out_width..][..value.width], to, true);
            match plan.lane {
                None => {
                    let sink = plan.sinks.map_or(0.0, |sinks| (sinks[item.group * plan.group + head] - max[i]).exp());
                    to.iter_mut().for_each(|x| *x /= sum[i] + sink);
                }
                Some(part) => {
                    let at = 2 * ((item.span.row + row) * all_heads + item.group * plan.group + head);
                    // SAFETY: the caller has room for two numbers of every row and head; this item alone writes these.
                    unsafe {
                        part.weights.get().add(at).write(max[i]);
                        part.weights.get().add(at + 1).write(sum[i]);
                    }
                }
            }
        }
    }
}

/// scores[q][0..count] = q . key, unscaled. Each product runs over the lanes of the entry in order and ends in one fold
/// of 16 lanes, the same for every shape Q x K.
#[inline(always)]
unsafe fn score_tile<S: Simd, T: CachedNumber, const Q: usize, const K: usize>(
    cache: &KvCache,
    keys: &[EntryField],
    places: &[usize; TILE],
    count: usize,
    q: &[f32],
    q_width: usize,
    scores: &mut [f32],
) {
    for j in (0..count).step_by(K) {
        for i in (0..q.len() / q_width).step_by(Q) {
            // SAFETY: fields lie within an entry of the cache and places within the cache; a query has q_width
            // numbers, each part of it padded to 16; scores has TILE for each query.
            unsafe {
                let mut acc = [[S::splat(0.0); K]; Q];
                let q = q.as_ptr().add(i * q_width);
                if S::MANY_REGISTERS {
                    acc = score_part::<S, T, Q, K>(cache, keys, &places[j..], q, q_width);
                } else {
                    // As many accumulators as there are registers for.
                    match Q {
                        1 => score_parts::<S, T, Q, K, 1, 4>(cache, keys, &places[j..], q, q_width, &mut acc),
                        2 => score_parts::<S, T, Q, K, 2, 2>(cache, keys, &places[j..], q, q_width, &mut acc),
                        _ => score_parts::<S, T, Q, K, 4, 1>(cache, keys, &places[j..], q, q_width, &mut acc),
                    }
                }
                let mut flat = [S::splat(0.0); 16];
                for r in 0..Q {
                    flat[r * K..][..K].copy_from_slice(&acc[r]);
                }
                let mut sums = [0.0f32; 16];
                S::store(sums.as_mut_ptr(), S::sums(flat));
                for r in 0..Q {
                    scores[(i + r) * TILE + j..][..K].copy_from_slice(&sums[r * K..][..K]);
                }
            }
        }
    }
}

/// `score_part` for parts of QS x KS of the products.
#[inline(always)]
unsafe fn score_parts<S: Simd, T: CachedNumber, const Q: usize, const K: usize, const QS: usize, const KS: usize>(
    cache: &KvCache,
    keys: &[EntryField],
    places: &[usize],
    q: *const f32,
    q_width: usize,
    acc: &mut [[S::V; K]; Q],
) {
    for r in (0..Q).step_by(QS) {
        for k in (0..K).step_by(KS) {
            // SAFETY: as for the whole.
            let part = unsafe { score_part::<S, T, QS, KS>(cache, keys, &places[k..], q.add(r * q_width), q_width) };
            for (row, part) in acc[r..].iter_mut().zip(part) {
                row[k..k + KS].copy_from_slice(&part);
            }
        }
    }
}

/// The products of Q queries, at `q`, and the keys at K places, before their lanes are added up.
#[inline(always)]
unsafe fn score_part<S: Simd, T: CachedNumber, const Q: usize, const K: usize>(
    cache: &KvCache,
    keys: &[EntryField],
    places: &[usize],
    q: *const f32,
    q_width: usize,
) -> [[S::V; K]; Q] {
    // SAFETY: as for `score_tile`, whose queries and places these are.
    unsafe {
        let mut acc = [[S::splat(0.0); K]; Q];
        let mut at = q;
        for field in keys {
            let (base, width) =
                if field.in_v { (cache.v.ptr(), cache.width_v) } else { (cache.k.ptr(), cache.width_k) };
            let base = base.cast::<T>().add(field.offset);
            let mut key = [base.cast_const(); K];
            let mut scale = [S::splat(1.0); K];
            for (k, key) in key.iter_mut().enumerate() {
                *key = key.add(places[k] * width);
                if T::FACTOR != 1.0 {
                    scale[k] = S::splat(cache.scale(places[k], field.in_v, field.offset) * T::FACTOR);
                }
            }
            let whole = field.width / 32 * 32;
            let mut d = 0;
            while d < whole {
                let mut y = [[S::splat(0.0); 2]; K];
                for k in 0..K {
                    y[k] = T::load_32::<S>(key[k].add(d));
                    if T::FACTOR != 1.0 {
                        y[k] = [S::mul(y[k][0], scale[k]), S::mul(y[k][1], scale[k])];
                    }
                }
                for half in 0..2 {
                    for r in 0..Q {
                        let x = S::load(at.add(r * q_width + d + 16 * half));
                        for k in 0..K {
                            acc[r][k] = S::fma(x, y[k][half], acc[r][k]);
                        }
                    }
                }
                d += 32;
            }
            while d < field.width {
                let n = (field.width - d).min(16);
                for k in 0..K {
                    let mut y = T::load_n::<S>(key[k].add(d), n);
                    if T::FACTOR != 1.0 {
                        y = S::mul(y, scale[k]);
                    }
                    for r in 0..Q {
                        let x = S::load(at.add(r * q_width + d));
                        acc[r][k] = S::fma(x, y, acc[r][k]);
                    }
                }
                d += 16;
            }
            at = at.add(field.width.next_multiple_of(16));
        }
        acc
    }
}

/// Turns scores low..high of a tile into weights relative to the running maximum, zero elsewhere.
#[inline(always)]
unsafe fn softmax_step<S: Simd>(
    row: &mut [f32],
    low: usize,
    high: usize,
    scale: f32,
    max: &mut f32,
    sum: &mut f32,
    decay: &mut f32,
) {
    row.iter_mut().for_each(|x| *x *= scale);
    row[..low].fill(f32::NEG_INFINITY);
    row[high.max(low)..].fill(f32::NEG_INFINITY);
    let mut largest = *max;
    // SAFETY: the row has TILE = 4 * 16 numbers.
    unsafe {
        let mut top = S::load(row.as_ptr());
        for j in (16..TILE).step_by(16) {
            top = S::max(S::load(row.as_ptr().add(j)), top);
        }
        let mut lanes = [0.0f32; 16];
        S::store(lanes.as_mut_ptr(), top);
        for x in lanes {
            largest = if x > largest { x } else { largest };
        }
    }
    if largest == f32::NEG_INFINITY && low >= high {
        // Nothing seen yet: no weight, nothing to rescale.
        row.fill(0.0);
        *decay = 1.0;
        return;
    }
    // SAFETY: the row has TILE = 4 * 16 numbers.
    unsafe {
        let shift = S::splat(largest);
        let mut total = S::splat(0.0);
        for j in (0..TILE).step_by(16) {
            let p = row.as_mut_ptr().add(j);
            let y = S::exp(S::sub(S::load(p), shift));
            S::store(p, y);
            total = S::add(total, y);
        }
        *decay = if *max == largest { 1.0 } else { (*max - largest).exp() };
        *sum = *sum * *decay + S::sum(total);
    }
    *max = largest;
}

/// acc[q] = acc[q] * decay[q] + the sum over the places of weight * value, for Q queries and 16 * N numbers (N even) at
/// a time.
#[inline(always)]
unsafe fn value_tile<S: Simd, T: CachedNumber, const Q: usize, const N: usize>(
    cache: &KvCache,
    field: EntryField,
    places: &[usize],
    weights: &[f32],
    decay: &[f32],
    acc: &mut [f32],
    out_width: usize,
) {
    let (base, width) = if field.in_v { (cache.v.ptr(), cache.width_v) } else { (cache.k.ptr(), cache.width_k) };
    // SAFETY: the field lies within an entry, the places within the cache, acc has out_width for each query; whole
    // vectors stay below the field's width, and the last partial one reads only what remains of it.
    unsafe {
        let base = base.cast::<T>().add(field.offset).cast_const();
        // The factor of the numbers from column d on at each place.
        let mut factors = [1.0; TILE];
        let scale_from = |d: usize, factors: &mut [f32; TILE]| {
            if T::FACTOR != 1.0 {
                for (factor, place) in factors.iter_mut().zip(places) {
                    *factor = cache.scale(*place, field.in_v, field.offset + d) * T::FACTOR;
                }
            }
        };
        let mut d = 0;
        // Columns that share a scale end here; a part of a field has a multiple of 16.
        let sharing = if T::FACTOR == 1.0 { 0 } else { cache.sharing(field.in_v) };
        let end_of = |d: usize| match sharing {
            0 => field.width,
            sharing => field.width.min(d + sharing - (field.offset + d) % sharing),
        };
        while d + 16 * N <= end_of(d) {
            scale_from(d, &mut factors);
            let (from, to) = (base.add(d), acc.as_mut_ptr().add(d));
            value_part::<S, T, Q, N>(from, width, places, weights, &factors, decay, to, out_width);
            d += 16 * N;
        }
        while N > 2 && d + 32 <= end_of(d) {
            scale_from(d, &mut factors);
            let (from, to) = (base.add(d), acc.as_mut_ptr().add(d));
            value_part::<S, T, Q, 2>(from, width, places, weights, &factors, decay, to, out_width);
            d += 32;
        }
        while d < field.width {
            let n = (field.width - d).min(16);
            scale_from(d, &mut factors);
            for i in 0..decay.len() {
                let out = acc.as_mut_ptr().add(i * out_width + d);
                let mut c = S::mul(S::load(out), S::splat(decay[i]));
                for (j, place) in places.iter().enumerate() {
                    let v = T::load_n::<S>(base.add(place * width + d), n);
                    let weight = weights[i * TILE + j];
                    let weight = if T::FACTOR == 1.0 { weight } else { weight * factors[j] };
                    c = S::fma(S::splat(weight), v, c);
                }
                S::store(out, c);
            }
            d += 16;
        }
    }
}

/// 16 * N columns of `value_tile`, at `base` and `acc`.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
unsafe fn value_part<S: Simd, T: CachedNumber, const Q: usize, const N: usize>(
    base: *const T,
    width: usize,
    places: &[usize],
    weights: &[f32],
    factors: &[f32; TILE],
    decay: &[f32],
    acc: *mut f32,
    out_width: usize,
) {
    for i in (0..decay.len()).step_by(Q) {
        // SAFETY: the caller's columns lie within entries and within acc; weights has TILE for each query.
        unsafe {
            let out = acc.add(i * out_width);
            let mut c = [[S::splat(0.0); N]; Q];
            for r in 0..Q {
                let factor = S::splat(decay[i + r]);
                for n in 0..N {
                    c[r][n] = S::mul(S::load(out.add(r * out_width + n * 16)), factor);
                }
            }
            for (j, place) in places.iter().enumerate() {
                let v = base.add(place * width);
                let mut y = [S::splat(0.0); N];
                for n in (0..N).step_by(2) {
                    [y[n], y[n + 1]] = T::load_32::<S>(v.add(16 * n));
                }
                for r in 0..Q {
                    let mut weight = *weights.get_unchecked((i + r) * TILE + j);
                    if T::FACTOR != 1.0 {
                        weight *= *factors.get_unchecked(j);
                    }
                    let weight = S::splat(weight);
                    for n in 0..N {
                        c[r][n] = S::fma(weight, y[n], c[r][n]);
                    }
                }
            }
            for r in 0..Q {
                for n in 0..N {
                    S::store(out.add(r * out_width + n * 16), c[r][n]);
                }
            }
        }
    }
}
