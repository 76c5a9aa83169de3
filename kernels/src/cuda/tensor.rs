//! Activations on the device: matrices in the arena, of f32 or bf16. They do not know what they mean.

use std::sync::Arc;

use super::arena::ArenaBlock;
use super::form::Element;

/// A matrix, or some columns of one, whose memory is given back with its last view.
#[derive(Debug)]
pub struct DeviceTensor {
    pub(super) block: Arc<ArenaBlock>,
    pub(super) address: u64,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Distance of rows in elements.
    pub(super) stride: usize,
    pub(super) element: Element,
}

impl DeviceTensor {
    pub(super) fn new(block: ArenaBlock, rows: usize, cols: usize, element: Element) -> DeviceTensor {
        DeviceTensor { address: block.address, block: Arc::new(block), rows, cols, stride: cols, element }
    }

    /// Columns from..from + len of every row.
    pub(super) fn columns(&self, from: usize, len: usize) -> DeviceTensor {
        assert!(from + len <= self.cols, "slice_cols: columns {from}..{} must be within {}", from + len, self.cols);
        DeviceTensor {
            block: Arc::clone(&self.block),
            address: self.address + (from * self.element.bytes()) as u64,
            cols: len,
            ..*self
        }
    }

    pub(super) fn is_contiguous(&self) -> bool {
        self.stride == self.cols || self.rows <= 1
    }
}
