//! The types and forms of numbers on the device.

use crate::backend::ScaleForm;
use crate::quant::MXFP4_GROUP;
use crate::storage::FP8_BLOCK;

/// The type of the numbers of an activation, an embedding or a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    F32,
    Bf16,
}

impl Element {
    pub fn bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::Bf16 => 2,
        }
    }

    /// The kernel for this type.
    pub fn of(self, f32: &'static str, bf16: &'static str) -> &'static str {
        match self {
            Element::F32 => f32,
            Element::Bf16 => bf16,
        }
    }
}

/// How the numbers of a weight lie on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WeightForm {
    F32,
    Bf16,
    /// One scale per 128 x 128 block. `by_output`: and one for each output.
    Fp8 {
        by_output: bool,
    },
    Int4 {
        group: usize,
        scales: ScaleForm,
    },
    /// e2m1 codes in the place of integers, with a bf16 scale per group.
    Mxfp4,
}

impl WeightForm {
    /// Bytes of [outs, ins] without scales.
    pub fn bytes(self, outs: usize, ins: usize) -> usize {
        match self {
            WeightForm::F32 => outs * ins * 4,
            WeightForm::Bf16 => outs * ins * 2,
            WeightForm::Fp8 { .. } => outs * ins,
            WeightForm::Int4 { .. } | WeightForm::Mxfp4 => outs * ins.div_ceil(8) * 4,
        }
    }

    /// Bytes of the scales of [outs, ins].
    pub fn scale_bytes(self, outs: usize, ins: usize) -> usize {
        match self {
            WeightForm::F32 | WeightForm::Bf16 => 0,
            WeightForm::Fp8 { .. } => outs.div_ceil(FP8_BLOCK) * ins.div_ceil(FP8_BLOCK) * size_of::<f32>(),
            WeightForm::Int4 { group, scales } => outs * ins.div_ceil(group) * scales.bytes(),
            WeightForm::Mxfp4 => outs * ins.div_ceil(MXFP4_GROUP) * ScaleForm::Bf16.bytes(),
        }
    }

    pub fn is_fp8(self) -> bool {
        matches!(self, WeightForm::Fp8 { .. })
    }

    pub fn by_output(self) -> bool {
        self == WeightForm::Fp8 { by_output: true }
    }

    /// Bytes of a weight's parts: its numbers, their scales, and those of its outputs.
    pub fn parts(self, outs: usize, ins: usize) -> [usize; 3] {
        let of_outputs = if self.by_output() { outs * size_of::<f32>() } else { 0 };
        [self.bytes(outs, ins), self.scale_bytes(outs, ins), of_outputs]
    }
}

/// The shapes and forms of an expert's matrices: gate, up and down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExpertShape {
    pub inter: usize,
    pub hidden: usize,
    pub forms: [WeightForm; 3],
    /// Gate and up are one matrix, the first, in which up begins with this output; there is no second one then. None:
    /// their forms differ.
    pub up_at: Option<usize>,
    /// The outputs of each are padded to a multiple of this, the width of the tiles that fast kernels have for weights
    /// of four bits.
    pub tiled: Option<usize>,
}

impl ExpertShape {
    pub fn new(inter: usize, hidden: usize, forms: [WeightForm; 3]) -> ExpertShape {
        // Both have whole blocks of outputs with a scale.
        let up_at = if forms[0].is_fp8() { inter.next_multiple_of(FP8_BLOCK) } else { inter };
        ExpertShape { inter, hidden, forms, up_at: (forms[0] == forms[1]).then_some(up_at), tiled: None }
    }

    pub fn matrix(&self, which: usize) -> (usize, usize, WeightForm) {
        let (outs, ins) = match (which, self.up_at) {
            (2, _) => (self.hidden, self.inter),
            (0, Some(up_at)) => (up_at + self.inter, self.hidden),
            (_, Some(_)) => (0, self.hidden),
            (_, None) => (self.inter, self.hidden),
        };
        (outs, ins, self.forms[which])
    }

    /// Where the parts of up begin in those of the first matrix, if it has both.
    pub fn up_starts(&self) -> Option<[usize; 3]> {
        self.up_at.map(|up_at| self.forms[0].parts(up_at, self.hidden))
    }

    /// Bytes of the parts of a matrix of one expert.
    pub fn parts(&self, which: usize) -> [usize; 3] {
        let (outs, ins, form) = self.matrix(which);
        form.parts(self.tiled.map_or(outs, |columns| outs.next_multiple_of(columns)), ins)
    }
}
