//! The CPU as a device: its threads and memory, which the ranks of a process share.

use super::{Cpu, Isa, free};
use crate::backend::{Devices, HostForm, Precision, StoredForm, WeightRole};
use crate::collective::{Collective, threads};
use crate::error::Result;
use crate::quant::CODE_GROUP;
use crate::storage::DeviceStorage;

/// Every index names the same CPU.
#[derive(Debug, Clone)]
pub struct CpuDevices {
    /// Threads of all ranks of this process together.
    pub threads: usize,
}

impl Devices for CpuDevices {
    type Backend = Cpu;
    const KIND: &'static str = "cpu";
    /// Less than the 8 of Qwen2.5-Coder-0.5B in Q4_K on 2 threads (1 row takes 24 ms, 8 rows take 42): wrong drafts
    /// delay other sequences.
    const STEP_COST: usize = 5;

    fn open(&self, _: usize, ranks: usize, link: Box<dyn Collective>) -> Result<Cpu> {
        Ok(Cpu::new((self.threads / ranks.max(1)).max(1), link))
    }

    fn open_beside(&self, _: usize) -> Result<Cpu> {
        Ok(Cpu::new(1, Box::new(threads::alone())))
    }

    /// MemAvailable of Linux, or what the limit of a container leaves.
    fn free_memory(&self) -> Result<usize> {
        Ok(free::bytes())
    }
}

impl DeviceStorage for CpuDevices {
    /// Codes are multiplied as they are stored. Quantization to int8 starts from the widest form.
    fn host_form(&self, role: WeightRole, stored: StoredForm, precision: Precision) -> HostForm {
        let whole = matches!(role, WeightRole::Linear | WeightRole::Expert | WeightRole::Embedding);
        match (precision, stored) {
            (Precision::F32, _) => HostForm::F32,
            (_, StoredForm::Blocks(_) | StoredForm::Mxfp4) if whole => HostForm::Stored,
            (_, StoredForm::Int4 { group, .. } | StoredForm::Int4Zeros { group })
                if whole && group.is_multiple_of(CODE_GROUP) =>
            {
                HostForm::Stored
            }
            (_, StoredForm::Fp8 { block }) if whole && block[1].is_multiple_of(CODE_GROUP) => {
                if Isa::detect().multiplies_pairs() { HostForm::Stored } else { HostForm::Bf16 }
            }
            (Precision::Bf16, _) | (Precision::Int8, StoredForm::Bf16) => HostForm::Bf16,
            (Precision::Int8, _) => HostForm::F32,
        }
    }

    /// Without scales of int8.
    fn weight_bytes(&self, role: WeightRole, stored: StoredForm, precision: Precision, numbers: usize) -> usize {
        if self.host_form(role, stored, precision) == HostForm::Stored {
            let codes = numbers.div_ceil(2);
            return match stored {
                StoredForm::Blocks(form) => numbers.div_ceil(form.numbers()) * form.bytes(),
                StoredForm::Fp8 { block } => numbers + 4 * numbers.div_ceil(block[1]),
                StoredForm::Int4 { group, .. } => codes + 2 * numbers.div_ceil(group),
                StoredForm::Int4Zeros { group } => codes + 4 * numbers.div_ceil(group),
                _ => codes + 2 * numbers.div_ceil(CODE_GROUP),
            };
        }
        let size = match precision {
            Precision::F32 => 4,
            Precision::Bf16 => 2,
            Precision::Int8 => 1,
        };
        size * numbers
    }

    fn shares_tied_head(&self) -> bool {
        true
    }
}
