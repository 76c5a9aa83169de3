//! The metrics for comparing an op's results with another implementation's.

use std::fmt;

/// The distance of `got` from `want`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// The largest |got - want|, relative to the root mean square of `want`. Infinite where a NaN is compared with a
    /// number.
    pub max: f64,
    /// Index of that difference.
    pub at: usize,
    /// 1 - cosine of the angle between the two.
    pub angle: f64,
}

/// Compares two results; different lengths are infinitely far apart.
pub fn difference(got: &[f32], want: &[f32]) -> Difference {
    if got.len() != want.len() {
        return Difference { max: f64::INFINITY, at: got.len().min(want.len()), angle: 1.0 };
    }
    let (mut dot, mut got2, mut want2) = (0.0f64, 0.0f64, 0.0f64);
    let (mut max, mut at) = (0.0f64, 0);
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let (g, w) = (f64::from(g), f64::from(w));
        let apart = match (g.is_nan(), w.is_nan()) {
            (true, true) => continue,
            (false, false) if g == w => 0.0,
            (false, false) => (g - w).abs(),
            _ => f64::INFINITY,
        };
        if apart > max {
            (max, at) = (apart, i);
        }
        if g.is_finite() && w.is_finite() {
            dot += g * w;
            got2 += g * g;
            want2 += w * w;
        }
    }
    let scale = (want2 / want.len().max(1) as f64).sqrt();
    let max = if max == 0.0 { 0.0 } else { max / scale.max(f64::MIN_POSITIVE) };
    let norms = (got2 * want2).sqrt();
    let angle = if norms > 0.0 { (1.0 - dot / norms).max(0.0) } else { f64::from(u8::from(got2 != want2)) };
    Difference { max, at, angle }
}

/// The largest |got - want| / (r + |want|), where r is the root mean square of `want`: a last bit of bf16 is below
/// 8e-3, whatever the size of its number. Infinite for different lengths, and if any number is NaN.
pub fn relative_difference(got: &[f32], want: &[f32]) -> f64 {
    if got.len() != want.len() {
        return f64::INFINITY;
    }
    let squares: f64 = want.iter().map(|&w| f64::from(w).powi(2)).sum();
    let mean = (squares / want.len().max(1) as f64).sqrt();
    let apart = |(&got, &want): (&f32, &f32)| {
        let (got, want) = (f64::from(got), f64::from(want));
        let apart = (got - want).abs() / (mean + want.abs());
        if got == want { 0.0 } else { apart }
    };
    let largest = got.iter().zip(want).map(apart).fold(0.0, |a: f64, b| if b > a || b.is_nan() { b } else { a });
    if largest.is_nan() { f64::INFINITY } else { largest }
}

impl Difference {
    pub fn within(&self, tolerance: f64) -> bool {
        self.max <= tolerance && self.angle <= tolerance
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "largest difference {:.3e} of the rms at {}, 1 - cosine {:.3e}", self.max, self.at, self.angle)
    }
}

#[cfg(test)]
mod tests;
