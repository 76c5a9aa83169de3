//! The ops on rows alone.

use std::ops::Range;

use super::pool::SharedPtr;
use super::simd::{Simd, simd_fn};
use super::{Cpu, Tensor, delta, norms, stale};
use crate::ops::{Gelu, RowOps, WholeRow};

impl RowOps for Cpu {
    type Tensor = Tensor;
    type Vector = Vec<f32>;

    fn slice_cols(&self, x: &Tensor, from: usize, len: usize) -> Tensor {
        assert!(from + len <= x.cols, "slice_cols: columns {from}..{} must be within {}", from + len, x.cols);
        let mut out = stale(x.rows, len);
        for r in 0..x.rows {
            out.data[r * len..][..len].copy_from_slice(&x.data[r * x.cols + from..][..len]);
        }
        out
    }

    fn add_scaled(&self, x: &mut Tensor, y: &Tensor, factor: f32) {
        assert_eq!((x.rows, x.cols), (y.rows, y.cols), "add_scaled: x and y must have the same shape");
        let cols = x.cols;
        self.by_rows(&mut x.data, cols, &|from, part| {
            part.iter_mut().zip(&y.data[from * cols..]).for_each(|(x, y)| *x += factor * y);
        });
    }

    fn activation(&self, x: &Tensor) -> Tensor {
        x.clone()
    }

    fn scale(&self, x: &mut Tensor, factor: f32) {
        let cols = x.cols;
        self.by_rows(&mut x.data, cols, &|_, part| part.iter_mut().for_each(|x| *x *= factor));
    }

    fn silu_mul(&self, gate: &Tensor, up: &Tensor) -> Tensor {
        let isa = self.isa;
        // SAFETY: the set was detected.
        self.gate_mul(gate, up, &|part, up| unsafe { silu_mul(isa, part, up) })
    }

    fn gelu_mul(&self, gate: &Tensor, up: &Tensor) -> Tensor {
        let isa = self.isa;
        // SAFETY: the set was detected.
        self.gate_mul(gate, up, &|part, up| unsafe { gelu_mul(isa, part, up) })
    }

    fn gelu(&self, x: &Tensor, form: Gelu) -> Tensor {
        let mut out = x.clone();
        let cols = out.cols;
        self.by_rows(&mut out.data, cols, &|_, part| part.iter_mut().for_each(|x| *x = gelu(*x, form)));
        out
    }

    fn sigmoid_mul(&self, x: &mut Tensor, gate: &Tensor) {
        assert!(gate.rows == x.rows && (gate.cols == x.cols || gate.cols == 1), "sigmoid_mul: the gate's shape");
        let (cols, width) = (x.cols, gate.cols);
        self.by_rows(&mut x.data, cols, &|from, part| {
            for (x, gate) in part.chunks_exact_mut(cols.max(1)).zip(gate.data[from * width..].chunks_exact(width)) {
                x.iter_mut().zip(gate.iter().cycle()).for_each(|(x, gate)| *x *= delta::sigmoid(*gate));
            }
        });
    }

    fn rms_norm(&self, x: &Tensor, weight: &Vec<f32>, eps: f32) -> Tensor {
        norms::check_width(x, weight);
        let (mut out, isa) = (x.clone(), self.isa);
        let cols = out.cols;
        self.by_rows(&mut out.data, cols, &|_, part| {
            for group in part.chunks_exact_mut(weight.len()) {
                // SAFETY: the set was detected.
                unsafe { norms::rms_norm(isa, group, weight, eps) }
            }
        });
        out
    }

    fn add_norm(&self, x: &mut Tensor, y: &Tensor, factor: f32, weight: &Vec<f32>, eps: f32) -> Tensor {
        assert_eq!((x.rows, x.cols), (y.rows, y.cols), "add_norm: x and y must have the same shape");
        let (cols, width, isa) = (x.cols, weight.len(), self.isa);
        norms::check_width(x, weight);
        let mut out = stale(x.rows, cols);
        let base = SharedPtr(out.data.as_mut_ptr());
        self.by_rows(&mut x.data, cols, &|from, part| {
            // SAFETY: the same rows of out, which has the shape of x; no other item has them.
            let out = unsafe { std::slice::from_raw_parts_mut(base.get().add(from * cols), part.len()) };
            let y = y.data[from * cols..].chunks_exact(width);
            for ((x, y), out) in part.chunks_exact_mut(width).zip(y).zip(out.chunks_exact_mut(width)) {
                x.iter_mut().zip(y).for_each(|(x, y)| *x += factor * y);
                out.copy_from_slice(x);
                // SAFETY: the set was detected.
                unsafe { norms::rms_norm(isa, out, weight, eps) }
            }
        });
        out
    }

    fn layer_norm(&self, x: &Tensor, weight: &Vec<f32>, bias: &Vec<f32>, eps: f32) -> Tensor {
        assert_eq!((x.cols, x.cols), (weight.len(), bias.len()), "layer_norm: a weight and a bias for each column");
        let (mut out, isa) = (x.clone(), self.isa);
        self.by_rows(&mut out.data, x.cols, &|_, part| {
            for row in part.chunks_exact_mut(weight.len().max(1)) {
                // SAFETY: the set was detected.
                unsafe { norms::layer_norm(isa, row, weight, bias, eps) }
            }
        });
        out
    }

    fn square_sums(&self, x: &Tensor, y: &Tensor, counted: Range<usize>) -> Tensor {
        norms::square_sums(self.isa, x, y, counted)
    }

    fn norm_of_part(&self, x: &Tensor, weight: &Vec<f32>, sums: &Tensor, of: WholeRow) -> Tensor {
        norms::norm_of_part(self, x, weight, sums, of)
    }
}

impl Cpu {
    fn gate_mul(&self, gate: &Tensor, up: &Tensor, f: &(dyn Fn(&mut [f32], &[f32]) + Sync)) -> Tensor {
        assert_eq!((gate.rows, gate.cols), (up.rows, up.cols), "gate and up must have the same shape");
        let mut out = gate.clone();
        let cols = out.cols;
        self.by_rows(&mut out.data, cols, &|from, part| f(part, &up.data[from * cols..]));
        out
    }
}

fn gelu(x: f32, form: Gelu) -> f32 {
    match form {
        Gelu::Erf => 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)),
        Gelu::Tanh => x / (1.0 + (-x * (GELU_FACTORS[0] + GELU_FACTORS[1] * x * x)).exp()),
    }
}

/// x * sigmoid(t) * up.
#[inline(always)]
unsafe fn sigmoid_times<S: Simd>(x: S::V, t: S::V, up: S::V) -> S::V {
    // SAFETY: no need beyond the type's own.
    unsafe {
        let below = S::add(S::splat(1.0), S::exp(S::sub(S::splat(0.0), t)));
        S::mul(S::div(x, below), up)
    }
}

#[inline(always)]
unsafe fn gate_times<S: Simd, const GELU: bool>(gate: S::V, up: S::V) -> S::V {
    // SAFETY: no need beyond the type's own.
    unsafe {
        if !GELU {
            return sigmoid_times::<S>(gate, gate, up);
        }
        // (1 + tanh(u)) / 2 = sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x^3).
        let [linear, cubic] = GELU_FACTORS.map(|factor| S::splat(factor));
        let t = S::mul(gate, S::fma(S::mul(gate, gate), cubic, linear));
        sigmoid_times::<S>(gate, t, up)
    }
}

/// 2 sqrt(2 / pi), and that times 0.044715.
const GELU_FACTORS: [f32; 2] = [1.595_769_2, 0.071_354_814];

#[inline(always)]
unsafe fn gate_mul<S: Simd, const GELU: bool>(gate: &mut [f32], up: &[f32]) {
    let len = gate.len().min(up.len());
    // SAFETY: whole vectors stay below len; the rest goes through a padded copy.
    unsafe {
        let whole = len / 16 * 16;
        for i in (0..whole).step_by(16) {
            let p = gate.as_mut_ptr().add(i);
            S::store(p, gate_times::<S, GELU>(S::load(p), S::load(up.as_ptr().add(i))));
        }
        if whole < len {
            let mut last = [0.0; 16];
            let g = S::load_n(gate.as_ptr().add(whole), len - whole);
            S::store(last.as_mut_ptr(), gate_times::<S, GELU>(g, S::load_n(up.as_ptr().add(whole), len - whole)));
            gate[whole..len].copy_from_slice(&last[..len - whole]);
        }
    }
}

#[inline(always)]
unsafe fn silu_mul_generic<S: Simd>(gate: &mut [f32], up: &[f32]) {
    // SAFETY: the same contract.
    unsafe { gate_mul::<S, false>(gate, up) }
}

#[inline(always)]
unsafe fn gelu_mul_generic<S: Simd>(gate: &mut [f32], up: &[f32]) {
    // SAFETY: the same contract.
    unsafe { gate_mul::<S, true>(gate, up) }
}

simd_fn!(
    /// gate = silu(gate) * up
    pub fn silu_mul(gate: &mut [f32], up: &[f32]) = silu_mul_generic
);
simd_fn!(
    /// gate = gelu(gate) * up
    pub fn gelu_mul(gate: &mut [f32], up: &[f32]) = gelu_mul_generic
);
