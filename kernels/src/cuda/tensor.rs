//! Activations on the device: matrices in the arena, of f32 or bf16, and what products read of them. They do not know
//! what they mean.

use std::sync::{Arc, Mutex, PoisonError};

use super::arena::ArenaBlock;
use super::form::Element;
use super::plan::PLACE_BLOCKS;

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
    codes: Arc<LastCodes>,
}

/// What was quantized last of a tensor or of one of its views, for products of the same x with several weights.
#[derive(Debug, Default)]
struct LastCodes(Mutex<Option<(Codes, Operand)>>);

/// Which columns, from which address on, and how.
type Codes = (u64, usize, CodeRows);

impl DeviceTensor {
    pub(super) fn new(block: ArenaBlock, rows: usize, cols: usize, element: Element) -> DeviceTensor {
        let codes = Arc::default();
        DeviceTensor { address: block.address, block: Arc::new(block), rows, cols, stride: cols, element, codes }
    }

    /// Columns from..from + len of every row.
    pub(super) fn columns(&self, from: usize, len: usize) -> DeviceTensor {
        assert!(from + len <= self.cols, "slice_cols: columns {from}..{} must be within {}", from + len, self.cols);
        DeviceTensor {
            block: Arc::clone(&self.block),
            codes: Arc::clone(&self.codes),
            address: self.address + (from * self.element.bytes()) as u64,
            cols: len,
            ..*self
        }
    }

    /// Its codes, made once until the numbers change.
    pub(super) fn codes(&self, which: CodeRows, make: impl FnOnce() -> Operand) -> Operand {
        let mut last = self.codes.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (self.address, self.cols, which);
        match &*last {
            Some((of, codes)) if *of == key => codes.clone(),
            _ => last.insert((key, make())).1.clone(),
        }
    }

    /// Its address, for a kernel that changes the numbers.
    pub(super) fn changed(&self) -> u64 {
        *self.codes.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.address
    }

    pub(super) fn is_contiguous(&self) -> bool {
        self.stride == self.cols || self.rows <= 1
    }
}

/// The left side of a product, as the weight's form needs it.
#[derive(Debug, Clone)]
pub(super) struct Operand {
    pub address: u64,
    pub stride: usize,
    pub scales: u64,
    /// Of the numbers before they were quantized.
    pub element: Element,
    /// It must outlive the launch.
    _memory: [Arc<ArenaBlock>; 2],
}

impl Operand {
    pub fn plain(x: &DeviceTensor) -> Operand {
        let (address, stride, element) = (x.address, x.stride, x.element);
        Operand { address, stride, scales: 0, element, _memory: [Arc::clone(&x.block), Arc::clone(&x.block)] }
    }

    /// Codes in rows of `stride` bytes, and their scales.
    pub fn coded(codes: ArenaBlock, scales: ArenaBlock, stride: usize, element: Element) -> Operand {
        let (address, of_scales) = (codes.address, scales.address);
        Operand { address, stride, scales: of_scales, element, _memory: [Arc::new(codes), Arc::new(scales)] }
    }
}

/// Places of routes (moe.cu).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PlaceRows {
    /// The address of the route at each place, or none.
    pub routes: u64,
    /// The address of the number of places that experts have.
    pub used: u64,
    /// Places.
    pub room: usize,
}

impl PlaceRows {
    /// Rows of blocks for places, or for `rows` rows.
    pub fn blocks(places: Option<PlaceRows>, rows: usize) -> usize {
        places.map_or(rows, |places| places.room.min(PLACE_BLOCKS))
    }
}

/// Which rows get FP8 codes, and how their scales lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CodeRows {
    /// All; scales row by row, for the plain kernels.
    All,
    /// All; scales group by group, for the fast kernels.
    ByGroup,
    /// Those of places: place p has row routes[p] / per_row of x; scales group by group.
    Places { places: PlaceRows, per_row: usize },
}

impl CodeRows {
    pub fn places(self) -> Option<PlaceRows> {
        if let CodeRows::Places { places, .. } = self { Some(places) } else { None }
    }
}
