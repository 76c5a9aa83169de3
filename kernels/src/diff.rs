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

/// The number of a result that is farthest from what it should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorstNumber {
    /// Its [`relative_difference`].
    pub apart: f64,
    /// Its index.
    pub at: usize,
    pub got: f32,
    pub want: f32,
}

impl fmt::Display for WorstNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "number {} is {}, expected {}", self.at, self.got, self.want)
    }
}

/// |got - want| / (r + |want|), where r is the root mean square of all that is wanted: a last bit of bf16 is below
/// 8e-3, whatever the size of its number. Infinite if either is NaN.
fn relative_difference(got: f32, want: f32, mean: f64) -> f64 {
    let apart = (f64::from(got) - f64::from(want)).abs() / (mean + f64::from(want).abs());
    match got == want {
        true => 0.0,
        false if apart.is_nan() => f64::INFINITY,
        false => apart,
    }
}

fn root_mean_square(numbers: &[f32]) -> f64 {
    let squares: f64 = numbers.iter().map(|&x| f64::from(x).powi(2)).sum();
    (squares / numbers.len().max(1) as f64).sqrt()
}

/// The first number whose [`relative_difference`] is the largest. Results of different lengths are infinitely far
/// apart.
pub fn worst_number(got: &[f32], want: &[f32]) -> WorstNumber {
    let mean = root_mean_square(want);
    let at = |at: usize, apart| {
        let number = |of: &[f32]| of.get(at).copied().unwrap_or(f32::NAN);
        WorstNumber { apart, at, got: number(got), want: number(want) }
    };
    if got.len() != want.len() {
        return at(got.len().min(want.len()), f64::INFINITY);
    }
    let (mut worst, mut apart) = (0, 0.0);
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let own = relative_difference(got, want, mean);
        if own > apart {
            (worst, apart) = (i, own);
        }
    }
    at(worst, apart)
}

/// How many numbers have a [`relative_difference`] above this.
pub fn count_beyond(got: &[f32], want: &[f32], allowed: f64) -> usize {
    let mean = root_mean_square(want);
    got.iter().zip(want).filter(|&(&got, &want)| relative_difference(got, want, mean) > allowed).count()
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
