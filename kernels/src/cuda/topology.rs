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

/// What an NVLink leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum NvLinkEnd {
    /// A switch, which connects all GPUs of the host.
    Switch,
    /// Another GPU, by its PCI address: a bridge, or a board without switches.
    Gpu(String),
    /// Not known, or no GPU.
    Other,
}

/// nvmlIntNvLinkDeviceType_t
const LEADS_TO_GPU: c_int = 0;
const LEADS_TO_SWITCH: c_int = 2;

/// nvmlPciInfo_t
#[repr(C)]
struct PciInfo {
    legacy: [u8; 16],
    numbers: [c_uint; 5],
    address: [u8; 32],
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
type FindHandle = unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int;
/// A function that writes one fact about a GPU.
type GpuFact<T> = unsafe extern "C" fn(Handle, *mut T) -> c_int;
/// A function that writes one fact about an NVLink of a GPU.
type LinkFact<T> = unsafe extern "C" fn(Handle, c_uint, *mut T) -> c_int;

/// The functions of the management library.
struct Management {
    handle: FindHandle,
    fabric: Option<GpuFact<FabricInfo>>,
    link: Option<LinkFact<c_uint>>,
    remote_kind: Option<LinkFact<c_int>>,
    remote: Option<LinkFact<PciInfo>>,
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
                handle: std::mem::transmute::<*mut c_void, FindHandle>(find(c"nvmlDeviceGetHandleByPciBusId_v2")?),
                fabric: find(c"nvmlDeviceGetGpuFabricInfo")
                    .map(|f| std::mem::transmute::<*mut c_void, GpuFact<FabricInfo>>(f)),
                link: find(c"nvmlDeviceGetNvLinkState")
                    .map(|f| std::mem::transmute::<*mut c_void, LinkFact<c_uint>>(f)),
                remote_kind: find(c"nvmlDeviceGetNvLinkRemoteDeviceType")
                    .map(|f| std::mem::transmute::<*mut c_void, LinkFact<c_int>>(f)),
                remote: find(c"nvmlDeviceGetNvLinkRemotePciInfo_v2")
                    .map(|f| std::mem::transmute::<*mut c_void, LinkFact<PciInfo>>(f)),
            })
        }
    }

    /// A fact about an NVLink. None: the library cannot tell.
    ///
    /// # Safety
    /// The handle was made by `self.handle`.
    unsafe fn fact<T>(fact: Option<LinkFact<T>>, handle: Handle, link: c_uint, mut value: T) -> Option<T> {
        // SAFETY: the caller's promise; writes one value.
        (unsafe { fact?(handle, link, &mut value) } == SUCCESS).then_some(value)
    }

    /// Where a GPU's NVLinks lead that are up.
    ///
    /// # Safety
    /// The handle was made by `self.handle`.
    unsafe fn links(&self, handle: Handle) -> Vec<NvLinkEnd> {
        let end = |link| {
            // SAFETY: the caller's promise.
            match unsafe { Self::fact(self.remote_kind, handle, link, c_int::MAX) } {
                Some(LEADS_TO_SWITCH) => NvLinkEnd::Switch,
                Some(LEADS_TO_GPU) => {
                    let none = PciInfo { legacy: [0; 16], numbers: [0; 5], address: [0; 32] };
                    // SAFETY: as above.
                    let at = unsafe { Self::fact(self.remote, handle, link, none) };
                    at.map_or(NvLinkEnd::Other, |at| NvLinkEnd::Gpu(pci_address(&at.address)))
                }
                Some(_) | None => NvLinkEnd::Other,
            }
        };
        // SAFETY: as above.
        let is_up = |link: &c_uint| unsafe { Self::fact(self.link, handle, *link, 0) } == Some(1);
        (0..LINKS).filter(is_up).map(end).collect()
    }

    /// The NVLink domain of a GPU: that of its fabric, or that of the host.
    fn domain(&self, address: &str, host: &str) -> Option<String> {
        let text = CString::new(address).ok()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the address ends with a zero byte; writes one handle.
        (unsafe { (self.handle)(text.as_ptr(), &mut handle) } == SUCCESS).then_some(())?;
        let mut info = FabricInfo { cluster: [0; 16], status: SUCCESS, clique: 0, state: 0 };
        // SAFETY: the handle was just made; writes the struct.
        let known = self.fabric.is_some_and(|fabric| unsafe { fabric(handle, &mut info) } == SUCCESS);
        if known && info.state == JOINED && info.status == SUCCESS {
            if info.cluster == [0; 16] {
                // The switches of one host.
                return Some(host.to_owned());
            }
            let cluster: String = info.cluster.iter().map(|byte| format!("{byte:02x}")).collect();
            return Some(format!("{cluster}.{}", info.clique));
        }
        // SAFETY: as above.
        domain_on_host(address, &unsafe { self.links(handle) }, host)
    }
}

/// As NVML writes it, with a domain of 8 digits: in the form of sysfs, which has 4.
fn pci_address(text: &[u8]) -> String {
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    let text = String::from_utf8_lossy(&text[..end]).to_lowercase();
    text.strip_prefix("0000").filter(|rest| rest.len() == "0000:00:00.0".len()).unwrap_or(&text).to_owned()
}

/// The domain of a GPU with these links, which no fabric beyond the host has. Switches connect all GPUs of the host.
/// Without switches, a domain has the GPUs that links lead to directly: pairs with a bridge are domains of two.
fn domain_on_host(address: &str, links: &[NvLinkEnd], host: &str) -> Option<String> {
    if links.contains(&NvLinkEnd::Switch) {
        return Some(host.to_owned());
    }
    let mut linked: BTreeSet<&str> = links
        .iter()
        .filter_map(|end| match end {
            NvLinkEnd::Gpu(address) => Some(address.as_str()),
            NvLinkEnd::Switch | NvLinkEnd::Other => None,
        })
        .collect();
    if linked.is_empty() {
        return None;
    }
    linked.insert(address);
    Some(format!("{host}/{}", linked.into_iter().collect::<Vec<_>>().join("+")))
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
