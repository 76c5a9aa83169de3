//! Weights in the memory of the host, in any stored form.

use half::bf16;

use crate::blocks::BlockForm;
pub use crate::host_buffer::{HostBuffer, HostNumber, HostPool, KeptMemory, PoolMemory};
use crate::storage::{BY_OUTPUT, ScaleForm, StoredForm};

/// A row-major host matrix from the checkpoint loader: only this rank's shard.
#[derive(Debug, Clone)]
pub struct HostMatrix {
    pub rows: usize,
    pub cols: usize,
    pub data: HostData,
}

#[derive(Debug, Clone)]
pub enum HostData {
    F32(Vec<f32>),
    Bf16(HostBuffer<bf16>),
    /// e4m3 codes [rows, cols] with one scale per `block` of rows and columns, of which the last may be partial.
    Fp8 {
        codes: HostBuffer<u8>,
        scales: Vec<f32>,
        block: [usize; 2],
    },
    /// [rows, ceil(cols / 8)] little-endian 32-bit words of eight values, lowest nibble first, as value + 8; one scale
    /// per `group` columns of a row.
    Int4 {
        packed: HostBuffer<u8>,
        scales: GroupScales,
        group: usize,
    },
    /// As `Int4`, with a code that is zero beside each scale: (code - zero) * scale.
    Int4Zeros {
        packed: Vec<u8>,
        scales: GroupScales,
        zeros: Vec<u8>,
        group: usize,
    },
    /// Codes of e2m1, packed as those of `Int4`; one e8m0 scale per 32 columns of a row.
    Mxfp4 {
        packed: Vec<u8>,
        scales: Vec<u8>,
    },
    /// Rows of whole blocks.
    Blocks {
        form: BlockForm,
        bytes: Vec<u8>,
    },
}

/// The scales of an int4 weight.
#[derive(Debug, Clone)]
pub enum GroupScales {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
}

impl GroupScales {
    pub fn form(&self) -> ScaleForm {
        match self {
            GroupScales::F32(_) => ScaleForm::F32,
            GroupScales::Bf16(_) => ScaleForm::Bf16,
        }
    }

    /// Exact.
    pub fn into_f32(self) -> Vec<f32> {
        match self {
            GroupScales::F32(scales) => scales,
            GroupScales::Bf16(scales) => scales.into_iter().map(bf16::to_f32).collect(),
        }
    }
}

impl HostMatrix {
    pub fn stored_form(&self) -> StoredForm {
        match &self.data {
            HostData::Blocks { form, .. } => StoredForm::Blocks(*form),
            HostData::Int4Zeros { group, .. } => StoredForm::Int4Zeros { group: *group },
            HostData::Mxfp4 { .. } => StoredForm::Mxfp4,
            HostData::F32(_) => StoredForm::F32,
            HostData::Bf16(_) => StoredForm::Bf16,
            HostData::Fp8 { block: [1, columns], .. } if *columns >= self.cols => StoredForm::Fp8 { block: BY_OUTPUT },
            HostData::Fp8 { block, .. } => StoredForm::Fp8 { block: *block },
            HostData::Int4 { scales, group, .. } => StoredForm::Int4 { group: *group, scales: scales.form() },
        }
    }
}
