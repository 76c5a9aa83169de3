//! The gated delta net and its states. It does not know sequences beyond a step's.

use super::args::DeltaArgs;
use super::batch::PlacedBatch;
use super::form::Element;
use super::op_stream::OpStream;
use super::plan::{LaunchPlan, int};
use super::tensor::DeviceTensor;
use super::weights::DeviceVector;
use super::{CudaDevice, DeviceBuffer};
use crate::backend::{DeltaSpec, DeltaVectors};
use crate::error::{KernelError, Result};

/// Recurrent states of one layer, by cell.
#[derive(Debug)]
pub struct DeviceStates {
    numbers: usize,
    data: DeviceBuffer,
}

impl DeviceStates {
    pub(super) fn new(device: &CudaDevice, cells: usize, numbers: usize) -> Result<DeviceStates> {
        let bytes = cells.checked_mul(numbers).and_then(|n| n.checked_mul(size_of::<f32>()));
        let bytes = bytes.ok_or_else(|| KernelError::OutOfMemory(format!("{cells} recurrent states")))?;
        Ok(DeviceStates { numbers, data: device.allocate(bytes)? })
    }
}

impl OpStream {
    pub fn delta_net(
        &self,
        batch: &PlacedBatch,
        qkvz: &DeviceTensor,
        ba: &DeviceTensor,
        vectors: &DeltaVectors<DeviceVector>,
        states: &DeviceStates,
        spec: &DeltaSpec,
    ) -> DeviceTensor {
        let DeltaSpec { key_heads, value_heads, key_dim, value_dim, taps, eps } = *spec;
        let (rows, sequences) = (batch.shape.rows, batch.shape.sequences);
        assert_eq!((qkvz.rows, qkvz.cols), (rows, key_heads * spec.inputs()), "delta_net: {spec:?}");
        assert_eq!((ba.rows, ba.cols), (rows, 2 * value_heads), "delta_net: {spec:?}");
        assert_eq!(states.numbers, spec.state_numbers(), "delta_net: numbers of a state");
        assert!(batch.shape.saves > 0 && qkvz.element == ba.element, "delta_net: cells of each sequence");
        let out = self.tensor(rows, value_heads * value_dim, qkvz.element);
        let mixed = self.tensor(rows, key_heads * spec.channels(), Element::F32);
        let args = DeltaArgs {
            qkvz: qkvz.address,
            ba: ba.address,
            conv: vectors.conv.data.address(),
            log_decay: vectors.log_decay.data.address(),
            step_bias: vectors.step_bias.data.address(),
            norm: vectors.norm.data.address(),
            mixed: mixed.address,
            states: states.data.address(),
            out: out.address,
            cells: batch.parts.cells,
            numbers: states.numbers,
            rows: int(rows),
            sequences: int(sequences),
            key_heads: int(key_heads),
            group: int(spec.group()),
            key_dim: int(key_dim),
            value_dim: int(value_dim),
            taps: int(taps),
            qkvz_stride: int(qkvz.stride),
            ba_stride: int(ba.stride),
            eps,
        };
        let [mix, net] = LaunchPlan::delta_net(qkvz.element, sequences, spec);
        // SAFETY: `begin` has compared rows and cells with the step and the states; the vectors have the numbers that
        // the spec says, mixed and out a row for each of the batch.
        unsafe {
            self.launch(&mix, &args);
            self.launch(&net, &args);
        }
        out
    }
}
