//! Products: which kernel multiplies which forms. It does not know layers.

use super::args::LinearArgs;
use super::form::{Element, WeightForm};
use super::op_stream::OpStream;
use super::operand::Batched;
use super::plan::{LaunchPlan, int};
use super::tensor::{CodeRows, DeviceTensor, Operand};
use super::weights::{DeviceVector, Matrix};
use crate::quant::MXFP4_GROUP;

/// The type of a product: that of x, or f32 with f32 weights.
pub(super) fn result_of(x: Element, form: WeightForm) -> Element {
    if form == WeightForm::F32 { Element::F32 } else { x }
}

impl OpStream {
    /// Puts a product into the stream. `args` has the rest: sizes, and what batches and experts need.
    ///
    /// # Safety
    /// `args` and `grid` fit the matrices as linear.cu says.
    pub unsafe fn multiply(
        &self,
        x: &Operand,
        form: WeightForm,
        out: (u64, Element),
        products: [usize; 2],
        args: LinearArgs,
    ) {
        let group = match form {
            WeightForm::Int4 { group, .. } => int(group),
            WeightForm::Mxfp4 => int(MXFP4_GROUP),
            WeightForm::F32 | WeightForm::Bf16 | WeightForm::Fp8 { .. } => 0,
        };
        let [rows, count] = products;
        let plan = LaunchPlan::product(form, x.element, out.1, [rows, args.n as usize, count]);
        assert!(
            args.starts == 0 || form != WeightForm::F32 || x.element == Element::F32,
            "linear_mixed has no experts"
        );
        let args = LinearArgs {
            x: x.address,
            x_stride: int(x.stride),
            x_scales: x.scales,
            out: out.0,
            rows: int(rows),
            group,
            ..args
        };
        // SAFETY: the caller's promise.
        unsafe { self.launch(&plan, &args) };
    }

    /// x times the weight transposed, plus bias.
    pub fn product(
        &self,
        x: &DeviceTensor,
        weight: &Matrix,
        bias: Option<&DeviceVector>,
        out: Element,
    ) -> DeviceTensor {
        self.product_of(x, |which| self.quantized(x, which), weight, bias, out)
    }

    /// silu(gate) * up times the weight transposed.
    pub fn product_of_gated(&self, gate: &DeviceTensor, up: &DeviceTensor, weight: &Matrix) -> DeviceTensor {
        if !weight.form.is_fp8() {
            return self.product(&self.silu_mul_rows(gate, up, None), weight, None, gate.element);
        }
        let codes = |which| self.silu_mul_operand(gate, up, weight.form, which);
        self.product_of(gate, codes, weight, None, gate.element)
    }

    /// `codes`: of x, or of what becomes of it, for an FP8 weight.
    fn product_of(
        &self,
        x: &DeviceTensor,
        codes: impl FnOnce(CodeRows) -> Operand,
        weight: &Matrix,
        bias: Option<&DeviceVector>,
        out: Element,
    ) -> DeviceTensor {
        let result = self.product_of_blocks(x, codes, weight, bias.filter(|_| !weight.form.by_output()), out);
        if weight.form.by_output() {
            self.scale_outputs(&result, weight.output_scales(), bias, None);
        }
        result
    }

    /// Without the scales of outputs.
    fn product_of_blocks(
        &self,
        x: &DeviceTensor,
        codes: impl FnOnce(CodeRows) -> Operand,
        weight: &Matrix,
        bias: Option<&DeviceVector>,
        out: Element,
    ) -> DeviceTensor {
        let Matrix { outs, ins, form, .. } = *weight;
        assert_eq!(x.cols, ins, "linear: inputs");
        assert!(bias.is_none_or(|b| b.len == outs), "linear: the bias needs {outs} numbers");
        let result = self.tensor(x.rows, outs, result_of(out, form));
        let operand = |which| if form.is_fp8() { codes(which) } else { Operand::plain(x) };
        if let Some(plan) = self.dense_plan(x, weight, result.element).filter(|_| bias.is_none()) {
            self.fast_dense(plan.tile(x.rows), &operand(CodeRows::ByGroup), weight, &result);
            return result;
        }
        let operand = operand(CodeRows::All);
        let args = LinearArgs {
            w: weight.data.address(),
            w_scales: weight.scales(),
            bias: bias.map_or(0, |bias| bias.data.address()),
            n: int(outs),
            k: int(ins),
            out_stride: int(outs),
            ..LinearArgs::default()
        };
        // SAFETY: x, the weight and the result have these shapes.
        unsafe { self.multiply(&operand, form, (result.address, result.element), [x.rows, 1], args) };
        result
    }

    pub fn product_by_head(&self, x: &DeviceTensor, weight: &Matrix, spec: Batched) -> DeviceTensor {
        let Batched { heads, outs, ins, x_head } = spec;
        assert_eq!((weight.outs, weight.ins), (heads * outs, ins), "a weight for each head");
        assert!((heads - 1) * x_head + ins <= x.cols, "columns for each head");
        let result = self.tensor(x.rows, heads * outs, result_of(x.element, weight.form));
        if let Some(plan) = self.batched_plan(x, weight.form, spec) {
            self.fast_batched(plan, x, weight, &result, spec);
            return result;
        }
        let operand = self.operand(x, weight.form);
        let args = LinearArgs {
            w: weight.data.address(),
            x_batch: x_head as u64,
            w_batch: (outs * ins) as u64,
            out_batch: outs as u64,
            n: int(outs),
            k: int(ins),
            out_stride: int(heads * outs),
            ..LinearArgs::default()
        };
        // SAFETY: head h has its columns of x, its part of the weight and its columns of the result.
        unsafe { self.multiply(&operand, weight.form, (result.address, result.element), [x.rows, heads], args) };
        result
    }
}
