//! Where GPUs are: which NVLink domain they belong to, and which network adapters are on their side of the host. From
//! NVIDIA's management library, opened at run time, and from sysfs. What cannot be found out is left out.

use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::Path;

use super::{CudaDevice, Result};

const LIBRARY: &std::ffi::CStr = c"libnvidia-ml.so.1";
const SUCCESS: c_int = 0;
/// NVML_GPU_FABRIC_STATE_COMPLETED
const JOINED: u8 = 3;
/// The most NVLinks of a GPU.
const LINKS: c_uint = 18;
const PCI_DEVICES: &str = "/sys/bus/pci/devices";
const ADAPTERS: &str = "/sys/class/infiniband";

/// Where some GPUs of one host are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuPlaces {
    /// Of all of them. None: NVLink does not connect them, or this is not known.
    pub nvlink: Option<String>,
    /// Network adapters on the side of any of them, by name.
    pub adapters: Vec<String>,
}

/// nvmlGpuFabricInfo_t
#[repr(C)]
struct FabricInfo {
    cluster: [u8; 16],
    status: c_int,
    clique: c_uint,
    state: u8,
}

type Handle = *mut c_void;

/// The functions of the management library.
struct Management {
    handle: unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int,
    fabric: Option<unsafe extern "C" fn(Handle, *mut FabricInfo) -> c_int>,
    link: Option<unsafe extern "C" fn(Handle, c_uint, *mut c_uint) -> c_int>,
}

impl Management {
    /// None: this host has no such library, or it does not work.
    fn open() -> Option<Management> {
        // SAFETY: loading the library runs its initializers, which NVIDIA allows in any process.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return None;
        }
        let find = |name: &std::ffi::CStr| {
            // SAFETY: the library is loaded, and stays so.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        // SAFETY: these are the types that nvml.h declares.
        unsafe {
            type Init = unsafe extern "C" fn() -> c_int;
            let init = std::mem::transmute::<*mut c_void, Init>(find(c"nvmlInit_v2")?);
            (init() == SUCCESS).then_some(())?;
            Some(Management {
                handle: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int>(
                    find(c"nvmlDeviceGetHandleByPciBusId_v2")?,
                ),
                fabric: find(c"nvmlDeviceGetGpuFabricInfo").map(|f| {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn(Handle, *mut FabricInfo) -> c_int>(f)
                }),
                link: find(c"nvmlDeviceGetNvLinkState").map(|f| {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn(Handle, c_uint, *mut c_uint) -> c_int>(f)
                }),
            })
        }
    }

    /// The NVLink domain of a GPU: that of its fabric, or that of the host, within which switches connect all GPUs
    /// whose links are up.
    fn domain(&self, address: &str, host: &str) -> Option<String> {
        let address = CString::new(address).ok()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the address ends with a zero byte; writes one handle.
        (unsafe { (self.handle)(address.as_ptr(), &mut handle) } == SUCCESS).then_some(())?;
        let mut info = FabricInfo { cluster: [0; 16], status: SUCCESS, clique: 0, state: 0 };
        // SAFETY: the handle was just made; writes the struct.
        let known = self.fabric.is_some_and(|fabric| unsafe { fabric(handle, &mut info) } == SUCCESS);
        if known && info.state == JOINED && info.status == SUCCESS && info.cluster != [0; 16] {
            let cluster: String = info.cluster.iter().map(|byte| format!("{byte:02x}")).collect();
            return Some(format!("{cluster}.{}", info.clique));
        }
        let link = self.link?;
        let up = |i: c_uint| {
            let mut active = 0;
            // SAFETY: as above; writes one int.
            (unsafe { link(handle, i, &mut active) }) == SUCCESS && active == 1
        };
        (0..LINKS).any(up).then(|| host.to_owned())
    }
}

impl GpuPlaces {
    /// `host` tells this host from others.
    pub fn of(devices: &[CudaDevice], host: &str) -> Result<GpuPlaces> {
        let addresses = devices.iter().map(CudaDevice::pci_address).collect::<Result<Vec<_>>>()?;
        let management = Management::open();
        let domains: Option<BTreeSet<String>> =
            management.and_then(|management| addresses.iter().map(|at| management.domain(at, host)).collect());
        let nvlink = domains.filter(|domains| domains.len() == 1).and_then(|domains| domains.into_iter().next());
        let (devices, adapters) = (Path::new(PCI_DEVICES), Path::new(ADAPTERS));
        Ok(GpuPlaces { nvlink, adapters: adapters_beside(devices, adapters, &addresses) })
    }
}

/// The NUMA node that a file of sysfs names; -1: the host has one node only.
fn node(file: &Path) -> Option<i32> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn adapters_beside(devices: &Path, adapters: &Path, gpus: &[String]) -> Vec<String> {
    let nodes: BTreeSet<Option<i32>> = gpus.iter().map(|gpu| node(&devices.join(gpu).join("numa_node"))).collect();
    let entries = std::fs::read_dir(adapters).into_iter().flatten().flatten();
    let beside = entries.filter(|entry| nodes.contains(&node(&entry.path().join("device/numa_node"))));
    let mut names: Vec<String> = beside.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests;
