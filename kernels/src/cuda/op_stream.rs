//! Where ops put their kernels: the stream of a device, the memory of their results, the tables of angles, and the
//! first error, after which later ops do nothing. It does not know what is computed.

use std::cell::{Cell, RefCell};

use super::angles::DeviceAngles;
use super::arena::{ArenaBlock, DeviceArena};
use super::form::Element;
use super::memory::{Plain, read, write};
use super::piece_lists::StepPieces;
use super::plan::LaunchPlan;
use super::tensor::DeviceTensor;
use super::{CudaDevice, CudaError, DeviceBuffer};
use crate::error::Result;

pub(super) struct OpStream {
    pub device: CudaDevice,
    /// A zero for each multiprocessor, for the fast kernels; None: the plain kernels compute.
    pub fast: Option<DeviceBuffer>,
    pub arena: DeviceArena,
    pub angles: RefCell<DeviceAngles>,
    /// The first error of an op.
    error: RefCell<Option<CudaError>>,
    /// Of activations other than the residual stream.
    pub activations: Cell<Element>,
    /// Whether a weight has FP8 codes, so that norms store those of what they make.
    pub has_codes: Cell<bool>,
    pub step_pieces: StepPieces,
}

impl OpStream {
    /// `fast`: with the fast kernels, if this binary has any for the device.
    pub fn new(mut device: CudaDevice, fast: bool) -> Result<OpStream> {
        device.enter()?;
        let fast = if fast && device.load_fast()? {
            let mut zeros = device.allocate(4 * device.properties.multiprocessors as usize)?;
            zeros.fill(&device, 0)?;
            Some(zeros)
        } else {
            None
        };
        let activations = Cell::new(Element::F32);
        let (arena, angles, error) = (DeviceArena::default(), RefCell::default(), RefCell::default());
        let (has_codes, step_pieces) = Default::default();
        Ok(OpStream { device, fast, arena, angles, error, activations, has_codes, step_pieces })
    }

    /// What the layers of a step share is of that step.
    pub fn end_step(&self) {
        self.step_pieces.forget();
    }

    /// The value, or None after the first error.
    pub fn keep<T>(&self, result: std::result::Result<T, CudaError>) -> Option<T> {
        result.map_err(|error| self.error.borrow_mut().get_or_insert(error).clone()).ok()
    }

    /// The first error of an op. It stays, because what later ops would have computed is missing.
    pub fn check(&self) -> Result<()> {
        self.error.borrow().clone().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Any other error is of the device, which computes no more.
    pub fn forget_error_of_group(&mut self) {
        let passes = |error: &CudaError| {
            matches!(error, CudaError::OutOfMemory { .. } | CudaError::GroupEnded(_) | CudaError::Nccl(_))
        };
        self.error.get_mut().take_if(|error| passes(error));
    }

    /// Memory that the next kernel fills.
    pub fn take(&self, bytes: usize) -> ArenaBlock {
        let taken = self.keep(self.arena.take(&self.device, bytes));
        taken.unwrap_or_else(|| self.arena.nothing())
    }

    pub fn tensor(&self, rows: usize, cols: usize, element: Element) -> DeviceTensor {
        DeviceTensor::new(self.take(rows * cols * element.bytes()), rows, cols, element)
    }

    /// Puts a kernel into the stream, unless there is nothing to do or an op has failed.
    ///
    /// # Safety
    /// As `CudaDevice::launch`.
    pub unsafe fn launch<A: Copy>(&self, plan: &LaunchPlan, args: &A) {
        if plan.grid.contains(&0) || self.error.borrow().is_some() {
            return;
        }
        // SAFETY: the caller's promise.
        self.keep(unsafe { self.device.launch(plan, args) });
    }

    pub fn upload<T: Plain>(&self, values: &[T]) -> Result<DeviceBuffer> {
        let data = self.device.allocate(size_of_val(values))?;
        data.write(&self.device, 0, values)?;
        Ok(data)
    }

    /// As f32.
    pub fn to_device(&self, rows: usize, cols: usize, values: &[f32]) -> DeviceTensor {
        assert_eq!(values.len(), rows * cols, "a tensor [{rows}, {cols}]");
        let tensor = self.tensor(rows, cols, Element::F32);
        // SAFETY: the tensor has room for all values.
        self.keep(unsafe { write(&self.device, tensor.address, values) });
        tensor
    }

    pub fn to_host(&self, x: &DeviceTensor) -> Vec<f32> {
        if x.rows == 0 || self.error.borrow().is_some() {
            return vec![0.0; x.rows * x.cols];
        }
        // A view ends with its last row.
        let count = (x.rows - 1) * x.stride + x.cols;
        // SAFETY: the view has that many numbers from its address on.
        let all = self.keep(unsafe {
            match x.element {
                Element::F32 => read::<f32>(&self.device, x.address, count),
                Element::Bf16 => {
                    read::<half::bf16>(&self.device, x.address, count).map(|v| v.iter().map(|x| x.to_f32()).collect())
                }
            }
        });
        let all = all.unwrap_or_else(|| vec![0.0; count]);
        all.chunks(x.stride.max(1)).flat_map(|row| &row[..x.cols]).copied().collect()
    }
}
