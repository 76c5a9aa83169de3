//! Norms of rows, and of rows of which other ranks have parts.

use std::ops::Range;

use super::simd::{Isa, Simd, simd_fn};
use super::{Cpu, Tensor, stale};
use crate::ops::WholeRow;

#[inline(always)]
unsafe fn rms_norm_generic<S: Simd>(x: &mut [f32], weight: &[f32], eps: f32) {
    let n = x.len().min(weight.len());
    // SAFETY: the caller's promise.
    let squares = unsafe { square_sum_generic::<S>(&x[..n]) };
    let factor = 1.0 / (squares / n as f32 + eps).sqrt();
    x.iter_mut().zip(weight).for_each(|(x, w)| *x = *w * (*x * factor));
}

/// The sum of x, or of its squares.
#[inline(always)]
unsafe fn sum_of<S: Simd, const SQUARES: bool>(x: &[f32]) -> f32 {
    let (whole, n) = (x.len() / 16 * 16, x.len());
    // SAFETY: whole vectors stay below n; the rest reads only what remains.
    unsafe {
        let mut sum = S::splat(0.0);
        for i in (0..whole).step_by(16) {
            let v = S::load(x.as_ptr().add(i));
            sum = if SQUARES { S::fma(v, v, sum) } else { S::add(sum, v) };
        }
        if whole < n {
            let v = S::load_n(x.as_ptr().add(whole), n - whole);
            sum = if SQUARES { S::fma(v, v, sum) } else { S::add(sum, v) };
        }
        S::sum(sum)
    }
}

#[inline(always)]
unsafe fn square_sum_generic<S: Simd>(x: &[f32]) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { sum_of::<S, true>(x) }
}

#[inline(always)]
unsafe fn layer_norm_generic<S: Simd>(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    let n = x.len() as f32;
    // SAFETY: the caller's promise.
    let mean = unsafe { sum_of::<S, false>(x) } / n;
    x.iter_mut().for_each(|x| *x -= mean);
    // SAFETY: as above.
    let factor = 1.0 / (unsafe { sum_of::<S, true>(x) } / n + eps).sqrt();
    x.iter_mut().zip(weight).zip(bias).for_each(|((x, w), bias)| *x = *w * (*x * factor) + bias);
}

simd_fn!(
    pub fn square_sum(x: &[f32]) -> f32 = square_sum_generic
);

simd_fn!(
    /// x * weight / sqrt(mean(x^2) + eps), in place
    pub fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) = rms_norm_generic
);

simd_fn!(
    /// (x - mean) * weight / sqrt(variance + eps) + bias, in place
    pub fn layer_norm(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) = layer_norm_generic
);

pub fn check_width(x: &Tensor, weight: &[f32]) {
    let (cols, width) = (x.cols, weight.len());
    assert!(
        width > 0 && cols.is_multiple_of(width),
        "a norm of {cols} columns, which must be a multiple of the weight's {width}"
    );
}

/// Sums of the squares of the rows of x, and of columns `counted` of y.
pub fn square_sums(isa: Isa, x: &Tensor, y: &Tensor, counted: Range<usize>) -> Tensor {
    assert_eq!(x.rows, y.rows, "square_sums: x and y must have the same rows");
    let mut out = stale(x.rows, 2);
    for (r, sums) in out.data.chunks_exact_mut(2).enumerate() {
        let parts = [&x.data[r * x.cols..(r + 1) * x.cols], &y.data[r * y.cols..(r + 1) * y.cols][counted.clone()]];
        // SAFETY: the set was detected.
        sums.copy_from_slice(&parts.map(|part| unsafe { square_sum(isa, part) }));
    }
    out
}

pub fn norm_of_part(cpu: &Cpu, x: &Tensor, weight: &[f32], sums: &Tensor, of: WholeRow) -> Tensor {
    assert_eq!((sums.rows, x.cols), (x.rows, weight.len()), "norm_of_part: the shapes");
    let (mut out, columns) = (x.clone(), sums.cols);
    cpu.by_rows(&mut out.data, x.cols, &|from, part| {
        let sums = sums.data[from * columns..].chunks_exact(columns);
        for (row, sums) in part.chunks_exact_mut(weight.len()).zip(sums) {
            let factor = 1.0 / (sums[of.column] / of.width as f32 + of.eps).sqrt();
            row.iter_mut().zip(weight).for_each(|(x, weight)| *x = *weight * (*x * factor));
        }
    });
    out
}
