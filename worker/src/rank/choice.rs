//! Which devices a process computes on, and what follows from their kind. It opens none.

#[cfg(feature = "cuda")]
use rein_kernels::cuda::has_fast_kernels;

use crate::limits::TOKEN_BUDGET;

/// The devices that the ranks of this process compute on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// Threads of this machine's CPU.
    #[default]
    Cpu,
    /// NVIDIA GPUs, one for each rank.
    Cuda(Gpus),
}

/// GPUs by index among those that CUDA_VISIBLE_DEVICES leaves, and the kernels that they run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gpus {
    pub indices: Vec<usize>,
    pub kernels: GpuKernels,
}

/// Which kernels a GPU runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GpuKernels {
    /// Those that run on every GPU.
    #[default]
    Plain,
    /// Where there is one for the product or the attention, a kernel for Hopper; else a plain one.
    Fast,
}

/// The defaults of options that depend on the kind of device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceDefaults {
    /// Tokens per KV block.
    pub block_size: usize,
    /// Tokens computed in one step.
    pub token_budget: usize,
    /// As [`EngineOptions::draft_tokens`](crate::EngineOptions::draft_tokens).
    pub draft_tokens: usize,
    /// The share of the memory left free by the weights that the KV cache gets.
    pub kv_share: f64,
}

impl GpuKernels {
    /// `built`: this binary has the fast ones.
    pub(super) fn described(self, built: bool) -> &'static str {
        match (self, built) {
            (GpuKernels::Plain, true) => "plain",
            (GpuKernels::Fast, true) => "fast, on GPUs of compute capability 9.0",
            (_, false) => "plain; this binary was built without the fast ones for Hopper",
        }
    }
}

impl DeviceChoice {
    /// GPUs with the plain kernels.
    pub fn gpus(indices: Vec<usize>) -> DeviceChoice {
        DeviceChoice::Cuda(Gpus { indices, kernels: GpuKernels::Plain })
    }

    /// As the banner shows the kernels of GPUs.
    pub fn kernels(&self) -> Option<&'static str> {
        let DeviceChoice::Cuda(Gpus { kernels, .. }) = self else { return None };
        Some(kernels.described(has_fast_kernels()))
    }

    pub fn defaults(&self) -> DeviceDefaults {
        match self {
            // The rest of the memory belongs to other processes, and to the page cache with the checkpoint.
            DeviceChoice::Cpu => {
                DeviceDefaults { block_size: 16, token_budget: TOKEN_BUDGET, draft_tokens: 8, kv_share: 0.25 }
            }
            // Attention reads whole blocks, and a step of fewer tokens would be limited by reading the experts. The
            // memory of a GPU has no other use; a tenth is left for recorded steps and the activations of large ones.
            // No GPU has shown yet what drafts gain.
            DeviceChoice::Cuda(_) => {
                DeviceDefaults { block_size: 64, token_budget: 8192, draft_tokens: 0, kv_share: 0.9 }
            }
        }
    }

    /// As `rein status` and the banner show the device of a rank of this process.
    pub fn name(&self, rank: usize) -> String {
        match self {
            DeviceChoice::Cpu => "cpu".to_owned(),
            DeviceChoice::Cuda(gpus) => format!("cuda:{}", gpus.indices.get(rank).unwrap_or(&0)),
        }
    }
}

#[cfg(not(feature = "cuda"))]
fn has_fast_kernels() -> bool {
    false
}
