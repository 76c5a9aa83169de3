//! Errors of checkpoint loading. It does not know exit codes.

use std::path::PathBuf;

use rein_control_plane::placement::PlacementError;
use thiserror::Error;

/// Why a checkpoint directory cannot be loaded. Each error names the file, key or tensor, and what is expected.
#[derive(Debug, Error)]
pub enum LoadError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path}: {what}")]
    File { path: PathBuf, what: String },
    #[error(
        "{path} {what} after this process opened it, so what is read now may be other weights; start the process again \
         (a checkpoint is replaced by a new directory, never in place)"
    )]
    Changed { path: PathBuf, what: String },
    #[error("{path}: a read has returned nothing for {seconds} s; the disk or the file server hangs")]
    Stalled { path: PathBuf, seconds: f64 },
    #[error("config.json: {key}: {what}")]
    Config { key: String, what: String },
    #[error("config.json: architecture {found} is not supported; supported are {supported}")]
    Architecture { found: String, supported: String },
    #[error("config.json: {what}; supported weight formats are {}", FORMATS)]
    Quantization { what: String },
    #[error("the checkpoint lacks tensor {}", names(.0))]
    Missing(Vec<String>),
    #[error("the checkpoint has tensors that this architecture does not use: {}", names(.0))]
    Extra(Vec<String>),
    #[error("tensor {name} has shape {found:?}, but config.json requires {expected:?}")]
    TensorShape { name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("tensor {name} is stored as {found}; expected {expected}")]
    TensorDtype { name: String, found: String, expected: &'static str },
    #[error(transparent)]
    Placement(#[from] PlacementError),
    #[error("option {option}: {what}")]
    Option { option: &'static str, what: String },
    /// The devices cannot be used.
    #[error("{0}")]
    Device(String),
    #[error("rank {rank}: {what}")]
    Rank { rank: usize, what: String },
    #[error(transparent)]
    Kernel(#[from] rein_kernels::KernelError),
}

impl LoadError {
    /// This process cannot read the files again as they were. Other processes may be able to.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Changed { .. } | Self::Stalled { .. })
    }

    pub(crate) fn config(key: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Config { key: key.into(), what: what.into() }
    }
}

const FORMATS: &str = "f32, f16 and bf16; FP8 (e4m3) with scales for blocks, outputs or tensors; compressed-tensors int4 and \
                       int8; MXFP4 and NVFP4; GPTQ with 4 or 8 bits; AWQ with 4 bits";
const NAMES_SHOWN: usize = 4;

fn names(all: &[String]) -> String {
    let shown = all.iter().take(NAMES_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(NAMES_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
