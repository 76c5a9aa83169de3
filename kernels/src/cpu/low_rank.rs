//! Low-rank adapters: two thin products over the rows of each adapter. A row's bits do not depend on other rows, as
//! those of its products do not.

use std::collections::BTreeMap;

use super::{Batch, Cpu, Linear, Tensor, shape, stale};
use crate::backend::{Backend, ExpertAdapters, LowRankPair, Precision, RowOps};
use crate::error::Result;

/// By place.
#[derive(Debug, Default)]
pub struct LowRank(Vec<Option<Pair>>);

#[derive(Debug)]
struct Pair {
    down: Linear,
    up: Linear,
}

impl LowRank {
    pub fn new(places: usize) -> LowRank {
        LowRank((0..places).map(|_| None).collect())
    }

    fn at(&self, place: usize) -> Option<&Pair> {
        self.0.get(place)?.as_ref()
    }

    fn any(&self, mut places: std::ops::Range<usize>) -> bool {
        places.any(|place| self.at(place).is_some())
    }
}

/// The rows at these indices, in their order.
pub(super) fn gather(x: &Tensor, rows: &[usize]) -> Tensor {
    let mut out = stale(rows.len(), x.cols);
    for (to, &from) in out.data.chunks_exact_mut(x.cols.max(1)).zip(rows) {
        to.copy_from_slice(x.row(from));
    }
    out
}

impl Batch<'_> {
    /// The rows of each slot that has an adapter.
    fn rows_by_slot(&self) -> BTreeMap<u32, Vec<usize>> {
        let mut rows = BTreeMap::<u32, Vec<usize>>::new();
        for (span, slot) in self.rows.spans.iter().zip(&self.rows.loras) {
            if let Some(slot) = slot {
                rows.entry(*slot).or_default().extend(span.row..span.row + span.len);
            }
        }
        rows
    }

    /// The slot of each row that has an adapter.
    fn slots_of_rows(&self) -> Vec<Option<u32>> {
        let mut slots = vec![None; self.len()];
        for (slot, rows) in self.rows_by_slot() {
            rows.into_iter().for_each(|row| slots[row] = Some(slot));
        }
        slots
    }
}

/// The rows of some tokens that adapters change in the experts of a layer.
pub(crate) struct AdaptedRows<'a> {
    adapters: ExpertAdapters<'a, LowRank>,
    slots: Vec<Option<u32>>,
}

impl<'a> AdaptedRows<'a> {
    /// None: there are none.
    pub fn of(batch: &Batch, adapters: Option<ExpertAdapters<'a, LowRank>>) -> Option<AdaptedRows<'a>> {
        let adapters = adapters.filter(|_| !batch.rows.loras.is_empty())?;
        let mut slots = batch.slots_of_rows();
        let mut changes = BTreeMap::new();
        for slot in &mut slots {
            let changed = |&slot: &u32| {
                *changes.entry(slot).or_insert_with(|| {
                    let places = adapters.places(slot as usize);
                    [adapters.gate, adapters.up, adapters.down].iter().any(|table| table.any(places.clone()))
                })
            };
            *slot = slot.filter(changed);
        }
        slots.iter().any(Option::is_some).then_some(AdaptedRows { adapters, slots })
    }

    /// Adds to `out` what the adapters of an expert's gate, up or down make of its rows of `input`.
    pub fn add(&self, cpu: &Cpu, which: usize, (id, rows): (u32, &[usize]), input: &[f32], out: &mut [f32]) {
        let ExpertAdapters { gate, up, down, .. } = self.adapters;
        let (ins, outs) = (input.len() / rows.len().max(1), out.len() / rows.len().max(1));
        for (i, &row) in rows.iter().enumerate() {
            let Some(slot) = self.slots[row] else { continue };
            let place = self.adapters.places(slot as usize).start + id as usize;
            let Some(pair) = [gate, up, down][which].at(place) else { continue };
            let part = cpu.through_pair(pair, &cpu.to_device(1, ins, input[i * ins..][..ins].to_vec()));
            out[i * outs..][..outs].iter_mut().zip(part.data()).for_each(|(out, part)| *out += part);
        }
    }

    /// The slot of a row that is changed.
    pub fn slot(&self, row: usize) -> Option<u32> {
        *self.slots.get(row)?
    }

    pub fn adapters(&self) -> ExpertAdapters<'a, LowRank> {
        self.adapters
    }
}

impl Cpu {
    pub(super) fn set_pair(
        &self,
        table: &mut LowRank,
        place: usize,
        pair: Option<LowRankPair>,
        precision: Precision,
    ) -> Result<()> {
        let count = table.0.len();
        let to = table.0.get_mut(place).ok_or_else(|| shape("low_rank", format!("no place {place} of {count}")))?;
        *to = match pair {
            None => None,
            Some(LowRankPair { down, up }) if down.rows == up.cols => {
                let precision = if precision == Precision::F32 { precision } else { Precision::Bf16 };
                Some(Pair { down: self.linear_weight(down, precision)?, up: self.linear_weight(up, precision)? })
            }
            Some(LowRankPair { down, up }) => {
                let what = format!("ranks differ: [{}, {}], [{}, {}]", down.rows, down.cols, up.rows, up.cols);
                return Err(shape("low_rank", what));
            }
        };
        Ok(())
    }

    fn through_pair(&self, pair: &Pair, x: &Tensor) -> Tensor {
        self.linear(&self.linear(x, &pair.down, None), &pair.up, None)
    }

    pub(super) fn add_low_rank(&self, batch: &Batch, x: &Tensor, y: &mut Tensor, table: &LowRank) {
        assert_eq!((x.rows, y.rows), (batch.len(), batch.len()), "add_low_rank: rows");
        for (slot, rows) in batch.rows_by_slot() {
            let Some(pair) = table.at(slot as usize) else { continue };
            if rows.len() == x.rows {
                self.add_scaled(y, &self.through_pair(pair, x), 1.0);
                continue;
            }
            let part = self.through_pair(pair, &gather(x, &rows));
            for (row, part) in rows.into_iter().zip(part.data.chunks_exact(part.cols.max(1))) {
                let cols = y.cols;
                y.data[row * cols..][..cols].iter_mut().zip(part).for_each(|(y, part)| *y += part);
            }
        }
    }

    /// Adds to each head's columns of y what the adapter of that head makes of the first `ins` of the head's columns of
    /// x, whose heads are `stride` apart.
    pub(super) fn add_by_head(
        &self,
        batch: &Batch,
        heads: usize,
        (x, stride, ins): (&[f32], usize, usize),
        y: &mut Tensor,
        table: &LowRank,
    ) {
        let outs = y.cols / heads;
        for (slot, rows) in batch.rows_by_slot() {
            for head in 0..heads {
                let Some(pair) = table.at(slot as usize * heads + head) else { continue };
                let mut of_head = stale(rows.len(), ins);
                for (to, row) in of_head.data.chunks_exact_mut(ins.max(1)).zip(&rows) {
                    to.copy_from_slice(&x[(row * heads + head) * stride..][..ins]);
                }
                let part = self.through_pair(pair, &of_head);
                for (row, part) in rows.iter().zip(part.data.chunks_exact(outs.max(1))) {
                    let y = &mut y.data[(row * heads + head) * outs..][..outs];
                    y.iter_mut().zip(part).for_each(|(y, part)| *y += part);
                }
            }
        }
    }

    pub(super) fn add_pair_of_expert(&self, x: &Tensor, y: &mut Tensor, table: &LowRank, place: usize) {
        if let Some(pair) = table.at(place) {
            self.add_scaled(y, &self.through_pair(pair, x), 1.0);
        }
    }
}
