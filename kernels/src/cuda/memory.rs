//! Memory of a device, and pinned memory of the host.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use cudarc::driver::sys;

use super::device::Context;
use super::error::check;
use super::{CudaDevice, CudaError, Result};

/// Numbers that any bits make.
pub trait Plain: Copy + Default {
    fn bytes(numbers: &[Self]) -> &[u8] {
        // SAFETY: numbers of these types have no padding.
        unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
    }
}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for u32 {}
impl Plain for u64 {}
impl Plain for f32 {}
impl Plain for half::bf16 {}

/// Bytes on a device, freed when dropped.
#[derive(Debug)]
pub struct DeviceBuffer {
    context: Arc<Context>,
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl CudaDevice {
    pub fn allocate(&self, bytes: usize) -> Result<DeviceBuffer> {
        DeviceBuffer::new(self, bytes)
    }
}

impl DeviceBuffer {
    fn new(device: &CudaDevice, bytes: usize) -> Result<DeviceBuffer> {
        device.enter()?;
        let mut address = 0;
        // SAFETY: writes one address. The driver refuses to allocate nothing.
        let code = unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) };
        if code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let (free, total) = device.memory()?;
            return Err(CudaError::OutOfMemory { bytes, free, total });
        }
        check("cuMemAlloc", code)?;
        Ok(DeviceBuffer { context: Arc::clone(device.context()), address, bytes })
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// For the arguments of kernels; valid on the device alone.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Fills the buffer with a byte, in the stream.
    pub fn fill(&mut self, device: &CudaDevice, byte: u8) -> Result<()> {
        // SAFETY: the buffer has that many bytes.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(self.address, byte, self.bytes, device.stream()) })
    }

    /// Copies from the host to `offset`, and waits for it.
    pub fn write<T: Plain>(&self, device: &CudaDevice, offset: usize, from: &[T]) -> Result<()> {
        let bytes = size_of_val(from);
        assert!(offset + bytes <= self.bytes, "{bytes} bytes at {offset} of a buffer of {}", self.bytes);
        // SAFETY: the range lies in the buffer.
        unsafe { write(device, self.address + offset as u64, from) }
    }

    /// Copies from another buffer, in the stream.
    pub fn copy(
        &self,
        device: &CudaDevice,
        offset: usize,
        from: &DeviceBuffer,
        from_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        assert!(offset + bytes <= self.bytes && from_offset + bytes <= from.bytes, "{bytes} bytes between buffers");
        let (to, from) = (self.address + offset as u64, from.address + from_offset as u64);
        // SAFETY: both ranges lie in their buffers, and dropping either waits for the copy.
        check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, device.stream()) })
    }

    /// Copies the first numbers to the host, after all work of the stream.
    pub fn read<T: Plain>(&self, device: &CudaDevice, count: usize) -> Result<Vec<T>> {
        assert!(count * size_of::<T>() <= self.bytes, "{count} numbers of a buffer of {} bytes", self.bytes);
        // SAFETY: the buffer has that many numbers.
        unsafe { read(device, self.address, count) }
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        self.context.release(self.address);
    }
}

/// Copies numbers from the host, and waits for it.
///
/// # Safety
/// The device has room for them at `address`.
pub(super) unsafe fn write<T: Plain>(device: &CudaDevice, address: u64, from: &[T]) -> Result<()> {
    // SAFETY: the caller's promise; `from` lives until the wait below.
    check("cuMemcpyHtoDAsync", unsafe {
        sys::cuMemcpyHtoDAsync_v2(address, from.as_ptr().cast(), size_of_val(from), device.stream())
    })?;
    device.wait()
}

/// Copies numbers to the host, after all work of the stream.
///
/// # Safety
/// The device has `count` numbers at `address`.
pub(super) unsafe fn read<T: Plain>(device: &CudaDevice, address: u64, count: usize) -> Result<Vec<T>> {
    let mut to = vec![T::default(); count];
    let bytes = size_of_val(to.as_slice());
    // For memory that is not pinned the driver waits inside of the call, and no other rank of the device can launch.
    device.wait()?;
    // SAFETY: both have that many bytes, and `to` lives until the wait below.
    check("cuMemcpyDtoHAsync", unsafe {
        sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), address, bytes, device.stream())
    })?;
    device.wait()?;
    Ok(to)
}

/// Page-locked bytes of the host, which the device copies from and to at full speed.
#[derive(Debug)]
pub struct PinnedBuffer {
    context: Arc<Context>,
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: the buffer owns its memory.
unsafe impl Send for PinnedBuffer {}
// SAFETY: through a shared reference, the memory is only read by copies, or accessed as an atomic word.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    pub fn new(device: &CudaDevice, bytes: usize) -> Result<PinnedBuffer> {
        PinnedBuffer::of_context(device.context(), bytes)
    }

    pub(super) fn of_context(context: &Arc<Context>, bytes: usize) -> Result<PinnedBuffer> {
        context.enter()?;
        let mut start = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut start, bytes.max(1), 0) })?;
        // SAFETY: just allocated with that many bytes, which are not initialized.
        unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        Ok(PinnedBuffer { context: Arc::clone(context), start, bytes })
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where kernels find it.
    pub(super) fn address(&self) -> Result<u64> {
        let mut address = 0;
        // SAFETY: writes one address of memory that was allocated in `new`.
        check("cuMemHostGetDevicePointer", unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, self.start, 0) })?;
        Ok(address)
    }

    /// The first word, which kernels may read meanwhile.
    pub(super) fn flag(&self) -> &AtomicU32 {
        assert!(self.bytes >= size_of::<u32>(), "a flag has {} bytes", size_of::<u32>());
        // SAFETY: the memory is page-aligned, initialized and long enough; it is only accessed as an atomic word.
        unsafe { &*self.start.cast::<AtomicU32>() }
    }

    pub(super) fn start(&self) -> *mut c_void {
        self.start
    }

    /// All of it. No copy from the device may be in flight.
    pub(super) fn as_bytes(&self) -> &[u8] {
        // SAFETY: the memory is initialized, and borrowed as `self` is.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.bytes) }
    }

    /// All of it. No copy may be in flight.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is initialized, and borrowed as `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.bytes) }
    }

    /// The same, as words.
    pub(super) fn words(&mut self) -> &mut [u32] {
        // SAFETY: the memory is page-aligned and initialized, and borrowed as `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.bytes / 4) }
    }

    /// Puts a copy of all bytes to the device into the stream.
    pub(super) fn send(&self, device: &CudaDevice, to: &mut DeviceBuffer) -> Result<()> {
        self.send_first(device, self.bytes, to)
    }

    /// Puts a copy of the first bytes to the device into the stream.
    pub(super) fn send_first(&self, device: &CudaDevice, bytes: usize, to: &mut DeviceBuffer) -> Result<()> {
        assert!(bytes <= self.bytes && bytes <= to.bytes, "{bytes} of {} bytes to {}", self.bytes, to.bytes);
        // SAFETY: both have that many bytes; dropping either waits for the copy.
        check("cuMemcpyHtoDAsync", unsafe { sys::cuMemcpyHtoDAsync_v2(to.address, self.start, bytes, device.stream()) })
    }

    /// Puts a copy of all bytes from the device into the stream.
    pub(super) fn receive(&mut self, device: &CudaDevice, from: &DeviceBuffer) -> Result<()> {
        assert!(self.bytes <= from.bytes, "{} bytes from a buffer of {}", self.bytes, from.bytes);
        // SAFETY: both have that many bytes.
        unsafe { self.receive_first(device, self.bytes, from.address) }
    }

    /// Puts a copy of bytes at an address of the device into the stream.
    ///
    /// # Safety
    /// The device has that many bytes there.
    pub(super) unsafe fn receive_first(&mut self, device: &CudaDevice, bytes: usize, address: u64) -> Result<()> {
        assert!(bytes <= self.bytes, "{bytes} bytes to a buffer of {}", self.bytes);
        // SAFETY: the caller's promise; dropping the buffer waits for the copy.
        check("cuMemcpyDtoHAsync", unsafe { sys::cuMemcpyDtoHAsync_v2(self.start, address, bytes, device.stream()) })
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: allocated in `new`; cuMemFreeHost waits for copies that use it.
        let _ = unsafe { sys::cuMemFreeHost(self.start) };
    }
}
