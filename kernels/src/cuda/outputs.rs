//! What follows a product with codes whose outputs have a scale each (kernels/cuda/outputs.cu).

use super::op_stream::OpStream;
use super::plan::{LaunchPlan, int};
use super::tensor::DeviceTensor;
use super::weights::DeviceVector;

/// outputs.cu
#[derive(Clone, Copy)]
#[repr(C)]
struct ScaleOutputsArgs {
    x: u64,
    scales: u64,
    bias: u64,
    starts: u64,
    order: u64,
    n: i32,
    held: i32,
}

/// Which rows are of which expert: addresses, as outputs.cu has them.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowsByExpert {
    pub starts: u64,
    /// 0: rows are in the order of `starts`.
    pub order: u64,
    pub held: usize,
}

impl OpStream {
    /// x *= scales, plus bias. `experts`: `scales` has those of each expert; None: x is of one weight.
    pub fn scale_outputs(
        &self,
        x: &DeviceTensor,
        scales: u64,
        bias: Option<&DeviceVector>,
        experts: Option<RowsByExpert>,
    ) {
        assert!(x.is_contiguous(), "scale_outputs: x must be no view");
        let RowsByExpert { starts, order, held } = experts.unwrap_or(RowsByExpert { starts: 0, order: 0, held: 1 });
        let bias = bias.map_or(0, |bias| bias.data.address());
        let args = ScaleOutputsArgs { x: x.changed(), scales, bias, starts, order, n: int(x.cols), held: int(held) };
        let kernel = x.element.of("scale_outputs_f32", "scale_outputs_bf16");
        // SAFETY: x has a row for each one of `starts` and `order`, the scales `cols` for each weight, as the bias.
        unsafe { self.launch(&LaunchPlan::by_column(kernel, x.rows, x.cols), &args) };
    }
}
