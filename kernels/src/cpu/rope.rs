//! Rotary embedding, and learned positions.

use std::cell::RefCell;
use std::sync::Arc;

use super::{Batch, Cpu, Tensor};
use crate::backend::RopeSpec;

/// cos and sin for one step's positions.
pub struct AngleTable {
    spec: RopeSpec,
    /// Per position: dims/2 cosines, then dims/2 sines.
    values: Vec<f32>,
}

impl AngleTable {
    pub fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let half = self.spec.inv_freq.len();
        self.values[row * 2 * half..][..2 * half].split_at(half)
    }
}

/// The tables of a step, each computed once and used by every layer.
pub struct AngleTables {
    positions: Vec<u32>,
    made: RefCell<Vec<Arc<AngleTable>>>,
}

impl AngleTables {
    /// One position for each row.
    pub fn new(positions: Vec<u32>) -> AngleTables {
        AngleTables { positions, made: RefCell::default() }
    }

    pub fn positions(&self) -> &[u32] {
        &self.positions
    }

    pub fn get(&self, spec: &RopeSpec) -> Arc<AngleTable> {
        let mut made = self.made.borrow_mut();
        if let Some(table) = made.iter().find(|table| table.spec.same_angles(spec)) {
            return Arc::clone(table);
        }
        spec.assert_frequencies();
        let mut values = Vec::with_capacity(self.positions.len() * spec.dims);
        self.positions.iter().for_each(|&position| spec.push_angles(position, &mut values));
        let table = Arc::new(AngleTable { spec: spec.clone(), values });
        made.push(Arc::clone(&table));
        table
    }
}

/// Rotates every head of one row.
pub fn rotate_row(row: &mut [f32], spec: &RopeSpec, (cos, sin): (&[f32], &[f32])) {
    let half = spec.dims / 2;
    let mut pairs = vec![0.0; if spec.interleaved { spec.dims } else { 0 }];
    for head in row.chunks_exact_mut(spec.head_dim) {
        let x = &mut head[spec.offset..][..spec.dims];
        if spec.interleaved {
            pairs.copy_from_slice(x);
            for i in 0..half {
                x[i] = pairs[2 * i];
                x[i + half] = pairs[2 * i + 1];
            }
        }
        let (first, second) = x.split_at_mut(half);
        for (((a, b), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
        }
    }
}

impl Cpu {
    pub(super) fn add_positions(&self, batch: &Batch, x: &mut Tensor, table: &[f32]) {
        let (positions, cols) = (batch.positions(), x.cols);
        assert_eq!(positions.len(), x.rows, "add_positions: one position for each row");
        self.by_rows(&mut x.data, cols, &|from, part| {
            for (row, &position) in part.chunks_exact_mut(cols.max(1)).zip(&positions[from..]) {
                let of_position = &table[position as usize * cols..][..cols];
                row.iter_mut().zip(of_position).for_each(|(x, add)| *x += add);
            }
        });
    }

    pub(super) fn rope(&self, batch: &Batch, x: &mut Tensor, spec: &RopeSpec) {
        assert_eq!(batch.len(), x.rows, "rope: one position for each row");
        assert!(x.cols.is_multiple_of(spec.head_dim) && spec.offset + spec.dims <= spec.head_dim, "rope: {spec:?}");
        let table = &*batch.angles.get(spec);
        let cols = x.cols;
        self.by_rows(&mut x.data, cols, &|from, part| {
            for (r, row) in part.chunks_exact_mut(cols).enumerate() {
                rotate_row(row, spec, table.row(from + r));
            }
        });
    }
}
