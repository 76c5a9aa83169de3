//! The forms of weights as codes of few bits, as config.json names them. It does not know tensors.

use rein_kernels::quant::MXFP4_GROUP;
use rein_kernels::{ScaleForm, StoredForm};

/// `group`: inputs that share a scale. None: all of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodedForm {
    /// `weight` [out, in] of int8, `weight_scale` [out, 1] or one number.
    Int8,
    /// compressed-tensors: `weight_packed` [out, in * bits / 32], `weight_scale` [out, groups]. Without symmetry
    /// `weight_zero_point` [out * bits / 32, groups]; `weight_g_idx` [in], if it is there, has the group of each input.
    Packed { bits: usize, group: Option<usize>, symmetric: bool },
    /// GPTQ: `qweight` [in * bits / 32, out], `scales` [groups, out], `qzeros` [groups, out * bits / 32], to which
    /// `offset` is added; `g_idx` [in] as above. `symmetric`: all zeros are half of the range, and groups are of
    /// neighbours.
    Gptq { bits: usize, group: Option<usize>, offset: u32, symmetric: bool },
    /// Floats of four bits (e2m1), two in a byte of [out, in / 2], with a `weight_scale` [out, in / group] of one byte.
    Fp4 { group: usize, scales: Fp4Scales },
    /// AWQ: `qweight` [in, out / 8] of four bits, `scales` [groups, out], `qzeros` [groups, out / 8].
    Awq { group: Option<usize> },
}

/// What the scales of 4-bit floats are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fp4Scales {
    /// MXFP4: a power of two (e8m0). The codes are `weight_packed`.
    E8m0,
    /// NVFP4 of compressed-tensors: e4m3, divided by `weight_global_scale`.
    Divided,
    /// NVFP4 of modelopt: e4m3, times `weight_scale_2`. The codes are `weight`.
    Multiplied,
}

impl Fp4Scales {
    /// The tensor with one number for all scales.
    pub fn global(self) -> Option<&'static str> {
        match self {
            Self::E8m0 => None,
            Self::Divided => Some("weight_global_scale"),
            Self::Multiplied => Some("weight_scale_2"),
        }
    }
}

impl CodedForm {
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Packed { bits: 4, .. } => "int4",
            Self::Packed { .. } => "packed integers",
            Self::Fp4 { scales: Fp4Scales::E8m0, .. } => "mxfp4",
            Self::Fp4 { .. } => "nvfp4",
            Self::Gptq { .. } => "gptq",
            Self::Awq { .. } => "awq",
        }
    }

    /// Whether experts may have theirs in one tensor (gpt-oss).
    pub fn has_blocks(self) -> bool {
        matches!(self, Self::Fp4 { scales: Fp4Scales::E8m0, group: MXFP4_GROUP })
    }

    /// The group, if these are symmetric int4 weights, as compressed-tensors has them.
    pub fn int4_group(self) -> Option<usize> {
        match self {
            Self::Gptq { bits: 4, group, symmetric: true, .. } => group,
            _ => None,
        }
    }

    /// As what a backend gets such weights, if it keeps them; bf16: it gets what they are decoded to.
    pub fn stored(self) -> StoredForm {
        match self {
            Self::Gptq { bits: 4, group: Some(group), symmetric: true, .. } => {
                StoredForm::Int4 { group, scales: ScaleForm::F32 }
            }
            Self::Gptq { bits: 4, group: Some(group), .. }
            | Self::Awq { group: Some(group) }
            | Self::Packed { bits: 4, group: Some(group), symmetric: false } => StoredForm::Int4Zeros { group },
            Self::Fp4 { scales: Fp4Scales::E8m0, group: MXFP4_GROUP } => StoredForm::Mxfp4,
            _ => StoredForm::Bf16,
        }
    }

    /// The tensor of the codes, by which a module is known to be in this form.
    pub fn codes(self) -> &'static str {
        match self {
            Self::Int8 | Self::Fp4 { scales: Fp4Scales::Multiplied, .. } => "weight",
            Self::Packed { .. } | Self::Fp4 { .. } => "weight_packed",
            Self::Gptq { .. } | Self::Awq { .. } => "qweight",
        }
    }
}
