//! Pinned memory for KV blocks, and the stream on which they come back while ops run. It does not know what is where.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use cudarc::driver::sys;

use super::device::Context;
use super::error::check;
use super::{CudaDevice, PinnedBuffer, Result};
use crate::error::Result as KernelResult;

#[derive(Debug)]
pub struct PinnedBlocks {
    host: PinnedBuffer,
    stream: sys::CUstream,
    context: Arc<Context>,
}

// SAFETY: a stream is a handle that any thread may use while the context is current.
unsafe impl Send for PinnedBlocks {}

impl PinnedBlocks {
    pub fn new(device: &CudaDevice, bytes: usize) -> Result<PinnedBlocks> {
        let host = PinnedBuffer::new(device, bytes)?;
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one handle.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        Ok(PinnedBlocks { host, stream, context: Arc::clone(device.context()) })
    }

    pub fn wait(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream) })
    }

    /// Where these parts begin here, one after the other from `offset` on.
    fn places<'a>(
        &self,
        offset: usize,
        parts: &'a [(u64, usize)],
    ) -> impl Iterator<Item = (*mut std::ffi::c_void, u64, usize)> + use<'a> {
        let (start, end) = (self.host.start(), offset + parts.iter().map(|(_, bytes)| bytes).sum::<usize>());
        assert!(end <= self.host.bytes(), "{end} of {} bytes", self.host.bytes());
        parts.iter().scan(offset, move |at, &(address, bytes)| {
            let here = start.wrapping_byte_add(*at);
            *at += bytes;
            Some((here, address, bytes))
        })
    }

    /// Copies from these parts of the device, after all work of its stream.
    ///
    /// # Safety
    /// The device has them, with their bytes.
    pub unsafe fn receive(&mut self, device: &CudaDevice, offset: usize, parts: &[(u64, usize)]) -> KernelResult<()> {
        for (here, address, bytes) in self.places(offset, parts) {
            // SAFETY: the caller's promise; the memory here is long enough, and dropping it waits for the copy.
            check("cuMemcpyDtoHAsync", unsafe { sys::cuMemcpyDtoHAsync_v2(here, address, bytes, device.stream()) })?;
        }
        Ok(())
    }

    /// Copies to these parts of the device, beside the work of its stream.
    ///
    /// # Safety
    /// The device has them, with their bytes, and nothing uses them before `wait`.
    pub unsafe fn send(&self, offset: usize, parts: &[(u64, usize)]) -> KernelResult<()> {
        for (here, address, bytes) in self.places(offset, parts) {
            // SAFETY: the caller's promise; the memory here is long enough, and dropping it waits for the copy.
            check("cuMemcpyHtoDAsync", unsafe { sys::cuMemcpyHtoDAsync_v2(address, here, bytes, self.stream) })?;
        }
        Ok(())
    }
}

impl Deref for PinnedBlocks {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.host.as_bytes()
    }
}

impl DerefMut for PinnedBlocks {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.host.bytes_mut()
    }
}

impl Drop for PinnedBlocks {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: made in `new`. Its copies must end before their memory is freed.
        unsafe {
            let _ = sys::cuStreamSynchronize(self.stream);
            let _ = sys::cuStreamDestroy_v2(self.stream);
        }
    }
}
