//! What can go wrong between this process and a CUDA device.

use std::ffi::CStr;
use std::path::PathBuf;

use cudarc::driver::sys;
use thiserror::Error;

use super::plan::LaunchPlan;
use super::version::{MINIMUM_CAPABILITY, MINIMUM_CUDA, MINIMUM_DRIVER, Version};
use crate::error::KernelError;

#[derive(Debug, Clone, PartialEq, Error)]
pub enum CudaError {
    #[error(
        "no CUDA driver was found: libcuda.so.1 is missing; install the NVIDIA driver {MINIMUM_DRIVER} or later, or set \
         LD_LIBRARY_PATH to its directory"
    )]
    NoDriver,
    #[error(
        "the NVIDIA driver supports CUDA {found}, expected {MINIMUM_CUDA} or later: install driver {MINIMUM_DRIVER} or \
         later"
    )]
    OldDriver { found: Version },
    #[error("{}", no_device(*index, *count, visible.as_deref()))]
    NoDevice { index: usize, count: usize, visible: Option<String> },
    #[error("device {index} ({name}) has compute capability {found}, expected {MINIMUM_CAPABILITY} or later")]
    OldDevice { index: usize, name: String, found: Version },
    #[error("this binary has no CUDA kernels: run `make cuda`, then build it again")]
    NoKernels,
    #[error(
        "device {index} ({name}, compute capability {capability}): the kernels cannot be loaded: {cause}{}",
        jit_log(log)
    )]
    Load { index: usize, name: String, capability: Version, cause: Box<CudaError>, log: String },
    #[error(
        "device memory is exhausted: {bytes} bytes were asked for, {free} of {total} bytes are free (other processes on \
         the device count too)"
    )]
    OutOfMemory { bytes: usize, free: usize, total: usize },
    #[error("{0}")]
    Nccl(String),
    #[error("the ranks of a group must be connected before they exchange numbers")]
    NotConnected,
    /// The group of ranks has ended; the device has not failed.
    #[error("{0}")]
    GroupEnded(String),
    #[error("kernel {kernel}: {what}")]
    Kernel { kernel: String, what: String },
    #[error("{plan}: {cause}")]
    Launch { plan: LaunchPlan, cause: Box<CudaError> },
    #[error("{variable}: cannot write {}: {error}", path.display())]
    LastKernel { variable: &'static str, path: PathBuf, error: String },
    /// Any other failed call of the driver.
    #[error("{call} failed: {text} ({name})")]
    Call { call: &'static str, name: String, text: String },
}

fn jit_log(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; the driver says: {log}") }
}

fn no_device(index: usize, count: usize, visible: Option<&str>) -> String {
    let visible = visible.map_or(String::new(), |list| format!(" with CUDA_VISIBLE_DEVICES={list}"));
    match count {
        0 => format!("no CUDA device{visible}: the driver reports none"),
        1 => format!("device {index} does not exist{visible}: the driver reports device 0 only"),
        _ => format!("device {index} does not exist{visible}: the driver reports devices 0 to {}", count - 1),
    }
}

impl From<CudaError> for KernelError {
    fn from(error: CudaError) -> KernelError {
        match error {
            CudaError::OutOfMemory { .. } => KernelError::OutOfMemory(error.to_string()),
            // NCCL's errors are of the link to other ranks.
            CudaError::GroupEnded(reason) | CudaError::Nccl(reason) => KernelError::Aborted(reason),
            CudaError::NotConnected => KernelError::Shape { op: "exchange", what: error.to_string() },
            _ => KernelError::Device(error.to_string()),
        }
    }
}

pub fn shape(op: &'static str, what: String) -> KernelError {
    KernelError::Shape { op, what }
}

/// The result of a call of the driver.
pub fn check(call: &'static str, code: sys::CUresult) -> super::Result<()> {
    if code == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut name = std::ptr::null();
    let mut text = std::ptr::null();
    // SAFETY: both functions write a pointer to a static string, or null for a code that the driver does not know.
    let (name, text) = unsafe {
        sys::cuGetErrorName(code, &mut name);
        sys::cuGetErrorString(code, &mut text);
        (string(name), string(text))
    };
    let unknown = || format!("error {}", code as u32);
    Err(CudaError::Call { call, name: name.unwrap_or_else(unknown), text: text.unwrap_or_else(unknown) })
}

/// # Safety
/// `text` is null or a C string that lives on.
unsafe fn string(text: *const std::ffi::c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
