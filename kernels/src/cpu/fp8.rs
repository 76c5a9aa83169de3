//! Panels of FP8 weights (e4m3), one byte for each. It does not know how activations are packed.
//!
//! Groups of inputs that share a scale begin with a scale for each output. Their codes follow as those of int8 weights:
//! a step is a pair of inputs of each output.

use super::codes::{GROUP, PANEL};
use crate::quant::e4m3;

/// Bytes of the codes of a group of 32 inputs.
const CODE_BYTES: usize = PANEL * GROUP;
const SCALE_BYTES: usize = PANEL * size_of::<f32>();
/// Without the sign: not a number.
const NAN: u8 = 0x7f;

/// Of a panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fp8Form {
    /// Groups of 32 inputs that share a scale.
    sharing: usize,
}

/// The rows of a weight.
#[derive(Debug, Clone, Copy)]
pub struct Fp8Rows<'a> {
    codes: &'a [u8],
    /// By block of rows and columns.
    scales: &'a [f32],
    block: [usize; 2],
    rows: usize,
    cols: usize,
}

impl Fp8Form {
    pub fn panel_bytes(self, groups: usize) -> usize {
        groups * CODE_BYTES + groups.div_ceil(self.sharing) * SCALE_BYTES
    }

    /// Where the scales and the codes of group g begin.
    #[inline(always)]
    pub fn place(self, g: usize) -> [usize; 2] {
        let scales = g / self.sharing * (self.sharing * CODE_BYTES + SCALE_BYTES);
        [scales, scales + SCALE_BYTES + g % self.sharing * CODE_BYTES]
    }

    /// Groups from g on whose scales are the same.
    #[inline(always)]
    pub fn same_scale(self, g: usize) -> usize {
        self.sharing - g % self.sharing
    }

    /// Group g of output c.
    pub fn read(self, panel: &[u8], c: usize, g: usize) -> [f32; GROUP] {
        let [scales, codes] = self.place(g);
        let scale = &panel[scales + 4 * c..][..4];
        let scale = f32::from_ne_bytes([scale[0], scale[1], scale[2], scale[3]]);
        std::array::from_fn(|i| e4m3(panel[codes + i / 2 * 2 * PANEL + 2 * c + i % 2]) * scale)
    }
}

impl<'a> Fp8Rows<'a> {
    /// None: scales are not for whole groups, or a code is not a number.
    pub fn of(codes: &'a [u8], scales: &'a [f32], block: [usize; 2], [rows, cols]: [usize; 2]) -> Option<Fp8Rows<'a>> {
        let fits = codes.len() == rows * cols
            && !block.contains(&0)
            && scales.len() == rows.div_ceil(block[0]) * cols.div_ceil(block[1]);
        let whole = block[1].is_multiple_of(GROUP) || block[1] >= cols;
        let numbers = || codes.iter().all(|code| code & NAN != NAN);
        (fits && whole && numbers()).then_some(Fp8Rows { codes, scales, block, rows, cols })
    }

    pub fn form(self) -> Fp8Form {
        Fp8Form { sharing: self.block[1].min(self.cols).div_ceil(GROUP).max(1) }
    }

    /// Panel p.
    pub fn pack(self, p: usize, panel: &mut [u8]) {
        let form = self.form();
        let per_row = self.cols.div_ceil(self.block[1]);
        for g in 0..self.cols.div_ceil(GROUP) {
            let [scales, codes] = form.place(g);
            for c in 0..PANEL.min(self.rows - p * PANEL) {
                let row = p * PANEL + c;
                let scale = self.scales[row / self.block[0] * per_row + g * GROUP / self.block[1]];
                panel[scales + 4 * c..][..4].copy_from_slice(&scale.to_ne_bytes());
                let from = &self.codes[row * self.cols..][g * GROUP..self.cols.min((g + 1) * GROUP)];
                for (i, code) in from.iter().enumerate() {
                    panel[codes + i / 2 * 2 * PANEL + 2 * c + i % 2] = *code;
                }
            }
        }
    }
}
