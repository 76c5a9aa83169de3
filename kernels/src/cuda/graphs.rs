//! Recorded decode steps. A step of a shape runs eagerly the first time, is recorded the second time, and is repeated
//! from then on. The shapes that were used last are kept. It does not know what is recorded.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys;

use super::arena::DeviceArena;
use super::device::Context;
use super::error::check;
use super::form::Element;
use super::step::StepShape;
use super::tensor::DeviceTensor;
use super::{CudaDevice, Result};

/// Where a recorded step leaves a matrix in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    pub start: usize,
    pub rows: usize,
    pub cols: usize,
}

impl Kept {
    pub fn of(x: &DeviceTensor) -> Kept {
        Kept { start: x.block.start, rows: x.rows, cols: x.cols }
    }

    /// The matrix; None if its memory is in use.
    pub fn take(self, arena: &DeviceArena) -> Option<DeviceTensor> {
        let Kept { start, rows, cols } = self;
        let block = arena.take_at(start, rows * cols * Element::F32.bytes())?;
        Some(DeviceTensor::new(block, rows, cols, Element::F32))
    }
}

/// What a recorded step leaves: the result of the layers, and that of its draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Results {
    pub hidden: Kept,
    pub drawn: Option<Kept>,
}

#[derive(Debug)]
struct Graph {
    context: Arc<Context>,
    executable: sys::CUgraphExec,
    results: Results,
    /// Exchanges with other ranks that it has.
    exchanges: u32,
}

// SAFETY: the executable is a handle that any thread may use while the context is current.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: made in `Graphs::end`; the driver lets a launch in flight end first.
        let _ = unsafe { sys::cuGraphExecDestroy(self.executable) };
    }
}

/// How the current step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Mode {
    /// Its kernels run as they are launched.
    #[default]
    Plain,
    /// Its kernels are recorded.
    Recording,
    /// Nothing is launched but the recorded step, at its end.
    Repeating,
}

/// Shapes of which a step has run. A recorded step of a large model takes about a mebibyte.
const MOST_SHAPES: usize = 256;

/// A shape of which a step has run.
#[derive(Debug, Default)]
struct KnownShape {
    /// None: it is recorded the next time.
    graph: Option<Graph>,
    /// The number of the last step of this shape.
    used: u64,
}

#[derive(Debug)]
pub(super) struct Graphs {
    known: HashMap<StepShape, KnownShape>,
    most: usize,
    steps: u64,
    mode: Mode,
    /// Exchanges with other ranks that were put into the stream so far.
    exchanges: Arc<AtomicU32>,
    /// Those of the step that is being recorded.
    recorded: u32,
}

impl Default for Graphs {
    fn default() -> Self {
        let (known, exchanges) = (HashMap::new(), Arc::default());
        Graphs { known, most: MOST_SHAPES, steps: 0, mode: Mode::Plain, exchanges, recorded: 0 }
    }
}

impl Graphs {
    /// How a step of this shape would run. `settled`: nothing else is in the arena, so that addresses repeat.
    pub fn mode_of(&self, device: &CudaDevice, shape: &StepShape, settled: bool) -> Mode {
        let settled = settled && !device.is_blocking();
        match self.known.get(shape) {
            Some(KnownShape { graph: Some(_), .. }) if settled => Mode::Repeating,
            Some(KnownShape { graph: None, .. }) if settled => Mode::Recording,
            _ => Mode::Plain,
        }
    }

    /// How a step of this shape runs.
    pub fn begin(&mut self, device: &CudaDevice, shape: &StepShape, settled: bool) -> Result<Mode> {
        let mode = self.mode_of(device, shape, settled);
        if mode == Mode::Recording {
            let of_thread = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            // SAFETY: the stream lives; the capture ends in `end` or `abandon`.
            check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(device.stream(), of_thread) })?;
        }
        self.steps += 1;
        self.recorded = 0;
        if let Some(known) = self.known.get_mut(shape) {
            known.used = self.steps;
        }
        self.mode = mode;
        Ok(mode)
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// An exchange with other ranks follows.
    pub fn count_exchange(&mut self) {
        match self.mode {
            Mode::Recording => self.recorded += 1,
            Mode::Plain | Mode::Repeating => drop(self.exchanges.fetch_add(1, Ordering::AcqRel)),
        }
    }

    pub fn exchanges(&self) -> &Arc<AtomicU32> {
        &self.exchanges
    }

    /// What a step that repeats leaves.
    pub fn results(&self, shape: &StepShape) -> Option<Results> {
        self.known.get(shape)?.graph.as_ref().map(|graph| graph.results)
    }

    #[cfg(test)]
    pub fn repeats(&self, shape: &StepShape) -> bool {
        self.results(shape).is_some()
    }

    /// Keeps at most so many shapes from now on.
    #[cfg(test)]
    pub fn limit(&mut self, most: usize) {
        self.most = most;
    }

    /// Makes room for another shape.
    fn drop_oldest(&mut self) {
        while self.known.len() >= self.most
            && let Some(oldest) = self.known.iter().min_by_key(|(_, known)| known.used).map(|(shape, _)| *shape)
        {
            self.known.remove(&oldest);
        }
    }

    /// Ends a step that left `results`: launches what was recorded.
    pub fn end(&mut self, device: &CudaDevice, shape: &StepShape, results: Results) -> Result<()> {
        match std::mem::take(&mut self.mode) {
            Mode::Plain if shape.decode => {
                if !self.known.contains_key(shape) {
                    self.drop_oldest();
                    self.known.insert(*shape, KnownShape { graph: None, used: self.steps });
                }
            }
            Mode::Plain => {}
            Mode::Recording => {
                let graph = end_capture(device)?;
                let mut executable = std::ptr::null_mut();
                // SAFETY: the graph was just made.
                let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0) };
                // SAFETY: as above; the executable does not need it.
                check("cuGraphDestroy", unsafe { sys::cuGraphDestroy(graph) })?;
                check("cuGraphInstantiate", code)?;
                let (context, exchanges) = (Arc::clone(device.context()), self.recorded);
                let graph = Graph { context, executable, results, exchanges };
                self.launch(device, &graph)?;
                self.known.insert(*shape, KnownShape { graph: Some(graph), used: self.steps });
            }
            Mode::Repeating => {}
        }
        Ok(())
    }

    /// Launches the recorded graph of this shape, and returns where its results are. None: there is no such graph.
    pub fn repeat(&mut self, device: &CudaDevice, shape: &StepShape) -> Result<Option<Results>> {
        self.mode = Mode::Plain;
        let Some(graph) = self.known.get(shape).and_then(|known| known.graph.as_ref()) else { return Ok(None) };
        self.launch(device, graph)?;
        Ok(Some(graph.results))
    }

    fn launch(&self, device: &CudaDevice, graph: &Graph) -> Result<()> {
        self.exchanges.fetch_add(graph.exchanges, Ordering::AcqRel);
        // SAFETY: the memory that its kernels use lives as long as the backend, which clears the graphs when any moves.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.executable, device.stream()) })
    }

    /// Gives up a step that was not ended.
    pub fn abandon(&mut self, device: &CudaDevice) {
        if std::mem::take(&mut self.mode) == Mode::Recording
            && let Ok(graph) = end_capture(device)
        {
            // SAFETY: the graph was just made.
            let _ = unsafe { sys::cuGraphDestroy(graph) };
        }
    }

    /// Forgets what was recorded: memory that the kernels use has moved.
    pub fn forget(&mut self) {
        self.known.values_mut().for_each(|known| known.graph = None);
    }

    /// Forgets all steps: others will come.
    pub fn clear(&mut self) {
        self.known.clear();
    }
}

fn end_capture(device: &CudaDevice) -> Result<sys::CUgraph> {
    let mut graph = std::ptr::null_mut();
    // SAFETY: ends the capture that `begin` began, and writes one handle.
    check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(device.stream(), &mut graph) })?;
    Ok(graph)
}
