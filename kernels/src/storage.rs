//! How kinds of devices store weights and KV entries. It works without a device.

use half::bf16;

use crate::blocks::BlockForm;

/// How the checkpoint stores a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredForm {
    F32,
    F16,
    Bf16,
    Fp8 {
        block: [usize; 2],
    },
    Int4 {
        group: usize,
        scales: ScaleForm,
    },
    /// With a zero beside each scale, which is exact in f16.
    Int4Zeros {
        group: usize,
    },
    Mxfp4,
    Blocks(BlockForm),
}

/// The type of an int4 weight's scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleForm {
    /// Also where the checkpoint stores f16.
    F32,
    Bf16,
}

impl ScaleForm {
    /// Bytes of a scale.
    pub fn bytes(self) -> usize {
        match self {
            ScaleForm::F32 => size_of::<f32>(),
            ScaleForm::Bf16 => size_of::<bf16>(),
        }
    }
}

/// The form in which the loader hands over a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostForm {
    F32,
    Bf16,
    /// As the checkpoint stores it; f16 as f32.
    Stored,
}

/// What a weight is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightRole {
    Embedding,
    Linear,
    /// Scores of experts.
    Router,
    /// One of the three matrices of an expert.
    Expert,
    /// `kv_b_proj` of latent attention.
    LatentExpansion,
}

/// How a weight is stored and multiplied. Accumulation is always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// f32 weights, f32 activations.
    F32,
    /// bf16 weights; activations are rounded to bf16 at the start of each product.
    Bf16,
    /// int8 weights with one f32 scale per group of inputs, quantized at load.
    Int8,
}

/// How a cache stores its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheForm {
    F32,
    Bf16,
    /// e4m3 codes. So many numbers of a key's entry, and of a value's, share a scale in f32, which is a power of two;
    /// 0: there is none. It is a multiple of 16, or all that a head has. Codes times scales are exact in bf16.
    Fp8 {
        sharing: [usize; 2],
    },
}

impl CacheForm {
    /// As activations are stored.
    pub fn of(precision: Precision) -> CacheForm {
        match precision {
            Precision::F32 => CacheForm::F32,
            Precision::Bf16 | Precision::Int8 => CacheForm::Bf16,
        }
    }

    /// Bytes of a number, or of a code.
    pub fn number_bytes(self) -> usize {
        match self {
            CacheForm::F32 => size_of::<f32>(),
            CacheForm::Bf16 => size_of::<bf16>(),
            CacheForm::Fp8 { .. } => 1,
        }
    }

    /// Scales of the two entries of a position.
    pub fn scales(self, widths: [usize; 2]) -> [usize; 2] {
        match self {
            CacheForm::F32 | CacheForm::Bf16 => [0; 2],
            CacheForm::Fp8 { sharing } => [0, 1].map(|i| widths[i].checked_div(sharing[i]).unwrap_or(0)),
        }
    }

    /// Bytes of a position with two entries of these widths.
    pub fn position_bytes(self, widths: [usize; 2]) -> usize {
        let numbers = widths.iter().sum::<usize>() * self.number_bytes();
        numbers + self.scales(widths).iter().sum::<usize>() * size_of::<f32>()
    }
}

/// What a kind of device keeps of a model in its memory.
pub trait DeviceStorage {
    /// The form in which the backends take a weight that is multiplied as `precision`. The loader converts to it.
    fn host_form(&self, role: WeightRole, stored: StoredForm, precision: Precision) -> HostForm;
    /// Approximate memory of `numbers` numbers of such a weight.
    fn weight_bytes(&self, role: WeightRole, stored: StoredForm, precision: Precision, numbers: usize) -> usize;
    /// Whether a head that is the embedding, kept in the same form, takes no memory of its own.
    fn shares_tied_head(&self) -> bool {
        false
    }
}

/// CUDA devices multiply the large FP8 and int4 weights as they are stored.
#[derive(Debug, Clone, Copy)]
pub struct CudaStorage;

/// Rows and columns of an FP8 weight that share a scale.
pub(crate) const FP8_BLOCK: usize = 128;
/// The block of an FP8 weight whose scales are for all inputs of an output.
pub const BY_OUTPUT: [usize; 2] = [1, 1 << 26];
/// As many inputs as large weights have at least.
const FEW_INPUTS: usize = 512;
/// Columns of an MXFP4 weight that share a scale.
pub const MXFP4_GROUP: usize = 32;
/// Groups of int4 weights have a multiple of this many columns.
const INT4_GROUP: usize = 32;

impl DeviceStorage for CudaStorage {
    fn host_form(&self, role: WeightRole, stored: StoredForm, precision: Precision) -> HostForm {
        let large = matches!(role, WeightRole::Linear | WeightRole::Expert);
        match (stored, precision) {
            (_, Precision::F32) => HostForm::F32,
            (StoredForm::Fp8 { block: [FP8_BLOCK, FP8_BLOCK] | BY_OUTPUT }, _) if large => HostForm::Stored,
            (StoredForm::Int4 { group, .. }, _) if large && group.is_multiple_of(INT4_GROUP) => HostForm::Stored,
            (StoredForm::Mxfp4, _) if large => HostForm::Stored,
            _ => HostForm::Bf16,
        }
    }

    /// Scales of FP8 are f32, those of int4 as they are stored, those of MXFP4 bf16.
    fn weight_bytes(&self, role: WeightRole, stored: StoredForm, precision: Precision, numbers: usize) -> usize {
        let scales = |numbers_each: usize, form: ScaleForm| form.bytes() * numbers.div_ceil(numbers_each.max(1));
        match (self.host_form(role, stored, precision), stored) {
            (HostForm::Stored, StoredForm::Fp8 { block: BY_OUTPUT }) => {
                numbers + scales(FP8_BLOCK * FP8_BLOCK, ScaleForm::F32) + scales(FEW_INPUTS, ScaleForm::F32)
            }
            (HostForm::Stored, StoredForm::Fp8 { block }) => numbers + scales(block[0] * block[1], ScaleForm::F32),
            (HostForm::Stored, StoredForm::Int4 { group, scales: form }) => numbers.div_ceil(2) + scales(group, form),
            (HostForm::Stored, StoredForm::Mxfp4) => numbers.div_ceil(2) + scales(MXFP4_GROUP, ScaleForm::Bf16),
            (HostForm::F32, _) => 4 * numbers,
            _ => 2 * numbers,
        }
    }
}

#[cfg(test)]
mod tests;
