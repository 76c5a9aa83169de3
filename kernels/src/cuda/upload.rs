//! Brings weights to the device, by several copies at once: from pinned memory that they were read into, or by a pinned
//! slot. It does not know what they are.

use std::cell::RefCell;
use std::sync::Arc;

use cudarc::driver::sys;

use super::device::Context;
use super::error::check;
use super::fast::repack;
use super::memory::Plain;
use super::{CudaDevice, DeviceBuffer, PinnedBuffer, Result};
use crate::backend::{HostBuffer, HostNumber, HostPool, KeptMemory, PoolMemory};

/// Copies that are under way at the same time. Each takes a slot of pinned memory or holds memory of the pool.
const LANES: usize = 4;
/// Bytes of a slot.
const SLOT: usize = 8 << 20;

impl PoolMemory for PinnedBuffer {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        PinnedBuffer::bytes_mut(self)
    }

    fn is_pinned(&self) -> bool {
        true
    }
}

/// A stream of copies, and the memory that they use.
#[derive(Debug)]
struct Lane {
    stream: sys::CUstream,
    slot: Option<PinnedBuffer>,
    /// Copies are from here.
    held: Vec<KeptMemory>,
    /// A weight as it is stored, until the device has given it another layout.
    stored: Option<DeviceBuffer>,
    context: Arc<Context>,
}

// SAFETY: a stream is a handle that any thread may use while the context is current.
unsafe impl Send for Lane {}

impl Lane {
    fn new(device: &CudaDevice) -> Result<Lane> {
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one handle.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        Ok(Lane { stream, slot: None, held: Vec::new(), stored: None, context: Arc::clone(device.context()) })
    }

    fn wait(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream) })
    }

    /// # Safety
    /// The device has room at `address`, and nothing changes `from` before the stream was waited for.
    unsafe fn copy(&self, address: u64, from: &[u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(address, from.as_ptr().cast(), from.len(), self.stream)
        })
    }

    /// By the slot, which the stream does not use.
    ///
    /// # Safety
    /// The device has room at `address`.
    unsafe fn copy_by_slot(&mut self, device: &CudaDevice, address: u64, part: &[u8]) -> Result<()> {
        let mut slot = self.slot.take().map_or_else(|| PinnedBuffer::new(device, SLOT), Ok)?;
        slot.bytes_mut()[..part.len()].copy_from_slice(part);
        // SAFETY: the caller's promise; the slot is not changed before the stream was waited for.
        let copied = unsafe { self.copy(address, &slot.as_bytes()[..part.len()]) };
        self.slot = Some(slot);
        copied
    }

    /// From memory that is held until the stream was waited for.
    ///
    /// # Safety
    /// The device has room at `address`.
    unsafe fn copy_held(&mut self, address: u64, memory: KeptMemory, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise; `free` lets the memory go.
        let copied = unsafe { self.copy(address, &memory.bytes()[..bytes]) };
        self.held.push(memory);
        copied
    }

    /// Waits, and lets memory go.
    fn free(&mut self) -> Result<()> {
        self.wait()?;
        self.held.clear();
        Ok(())
    }

    /// Memory of the device for so many bytes, which the stream does not use.
    fn stored(&mut self, device: &CudaDevice, bytes: usize) -> Result<DeviceBuffer> {
        match self.stored.take() {
            Some(stored) if stored.bytes() >= bytes => Ok(stored),
            _ => device.allocate(bytes),
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: made in `new`. Its copies must end before their memory is freed.
        unsafe {
            let _ = sys::cuStreamSynchronize(self.stream);
            let _ = sys::cuStreamDestroy_v2(self.stream);
        }
    }
}

/// While one lane is filled, the copies of the others run.
#[derive(Debug, Default)]
pub(super) struct UploadRing {
    lanes: Vec<Lane>,
    next: usize,
    pool: Option<Arc<HostPool>>,
}

impl UploadRing {
    /// The next lane, which does nothing.
    fn lane(&mut self, device: &CudaDevice) -> Result<&mut Lane> {
        if self.lanes.len() < LANES {
            self.lanes.push(Lane::new(device)?);
        }
        let lane = &mut self.lanes[self.next];
        self.next = (self.next + 1) % LANES;
        lane.free()?;
        Ok(lane)
    }

    fn write(&mut self, device: &CudaDevice, to: &DeviceBuffer, offset: usize, bytes: &[u8]) -> Result<()> {
        assert!(offset + bytes.len() <= to.bytes(), "{} bytes at {offset} of {}", bytes.len(), to.bytes());
        device.enter()?;
        let mut address = to.address() + offset as u64;
        for part in bytes.chunks(SLOT) {
            // SAFETY: the range lies in the buffer.
            unsafe { self.lane(device)?.copy_by_slot(device, address, part) }?;
            address += part.len() as u64;
        }
        Ok(())
    }

    /// Waits for all copies.
    pub fn wait(&self) -> Result<()> {
        self.lanes.iter().try_for_each(Lane::wait)
    }

    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Waits for all copies, and frees the pinned memory.
    pub fn finish(&mut self) -> Result<()> {
        std::mem::take(self).wait()
    }

    /// Pinned memory to read into, until `finish`.
    pub fn pool(&mut self, device: &CudaDevice) -> Arc<HostPool> {
        let context = Arc::clone(device.context());
        let pinned = || HostPool::new(move |bytes| Ok(Box::new(PinnedBuffer::of_context(&context, bytes)?)));
        Arc::clone(self.pool.get_or_insert_with(pinned))
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

    /// The same, without a copy on the host from memory of the pool.
    pub fn write_buffer<T: Plain + HostNumber>(
        &self,
        to: &DeviceBuffer,
        offset: usize,
        from: HostBuffer<T>,
    ) -> Result<()> {
        let bytes = size_of_val(&*from);
        let memory = match from.into_pinned() {
            Ok(memory) => memory,
            Err(numbers) => return self.write(to, offset, &numbers),
        };
        assert!(offset + bytes <= to.bytes(), "{bytes} bytes at {offset} of {}", to.bytes());
        self.device.enter()?;
        // SAFETY: the range lies in the buffer.
        unsafe { self.ring.borrow_mut().lane(self.device)?.copy_held(to.address() + offset as u64, memory, bytes) }
    }

    /// A weight [n, k] of four bits, whose outputs are those of several matrices, in the layout of the fast kernels. It
    /// is there once `wait` has returned.
    ///
    /// # Safety
    /// The device has room for it at `to`.
    pub unsafe fn write_tiled(&self, to: u64, stack: Vec<HostBuffer<u8>>, shape: [usize; 2]) -> Result<()> {
        self.device.enter()?;
        let mut ring = self.ring.borrow_mut();
        let lane = ring.lane(self.device)?;
        let stored = lane.stored(self.device, stack.iter().map(|matrix| matrix.len()).sum())?;
        let mut at = stored.address();
        for from in stack {
            let bytes = from.len();
            match from.into_pinned() {
                // SAFETY: `stored` has room for all matrices.
                Ok(memory) => unsafe { lane.copy_held(at, memory, bytes) }?,
                Err(numbers) => {
                    for (i, part) in numbers.chunks(SLOT).enumerate() {
                        lane.wait()?;
                        // SAFETY: as above.
                        unsafe { lane.copy_by_slot(self.device, at + (i * SLOT) as u64, part) }?;
                    }
                }
            }
            at += bytes as u64;
        }
        // The stream goes on with it, and no other copy of the lane begins before it was waited for.
        let repacked = repack(self.device, lane.stream, &stored, to, shape);
        lane.stored = Some(stored);
        repacked
    }

    pub fn wait(&self) -> Result<()> {
        self.ring.borrow().wait()
    }
}

#[cfg(test)]
mod tests;
