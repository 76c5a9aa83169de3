//! The CPU as a device: its threads and memory, which the ranks of a process share.

use super::{Cpu, free};
use crate::backend::{Devices, HostForm, Precision, StoredForm, WeightRole};
use crate::collective::{Collective, threads};
use crate::error::Result;
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
    /// Quantization to int8 starts from the widest form.
    fn host_form(&self, _: WeightRole, stored: StoredForm, precision: Precision) -> HostForm {
        match precision {
            Precision::F32 => HostForm::F32,
            Precision::Bf16 => HostForm::Bf16,
            Precision::Int8 if stored == StoredForm::Bf16 => HostForm::Bf16,
            Precision::Int8 => HostForm::F32,
        }
    }

    /// Without scales.
    fn weight_bytes(&self, _: WeightRole, _: StoredForm, precision: Precision, numbers: usize) -> usize {
        let size = match precision {
            Precision::F32 => 4,
            Precision::Bf16 => 2,
            Precision::Int8 => 1,
        };
        size * numbers
    }

    fn cache_bytes(&self, precision: Precision) -> usize {
        if precision == Precision::F32 { 4 } else { 2 }
    }
}
