//! What a device must show before anything is built on it. Each section is a list of checks, which can run alone and
//! report a row for each thing that they looked at.

mod group;
mod lanes;
mod ops;
mod ranks;

use std::time::Instant;

use cudarc::driver::sys;
use half::bf16;

pub use ops::{fast, ops};
pub use ranks::ranks;

use super::args::{LinearArgs, LinearSm90Args, PtxArgs};
use super::error::check;
use super::form::{Element, WeightForm};
use super::image::machine_code;
use super::plan::LaunchPlan;
use super::tensor_map::TensorMap;
use super::{CudaDevice, CudaError, DeviceBuffer, Driver, PinnedBuffer, Result, Version};
use crate::error::Result as KernelResult;

/// One line of a section's report.
#[derive(Debug, Clone)]
pub struct Row {
    pub name: String,
    pub value: String,
    pub passed: bool,
    /// What the value says, for programs. Names end with the unit.
    pub numbers: Vec<(&'static str, f64)>,
}

impl Row {
    fn passed(name: impl Into<String>, value: impl Into<String>) -> Row {
        Row { name: name.into(), value: value.into(), passed: true, numbers: Vec::new() }
    }
    fn failed(name: impl Into<String>, value: impl Into<String>) -> Row {
        Row { passed: false, ..Row::passed(name, value) }
    }
}

/// Gets each row as it is found, so that those before an error are not lost.
pub type RowSink<'a> = dyn FnMut(Row) + 'a;

type RunCheck<'a> = dyn FnOnce(&mut RowSink<'_>) -> KernelResult<()> + 'a;

/// A part of a section that depends on no other part.
pub struct DeviceCheck<'a> {
    pub name: String,
    pub run: Box<RunCheck<'a>>,
}

impl<'a> DeviceCheck<'a> {
    fn new(name: impl Into<String>, run: impl FnOnce(&mut RowSink<'_>) -> KernelResult<()> + 'a) -> Self {
        DeviceCheck { name: name.into(), run: Box::new(run) }
    }
}

/// At most this much is copied at once.
const COPY_BYTES: usize = 1 << 30;
/// A figure is the median of this many runs, after one to warm up.
const RUNS: usize = 7;
const LAUNCHES: usize = 200;
const PTX_THREADS: u32 = 128;
const PTX_SHARED: usize = 32 << 10;
const PTX_INPUT: usize = 32 << 10;

/// Milliseconds of the device for `work`: the median.
fn milliseconds(device: &CudaDevice, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let (mut begin, mut end) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: writes one handle each; they are destroyed below, or leaked if the work fails, which ends the section.
    check("cuEventCreate", unsafe { sys::cuEventCreate(&mut begin, 0) })?;
    // SAFETY: as above.
    check("cuEventCreate", unsafe { sys::cuEventCreate(&mut end, 0) })?;
    let mut times = Vec::new();
    for run in 0..=RUNS {
        // SAFETY: events and stream live.
        check("cuEventRecord", unsafe { sys::cuEventRecord(begin, device.stream()) })?;
        work()?;
        // SAFETY: as above.
        check("cuEventRecord", unsafe { sys::cuEventRecord(end, device.stream()) })?;
        // SAFETY: as above.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(end) })?;
        let mut time = 0.0f32;
        // SAFETY: writes one float.
        check("cuEventElapsedTime", unsafe { sys::cuEventElapsedTime_v2(&mut time, begin, end) })?;
        if run > 0 {
            times.push(f64::from(time));
        }
    }
    // SAFETY: created above, and all work that uses them has ended.
    check("cuEventDestroy", unsafe { sys::cuEventDestroy_v2(begin) })?;
    // SAFETY: as above.
    check("cuEventDestroy", unsafe { sys::cuEventDestroy_v2(end) })?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn gigabytes_per_second(bytes: usize, milliseconds: f64) -> String {
    format!("{:.1} GB/s", bytes as f64 / milliseconds / 1e6)
}

/// Properties, copy bandwidth, the rate of bf16 products, and what a launch costs.
pub fn device<'a>(driver: &'a Driver, device: &'a CudaDevice) -> Vec<DeviceCheck<'a>> {
    let mut checks = vec![
        DeviceCheck::new("properties", |rows| Ok(properties(driver, device, rows)?)),
        DeviceCheck::new("copies", |rows| Ok(copies(device, rows)?)),
        DeviceCheck::new("bf16 product, mma", |rows| Ok(mma_product(device, rows)?)),
    ];
    if machine_code(device.properties.capability) == Some("sm_90a") {
        checks.push(DeviceCheck::new("bf16 product, wgmma", |rows| Ok(wgmma_product(device, rows)?)));
    }
    checks.push(DeviceCheck::new("launches", |rows| Ok(launches(device, rows)?)));
    checks
}

fn properties(driver: &Driver, device: &CudaDevice, rows: &mut RowSink) -> Result<()> {
    let properties = &device.properties;
    let (free, total) = device.memory()?;
    let code = match machine_code(properties.capability) {
        Some(code) => format!("machine code for {code}"),
        None => "no machine code for this device: the driver compiled the PTX".to_owned(),
    };
    rows(Row::passed("device", format!("{}, {} multiprocessors", properties.name, properties.multiprocessors)));
    rows(Row::passed("compute capability", properties.capability.to_string()));
    rows(Row::passed("driver", format!("CUDA {}", driver.version)));
    rows(Row::passed("kernels", code));
    rows(Row::passed("memory", format!("{} MiB free of {} MiB", free >> 20, total >> 20)));
    Ok(())
}

/// Bytes per second that a copy on the device reads and writes.
pub fn copy_rate(device: &CudaDevice) -> Result<f64> {
    let bytes = COPY_BYTES.min(device.memory()?.0 / 8);
    let (mut from, to) = (device.allocate(bytes)?, device.allocate(bytes)?);
    from.fill(device, 0x5a)?;
    let time = milliseconds(device, || {
        // SAFETY: both buffers have that many bytes and outlive the wait of `milliseconds`.
        check("cuMemcpyDtoDAsync", unsafe {
            sys::cuMemcpyDtoDAsync_v2(to.address(), from.address(), bytes, device.stream())
        })
    })?;
    Ok(2.0 * bytes as f64 / time * 1e3)
}

fn copies(device: &CudaDevice, rows: &mut RowSink) -> Result<()> {
    let rate = copy_rate(device)?;
    let value = format!("{:.1} GB/s, reads and writes", rate / 1e9);
    rows(Row { numbers: vec![("bytes_per_s", rate)], ..Row::passed("copy on the device", value) });
    let pinned_bytes = COPY_BYTES.min(device.memory()?.0 / 8) / 4;
    let mut to = device.allocate(pinned_bytes)?;
    let mut pinned = PinnedBuffer::new(device, pinned_bytes)?;
    let time = milliseconds(device, || pinned.send(device, &mut to))?;
    rows(Row::passed("copy to the device", gigabytes_per_second(pinned_bytes, time)));
    let time = milliseconds(device, || pinned.receive(device, &to))?;
    rows(Row::passed("copy to the host", gigabytes_per_second(pinned_bytes, time)));
    Ok(())
}

/// Random bf16 from -1 to 1: zeros would hide errors, and run faster.
fn random(count: usize, mut seed: u64) -> Vec<u16> {
    let number = |_| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        bf16::from_f32((seed >> 40) as f32 / (1 << 23) as f32 - 1.0).to_bits()
    };
    (0..count).map(number).collect()
}

/// Two square matrices of bf16 whose product is timed, with samples compared.
struct SquareProduct<'a> {
    device: &'a CudaDevice,
    side: usize,
    x: Vec<u16>,
    w: Vec<u16>,
    x_buffer: DeviceBuffer,
    w_buffer: DeviceBuffer,
}

impl<'a> SquareProduct<'a> {
    fn new(device: &'a CudaDevice) -> Result<Self> {
        let side = 64 * device.properties.multiprocessors as usize;
        let (x, w) = (random(side * side, 1), random(side * side, 2));
        let upload = |numbers: &[u16]| -> Result<DeviceBuffer> {
            let buffer = device.allocate(size_of_val(numbers))?;
            buffer.write(device, 0, numbers)?;
            Ok(buffer)
        };
        Ok(SquareProduct { x_buffer: upload(&x)?, w_buffer: upload(&w)?, device, side, x, w })
    }

    /// `work` writes the product to the address that it gets.
    fn row(&self, name: &str, work: impl Fn(u64) -> Result<()>) -> Result<Row> {
        let side = self.side;
        let mut out = self.device.allocate(side * side * 2)?;
        out.fill(self.device, 0xff)?;
        let time = milliseconds(self.device, || work(out.address()))?;
        let rate = format!("{:.1} TFLOP/s at {side} x {side} x {side}", 2.0 * (side as f64).powi(3) / time / 1e9);
        let got = out.read::<u16>(self.device, side * side)?;
        Ok(match wrong_sample(&self.x, &self.w, &got, side) {
            None => Row::passed(name, rate),
            Some(wrong) => Row::failed(name, format!("{wrong}; {rate}")),
        })
    }
}

fn mma_product(device: &CudaDevice, rows: &mut RowSink) -> Result<()> {
    let square = SquareProduct::new(device)?;
    let int = square.side as i32;
    let plan = LaunchPlan::product(WeightForm::Bf16, Element::Bf16, Element::Bf16, [square.side, square.side, 1]);
    rows(square.row("bf16 product, mma", |out| {
        let args = LinearArgs {
            x: square.x_buffer.address(),
            w: square.w_buffer.address(),
            out,
            rows: int,
            n: int,
            k: int,
            x_stride: int,
            out_stride: int,
            ..LinearArgs::default()
        };
        // SAFETY: the matrices have side * side numbers each and live until the wait.
        unsafe { device.launch(&plan, &args) }
    })?);
    Ok(())
}

fn wgmma_product(device: &CudaDevice, rows: &mut RowSink) -> Result<()> {
    let square = SquareProduct::new(device)?;
    let side = square.side;
    let x_map = TensorMap::boxes_of_64(&square.x_buffer, side, side)?;
    let w_map = TensorMap::boxes_of_64(&square.w_buffer, side, side)?;
    let (int, grid) = (side as i32, [side.div_ceil(128), side.div_ceil(64), 1]);
    let shared = LinearSm90Args::SHARED as usize;
    let plan = LaunchPlan { shared, ..LaunchPlan::new("linear_sm90_bf16", grid, 160) };
    rows(square.row("bf16 product, wgmma", |out| {
        let args = LinearSm90Args { x_map, w_map, bias: 0, out, rows: int, n: int, k: int, out_stride: int };
        // SAFETY: the matrices have side * side numbers each and live until the wait.
        unsafe { device.launch(&plan, &args) }
    })?);
    Ok(())
}

/// Compares some numbers of the product with sums in f64.
fn wrong_sample(x: &[u16], w: &[u16], got: &[u16], side: usize) -> Option<String> {
    let number = |bits: u16| f64::from(bf16::from_bits(bits).to_f32());
    (0..256).find_map(|i| {
        let (row, col) = (i * 37 % side, i * 101 % side);
        let sum: f64 = (0..side).map(|k| number(x[row * side + k]) * number(w[col * side + k])).sum();
        let (got, scale) = (number(got[row * side + col]), (side as f64 / 9.0).sqrt());
        let allowed = scale * 1e-3 + sum.abs() / 256.0;
        ((got - sum).abs() > allowed || got.is_nan())
            .then(|| format!("number [{row}, {col}] is {got}, expected {sum:.4} within {allowed:.4}"))
    })
}

/// The smallest kernel, launched one by one and as a graph.
fn launches(device: &CudaDevice, rows: &mut RowSink) -> Result<()> {
    let (input, out) = (device.allocate(PTX_INPUT)?, device.allocate(1 << 10)?);
    let args = PtxArgs { map: TensorMap([0; 16]), input: input.address(), out: out.address() };
    let launch_all = || {
        for _ in 0..LAUNCHES {
            // SAFETY: ptx_bf16 writes 2 words for each of 128 threads.
            unsafe { device.launch(&LaunchPlan::apart("ptx_bf16", [1, 1, 1], PTX_THREADS), &args)? };
        }
        Ok(())
    };
    let time = milliseconds(device, launch_all)?;
    let begin = Instant::now();
    launch_all()?;
    let host = begin.elapsed().as_secs_f64() * 1e6 / LAUNCHES as f64;
    device.wait()?;
    let each = time * 1e3 / LAUNCHES as f64;
    rows(Row::passed("launch", format!("{each:.2} us on the device, {host:.2} us on the host")));
    if device.is_blocking() {
        // A kernel that is recorded cannot be waited for.
        return Ok(());
    }
    let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream lives; the capture ends below.
    check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(device.stream(), mode) })?;
    let captured = launch_all();
    // SAFETY: ends the capture that began above, whether the launches failed or not.
    check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(device.stream(), &mut graph) })?;
    captured?;
    // SAFETY: the graph was just made.
    check("cuGraphInstantiate", unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0) })?;
    // SAFETY: the graph's buffers outlive the wait of `milliseconds`.
    let time =
        milliseconds(device, || check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(executable, device.stream()) }))?;
    // SAFETY: both were made above, and no launch is in flight.
    check("cuGraphExecDestroy", unsafe { sys::cuGraphExecDestroy(executable) })?;
    // SAFETY: as above.
    check("cuGraphDestroy", unsafe { sys::cuGraphDestroy(graph) })?;
    let each = time * 1e3 / LAUNCHES as f64;
    rows(Row::passed("launch in a graph", format!("{each:.2} us on the device, {LAUNCHES} kernels")));
    Ok(())
}

/// What each kernel of ptx_test.cu must give, as the host bodies gave it when the kernels were compiled.
static EXPECTED: &str = include_str!(concat!(env!("OUT_DIR"), "/ptx_expected.txt"));

/// One kernel of ptx_test.cu.
#[derive(Debug, PartialEq)]
pub(super) struct PtxCase<'a> {
    pub kernel: &'a str,
    /// 90a: exactly 9.0.
    pub least: &'a str,
    pub words: Vec<u32>,
}

impl PtxCase<'_> {
    fn runs_on(&self, capability: Version) -> bool {
        match self.least {
            "90a" => machine_code(capability) == Some("sm_90a"),
            // The PTX for unknown devices is that of 8.0.
            "90" => matches!(machine_code(capability), Some("sm_90a" | "sm_100a")),
            _ => true,
        }
    }
}

/// Cases as lines: name, least capability, number of words; then the words in hexadecimal.
pub(super) fn ptx_cases(text: &str) -> Option<Vec<PtxCase<'_>>> {
    let mut parts = text.split_whitespace();
    let mut cases = Vec::new();
    while let Some(kernel) = parts.next() {
        let (least, count) = (parts.next()?, parts.next()?.parse().ok()?);
        let words: Option<Vec<u32>> =
            parts.by_ref().take(count).map(|word| u32::from_str_radix(word, 16).ok()).collect();
        cases.push(PtxCase { kernel, least, words: words.filter(|words| words.len() == count)? });
    }
    Some(cases)
}

/// Every wrapper of ptx.cuh on the device against its host body, in every bit.
pub fn ptx(device: &CudaDevice) -> Result<Vec<DeviceCheck<'_>>> {
    let cases = ptx_cases(EXPECTED).filter(|cases| !cases.is_empty()).ok_or(CudaError::NoKernels)?;
    let check = |case: PtxCase<'static>| {
        DeviceCheck::new(case.kernel, move |rows| {
            rows(ptx_case(device, &case)?);
            Ok(())
        })
    };
    Ok(cases.into_iter().map(check).collect())
}

fn ptx_case(device: &CudaDevice, case: &PtxCase<'static>) -> Result<Row> {
    let capability = device.properties.capability;
    if !case.runs_on(capability) {
        return Ok(Row::passed(case.kernel, format!("skipped: needs sm_{}", case.least)));
    }
    let bytes: Vec<u8> = (0..PTX_INPUT).map(|i| (i * 7 + i / 251) as u8).collect();
    let input = device.allocate(PTX_INPUT)?;
    input.write(device, 0, &bytes)?;
    let map = match machine_code(capability) {
        Some("sm_90a" | "sm_100a") => TensorMap::boxes_of_64(&input, 100, 96)?,
        _ => TensorMap([0; 16]),
    };
    let mut out = device.allocate(case.words.len() * 4)?;
    out.fill(device, 0xff)?;
    let args = PtxArgs { map, input: input.address(), out: out.address() };
    let plan = LaunchPlan { shared: PTX_SHARED, ..LaunchPlan::apart(case.kernel, [1, 1, 1], PTX_THREADS) };
    // SAFETY: the kernel writes as many words as it has expected ones, and reads the input's 32 KiB at most.
    unsafe { device.launch(&plan, &args)? };
    let got = out.read::<u32>(device, case.words.len())?;
    let differing = || got.iter().zip(&case.words).enumerate().filter(|(_, (got, want))| got != want);
    Ok(match differing().next() {
        None => Row::passed(case.kernel, format!("{} words agree", got.len())),
        Some((i, (got, want))) => {
            let wrong = differing().count();
            let what = format!("{wrong} words differ; the first is word {i}: {got:#010x}, expected {want:#010x}");
            Row::failed(case.kernel, what)
        }
    })
}
