//! Weights of tokens in a draw: e to the difference of their logits from the largest, over the temperature. Each is a
//! polynomial of products with sums (fma), so that kernels/cuda/draw.cu has the same bits, and that the compiler makes
//! vectors of.

/// Nothing smaller counts: its exponential has no exponent.
const LEAST: f64 = -708.0;
/// The last bits of a small number plus this are the nearest integer.
const ROUND: f64 = 6_755_399_441_055_744.0;
/// ln 2 in two parts, of which the first has zeros at its end: its product with an exponent is exact.
const LN2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
const LN2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
/// 1 / i! from i = 13 down to 0: e^r to 2e-16 of it for |r| <= ln 2 / 2.
const TAYLOR: [f64; 14] = {
    let (mut all, mut factorial, mut i) = ([1.0; 14], 1.0, 1);
    while i < 14 {
        factorial *= i as f64;
        all[13 - i] = 1.0 / factorial;
        i += 1;
    }
    all
};
/// Weights that are added in one order of their own, so that sums are vectors of as many.
const LANES: usize = 8;
/// Weights of one partial sum.
pub const CELL: usize = 512;

/// e^x for x <= 0, within 2 ulp; 0 below `LEAST` and for NaN.
#[inline(always)]
pub fn exp(x: f64) -> f64 {
    let within = if x > LEAST { x } else { LEAST };
    let shifted = within.mul_add(std::f64::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, within));
    let power = TAYLOR[1..].iter().fold(TAYLOR[0], |sum, factor| sum.mul_add(r, *factor));
    let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52));
    if x >= LEAST { power * scale } else { 0.0 }
}

/// The weights of tokens whose largest logit is `top`, which is no infinity.
#[inline(always)]
fn weigh_plainly(logits: &[f32], top: f64, temperature: f64, out: &mut [f64]) {
    let factor = 1.0 / temperature;
    for (weight, &logit) in out.iter_mut().zip(logits) {
        *weight = exp((f64::from(logit) - top) * factor);
    }
}

/// For each token its weight; 0 for NaN and -inf. Tokens with +inf, if there are any, share the draw.
pub fn weigh(logits: &[f32], top: f32, temperature: f64, out: &mut [f64]) {
    if top == f32::INFINITY {
        out.iter_mut().zip(logits).for_each(|(weight, &logit)| *weight = f64::from(u8::from(logit == top)));
        return;
    }
    let top = f64::from(top);
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512dq,fma")]
        unsafe fn avx512(logits: &[f32], top: f64, temperature: f64, out: &mut [f64]) {
            weigh_plainly(logits, top, temperature, out);
        }
        #[target_feature(enable = "avx2,fma")]
        unsafe fn avx2(logits: &[f32], top: f64, temperature: f64, out: &mut [f64]) {
            weigh_plainly(logits, top, temperature, out);
        }
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq") {
            // SAFETY: the processor has the sets; all that have AVX-512 have FMA.
            return unsafe { avx512(logits, top, temperature, out) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has both sets.
            return unsafe { avx2(logits, top, temperature, out) };
        }
    }
    weigh_plainly(logits, top, temperature, out);
}

/// Of all weights, in an order that their number alone fixes.
pub fn sum(weights: &[f64]) -> f64 {
    let mut lanes = [0.0; LANES];
    let (whole, rest) = weights.as_chunks::<LANES>();
    for chunk in whole {
        lanes.iter_mut().zip(chunk).for_each(|(lane, weight)| *lane += weight);
    }
    lanes.iter().chain(rest).sum()
}

/// A power of two of which the tokens with at least this weight surely reach the wanted sum of amounts; 0: all tokens.
pub fn reaching(weights: &[f64], amount: impl Fn(f64) -> f64, wanted: f64) -> f64 {
    /// Of weights: 2^-0, 2^-1 and so on. The last ones are not told apart.
    const POWERS: usize = 64;
    /// Sums in another order differ by less of them.
    const MARGIN: f64 = 1.0 + 1e-9;
    let mut amounts = [0.0; POWERS];
    for &weight in weights.iter().filter(|weight| **weight > 0.0) {
        amounts[(1023 - (weight.to_bits() >> 52) as usize).min(POWERS - 1)] += amount(weight);
    }
    let mut reached = 0.0;
    let found = amounts[..POWERS - 1].iter().position(|amount| {
        reached += amount;
        reached >= wanted * MARGIN
    });
    found.map_or(0.0, |power| f64::from_bits((1023 - power as u64) << 52))
}

/// The place at which the running sum of weights exceeds `share` of all of them, a number in [0, 1); None: all are 0.
pub fn find(weights: &[f64], share: f64) -> Option<usize> {
    let cells: Vec<f64> = weights.chunks(CELL).map(sum).collect();
    let target = share * cells.iter().sum::<f64>();
    let (mut reached, mut last) = (0.0, None);
    for (c, cell) in cells.iter().enumerate() {
        if reached + cell > target {
            let mut within = reached;
            for (i, weight) in weights[c * CELL..].iter().take(CELL).enumerate().filter(|(_, weight)| **weight > 0.0) {
                within += weight;
                last = Some(c * CELL + i);
                if within > target {
                    break;
                }
            }
            // Because of rounding the target may be beyond the end of the cell: then it is the last one there.
            return last;
        }
        reached += cell;
    }
    weights.iter().rposition(|weight| *weight > 0.0)
}

#[cfg(test)]
mod tests;
