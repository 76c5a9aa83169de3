//! Waits for each kernel, so that an error names the kernel that caused it: without that, the call that waits for a
//! step reports what any of its kernels did. For debugging, since steps are slow then. It does not know what kernels
//! compute.

use std::env;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::CudaError;
use super::plan::LaunchPlan;

/// If it is set and not 0, each kernel is waited for, as in other programs that use CUDA.
const BLOCKING: &str = "CUDA_LAUNCH_BLOCKING";
/// A file that then gets the kernel which runs: that of a kernel that never ends stays there.
pub const LAST_KERNEL: &str = "REIN_CUDA_LAST_KERNEL";

#[derive(Debug)]
pub(super) struct BlockingLaunches {
    last: Option<File>,
}

impl BlockingLaunches {
    /// What the environment says. None: kernels are not waited for.
    pub fn from_env() -> super::Result<Option<BlockingLaunches>> {
        if env::var_os(BLOCKING).is_none_or(|value| value.is_empty() || value == "0") {
            return Ok(None);
        }
        let create = |path: std::ffi::OsString| {
            File::create(&path).map_err(|error| CudaError::LastKernel {
                variable: LAST_KERNEL,
                path: path.into(),
                error: error.to_string(),
            })
        };
        Ok(Some(BlockingLaunches { last: env::var_os(LAST_KERNEL).map(create).transpose()? }))
    }

    /// Before the launch.
    pub fn note(&self, plan: &LaunchPlan) {
        if let Some(file) = &self.last {
            let text = plan.to_string();
            // Whoever reads the file finds an older kernel then; the launch itself is not affected.
            let _ = file.set_len(0).and_then(|()| file.write_all_at(text.as_bytes(), 0));
        }
    }
}
