//! Brings weights to the device: copied to pinned memory by the host, and from there by the device, both at once. It
//! does not know what they are.

use std::cell::RefCell;
use std::sync::Arc;

use cudarc::driver::sys;

use super::device::Context;
use super::error::check;
use super::memory::Plain;
use super::{CudaDevice, DeviceBuffer, PinnedBuffer, Result};

/// Bytes of a slot.
const SLOT: usize = 8 << 20;

/// Pinned memory, and the stream of its copies.
#[derive(Debug)]
struct Slot {
    host: PinnedBuffer,
    stream: sys::CUstream,
    context: Arc<Context>,
}

// SAFETY: a stream is a handle that any thread may use while the context is current.
unsafe impl Send for Slot {}

impl Slot {
    fn new(device: &CudaDevice) -> Result<Slot> {
        let host = PinnedBuffer::new(device, SLOT)?;
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one handle.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        Ok(Slot { host, stream, context: Arc::clone(device.context()) })
    }

    fn wait(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream) })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: made in `new`. Its copies must end before their memory is freed.
        unsafe {
            let _ = sys::cuStreamSynchronize(self.stream);
            let _ = sys::cuStreamDestroy_v2(self.stream);
        }
    }
}

/// While one slot is filled, the copy of the other runs.
#[derive(Debug, Default)]
pub(super) struct UploadRing {
    slots: Vec<Slot>,
    next: usize,
}

impl UploadRing {
    fn write(&mut self, device: &CudaDevice, to: &DeviceBuffer, offset: usize, bytes: &[u8]) -> Result<()> {
        assert!(offset + bytes.len() <= to.bytes(), "{} bytes at {offset} of {}", bytes.len(), to.bytes());
        device.enter()?;
        let mut address = to.address() + offset as u64;
        for part in bytes.chunks(SLOT) {
            if self.slots.len() < 2 {
                self.slots.push(Slot::new(device)?);
            }
            let slot = &mut self.slots[self.next];
            self.next = (self.next + 1) % 2;
            slot.wait()?;
            slot.host.bytes_mut()[..part.len()].copy_from_slice(part);
            // SAFETY: the range lies in the buffer; the slot is not changed before its stream was waited for.
            check("cuMemcpyHtoDAsync", unsafe {
                sys::cuMemcpyHtoDAsync_v2(address, slot.host.bytes_mut().as_ptr().cast(), part.len(), slot.stream)
            })?;
            address += part.len() as u64;
        }
        Ok(())
    }

    /// Waits for all copies.
    pub fn wait(&self) -> Result<()> {
        self.slots.iter().try_for_each(Slot::wait)
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Waits for all copies, and frees the pinned memory.
    pub fn finish(&mut self) -> Result<()> {
        std::mem::take(self).wait()
    }
}

/// Allocates and fills weights.
#[derive(Clone, Copy)]
pub(super) struct WeightWriter<'a> {
    pub device: &'a CudaDevice,
    pub ring: &'a RefCell<UploadRing>,
}

impl WeightWriter<'_> {
    pub fn allocate(&self, bytes: usize) -> Result<DeviceBuffer> {
        self.device.allocate(bytes)
    }

    /// The numbers are there once `wait` has returned.
    pub fn write<T: Plain>(&self, to: &DeviceBuffer, offset: usize, from: &[T]) -> Result<()> {
        self.ring.borrow_mut().write(self.device, to, offset, T::bytes(from))
    }

    pub fn wait(&self) -> Result<()> {
        self.ring.borrow().wait()
    }
}
