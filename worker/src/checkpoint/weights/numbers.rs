//! Numbers of plain tensors, from the bytes of a file to what a backend takes. It does not know tensors.

use half::{bf16, f16};
use rein_kernels::{HostData, HostForm};

use super::super::stored::StoredDtype;

/// Numbers as f32 or bf16, from f32.
pub(super) fn narrowed(numbers: Vec<f32>, form: HostForm) -> HostData {
    match form {
        HostForm::F32 | HostForm::Stored => HostData::F32(numbers),
        HostForm::Bf16 => HostData::Bf16(numbers.into_iter().map(bf16::from_f32).collect()),
    }
}

/// Callers have checked that `dtype` is a float.
pub(super) fn extend_f32(out: &mut Vec<f32>, bytes: &[u8], dtype: StoredDtype) {
    match dtype {
        StoredDtype::Bf16 => out.extend(bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32())),
        StoredDtype::F16 => out.extend(bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32())),
        _ => out.extend(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))),
    }
}

pub(super) fn extend_bf16(out: &mut Vec<bf16>, bytes: &[u8], dtype: StoredDtype) {
    match dtype {
        StoredDtype::Bf16 => out.extend(bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b))),
        StoredDtype::F16 => {
            out.extend(bytes.as_chunks().0.iter().map(|b| bf16::from_f32(f16::from_le_bytes(*b).to_f32())));
        }
        _ => out.extend(bytes.as_chunks().0.iter().map(|b| bf16::from_f32(f32::from_le_bytes(*b)))),
    }
}
