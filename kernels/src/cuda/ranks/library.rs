//! The functions of libnccl.so.2 that ranks use, found at run time. It does not know groups.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;

use cudarc::driver::sys;

use crate::error::{KernelError, Result};

const FILE: &str = "libnccl.so.2";
/// The first version whose communicators can be made, used and aborted without blocking, also in graphs.
pub(super) const MINIMUM: NcclVersion = NcclVersion(21800);
/// The first version that puts several ranks on one GPU, if `NCCL_MULTI_RANK_GPU_ENABLE` is 1.
pub(super) const SHARES_GPUS: NcclVersion = NcclVersion(23000);

/// As NCCL numbers its versions: 22809 is 2.28.9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcclVersion(pub u32);

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Before 2.9 there were fewer digits.
        let [major, rest] =
            if self.0 < 10_000 { [self.0 / 1000, self.0 % 1000] } else { [self.0 / 10_000, self.0 % 10_000] };
        write!(f, "{major}.{}.{}", rest / 100, rest % 100)
    }
}

/// A communicator's handle.
pub(super) type RawCommunicator = *mut c_void;
type Code = c_int;

const SUCCESS: Code = 0;
const IN_PROGRESS: Code = 7;
/// ncclUint8.
const BYTES: c_int = 1;
/// ncclBfloat16.
const BF16: c_int = 9;
/// ncclSum.
const SUM: c_int = 0;

/// What NCCL calls ncclUniqueId: where the ranks of a communicator find each other.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct CommunicatorId(pub [u8; 128]);

/// The beginning of ncclConfig_t, as in version `version`. What follows gets NCCL's defaults.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    fn without_blocking() -> Config {
        // What NCCL_CONFIG_INITIALIZER has for options that are not set.
        const UNSET: c_int = c_int::MIN;
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: MINIMUM.0,
            blocking: 0,
            cga_cluster_size: UNSET,
            min_ctas: UNSET,
            max_ctas: UNSET,
            net_name: std::ptr::null(),
            split_share: UNSET,
        }
    }
}

type Init = unsafe extern "C" fn(*mut RawCommunicator, c_int, CommunicatorId, c_int, *mut Config) -> Code;
type Send = unsafe extern "C" fn(*const c_void, usize, c_int, c_int, RawCommunicator, sys::CUstream) -> Code;
type Receive = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, RawCommunicator, sys::CUstream) -> Code;
type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawCommunicator, sys::CUstream) -> Code;

/// It stays loaded until the process ends.
pub(super) struct NcclLibrary {
    pub version: NcclVersion,
    unique_id: unsafe extern "C" fn(*mut CommunicatorId) -> Code,
    init: Init,
    async_error: unsafe extern "C" fn(RawCommunicator, *mut Code) -> Code,
    abort: unsafe extern "C" fn(RawCommunicator) -> Code,
    group_start: unsafe extern "C" fn() -> Code,
    group_end: unsafe extern "C" fn() -> Code,
    send: Send,
    receive: Receive,
    all_reduce: AllReduce,
    error_string: unsafe extern "C" fn(Code) -> *const c_char,
    last_error: unsafe extern "C" fn(RawCommunicator) -> *const c_char,
}

/// How far a call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NcclProgress {
    Done,
    Pending,
}

fn failed(what: String) -> KernelError {
    KernelError::Device(what)
}

/// The text of the loader's last error.
fn loader_error() -> String {
    // SAFETY: the text lives until the next call of the loader in this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown error".to_owned();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A function of the library.
///
/// # Safety
/// `F` is a function pointer of the type that NCCL declares.
unsafe fn function<F: Copy>(library: *mut c_void, name: &str) -> Result<F> {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "{name} is a function");
    let symbol = CString::new(name).map_err(|_| failed(format!("{name}: a zero byte")))?;
    // SAFETY: the library is loaded, and the name ends with a zero byte.
    let found = unsafe { libc::dlsym(library, symbol.as_ptr()) };
    if found.is_null() {
        return Err(failed(format!("{FILE} has no function {name}: install NCCL {MINIMUM} or later")));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::mem::transmute_copy(&found) })
}

impl NcclLibrary {
    /// Where the system's loader finds it.
    pub fn open() -> Result<NcclLibrary> {
        let file = CString::new(FILE).map_err(|_| failed(format!("{FILE}: a zero byte")))?;
        // SAFETY: loading the library runs its initializers, which NCCL allows in any process.
        let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(failed(format!(
                "ranks of several processes need NCCL {MINIMUM} or later: {}; install it, or set LD_LIBRARY_PATH to the \
                 directory of {FILE}",
                loader_error()
            )));
        }
        let mut number = 0;
        // SAFETY: the function writes one int.
        let code = unsafe {
            let version: unsafe extern "C" fn(*mut c_int) -> Code = function(library, "ncclGetVersion")?;
            version(&mut number)
        };
        let version = NcclVersion(u32::try_from(number).unwrap_or(0));
        if code != SUCCESS || version < MINIMUM {
            return Err(failed(format!("{FILE} is NCCL {version}, expected {MINIMUM} or later")));
        }
        // SAFETY: the types are those of nccl.h of version MINIMUM, which later versions keep.
        unsafe {
            Ok(NcclLibrary {
                version,
                unique_id: function(library, "ncclGetUniqueId")?,
                init: function(library, "ncclCommInitRankConfig")?,
                async_error: function(library, "ncclCommGetAsyncError")?,
                abort: function(library, "ncclCommAbort")?,
                group_start: function(library, "ncclGroupStart")?,
                group_end: function(library, "ncclGroupEnd")?,
                send: function(library, "ncclSend")?,
                receive: function(library, "ncclRecv")?,
                all_reduce: function(library, "ncclAllReduce")?,
                error_string: function(library, "ncclGetErrorString")?,
                last_error: function(library, "ncclGetLastError")?,
            })
        }
    }

    fn check(&self, call: &str, code: Code) -> Result<NcclProgress> {
        match code {
            SUCCESS => Ok(NcclProgress::Done),
            IN_PROGRESS => Ok(NcclProgress::Pending),
            code => {
                // SAFETY: both functions give a static string, or null.
                let [text, last] =
                    unsafe { [(self.error_string)(code), (self.last_error)(std::ptr::null_mut())] }.map(|text| {
                        match text.is_null() {
                            true => String::new(),
                            // SAFETY: as above.
                            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
                        }
                    });
                let more = if last.is_empty() { String::new() } else { format!(" ({last})") };
                Err(failed(format!("{call} failed: {text}{more}")))
            }
        }
    }

    pub fn id(&self) -> Result<CommunicatorId> {
        let mut id = CommunicatorId([0; 128]);
        // SAFETY: writes the id.
        self.check("ncclGetUniqueId", unsafe { (self.unique_id)(&mut id) })?;
        Ok(id)
    }

    /// Begins to make a communicator; `progress` says when it is made.
    pub fn init(&self, id: CommunicatorId, rank: usize, ranks: usize) -> Result<RawCommunicator> {
        let (mut made, mut config) = (std::ptr::null_mut(), Config::without_blocking());
        // SAFETY: writes a handle. NCCL copies the configuration.
        let code = unsafe { (self.init)(&mut made, ranks as c_int, id, rank as c_int, &mut config) };
        self.check("ncclCommInitRankConfig", code)?;
        Ok(made)
    }

    /// Whether the calls of a communicator have ended, and whether one has failed.
    ///
    /// # Safety
    /// The communicator was made by `init` and not aborted.
    pub unsafe fn progress(&self, communicator: RawCommunicator) -> Result<NcclProgress> {
        let mut code = SUCCESS;
        // SAFETY: the caller's promise; writes one int.
        self.check("ncclCommGetAsyncError", unsafe { (self.async_error)(communicator, &mut code) })?;
        self.check("NCCL", code)
    }

    /// # Safety
    /// The communicator was made by `init` and not aborted; nobody uses it afterwards.
    pub unsafe fn abort(&self, communicator: RawCommunicator) {
        // SAFETY: the caller's promise. There is nothing to do about an error.
        let _ = unsafe { (self.abort)(communicator) };
    }

    /// Sends and receives at the same time, in the stream.
    ///
    /// # Safety
    /// The communicator was made by `init` and not aborted. The memory is valid until the stream has done it.
    pub unsafe fn exchange(
        &self,
        communicator: RawCommunicator,
        transfers: &[Transfer],
        stream: sys::CUstream,
    ) -> Result<NcclProgress> {
        // SAFETY: the caller's promise.
        unsafe {
            self.check("ncclGroupStart", (self.group_start)())?;
            let mut begun = Ok(());
            for transfer in transfers {
                let Transfer { peer, address, bytes, sends } = *transfer;
                let (at, peer) = (address as *mut c_void, peer as c_int);
                let code = match sends {
                    true => ("ncclSend", (self.send)(at, bytes, BYTES, peer, communicator, stream)),
                    false => ("ncclRecv", (self.receive)(at, bytes, BYTES, peer, communicator, stream)),
                };
                begun = begun.and_then(|()| self.check(code.0, code.1).map(drop));
            }
            // Also after an error: every start needs its end.
            let ended = self.check("ncclGroupEnd", (self.group_end)());
            begun.and(ended)
        }
    }
}

impl NcclLibrary {
    /// NCCL's own sum over ranks of bf16 numbers, in the stream: to compare its cost. Its order of additions is not
    /// ours.
    ///
    /// # Safety
    /// As `exchange`; both addresses have `count` numbers.
    pub unsafe fn all_reduce(
        &self,
        communicator: RawCommunicator,
        [from, to]: [u64; 2],
        count: usize,
        stream: sys::CUstream,
    ) -> Result<NcclProgress> {
        let (from, to) = (from as *const c_void, to as *mut c_void);
        // SAFETY: the caller's promise.
        self.check("ncclAllReduce", unsafe { (self.all_reduce)(from, to, count, BF16, SUM, communicator, stream) })
    }
}

/// Bytes that go to or come from another rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    pub peer: usize,
    pub address: u64,
    pub bytes: usize,
    pub sends: bool,
}
