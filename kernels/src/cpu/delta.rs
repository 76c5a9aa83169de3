//! The gated delta net, row by row: a state depends on the tokens before it, not on how they came.

use super::memory::{Arena, Block};
use super::norms::rms_norm;
use super::pool::SharedPtr;
use super::simd::{Isa, Simd, simd_fn};
use super::{Batch, Cpu, Tensor, stale};
use crate::backend::{DeltaSpec, DeltaVectors, StateCells, StateSave};
use crate::error::{KernelError, Result};

/// Added to the sum of squares of a query or key.
const UNIT_EPS: f32 = 1e-6;

/// Cells of `numbers` f32: for each key head the inputs that its convolution still sees [taps - 1, channels], then for
/// each value head its state [key_dim, value_dim].
#[derive(Debug)]
pub struct States {
    cells: usize,
    numbers: usize,
    data: Block,
}

impl States {
    pub fn new(arena: &Arena, cells: usize, numbers: usize) -> Result<States> {
        let bytes = cells.checked_mul(numbers).and_then(|n| n.checked_mul(size_of::<f32>()));
        let bytes = bytes.ok_or_else(|| KernelError::OutOfMemory(format!("{cells} recurrent states")))?;
        Ok(States { cells, numbers, data: arena.take(bytes)? })
    }

    fn cell(&self, cell: u32) -> *mut f32 {
        let cell = cell as usize;
        assert!(cell < self.cells, "cell {cell} of {}", self.cells);
        self.data.ptr().cast::<f32>().wrapping_add(cell * self.numbers)
    }
}

pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// One value head and one row.
#[derive(Clone, Copy)]
struct HeadRow<'a> {
    query: &'a [f32],
    key: &'a [f32],
    values: &'a [f32],
    decay: f32,
    beta: f32,
}

/// Reads the state at `from` (None: zero), leaves the next one at `to`, which may be the same, and the result in `out`.
#[inline(always)]
unsafe fn head_row_generic<S: Simd>(row: HeadRow, from: Option<*const f32>, to: *mut f32, out: &mut [f32]) {
    let HeadRow { query, key, values, decay, beta } = row;
    let width = values.len();
    let whole = width / 16 * 16;
    // SAFETY: the caller's states have key.len() * width numbers, and `out` has width; vectors end at `whole`.
    unsafe {
        for c in (0..whole).step_by(16) {
            let mut seen = S::splat(0.0);
            if let Some(from) = from {
                for (i, key) in key.iter().enumerate() {
                    seen = S::fma(S::load(from.add(i * width + c)), S::splat(*key), seen);
                }
            }
            let seen = S::mul(seen, S::splat(decay));
            let change = S::mul(S::sub(S::load(values.as_ptr().add(c)), seen), S::splat(beta));
            let mut result = S::splat(0.0);
            for (i, (key, query)) in key.iter().zip(query).enumerate() {
                let mut state = S::mul(change, S::splat(*key));
                if let Some(from) = from {
                    state = S::fma(S::load(from.add(i * width + c)), S::splat(decay), state);
                }
                S::store(to.add(i * width + c), state);
                result = S::fma(state, S::splat(*query), result);
            }
            S::store(out.as_mut_ptr().add(c), result);
        }
        for c in whole..width {
            let old = |i: usize| from.map_or(0.0, |from| *from.add(i * width + c));
            let seen: f32 = key.iter().enumerate().map(|(i, key)| old(i) * key).sum::<f32>() * decay;
            let change = (values[c] - seen) * beta;
            out[c] = 0.0;
            for (i, (key, query)) in key.iter().zip(query).enumerate() {
                let state = old(i) * decay + change * key;
                *to.add(i * width + c) = state;
                out[c] += state * query;
            }
        }
    }
}

simd_fn!(
    fn head_row(row: HeadRow, from: Option<*const f32>, to: *mut f32, out: &mut [f32]) = head_row_generic
);

/// Makes x a vector of length `length`.
fn normalize(x: &mut [f32], length: f32) {
    let squares: f32 = x.iter().map(|x| x * x).sum();
    let factor = length / (squares + UNIT_EPS).sqrt();
    x.iter_mut().for_each(|x| *x *= factor);
}

impl Cpu {
    pub(super) fn delta_net(
        &self,
        batch: &Batch,
        qkvz: &Tensor,
        ba: &Tensor,
        vectors: &DeltaVectors<Vec<f32>>,
        states: &mut States,
        spec: &DeltaSpec,
    ) -> Tensor {
        let rows = &batch.rows;
        assert_eq!(qkvz.cols, spec.key_heads * spec.inputs(), "delta_net: {spec:?}");
        assert_eq!(ba.cols, 2 * spec.value_heads, "delta_net: {spec:?}");
        assert_eq!(states.numbers, spec.state_numbers(), "delta_net: numbers of a state");
        assert_eq!(rows.cells.len(), rows.spans.len(), "delta_net: cells of each span");
        let mut out = stale(qkvz.rows, spec.value_heads * spec.value_dim);
        let (width, group) = (out.cols, spec.group() * spec.value_dim);
        let base = SharedPtr(out.data.as_mut_ptr());
        let (states, isa) = (&*states, self.isa);
        self.pool.run(rows.spans.len() * spec.key_heads, &|item| {
            let (index, head) = (item / spec.key_heads, item % spec.key_heads);
            let span = &rows.spans[index];
            let mut head = KeyHead::new(isa, vectors, spec, states, head, rows.cells[index]);
            for row in span.row..span.row + span.len {
                let first = row * width + head.head * group;
                // SAFETY: a row's results of one key head, which no other item has.
                let out = unsafe { std::slice::from_raw_parts_mut(base.get().add(first), group) };
                head.row(qkvz.row(row), ba.row(row), out);
                head.save(row + 1 - span.row);
            }
        });
        out
    }
}

/// A key head with its value heads, from row to row of one span.
struct KeyHead<'a> {
    isa: Isa,
    vectors: &'a DeltaVectors<'a, Vec<f32>>,
    spec: &'a DeltaSpec,
    states: &'a States,
    head: usize,
    saves: &'a [StateSave],
    /// The cell with the state before the row. None: zero.
    from: Option<*const f32>,
    /// The cell for the state after the span; of a span that saves none, `scratch`.
    to: *mut f32,
    /// Inputs of the rows before [taps - 1, channels].
    seen: Vec<f32>,
    /// After the convolution.
    mixed: Vec<f32>,
    _scratch: Vec<f32>,
}

impl<'a> KeyHead<'a> {
    fn new(
        isa: Isa,
        vectors: &'a DeltaVectors<'a, Vec<f32>>,
        spec: &'a DeltaSpec,
        states: &'a States,
        head: usize,
        StateCells { from, saves }: StateCells<'a>,
    ) -> Self {
        let mut scratch = Vec::new();
        let to = match saves.last() {
            Some(save) => states.cell(save.cell),
            None => {
                scratch.resize(states.numbers, 0.0);
                scratch.as_mut_ptr()
            }
        };
        let from = from.map(|cell| states.cell(cell).cast_const());
        let len = (spec.taps - 1) * spec.channels();
        let seen = match from {
            // SAFETY: a cell has these numbers for each key head, and nobody writes the cell that a span reads, but
            // this item, later.
            Some(from) => unsafe { std::slice::from_raw_parts(from.add(head * len), len) }.to_vec(),
            None => vec![0.0; len],
        };
        let mixed = vec![0.0; spec.channels()];
        Self { isa, vectors, spec, states, head, saves, from, to, seen, mixed, _scratch: scratch }
    }

    /// Where the states of this head's value heads begin in a cell.
    fn offset(&self) -> usize {
        let DeltaSpec { key_heads, key_dim, value_dim, taps, .. } = *self.spec;
        (taps - 1) * key_heads * self.spec.channels() + self.head * self.spec.group() * key_dim * value_dim
    }

    fn convolve(&mut self, input: &[f32]) {
        let channels = self.mixed.len();
        let weights = &self.vectors.conv[self.head * self.spec.taps * channels..][..self.spec.taps * channels];
        let (before, own) = weights.split_at(self.seen.len());
        self.mixed.iter_mut().zip(own).zip(input).for_each(|((mixed, weight), x)| *mixed = weight * x);
        for (weights, seen) in before.chunks_exact(channels).zip(self.seen.chunks_exact(channels)) {
            self.mixed.iter_mut().zip(weights).zip(seen).for_each(|((mixed, weight), x)| *mixed += weight * x);
        }
        self.mixed.iter_mut().for_each(|x| *x *= sigmoid(*x));
        if !self.seen.is_empty() {
            self.seen.copy_within(channels.., 0);
            let last = self.seen.len() - channels;
            self.seen[last..].copy_from_slice(&input[..channels]);
        }
    }

    fn row(&mut self, qkvz: &[f32], ba: &[f32], out: &mut [f32]) {
        let DeltaSpec { key_dim, value_dim, eps, .. } = *self.spec;
        let (group, offset) = (self.spec.group(), self.offset());
        let input = &qkvz[self.head * self.spec.inputs()..][..self.spec.inputs()];
        let (betas, steps) = ba[self.head * 2 * group..][..2 * group].split_at(group);
        self.convolve(input);
        let (query, rest) = self.mixed.split_at_mut(key_dim);
        let (key, values) = rest.split_at_mut(key_dim);
        normalize(query, 1.0 / (key_dim as f32).sqrt());
        normalize(key, 1.0);
        let gates = &input[self.spec.channels()..];
        let heads = values.chunks_exact(value_dim).zip(out.chunks_exact_mut(value_dim));
        for (v, ((values, out), gates)) in heads.zip(gates.chunks_exact(value_dim)).enumerate() {
            let head = self.head * group + v;
            let rate = self.vectors.log_decay[head].exp() * softplus(steps[v] + self.vectors.step_bias[head]);
            let row = HeadRow { query, key, values, decay: (-rate).exp(), beta: sigmoid(betas[v]) };
            let at = offset + v * key_dim * value_dim;
            // SAFETY: the set was detected. A cell has key_dim * value_dim numbers for each value head from `offset`
            // on; those of this key head in `to` belong to this item.
            unsafe {
                head_row(self.isa, row, self.from.map(|from| from.add(at)), self.to.add(at), out);
                rms_norm(self.isa, out, self.vectors.norm, eps);
            }
            out.iter_mut().zip(gates).for_each(|(x, gate)| *x *= gate * sigmoid(*gate));
        }
        self.from = Some(self.to);
    }

    /// After `rows` rows of the span.
    fn save(&self, rows: usize) {
        let (offset, len) = (self.offset(), self.spec.group() * self.spec.key_dim * self.spec.value_dim);
        for save in self.saves.iter().filter(|save| save.rows == rows) {
            let cell = self.states.cell(save.cell);
            // SAFETY: this key head's numbers of a cell, which belong to this item.
            unsafe {
                cell.add(self.head * self.seen.len()).copy_from_nonoverlapping(self.seen.as_ptr(), self.seen.len());
                if cell != self.to {
                    cell.add(offset).copy_from_nonoverlapping(self.to.add(offset), len);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
