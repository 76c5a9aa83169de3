//! The gate of experts with biases and limits (kernels/cuda/clamped.cu).

use super::op_stream::OpStream;
use super::plan::{LaunchPlan, int};
use super::tensor::{DeviceTensor, PlaceRows};
use super::weights::DeviceVector;
use crate::backend::ClampedGate;

/// clamped.cu
#[derive(Clone, Copy)]
#[repr(C)]
struct ClampedMulArgs {
    gate: u64,
    up: u64,
    out: u64,
    routes: u64,
    used: u64,
    ids: u64,
    gate_bias: u64,
    up_bias: u64,
    n: i32,
    stride: i32,
    experts: i32,
    alpha: f32,
    limit: f32,
}

/// clamped.cu
#[derive(Clone, Copy)]
#[repr(C)]
struct ExpertBiasArgs {
    parts: u64,
    routes: u64,
    used: u64,
    ids: u64,
    bias: u64,
    n: i32,
    experts: i32,
}

impl OpStream {
    /// The middle of experts with biases and limits: as `silu_mul_rows`.
    pub fn clamped_mul(
        &self,
        gate: &DeviceTensor,
        up: &DeviceTensor,
        places: Option<PlaceRows>,
        ids: u64,
        clamped: &ClampedGate<DeviceVector>,
    ) -> DeviceTensor {
        let shape = |x: &DeviceTensor| (x.rows, x.cols, x.stride, x.element);
        assert_eq!(shape(gate), shape(up), "clamped_mul: gate and up");
        let PlaceRows { routes, used, .. } = places.unwrap_or_default();
        let out = self.tensor(gate.rows, gate.cols, gate.element);
        let args = ClampedMulArgs {
            gate: gate.address,
            up: up.address,
            out: out.address,
            routes,
            used,
            ids,
            gate_bias: clamped.gate.data.address(),
            up_bias: clamped.up.data.address(),
            n: int(gate.cols),
            stride: int(gate.stride),
            experts: int(clamped.gate.len / gate.cols.max(1)),
            alpha: clamped.alpha,
            limit: clamped.limit,
        };
        let rows = PlaceRows::blocks(places, gate.rows);
        let plan = LaunchPlan::by_column(gate.element.of("clamped_mul_f32", "clamped_mul_bf16"), rows, gate.cols);
        // SAFETY: gate, up and out have one shape, and the biases a row for each expert that `ids` names.
        unsafe { self.launch(&plan, &args) };
        out
    }

    /// Adds to the row of each route, or of its place, the bias of its expert.
    pub fn add_expert_bias(&self, parts: &DeviceTensor, places: Option<PlaceRows>, ids: u64, bias: &DeviceVector) {
        let (n, experts) = (int(parts.cols), int(bias.len / parts.cols.max(1)));
        let PlaceRows { routes, used, .. } = places.unwrap_or_default();
        let args = ExpertBiasArgs { parts: parts.address, routes, used, ids, bias: bias.data.address(), n, experts };
        let kernel = parts.element.of("add_expert_bias_f32", "add_expert_bias_bf16");
        let plan = LaunchPlan::by_column(kernel, PlaceRows::blocks(places, parts.rows), parts.cols);
        // SAFETY: parts has a row for each route or place, and the bias one for each expert.
        unsafe { self.launch(&plan, &args) };
    }
}
