//! What the products of tile registers are, number by number (Intel's manual, volume 2: TDPBF16PS, TDPBSSD and their
//! like). It does not know registers.

/// Zero where the processor takes numbers for zero that have no exponent.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

/// c plus the products of pairs of bf16. The sums of even and of odd numbers are kept apart until the end.
pub fn of_pairs(c: f32, a: impl Iterator<Item = u32>, b: impl Iterator<Item = u32>) -> f32 {
    let mut sums = [0.0f32; 2];
    for (a, b) in a.zip(b) {
        for (shift, sum) in [16, 0].into_iter().zip(&mut sums) {
            let number = |pair: u32| flushed(f32::from_bits(pair << shift & 0xffff_0000));
            *sum = flushed(number(a).mul_add(number(b), *sum));
        }
    }
    flushed(flushed(c) + flushed(sums[0] + sums[1]))
}

/// c plus the products of fours of bytes, of which those of `signed` sides have a sign.
pub fn of_bytes(c: i32, signed: [bool; 2], a: impl Iterator<Item = u32>, b: impl Iterator<Item = u32>) -> i32 {
    let number = |byte: u8, signed: bool| if signed { i32::from(byte as i8) } else { i32::from(byte) };
    a.zip(b).fold(c, |sum, (a, b)| {
        let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
        products.fold(sum, |sum, (a, b)| sum.wrapping_add(number(a, signed[0]) * number(b, signed[1])))
    })
}
