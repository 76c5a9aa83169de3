//! What is known of a stored tensor before it is read. It does not know containers.

use std::ops::Range;

use rein_gguf::{Change, InTurn, RowOrder};
use rein_kernels::BlockForm;
use rein_kernels::quant::MXFP4_GROUP;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredDtype {
    F32,
    F16,
    Bf16,
    F8E4m3,
    I8,
    U8,
    I32,
    I64,
    /// Of GGUF: numbers in blocks.
    Blocks(BlockForm),
    /// Of GGUF: blocks of 32 numbers, a scale (e8m0) before their codes (e2m1).
    Mxfp4,
}

impl StoredDtype {
    /// By its name in safetensors.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "F32" => Self::F32,
            "F16" => Self::F16,
            "BF16" => Self::Bf16,
            "F8_E4M3" => Self::F8E4m3,
            "I8" => Self::I8,
            "U8" => Self::U8,
            "I32" => Self::I32,
            "I64" => Self::I64,
            _ => return None,
        })
    }

    /// Bytes of an element, or of a block.
    pub fn size(self) -> usize {
        match self {
            Self::Blocks(form) => form.bytes(),
            Self::Mxfp4 => 1 + MXFP4_GROUP / 2,
            Self::F8E4m3 | Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::F8E4m3 => "F8_E4M3",
            Self::I8 => "I8",
            Self::U8 => "U8",
            Self::I32 => "I32",
            Self::I64 => "I64",
            Self::Blocks(form) => form.name(),
            Self::Mxfp4 => "MXFP4",
        }
    }
}

#[derive(Debug, Clone)]
pub struct TensorEntry {
    pub dtype: StoredDtype,
    pub shape: Vec<usize>,
    pub(super) file: usize,
    /// Byte range within the file.
    pub(super) range: Range<usize>,
    /// Rows are read in the order of the Hub.
    pub(super) rows: RowOrder,
    pub(super) cols: Option<InTurn>,
    /// What was done to the numbers, which is undone where they are read as numbers.
    pub(super) change: Change,
}

impl TensorEntry {
    /// Bytes of a row of so many numbers; None if they do not fill whole blocks.
    pub fn row_bytes(dtype: StoredDtype, cols: usize) -> Option<usize> {
        match dtype {
            StoredDtype::Blocks(form) => form.row_bytes(cols),
            StoredDtype::Mxfp4 => cols.is_multiple_of(MXFP4_GROUP).then(|| cols / MXFP4_GROUP * dtype.size()),
            dtype => cols.checked_mul(dtype.size()),
        }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }
}
