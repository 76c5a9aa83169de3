//! Brings the inputs of a step to the device, and its results back: packed in pinned memory, and copied at once. Two
//! steps may be under way. It does not know ops.

use std::sync::Arc;

use super::draw_plan::{DrawPlan, DrawnWords};
use super::error::shape;
use super::event::StreamEvent;
use super::step::{StepLimits, StepParts, StepShape, pack};
use super::{CudaDevice, DeviceBuffer, PinnedBuffer};
use crate::backend::{StepInputs, StepOutputs};
use crate::error::Result;

/// Words of the first buffers, and of the first one for results.
const FIRST: usize = 16 << 10;
const FIRST_RESULTS: usize = 4 << 10;

/// The inputs of a step. The next `begin` overwrites them on the device.
pub struct DeviceBatch<'a> {
    pub(super) rows: StepInputs<'a>,
    pub(super) shape: StepShape,
    pub(super) draws: DrawPlan<'a>,
    serial: u64,
}

/// What ops need of a batch.
pub(super) struct PlacedBatch<'a> {
    pub rows: &'a StepInputs<'a>,
    pub shape: StepShape,
    pub draws: &'a DrawPlan<'a>,
    /// Addresses.
    pub parts: StepParts<u64>,
    /// Of caches.
    pub block_size: usize,
}

/// What a step leaves on its way to the host.
pub struct DeviceDrawn {
    /// None: its draws and scores have no results here.
    words: Option<(DrawnWords, Arc<PinnedBuffer>, Arc<StreamEvent>)>,
    states: Vec<Vec<f32>>,
}

impl DeviceDrawn {
    /// Waits for it.
    pub(super) fn read(self) -> Result<StepOutputs> {
        let DeviceDrawn { words, states } = self;
        let Some((of, results, arrived)) = words else { return Ok(StepOutputs { states, ..StepOutputs::default() }) };
        arrived.wait()?;
        let words = results.as_bytes().as_chunks().0.iter().map(|bytes| u32::from_ne_bytes(*bytes));
        Ok(StepOutputs { states, ..of.read(words) })
    }
}

/// The host's memory of every second step.
#[derive(Debug)]
struct HostSide {
    inputs: PinnedBuffer,
    results: Arc<PinnedBuffer>,
    /// The end of the last step that used it.
    ended: Arc<StreamEvent>,
    /// A step has sent its inputs, and did not record its end.
    open: bool,
}

impl HostSide {
    fn new(device: &CudaDevice, words: usize, results: usize) -> Result<HostSide> {
        Ok(HostSide {
            inputs: PinnedBuffer::new(device, 4 * words)?,
            results: Arc::new(PinnedBuffer::new(device, 4 * results)?),
            ended: Arc::new(StreamEvent::new(device)?),
            open: false,
        })
    }
}

#[derive(Debug, Default)]
pub(super) struct StepBuffers {
    sides: Option<[HostSide; 2]>,
    device: Option<DeviceBuffer>,
    /// Of the last batch.
    serial: u64,
}

impl StepBuffers {
    /// Whether `fit` would move the buffers.
    pub fn wants_room(&self, shape: &StepShape, draws: &DrawPlan) -> bool {
        self.lacks_results(draws) || self.lacks_words(shape.parts().end + draws.len())
    }

    fn lacks_results(&self, draws: &DrawPlan) -> bool {
        self.sides.as_ref().is_none_or(|[side, _]| side.results.bytes() < 4 * draws.out_words())
    }

    fn lacks_words(&self, words: usize) -> bool {
        self.device.as_ref().is_none_or(|buffer| buffer.bytes() < 4 * words)
    }

    /// Makes room for steps of this many words of inputs and results.
    pub fn reserve(&mut self, device: &CudaDevice, words: usize, results: usize) -> Result<()> {
        let (words, results) = (words.max(FIRST), results.max(FIRST_RESULTS));
        self.device = Some(device.allocate(4 * words)?);
        self.sides = Some([HostSide::new(device, words, results)?, HostSide::new(device, words, results)?]);
        Ok(())
    }

    /// Whether the buffers that kernels use had to move for a step.
    pub fn fit(&mut self, device: &CudaDevice, shape: &StepShape, draws: &DrawPlan) -> Result<bool> {
        if !self.wants_room(shape, draws) {
            return Ok(false);
        }
        let words = (shape.parts().end + draws.len()).next_power_of_two();
        let held = self.device.as_ref().map_or(0, DeviceBuffer::bytes) / 4;
        let results = self.sides.as_ref().map_or(0, |[side, _]| side.results.bytes()) / 4;
        self.reserve(device, words.max(held), draws.out_words().next_power_of_two().max(results))?;
        Ok(true)
    }

    /// After `fit` for this step.
    pub fn upload<'a>(
        &mut self,
        device: &CudaDevice,
        rows: StepInputs<'a>,
        shape: StepShape,
        draws: DrawPlan<'a>,
        limits: StepLimits,
    ) -> Result<DeviceBatch<'a>> {
        self.serial += 1;
        let (end, words) = (shape.parts().end, shape.parts().end + draws.len());
        if let (Some(sides), Some(to)) = (&mut self.sides, &mut self.device) {
            let side = &mut sides[self.serial as usize % 2];
            match std::mem::replace(&mut side.open, true) {
                true => device.wait()?,
                false => side.ended.wait()?,
            }
            pack(&rows, &shape, limits, &mut side.inputs.words()[..end])?;
            draws.write(&mut side.inputs.words()[end..words]);
            if words > 0 {
                side.inputs.send_first(device, 4 * words, to)?;
            }
        }
        Ok(DeviceBatch { rows, shape, draws, serial: self.serial })
    }

    /// Ends a step: its results follow all work of the stream to the host, if it has any.
    ///
    /// # Safety
    /// The device has as many words at `results` as the batch draws.
    pub unsafe fn leave(
        &mut self,
        device: &CudaDevice,
        batch: &DeviceBatch,
        results: Option<u64>,
        states: Vec<Vec<f32>>,
    ) -> Result<DeviceDrawn> {
        let side = self.sides.as_mut().map(|sides| &mut sides[batch.serial as usize % 2]);
        let side = side.ok_or_else(|| shape("draw", "a step begins before it draws".into()))?;
        if let Some(address) = results {
            let to = Arc::get_mut(&mut side.results)
                .ok_or_else(|| shape("draw", "the results of the step before the last were not read".into()))?;
            // SAFETY: the caller's promise.
            unsafe { to.receive_first(device, 4 * batch.draws.out_words(), address) }?;
        }
        side.ended.record(device)?;
        side.open = false;
        let words = results.map(|_| (batch.draws.results().clone(), side.results.clone(), side.ended.clone()));
        Ok(DeviceDrawn { words, states })
    }

    /// The current batch, where it is on the device.
    pub fn placed<'a>(&self, batch: &'a DeviceBatch, limits: StepLimits) -> PlacedBatch<'a> {
        assert_eq!(batch.serial, self.serial, "a batch lasts until the next `begin`");
        let parts = batch.shape.parts().at(self.device.as_ref().map_or(0, DeviceBuffer::address));
        let DeviceBatch { rows, shape, draws, .. } = batch;
        PlacedBatch { rows, shape: *shape, draws, parts, block_size: limits.block_size }
    }
}
