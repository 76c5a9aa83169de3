//! Activations in memory.

use super::buffer::Buffer;

/// Activations, row-major.
#[derive(Debug, Clone)]
pub struct Tensor {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) data: Buffer,
}

impl Tensor {
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..][..self.cols]
    }
}

pub(super) fn tensor(rows: usize, cols: usize, data: Vec<f32>) -> Tensor {
    assert_eq!(data.len(), rows * cols, "a tensor [{rows}, {cols}]");
    Tensor { rows, cols, data: data.into() }
}

/// Must be overwritten completely.
pub(super) fn stale(rows: usize, cols: usize) -> Tensor {
    Tensor { rows, cols, data: Buffer::stale(rows * cols) }
}

pub(super) fn zeros(rows: usize, cols: usize) -> Tensor {
    Tensor { rows, cols, data: Buffer::zeroed(rows * cols) }
}
