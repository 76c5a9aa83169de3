//! The ops as plain loops in f64, with which every backend is compared. Slow by design.

use crate::backend::{GqaSpec, MlaSpec, RopeSpec};
use crate::quant::e4m3;

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// x [rows, ins] times w [outs, ins] transposed, plus bias [outs].
pub fn linear(x: &[f32], w: &[f32], ins: usize, bias: Option<&[f32]>) -> Vec<f32> {
    let mut out = Vec::new();
    for x in x.chunks_exact(ins) {
        for (o, w) in w.chunks_exact(ins).enumerate() {
            out.push((dot(x, w) + bias.map_or(0.0, |b| f64::from(b[o]))) as f32);
        }
    }
    out
}

/// The numbers that stand for x [rows, cols] when each group of 128 columns of a row is quantized to FP8 (e4m3), its
/// largest magnitude to 448. Ties go to the even code.
pub fn quantize_fp8(x: &[f32], cols: usize) -> Vec<f32> {
    // 0x7f is NaN.
    let values: Vec<f32> = (0..0x7f).map(e4m3).collect();
    let nearest = |magnitude: f32| {
        let above = values.partition_point(|&value| value < magnitude).clamp(1, values.len() - 1);
        let (low, high) = (f64::from(values[above - 1]), f64::from(values[above]));
        let middle = (low + high) / 2.0;
        let magnitude = f64::from(magnitude);
        let up = magnitude > middle || (magnitude == middle && above % 2 == 0);
        values[if up { above } else { above - 1 }]
    };
    let mut out = Vec::with_capacity(x.len());
    for group in x.chunks_exact(cols).flat_map(|row| row.chunks(128)) {
        let largest = group.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let scale = if largest > 0.0 { largest / 448.0 } else { 1.0 };
        out.extend(group.iter().map(|x| (nearest((x / scale).abs()) * scale).copysign(*x)));
    }
    out
}

pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// The form with tanh.
pub fn gelu(x: f64) -> f64 {
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + u.tanh())
}

pub fn gelu_erf(x: f64) -> f64 {
    0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2))
}

/// Of rows of `weight.len()` numbers.
pub fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f64) -> Vec<f32> {
    let n = weight.len();
    let row = |row: &[f32]| {
        let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / n as f64;
        let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n as f64;
        let factor = 1.0 / (variance + eps).sqrt();
        let of = |i: usize| (f64::from(row[i]) - mean) * factor * f64::from(weight[i]) + f64::from(bias[i]);
        (0..n).map(|i| of(i) as f32).collect::<Vec<_>>()
    };
    x.chunks_exact(n.max(1)).flat_map(row).collect()
}

pub fn gelu_mul(gate: &[f32], up: &[f32]) -> Vec<f32> {
    gate.iter().zip(up).map(|(g, u)| (gelu(f64::from(*g)) * f64::from(*u)) as f32).collect()
}

pub fn silu_mul(gate: &[f32], up: &[f32]) -> Vec<f32> {
    gate.iter().zip(up).map(|(g, u)| (silu(f64::from(*g)) * f64::from(*u)) as f32).collect()
}

pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut out = Vec::new();
    for x in x.chunks_exact(weight.len()) {
        let factor = 1.0 / (dot(x, x) / x.len() as f64 + f64::from(eps)).sqrt();
        out.extend(x.iter().zip(weight).map(|(x, w)| (f64::from(*x) * factor * f64::from(*w)) as f32));
    }
    out
}

/// Rotates every head of x [rows, cols].
pub fn rope(x: &mut [f32], cols: usize, spec: &RopeSpec, positions: &[u32]) {
    let half = spec.dims / 2;
    for (row, &position) in x.chunks_exact_mut(cols).zip(positions) {
        for head in row.chunks_exact_mut(spec.head_dim) {
            let before = head[spec.offset..][..spec.dims].to_vec();
            for i in 0..half {
                let (a, b) = if spec.interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
                let (a, b) = (f64::from(before[a]), f64::from(before[b]));
                let angle = spec.inv_freq[i] * f64::from(position);
                let factor = f64::from(spec.factor(position));
                let (cos, sin) = (angle.cos() * factor, angle.sin() * factor);
                head[spec.offset + i] = (a * cos - b * sin) as f32;
                head[spec.offset + i + half] = (b * cos + a * sin) as f32;
            }
        }
    }
}

/// The mean of the values, weighted by the softmax of the scores.
fn attend(scores: &[f64], value: impl Fn(usize) -> Vec<f64>) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = Vec::new();
    for (i, weight) in weights.iter().enumerate() {
        let value = value(i);
        out.resize(value.len(), 0.0);
        out.iter_mut().zip(value).for_each(|(o, v)| *o += weight / sum * v);
    }
    out
}

fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// One whole sequence from position 0: q [rows, heads * head_dim], k and v [rows, kv_heads * head_dim].
pub fn gqa_attention(q: &[f32], k: &[f32], v: &[f32], spec: &GqaSpec) -> Vec<f32> {
    let (d, width) = (spec.head_dim, spec.kv_heads * spec.head_dim);
    let mut out = Vec::new();
    for (row, q) in q.chunks_exact(spec.heads * d).enumerate() {
        for (head, q) in q.chunks_exact(d).enumerate() {
            let at = head / (spec.heads / spec.kv_heads) * d;
            let first = spec.window.map_or(0, |w| (row + 1).saturating_sub(w));
            let scores: Vec<f64> =
                (first..=row).map(|j| dot(q, &k[j * width + at..][..d]) * f64::from(spec.scale)).collect();
            let mean = attend(&scores, |i| widen(&v[(first + i) * width + at..][..d]));
            out.extend(mean.iter().map(|x| *x as f32));
        }
    }
    out
}

/// One whole sequence from position 0, by expanding the latent to keys and values: q [rows, heads * (nope + rope)],
/// latent [rows, kv_rank], k_rope [rows, rope], kv_b [heads * (nope + v), kv_rank].
pub fn mla_attention(q: &[f32], latent: &[f32], k_rope: &[f32], kv_b: &[f32], spec: &MlaSpec) -> Vec<f32> {
    let MlaSpec { heads, nope_dim, rope_dim, v_dim, kv_rank, scale } = *spec;
    let q_dim = nope_dim + rope_dim;
    let expand = |j: usize, head: usize, from: usize, len: usize| -> Vec<f64> {
        let latent = &latent[j * kv_rank..][..kv_rank];
        let row = |i: usize| &kv_b[(head * (nope_dim + v_dim) + from + i) * kv_rank..][..kv_rank];
        (0..len).map(|i| dot(row(i), latent)).collect()
    };
    let mut out = Vec::new();
    for (row, q) in q.chunks_exact(heads * q_dim).enumerate() {
        for (head, q) in q.chunks_exact(q_dim).enumerate() {
            let score = |j: usize| {
                let key = expand(j, head, 0, nope_dim);
                let plain: f64 = q.iter().zip(&key).map(|(q, k)| f64::from(*q) * k).sum();
                (plain + dot(&q[nope_dim..], &k_rope[j * rope_dim..][..rope_dim])) * f64::from(scale)
            };
            let scores: Vec<f64> = (0..=row).map(score).collect();
            let mean = attend(&scores, |j| expand(j, head, nope_dim, v_dim));
            out.extend(mean.iter().map(|x| *x as f32));
        }
    }
    out
}

/// One expert: down(silu(gate(x)) * up(x)).
pub fn expert(x: &[f32], gate: &[f32], up: &[f32], down: &[f32], hidden: usize) -> Vec<f32> {
    let middle = silu_mul(&linear(x, gate, hidden, None), &linear(x, up, hidden, None));
    linear(&middle, down, down.len() / hidden, None)
}
