//! Brings the inputs of a step to the device, and its results back: packed in pinned memory, and copied at once. It
//! does not know ops.

use super::draw_plan::DrawPlan;
use super::step::{StepLimits, StepParts, StepShape, pack};
use super::{CudaDevice, DeviceBuffer, PinnedBuffer};
use crate::backend::StepInputs;
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

#[derive(Debug, Default)]
pub(super) struct StepBuffers {
    host: Option<PinnedBuffer>,
    device: Option<DeviceBuffer>,
    results: Option<PinnedBuffer>,
    /// Of the last batch.
    serial: u64,
    /// The last copy may not have ended.
    in_flight: bool,
}

impl StepBuffers {
    /// Whether `fit` would move the buffers.
    pub fn wants_room(&self, shape: &StepShape, draws: &DrawPlan) -> bool {
        let words = shape.parts().end + draws.len();
        self.lacks_results(draws) || self.lacks_words(words)
    }

    fn lacks_results(&self, draws: &DrawPlan) -> bool {
        self.results.as_ref().is_none_or(|results| results.bytes() < 4 * draws.out_words)
    }

    fn lacks_words(&self, words: usize) -> bool {
        self.device.as_ref().is_none_or(|buffer| buffer.bytes() < 4 * words)
    }

    /// Makes room for steps of this many words of inputs and results.
    pub fn reserve(&mut self, device: &CudaDevice, words: usize, results: usize) -> Result<()> {
        self.results = Some(PinnedBuffer::new(device, 4 * results.max(FIRST_RESULTS))?);
        self.device = Some(device.allocate(4 * words.max(FIRST))?);
        self.host = Some(PinnedBuffer::new(device, 4 * words.max(FIRST))?);
        Ok(())
    }

    /// Whether the buffers that kernels use had to move for a step.
    pub fn fit(&mut self, device: &CudaDevice, shape: &StepShape, draws: &DrawPlan) -> Result<bool> {
        if self.lacks_results(draws) {
            let words = draws.out_words.next_power_of_two().max(FIRST_RESULTS);
            self.results = Some(PinnedBuffer::new(device, 4 * words)?);
        }
        let words = shape.parts().end + draws.len();
        if !self.lacks_words(words) {
            return Ok(false);
        }
        let bytes = 4 * words.next_power_of_two().max(FIRST);
        self.device = Some(device.allocate(bytes)?);
        self.host = Some(PinnedBuffer::new(device, bytes)?);
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
        if self.in_flight {
            device.wait()?;
        }
        self.serial += 1;
        let (end, words) = (shape.parts().end, shape.parts().end + draws.len());
        if let (Some(host), Some(to)) = (&mut self.host, &mut self.device) {
            pack(&rows, &shape, limits, &mut host.words()[..end])?;
            draws.write(&mut host.words()[end..words]);
            if words > 0 {
                host.send_first(device, 4 * words, to)?;
                self.in_flight = true;
            }
        }
        Ok(DeviceBatch { rows, shape, draws, serial: self.serial })
    }

    /// The results of a batch, after all work of the stream.
    ///
    /// # Safety
    /// The device has as many words at `address` as the batch draws.
    pub unsafe fn receive(&mut self, device: &CudaDevice, batch: &DeviceBatch, address: u64) -> Result<&[u32]> {
        let Some(results) = &mut self.results else { return Ok(&[]) };
        // SAFETY: the caller's promise.
        unsafe { results.receive_first(device, 4 * batch.draws.out_words, address) }?;
        device.wait()?;
        self.in_flight = false;
        Ok(&results.words()[..batch.draws.out_words])
    }

    /// All work of the stream has ended.
    pub fn arrived(&mut self) {
        self.in_flight = false;
    }

    /// The current batch, where it is on the device.
    pub fn placed<'a>(&self, batch: &'a DeviceBatch, limits: StepLimits) -> PlacedBatch<'a> {
        assert_eq!(batch.serial, self.serial, "a batch lasts until the next `begin`");
        let parts = batch.shape.parts().at(self.device.as_ref().map_or(0, DeviceBuffer::address));
        let DeviceBatch { rows, shape, draws, .. } = batch;
        PlacedBatch { rows, shape: *shape, draws, parts, block_size: limits.block_size }
    }
}
