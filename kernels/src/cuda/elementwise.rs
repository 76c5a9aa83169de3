//! Ops on rows alone: norms, rotations and lookups among them. They do not know models.

use std::ops::Range;

use super::Cuda;
use super::args::{
    AddNormArgs, AddScaledArgs, CodesTo, EmbedArgs, GatherArgs, GroupNormArgs, PartNormArgs, RopeArgs, RopeHeads,
    SigmoidMulArgs, SiluMulArgs, SquareSumArgs,
};
use super::batch::PlacedBatch;
use super::form::Element;
use super::op_stream::OpStream;
use super::plan::{LaunchPlan, heads_of_block, int};
use super::tensor::{DeviceTensor, PlaceRows};
use super::weights::{DeviceEmbedding, DeviceVector};
use crate::backend::{Gelu, RopeSpec, RowOps, WholeRow};

/// elementwise.cu
#[derive(Clone, Copy)]
#[repr(C)]
struct NarrowArgs {
    x: u64,
    out: u64,
    n: usize,
}

/// elementwise.cu
#[derive(Clone, Copy)]
#[repr(C)]
struct GeluArgs {
    x: u64,
    out: u64,
    n: usize,
    tanh: i32,
}

/// norm.cu
#[derive(Clone, Copy)]
#[repr(C)]
struct LayerNormArgs {
    x: u64,
    weight: u64,
    bias: u64,
    out: u64,
    n: i32,
    eps: f32,
}

/// embed.cu
#[derive(Clone, Copy)]
#[repr(C)]
struct AddPositionsArgs {
    x: u64,
    table: u64,
    positions: u64,
    hidden: i32,
    count: u32,
}

impl RowOps for Cuda {
    type Tensor = DeviceTensor;
    type Vector = DeviceVector;

    fn slice_cols(&self, x: &DeviceTensor, from: usize, len: usize) -> DeviceTensor {
        x.columns(from, len)
    }

    fn add_scaled(&self, x: &mut DeviceTensor, y: &DeviceTensor, factor: f32) {
        assert_eq!((x.rows, x.cols), (y.rows, y.cols), "add_scaled: x and y must have the same shape");
        assert!(y.is_contiguous(), "add_scaled: y must be no view");
        self.ops.add_to(x, 1.0, Some(y), factor);
    }

    fn scale(&self, x: &mut DeviceTensor, factor: f32) {
        self.ops.add_to(x, factor, None, 0.0);
    }

    fn activation(&self, x: &DeviceTensor) -> DeviceTensor {
        assert!(x.is_contiguous() && x.element == Element::F32, "activation: x must be f32, and no view");
        let element = self.ops.activations.get();
        if element == Element::F32 {
            return x.columns(0, x.cols);
        }
        let out = self.ops.tensor(x.rows, x.cols, element);
        let args = NarrowArgs { x: x.address, out: out.address, n: x.rows * x.cols };
        // SAFETY: both have n numbers.
        unsafe { self.ops.launch(&LaunchPlan::by_number("narrow_bf16", args.n), &args) };
        out
    }

    fn silu_mul(&self, gate: &DeviceTensor, up: &DeviceTensor) -> DeviceTensor {
        self.ops.silu_mul_rows(gate, up, None)
    }

    fn gelu_mul(&self, gate: &DeviceTensor, up: &DeviceTensor) -> DeviceTensor {
        self.ops.gate_mul_rows(gate, up, None, gate.element.of("gelu_mul_f32", "gelu_mul_bf16"))
    }

    fn gelu(&self, x: &DeviceTensor, form: Gelu) -> DeviceTensor {
        assert!(x.is_contiguous(), "gelu: x must be no view");
        let out = self.ops.tensor(x.rows, x.cols, x.element);
        let (n, tanh) = (x.rows * x.cols, (form == Gelu::Tanh).into());
        let args = GeluArgs { x: x.address, out: out.address, n, tanh };
        // SAFETY: both have n numbers.
        unsafe { self.ops.launch(&LaunchPlan::by_number(x.element.of("gelu_f32", "gelu_bf16"), n), &args) };
        out
    }

    fn sigmoid_mul(&self, x: &mut DeviceTensor, gate: &DeviceTensor) {
        assert!(x.is_contiguous(), "sigmoid_mul: x must be no view");
        assert!(gate.rows == x.rows && (gate.cols == x.cols || gate.cols == 1), "sigmoid_mul: the gate's shape");
        let name = match (x.element, gate.element) {
            (Element::F32, Element::F32) => "sigmoid_mul_f32",
            (Element::Bf16, Element::Bf16) => "sigmoid_mul_bf16",
            (Element::Bf16, Element::F32) => "sigmoid_mul_bf16_f32",
            (Element::F32, Element::Bf16) => panic!("sigmoid_mul: the gate must not be bf16 in a model of f32"),
        };
        let (n, gates, stride) = (int(x.cols), int(gate.cols), int(gate.stride));
        let args = SigmoidMulArgs { x: x.changed(), gate: gate.address, n, gates, stride };
        // SAFETY: x has n numbers in each row, the gate as many or one.
        unsafe { self.ops.launch(&LaunchPlan::by_column(name, x.rows, x.cols), &args) };
    }

    fn rms_norm(&self, x: &DeviceTensor, weight: &DeviceVector, eps: f32) -> DeviceTensor {
        self.ops.rms_norm(x, weight, eps)
    }

    fn layer_norm(&self, x: &DeviceTensor, weight: &DeviceVector, bias: &DeviceVector, eps: f32) -> DeviceTensor {
        self.ops.layer_norm(x, weight, bias, eps)
    }

    fn square_sums(&self, x: &DeviceTensor, y: &DeviceTensor, counted: Range<usize>) -> DeviceTensor {
        assert!(x.rows == y.rows && x.element == y.element, "square_sums: x and y must have the same rows");
        assert!(counted.end <= y.cols, "square_sums: {counted:?} of {} columns", y.cols);
        let out = self.ops.tensor(x.rows, 2, Element::F32);
        let name = x.element.of("square_sum_f32", "square_sum_bf16");
        let from = y.address + (counted.start * y.element.bytes()) as u64;
        for (column, x, stride, n) in [(0, x.address, x.stride, x.cols), (1, from, y.stride, counted.len())] {
            let out = out.address + (column * Element::F32.bytes()) as u64;
            let args = SquareSumArgs { x, out, n: int(n), stride: int(stride), columns: 2 };
            // SAFETY: each row of x has n numbers, and out has two numbers for it.
            unsafe { self.ops.launch(&LaunchPlan::by_row(name, y.rows), &args) };
        }
        out
    }

    fn norm_of_part(&self, x: &DeviceTensor, weight: &DeviceVector, sums: &DeviceTensor, of: WholeRow) -> DeviceTensor {
        let WholeRow { column, width, eps } = of;
        assert_eq!((sums.rows, x.cols), (x.rows, weight.len), "norm_of_part: the shapes");
        assert!(sums.element == Element::F32 && sums.is_contiguous() && column < sums.cols, "norm_of_part: the sums");
        let out = self.ops.tensor(x.rows, x.cols, x.element);
        let args = PartNormArgs {
            to: self.ops.codes_of_norm(&out),
            x: x.address,
            squares: sums.address + (column * Element::F32.bytes()) as u64,
            weight: weight.data.address(),
            out: out.address,
            n: int(x.cols),
            stride: int(x.stride),
            columns: int(sums.cols),
            width: int(width),
            eps,
        };
        let name = x.element.of("part_norm_f32", "part_norm_bf16");
        // SAFETY: x, out and the weight have n numbers in each row, the sums a number at `column`.
        unsafe { self.ops.launch(&LaunchPlan::by_row(name, x.rows), &args) };
        out
    }

    fn add_norm(
        &self,
        x: &mut DeviceTensor,
        y: &DeviceTensor,
        factor: f32,
        weight: &DeviceVector,
        eps: f32,
    ) -> DeviceTensor {
        assert_eq!((x.rows, x.cols), (y.rows, y.cols), "add_norm: x and y must have the same shape");
        assert_eq!(x.cols, weight.len, "add_norm: x must have as many columns as the weight");
        assert!(y.is_contiguous(), "add_norm: y must be no view");
        self.ops.norm_of_sum(x, Some(y), factor, weight, eps)
    }
}

impl OpStream {
    /// `factor` times y is added to `keep` times x.
    pub fn add_to(&self, x: &DeviceTensor, keep: f32, y: Option<&DeviceTensor>, factor: f32) {
        assert!(x.element == Element::F32 && x.is_contiguous(), "add_scaled: x must be f32 and no view");
        let n = x.rows * x.cols;
        let args = AddScaledArgs { x: x.changed(), y: y.map_or(0, |y| y.address), n, keep, factor };
        let name = y.map_or(Element::F32, |y| y.element).of("add_scaled_f32", "add_scaled_bf16");
        // SAFETY: x and y have n numbers each.
        unsafe { self.launch(&LaunchPlan::by_number(name, n), &args) };
    }

    /// The norm of the rows of the residual stream, to which factor * y is added first.
    pub fn norm_of_sum(
        &self,
        x: &DeviceTensor,
        y: Option<&DeviceTensor>,
        factor: f32,
        weight: &DeviceVector,
        eps: f32,
    ) -> DeviceTensor {
        assert!(x.element == Element::F32 && x.is_contiguous(), "add_norm: x must be f32 and no view");
        let out = self.tensor(x.rows, x.cols, self.activations.get());
        let (y, of_y) = y.map_or((0, out.element), |y| (y.address, y.element));
        let name = match (of_y, out.element) {
            (Element::F32, Element::F32) => "add_norm_f32",
            (Element::Bf16, Element::Bf16) => "add_norm_bf16",
            (Element::F32, Element::Bf16) => "add_norm_f32_bf16",
            (Element::Bf16, Element::F32) => panic!("add_norm: y must not be bf16 in a model of f32"),
        };
        let (n, weight, to) = (int(x.cols), weight.data.address(), self.codes_of_norm(&out));
        let args = AddNormArgs { x: x.changed(), y, weight, out: out.address, to, n, factor, eps };
        // SAFETY: x, y and out have rows * n numbers, weight n.
        unsafe { self.launch(&LaunchPlan::by_row(name, x.rows), &args) };
        out
    }

    /// The rows of x with these indices on the device; rows without an index are not written.
    pub fn gather_rows(&self, x: &DeviceTensor, index: u64, rows: usize) -> DeviceTensor {
        self.gather(x, (index, 0), [rows, rows], 1)
    }

    /// The row of x for each place, whose route is one of `per_row` of that row.
    pub fn rows_of_places(&self, x: &DeviceTensor, places: PlaceRows, per_row: usize) -> DeviceTensor {
        let blocks = PlaceRows::blocks(Some(places), places.room);
        self.gather(x, (places.routes, places.used), [places.room, blocks], per_row)
    }

    fn gather(
        &self,
        x: &DeviceTensor,
        (index, used): (u64, u64),
        [rows, blocks]: [usize; 2],
        per_row: usize,
    ) -> DeviceTensor {
        let out = self.tensor(rows, x.cols, x.element);
        let (n, stride) = (int(x.cols), int(x.stride));
        let args = GatherArgs { x: x.address, index, used, out: out.address, n, stride, per_row: int(per_row) };
        let plan = LaunchPlan::by_columns(x.element.of("gather_f32", "gather_bf16"), blocks, x.cols);
        // SAFETY: the caller's indices, divided by per_row, are rows of x; out has a row for each.
        unsafe { self.launch(&plan, &args) };
        out
    }

    /// silu(gate) * up; of places, only those with a route are written.
    pub fn silu_mul_rows(&self, gate: &DeviceTensor, up: &DeviceTensor, places: Option<PlaceRows>) -> DeviceTensor {
        self.gate_mul_rows(gate, up, places, gate.element.of("silu_mul_f32", "silu_mul_bf16"))
    }

    /// The same by another kernel.
    pub fn gate_mul_rows(
        &self,
        gate: &DeviceTensor,
        up: &DeviceTensor,
        places: Option<PlaceRows>,
        kernel: &'static str,
    ) -> DeviceTensor {
        assert_eq!(
            (gate.rows, gate.cols, gate.stride),
            (up.rows, up.cols, up.stride),
            "{kernel}: gate and up must have the same shape and stride"
        );
        assert_eq!(gate.element, up.element, "{kernel}: gate and up must hold the same kind of numbers");
        let out = self.tensor(gate.rows, gate.cols, gate.element);
        let (n, stride) = (int(gate.cols), int(gate.stride));
        let PlaceRows { routes, used, .. } = places.unwrap_or_default();
        let args = SiluMulArgs { gate: gate.address, up: up.address, out: out.address, routes, used, n, stride };
        let plan = LaunchPlan::by_columns(kernel, PlaceRows::blocks(places, gate.rows), gate.cols);
        // SAFETY: gate and up are matrices of this shape, and out has as many numbers.
        unsafe { self.launch(&plan, &args) };
        out
    }

    pub fn embed(&self, table: &DeviceEmbedding, batch: &PlacedBatch) -> DeviceTensor {
        let (rows, hidden) = (batch.shape.rows, table.cols);
        let out = self.tensor(rows, hidden, Element::F32);
        let args = EmbedArgs {
            table: table.table.address(),
            ids: batch.parts.ids,
            out: out.address,
            hidden: int(hidden),
            first: int(table.first) as u32,
            count: int(table.rows) as u32,
        };
        // SAFETY: the table has `count` rows; out has `hidden` numbers for each row of the batch.
        unsafe { self.launch(&LaunchPlan::by_row(table.element.of("embed_f32", "embed_bf16"), rows), &args) };
        out
    }

    pub fn layer_norm(&self, x: &DeviceTensor, weight: &DeviceVector, bias: &DeviceVector, eps: f32) -> DeviceTensor {
        assert!(x.element == Element::F32 && x.is_contiguous(), "layer_norm: x must be f32 and no view");
        assert_eq!((x.cols, x.cols), (weight.len, bias.len), "layer_norm: a weight and a bias for each column");
        let out = self.tensor(x.rows, x.cols, self.activations.get());
        let (weight, bias, n) = (weight.data.address(), bias.data.address(), int(x.cols));
        let args = LayerNormArgs { x: x.address, weight, bias, out: out.address, n, eps };
        // SAFETY: x and out have rows * n numbers, weight and bias n.
        unsafe { self.launch(&LaunchPlan::by_row(out.element.of("layer_norm_f32", "layer_norm_bf16"), x.rows), &args) };
        out
    }

    pub fn add_positions(&self, batch: &PlacedBatch, x: &DeviceTensor, table: &DeviceVector) {
        assert!(x.element == Element::F32 && x.is_contiguous(), "add_positions: x must be f32 and no view");
        assert!(batch.shape.rows == x.rows && table.len.is_multiple_of(x.cols.max(1)), "add_positions: the shapes");
        let args = AddPositionsArgs {
            x: x.changed(),
            table: table.data.address(),
            positions: batch.parts.positions,
            hidden: int(x.cols),
            count: int(table.len / x.cols.max(1)) as u32,
        };
        // SAFETY: the table has `count` rows, x and the batch have as many rows as each other.
        unsafe { self.launch(&LaunchPlan::by_row("add_positions", x.rows), &args) };
    }

    pub fn rms_norm(&self, x: &DeviceTensor, weight: &DeviceVector, eps: f32) -> DeviceTensor {
        let n = weight.len;
        assert!(
            n > 0 && x.cols.is_multiple_of(n),
            "rms_norm: {} columns must be a multiple of the weight's {n}",
            x.cols
        );
        if x.element != self.activations.get() {
            assert_eq!(x.cols, n, "rms_norm: a residual stream must have as many columns as the weight");
            return self.norm_of_sum(x, None, 0.0, weight, eps);
        }
        let out = self.tensor(x.rows, x.cols, x.element);
        let args = GroupNormArgs {
            x: x.address,
            weight: weight.data.address(),
            out: out.address,
            to: if x.cols == n { self.codes_of_norm(&out) } else { CodesTo::default() },
            n: int(n),
            stride: int(x.stride),
            eps,
        };
        let name = x.element.of("group_norm_f32", "group_norm_bf16");
        // SAFETY: x and out have cols numbers in each row, weight n.
        unsafe { self.launch(&LaunchPlan::by_group(name, x.rows, x.cols / n), &args) };
        out
    }

    pub fn rope(&self, batch: &PlacedBatch, x: &DeviceTensor, spec: &RopeSpec) {
        self.rope_of(batch, x.element, [Some((x, spec)), None]);
    }

    /// Both in one kernel.
    pub fn rope_both(&self, batch: &PlacedBatch, [q, k]: [(&DeviceTensor, &RopeSpec); 2]) {
        assert_eq!(q.0.element, k.0.element, "rope: q and k must hold the same kind of numbers");
        self.rope_of(batch, q.0.element, [Some(q), Some(k)]);
    }

    fn rope_of(&self, batch: &PlacedBatch, element: Element, of: [Option<(&DeviceTensor, &RopeSpec)>; 2]) {
        let rows = batch.shape.rows;
        let heads = |(x, spec): (&DeviceTensor, &RopeSpec)| {
            assert_eq!(rows, x.rows, "rope: one position for each row");
            assert!(x.cols.is_multiple_of(spec.head_dim) && spec.offset + spec.dims <= spec.head_dim, "rope: {spec:?}");
            Some(RopeHeads {
                x: x.changed(),
                angles: self.keep(self.angles.borrow_mut().get(&self.device, spec))?,
                dims: int(spec.dims),
                interleaved: spec.interleaved.into(),
                heads: int(x.cols / spec.head_dim),
                dim: int(spec.head_dim),
                offset: int(spec.offset),
                stride: int(x.stride),
                heads_of_block: int(heads_of_block(spec.dims)),
            })
        };
        let of = of.map(|of| of.map_or(Some(RopeHeads::default()), heads));
        let [Some(first), Some(second)] = of else { return };
        let blocks = of.map(|of| of.map_or(0, |of| (of.heads as usize).div_ceil(of.heads_of_block.max(1) as usize)));
        let args = RopeArgs { of: [first, second], positions: batch.parts.positions, blocks: int(blocks[0]) };
        let plan = LaunchPlan::rope(element, rows, blocks.iter().sum());
        // SAFETY: the tables cover all positions, of which the batch has one for each row.
        unsafe { self.launch(&plan, &args) };
    }
}
