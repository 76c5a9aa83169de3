//! One device: its properties, its context, one stream, and the kernels of this binary.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};

use super::blocking::BlockingLaunches;
use super::error::check;
use super::image::{fast_images, has_fast_kernels, kernel_image, machine_code};
use super::plan::{LaunchPlan, int};
use super::version::{MINIMUM_CAPABILITY, Version};
use super::{CudaError, Result};

/// A block gets more shared memory than this only after the kernel's limit was raised.
const STATIC_SHARED_LIMIT: usize = 48 << 10;

/// Bytes that the driver may write about PTX that it cannot compile.
const JIT_LOG: usize = 2 << 10;

#[derive(Debug, Clone)]
pub struct Properties {
    pub name: String,
    pub capability: Version,
    pub multiprocessors: u32,
    /// In bytes.
    pub memory: usize,
}

/// Where the parameters of a kernel begin in the struct that is passed, and its bytes. A struct of several has numbers,
/// addresses and tensor maps, which are aligned to their size, and ends with padding.
fn struct_layout(bytes_of: &[usize]) -> (Arc<[usize]>, usize) {
    if let [bytes] = bytes_of {
        return (Arc::new([0]), *bytes);
    }
    let mut end = 0;
    let begins = |&bytes: &usize| {
        let start = usize::next_multiple_of(end, bytes);
        end = start + bytes;
        start
    };
    let parameters = bytes_of.iter().map(begins).collect();
    (parameters, end.next_multiple_of(bytes_of.iter().copied().max().unwrap_or(1)))
}

/// The primary context of a device, released with the last user.
#[derive(Debug)]
pub struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// Memory is retired instead of freed: other ranks may read it, or wait on the device for what this rank does next.
    retires: AtomicBool,
    retired: Mutex<Vec<sys::CUdeviceptr>>,
}

// SAFETY: a context is a handle that every thread may make current; the driver locks what it shares.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Makes the context current in the calling thread.
    pub fn enter(&self) -> Result<()> {
        // SAFETY: the context is retained as long as `self` lives.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    fn retired(&self) -> MutexGuard<'_, Vec<sys::CUdeviceptr>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on memory is retired, or freed.
    pub fn retire_memory(&self, retires: bool) {
        self.retires.store(retires, Ordering::Release);
    }

    /// Frees memory that its owner has dropped, or retires it.
    pub fn release(&self, address: sys::CUdeviceptr) {
        if self.retires.load(Ordering::Acquire) {
            return self.retired().push(address);
        }
        let _ = self.enter();
        // SAFETY: the caller owned the memory; cuMemFree waits for work that uses it. After a sticky error of the
        // device it fails, and the end of the process frees everything.
        let _ = unsafe { sys::cuMemFree_v2(address) };
    }

    pub fn has_retired(&self) -> bool {
        !self.retired().is_empty()
    }

    /// What was retired, to be freed by `free_retired`.
    pub fn take_retired(&self) -> Vec<sys::CUdeviceptr> {
        std::mem::take(&mut *self.retired())
    }

    /// No other rank uses this memory any more.
    pub fn free_retired(&self, retired: Vec<sys::CUdeviceptr>) {
        let _ = self.enter();
        for address in retired {
            // SAFETY: as in `release`.
            let _ = unsafe { sys::cuMemFree_v2(address) };
        }
    }

    pub fn ordinal(&self) -> sys::CUdevice {
        self.device
    }

    /// Lets kernels of this device read and write the memory of another; false: the devices cannot.
    pub fn reach(&self, other: &Context) -> Result<bool> {
        if self.device == other.device {
            return Ok(true);
        }
        self.enter()?;
        let mut can = 0;
        // SAFETY: writes one int.
        check("cuDeviceCanAccessPeer", unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.device, other.device) })?;
        if can == 0 {
            return Ok(false);
        }
        // SAFETY: both contexts are retained.
        let code = unsafe { sys::cuCtxEnablePeerAccess(other.context, 0) };
        if code != sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
            check("cuCtxEnablePeerAccess", code)?;
        }
        Ok(true)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.free_retired(self.take_retired());
        // SAFETY: retained once in CudaDevice::open. The driver's error is of no use to a process that lets go.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// A kernel, and where its parameters begin in the struct that is passed. Plain kernels have one, the struct itself.
#[derive(Debug, Clone)]
pub struct Kernel {
    pub function: sys::CUfunction,
    parameters: Arc<[usize]>,
    argument_bytes: usize,
}

// SAFETY: a function is a handle of the module, which outlives the device's users; threads may share it.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

#[derive(Debug)]
pub struct CudaDevice {
    pub index: usize,
    pub properties: Properties,
    kernels: Mutex<HashMap<String, Kernel>>,
    /// The plain kernels, then those of the fast tier if they were loaded.
    modules: Vec<sys::CUmodule>,
    stream: sys::CUstream,
    context: Arc<Context>,
    /// Whether plans that overlap do so.
    overlaps: bool,
    blocking: Option<BlockingLaunches>,
}

// SAFETY: module and stream are handles that any thread may use while the context is current; `enter` makes it so.
unsafe impl Send for CudaDevice {}
// SAFETY: as above; the driver locks what its calls share.
unsafe impl Sync for CudaDevice {}

impl CudaDevice {
    pub(super) fn open(index: usize, device: sys::CUdevice) -> Result<CudaDevice> {
        let properties = Properties::of(device)?;
        if properties.capability < MINIMUM_CAPABILITY {
            return Err(CudaError::OldDevice { index, name: properties.name, found: properties.capability });
        }
        if kernel_image().is_empty() {
            return Err(CudaError::NoKernels);
        }
        let blocking = BlockingLaunches::from_env()?;
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one handle, which Context releases.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) })?;
        let (retires, retired) = (AtomicBool::new(false), Mutex::default());
        let context = Arc::new(Context { device, context, retires, retired });
        context.enter()?;
        let module = load_module(index, &properties, kernel_image())?;
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one handle.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        Ok(CudaDevice {
            index,
            kernels: Mutex::default(),
            modules: vec![module],
            stream,
            context,
            overlaps: blocking.is_none() && overlaps(&properties),
            properties,
            blocking,
        })
    }

    /// Whether this binary has fast kernels for the device.
    pub fn takes_fast(&self) -> bool {
        has_fast_kernels() && machine_code(self.properties.capability) == Some("sm_90a")
    }

    /// Whether they are loaded.
    pub(super) fn has_fast(&self) -> bool {
        self.modules.len() > 1
    }

    /// Loads the fast kernels. False: this binary has none for this device.
    pub(super) fn load_fast(&mut self) -> Result<bool> {
        if !self.takes_fast() {
            return Ok(false);
        }
        self.enter()?;
        for image in fast_images() {
            self.modules.push(load_module(self.index, &self.properties, image)?);
        }
        Ok(true)
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// Makes the device current in the calling thread.
    pub fn enter(&self) -> Result<()> {
        self.context.enter()
    }

    /// Free and total bytes of device memory.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free, total))
    }

    /// Waits for all work of the stream.
    pub fn wait(&self) -> Result<()> {
        wait_for(self.stream)
    }

    /// Loads all kernels now. The driver may wait for the device when it loads one later, and another rank may keep the
    /// device busy until this one goes on.
    pub fn load_kernels(&self) -> Result<()> {
        self.modules.iter().try_for_each(|&module| {
            let mut count = 0;
            // SAFETY: writes one number.
            check("cuModuleGetFunctionCount", unsafe { sys::cuModuleGetFunctionCount(&mut count, module) })?;
            let mut functions = vec![std::ptr::null_mut(); count as usize];
            // SAFETY: writes that many handles.
            check("cuModuleEnumerateFunctions", unsafe {
                sys::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module)
            })?;
            // SAFETY: takes a function of the module.
            functions.into_iter().try_for_each(|function| check("cuFuncLoad", unsafe { sys::cuFuncLoad(function) }))
        })
    }

    /// What tells this device from all others, on any machine.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: writes 16 bytes.
        check("cuDeviceGetUuid", unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, self.context.device) })?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    /// As sysfs names it: "0000:41:00.0".
    pub fn pci_address(&self) -> Result<String> {
        let mut text = [0u8; 32];
        // SAFETY: writes at most 32 bytes, with a zero at the end.
        check("cuDeviceGetPCIBusId", unsafe {
            sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as i32, self.context.device)
        })?;
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).to_lowercase())
    }

    /// The kernel of this name, whose argument is a struct of `argument_bytes`.
    fn kernel(&self, name: &str, argument_bytes: usize) -> Result<Kernel> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kernels.get(name).cloned();
        let kernel = match found {
            Some(kernel) => kernel,
            None => {
                let kernel = self.load(name)?;
                kernels.insert(name.to_owned(), kernel.clone());
                kernel
            }
        };
        if kernel.argument_bytes != argument_bytes {
            let what = format!("its argument has {} bytes, got {argument_bytes}", kernel.argument_bytes);
            return Err(CudaError::Kernel { kernel: name.to_owned(), what });
        }
        Ok(kernel)
    }

    fn load(&self, name: &str) -> Result<Kernel> {
        let wrong = |what: &str| CudaError::Kernel { kernel: name.to_owned(), what: what.to_owned() };
        let symbol = CString::new(name).map_err(|_| wrong("its name has a zero byte"))?;
        let mut function = std::ptr::null_mut();
        let missing = || wrong("the kernels of this binary have none of this name for the device");
        let mut modules = self.modules.iter();
        loop {
            let module = *modules.next().ok_or_else(missing)?;
            // SAFETY: writes one handle; the name ends with a zero byte.
            let code = unsafe { sys::cuModuleGetFunction(&mut function, module, symbol.as_ptr()) };
            if code != sys::CUresult::CUDA_ERROR_NOT_FOUND {
                check("cuModuleGetFunction", code)?;
                break;
            }
        }
        let mut bytes_of = Vec::new();
        loop {
            // Where the device has a parameter is not where a struct has it: the driver aligns its address there.
            let (mut _offset, mut bytes) = (0, 0);
            // SAFETY: writes two numbers.
            let code = unsafe { sys::cuFuncGetParamInfo(function, bytes_of.len(), &mut _offset, &mut bytes) };
            // There is no parameter after the last one.
            if code == sys::CUresult::CUDA_ERROR_INVALID_VALUE && !bytes_of.is_empty() {
                break;
            }
            check("cuFuncGetParamInfo", code)?;
            bytes_of.push(bytes);
        }
        if self.has_fast() {
            // The fast kernels need nearly all shared memory, and a multiprocessor is empty before it is divided anew.
            let carveout = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
            // SAFETY: takes no pointers but the function's handle.
            check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(function, carveout, 100) })?;
        }
        let (parameters, argument_bytes) = struct_layout(&bytes_of);
        Ok(Kernel { function, parameters, argument_bytes })
    }

    /// Puts a kernel into the stream.
    ///
    /// # Safety
    /// `args` is the kernel's argument struct. Its pointers are valid for what the kernel reads and writes, until the
    /// kernel has ended.
    pub(super) unsafe fn launch<A: Copy>(&self, plan: &LaunchPlan, args: &A) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_in(self.stream, plan, args) }
    }

    /// Puts a kernel into another stream of the context.
    ///
    /// # Safety
    /// As `launch`.
    pub(super) unsafe fn launch_in<A: Copy>(&self, stream: sys::CUstream, plan: &LaunchPlan, args: &A) -> Result<()> {
        if let Some(blocking) = &self.blocking {
            blocking.note(plan);
        }
        // SAFETY: the caller's promise.
        let launched = unsafe { self.put(stream, plan, args) };
        let ended = launched.and_then(|()| if self.blocking.is_some() { wait_for(stream) } else { Ok(()) });
        ended.map_err(|cause| CudaError::Launch { plan: plan.clone(), cause: Box::new(cause) })
    }

    /// Whether each kernel is waited for.
    pub(super) fn is_blocking(&self) -> bool {
        self.blocking.is_some()
    }

    /// # Safety
    /// As `launch`.
    unsafe fn put<A: Copy>(&self, stream: sys::CUstream, plan: &LaunchPlan, args: &A) -> Result<()> {
        let LaunchPlan { kernel, grid, threads, shared, cluster, together, overlaps } = *plan;
        let overlaps = overlaps && self.overlaps;
        let kernel = self.kernel(kernel, size_of::<A>())?;
        if shared > STATIC_SHARED_LIMIT {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: takes no pointers but the function's handle.
            check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(kernel.function, attribute, shared as i32) })?;
        }
        let ([x, y, z], shared) = (grid.map(|n| int(n) as u32), int(shared) as u32);
        let start = std::ptr::from_ref(args).cast_mut().cast::<c_void>();
        let mut parameters: Vec<_> = kernel.parameters.iter().map(|offset| start.wrapping_byte_add(*offset)).collect();
        let (parameters, extra) = (parameters.as_mut_ptr(), std::ptr::null_mut());
        let (mut attributes, count) = launch_attributes(cluster, together, overlaps);
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: count,
        };
        // SAFETY: the driver copies the parameters, whose sizes were compared, before it returns, and the attributes
        // outlive the call; the rest is the caller's promise.
        check("cuLaunchKernelEx", unsafe { sys::cuLaunchKernelEx(&config, kernel.function, parameters, extra) })
    }
}

fn wait_for(stream: sys::CUstream) -> Result<()> {
    // SAFETY: callers have the stream's owner.
    check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream) })
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // SAFETY: both were made in `open`. After a sticky error of the device these calls fail, and the end of the
        // process frees everything.
        unsafe {
            let _ = self.enter();
            let _ = sys::cuStreamDestroy_v2(self.stream);
            for &module in &self.modules {
                let _ = sys::cuModuleUnload(module);
            }
        }
    }
}

/// Set to 0, each kernel begins when the one before it has ended.
const OVERLAP: &str = "REIN_CUDA_OVERLAP";

/// Whether kernels may begin before those before them have ended: the device's machine code has the instruction that
/// waits for these.
fn overlaps(properties: &Properties) -> bool {
    let waits = matches!(machine_code(properties.capability), Some("sm_90a" | "sm_100a"));
    waits && std::env::var_os(OVERLAP).is_none_or(|value| value != "0")
}

/// The attributes of a launch, and how many there are. Every launch of a step takes some, so nothing is allocated.
fn launch_attributes(cluster: usize, together: bool, overlaps: bool) -> ([sys::CUlaunchAttribute; 3], u32) {
    use sys::{CUlaunchAttributeID as Id, CUlaunchAttributeValue as Value};
    let of = |id, value| sys::CUlaunchAttribute { id, pad: [0; 4], value };
    let (mut attributes, mut count) = ([of(Id::CU_LAUNCH_ATTRIBUTE_IGNORE, Value { pad: [0; 64] }); 3], 0);
    let mut add = |id, value| {
        attributes[count] = of(id, value);
        count += 1;
    };
    if together {
        add(Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, Value { cooperative: 1 });
    }
    if cluster > 1 {
        let mut value = Value { pad: [0; 64] };
        (value.clusterDim.x, value.clusterDim.y, value.clusterDim.z) = (int(cluster) as u32, 1, 1);
        add(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value);
    }
    if overlaps {
        let value = Value { programmaticStreamSerializationAllowed: 1 };
        add(Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, value);
    }
    (attributes, count as u32)
}

/// Loads kernels for a device. What the driver writes about PTX that it cannot compile is part of the error.
fn load_module(index: usize, properties: &Properties, image: &'static [u8]) -> Result<sys::CUmodule> {
    let (mut module, mut log) = (std::ptr::null_mut(), [0u8; JIT_LOG]);
    let mut options =
        [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // A value is passed in the place of a pointer.
    let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(log.len())];
    // SAFETY: the image is a whole fat binary or cubin, which states its own length; each option has its value, and the
    // log has as many bytes as they say.
    let code = unsafe {
        let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
        sys::cuModuleLoadDataEx(&mut module, image.as_ptr().cast(), 2, options, values)
    };
    check("cuModuleLoadDataEx", code).map_err(|cause| CudaError::Load {
        index,
        name: properties.name.clone(),
        capability: properties.capability,
        cause: Box::new(cause),
        log: until_zero(&log),
    })?;
    Ok(module)
}

/// The text before the first zero byte.
fn until_zero(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
}

impl Properties {
    pub(super) fn of(device: sys::CUdevice) -> Result<Properties> {
        let attribute = |attribute: Attribute| -> Result<u32> {
            let mut value = 0;
            // SAFETY: writes one int.
            check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) })?;
            Ok(value as u32)
        };
        let mut name = [0u8; 256];
        // SAFETY: writes at most 256 bytes, with a zero at the end.
        check("cuDeviceGetName", unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device) })?;
        let mut memory = 0;
        // SAFETY: writes one number.
        check("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut memory, device) })?;
        Ok(Properties {
            name: until_zero(&name),
            capability: Version {
                major: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                minor: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            },
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            memory,
        })
    }
}
