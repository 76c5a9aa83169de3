//! A point in the stream of a device, which the host can wait for. It does not know what lies before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys;

use super::device::Context;
use super::error::check;
use super::{CudaDevice, Result};

#[derive(Debug)]
pub(super) struct StreamEvent {
    event: sys::CUevent,
    /// The host has waited for it.
    passed: AtomicBool,
    context: Arc<Context>,
}

// SAFETY: an event is a handle that any thread may use while the context is current.
unsafe impl Send for StreamEvent {}
// SAFETY: as above; the driver locks what threads share.
unsafe impl Sync for StreamEvent {}

impl StreamEvent {
    pub fn new(device: &CudaDevice) -> Result<StreamEvent> {
        let mut event = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: writes one handle.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) })?;
        Ok(StreamEvent { event, passed: AtomicBool::new(true), context: Arc::clone(device.context()) })
    }

    /// It now lies behind all work of the stream.
    pub fn record(&self, device: &CudaDevice) -> Result<()> {
        self.passed.store(false, Ordering::Release);
        // SAFETY: both handles live.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.event, device.stream()) })
    }

    /// Waits for the work before it. An event that was never recorded has none.
    pub fn wait(&self) -> Result<()> {
        if !self.passed.load(Ordering::Acquire) {
            // SAFETY: the event lives as long as `self`.
            check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.event) })?;
            self.passed.store(true, Ordering::Release);
        }
        Ok(())
    }
}

impl Drop for StreamEvent {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: made in `new`; the driver keeps what is still recorded.
        let _ = unsafe { sys::cuEventDestroy_v2(self.event) };
    }
}
