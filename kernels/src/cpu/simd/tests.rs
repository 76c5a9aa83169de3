use super::*;

#[inline(always)]
unsafe fn exp_all<S: Simd>(x: &mut [f32]) {
    for chunk in x.chunks_exact_mut(16) {
        // SAFETY: a chunk has 16 elements.
        unsafe { S::store(chunk.as_mut_ptr(), S::exp(S::load(chunk.as_ptr()))) }
    }
}
simd_fn!(fn exp_slice(x: &mut [f32]) = exp_all);

#[inline(always)]
unsafe fn sums_all<S: Simd>(x: &[f32; 256], out: &mut [f32; 16], single: &mut [f32; 16]) {
    // SAFETY: each slice of 16 lies inside its array.
    unsafe {
        let mut v = [S::splat(0.0); 16];
        for i in 0..16 {
            v[i] = S::load(x.as_ptr().add(16 * i));
            single[i] = S::sum(v[i]);
        }
        S::store(out.as_mut_ptr(), S::sums(v));
    }
}
simd_fn!(fn sums_of(x: &[f32; 256], out: &mut [f32; 16], single: &mut [f32; 16]) = sums_all);

#[inline(always)]
unsafe fn expand_one<S: Simd>(src: &[u8; 64], dst: &mut [u32; 32]) {
    // SAFETY: the arrays have the sizes asked for.
    unsafe {
        let [low, high] = S::widen_int8(src.as_ptr());
        S::store(dst.as_mut_ptr().cast(), low);
        S::store(dst.as_mut_ptr().add(16).cast(), high);
    }
}
simd_fn!(fn expand(src: &[u8; 64], dst: &mut [u32; 32]) = expand_one);

#[test]
fn exp_is_accurate_everywhere() {
    for isa in Isa::available() {
        let x: Vec<f32> = (0..160_000).map(|i| -104.0 + i as f32 * 0.0012).filter(|x| *x < 88.0).collect();
        let mut y = x[..x.len() / 16 * 16].to_vec();
        // SAFETY: the set is available.
        unsafe { exp_slice(isa, &mut y) };
        for (x, y) in x.iter().zip(&y) {
            let want = f64::from(*x).exp();
            let error = (f64::from(*y) - want).abs() / want.max(1.2e-38);
            assert!(error < 3e-7, "{isa:?}: exp({x}) = {y}, want {want}");
        }
        let mut edge = [f32::NEG_INFINITY, -1000.0, 0.0, -0.0, f32::NAN, 1.0, -104.5, -87.5]
            .into_iter()
            .chain([0.0; 8])
            .collect::<Vec<_>>();
        // SAFETY: the set is available.
        unsafe { exp_slice(isa, &mut edge) };
        assert_eq!((edge[0], edge[1], edge[2], edge[3]), (0.0, 0.0, 1.0, 1.0), "{isa:?}");
        assert!(edge[4].is_nan(), "{isa:?}");
    }
}

#[test]
fn lane_sums_do_not_depend_on_the_slot() {
    for isa in Isa::available() {
        let row: Vec<f32> = (0..16).map(|i| ((i * 37 % 17) as f32 - 8.3) * 1.1f32.powi(i)).collect();
        let x: [f32; 256] = std::array::from_fn(|i| row[i % 16] * (1 + i / 16) as f32);
        let same: [f32; 256] = std::array::from_fn(|i| row[i % 16]);
        let (mut out, mut single) = ([0.0; 16], [0.0; 16]);
        // SAFETY: the set is available.
        unsafe { sums_of(isa, &same, &mut out, &mut single) };
        assert!(out.iter().all(|o| o.to_bits() == out[0].to_bits()), "{isa:?} {out:?}");
        // SAFETY: as above.
        unsafe { sums_of(isa, &x, &mut out, &mut single) };
        for i in 0..16 {
            let want: f64 = (0..16).map(|j| f64::from(x[16 * i + j])).sum();
            assert!((f64::from(out[i]) - want).abs() < 1e-4, "{isa:?}");
            assert!((f64::from(single[i]) - want).abs() < 1e-4, "{isa:?}");
        }
    }
}

#[inline(always)]
unsafe fn transpose_all<S: Simd>(x: &mut [f32; 256]) {
    // SAFETY: each row of 16 lies inside the array.
    unsafe {
        let mut v = [S::splat(0.0); 16];
        for i in 0..16 {
            v[i] = S::load(x.as_ptr().add(16 * i));
        }
        for (i, v) in S::transpose(v).into_iter().enumerate() {
            S::store(x.as_mut_ptr().add(16 * i), v);
        }
    }
}
simd_fn!(fn transpose_of(x: &mut [f32; 256]) = transpose_all);

#[test]
fn lanes_are_transposed() {
    for isa in Isa::available() {
        let mut x: [f32; 256] = std::array::from_fn(|i| i as f32);
        // SAFETY: the set is available.
        unsafe { transpose_of(isa, &mut x) };
        assert!((0..256).all(|i| x[i] == (i % 16 * 16 + i / 16) as f32), "{isa:?} {x:?}");
    }
}

#[test]
fn int8_expands_to_its_value() {
    for isa in Isa::available() {
        for base in 0..4u8 {
            let src: [u8; 64] = std::array::from_fn(|i| base * 64 + i as u8);
            let mut dst = [0u32; 32];
            // SAFETY: the set is available.
            unsafe { expand(isa, &src, &mut dst) };
            for (i, byte) in src.iter().enumerate() {
                let got = (dst[i / 2] >> (16 * (i % 2))) as i16;
                assert_eq!(got, i16::from(*byte as i8), "{isa:?}");
            }
        }
    }
}

#[inline(always)]
unsafe fn dot_all<S: Simd>(a: &[u32; 16], b: &[u32; 16], acc: &mut [i32; 16], out: &mut [f32; 16]) {
    // SAFETY: the arrays have the sizes asked for.
    unsafe {
        let (a, b) = (S::load(a.as_ptr().cast()), S::load(b.as_ptr().cast()));
        let sum = S::dot_integers(S::load(acc.as_ptr().cast()), a, b);
        S::store(acc.as_mut_ptr().cast(), sum);
        S::store(out.as_mut_ptr(), S::from_integers(sum));
    }
}
simd_fn!(fn dot_of(a: &[u32; 16], b: &[u32; 16], acc: &mut [i32; 16], out: &mut [f32; 16]) = dot_all);

#[test]
fn products_of_integers_are_exact() {
    let numbers = |i: usize| [-32767i16, 32767, -1, 0, 12345, -20000, 1, 255][(i * 5 + i / 8) % 8];
    let weights = |i: usize| [127i16, -127, 0, 1, -1, 64, 33, -128][(i * 3 + i / 7) % 8];
    let pair = |low: i16, high: i16| low as u16 as u32 | (high as u16 as u32) << 16;
    let a: [u32; 16] = std::array::from_fn(|i| pair(numbers(2 * i), numbers(2 * i + 1)));
    let b: [u32; 16] = std::array::from_fn(|i| pair(weights(2 * i), weights(2 * i + 1)));
    let before: [i32; 16] = std::array::from_fn(|i| i as i32 * 7_000_000 - 50_000_000);
    let want: [i32; 16] = std::array::from_fn(|i| {
        let product = |i: usize| i32::from(numbers(i)) * i32::from(weights(i));
        before[i] + product(2 * i) + product(2 * i + 1)
    });
    for isa in Isa::available() {
        let (mut acc, mut out) = (before, [0.0; 16]);
        // SAFETY: the set is available.
        unsafe { dot_of(isa, &a, &b, &mut acc, &mut out) };
        assert_eq!(acc, want, "{isa:?}");
        assert_eq!(out, want.map(|x| x as f32), "{isa:?}");
    }
}

#[inline(always)]
unsafe fn widened_fp8_generic<S: Simd>(codes: &[u8; 64], out: &mut [f32; 32]) {
    // SAFETY: 64 codes, and room for 32 words.
    unsafe {
        let [low, high] = S::widen_fp8(codes.as_ptr());
        S::store(out.as_mut_ptr(), low);
        S::store(out.as_mut_ptr().add(16), high);
    }
}

simd_fn!(fn widened_fp8(codes: &[u8; 64], out: &mut [f32; 32]) = widened_fp8_generic);

#[test]
fn every_code_of_fp8_is_its_number() {
    let all: Vec<u8> = (0..=255).map(|code| if code & 127 == 127 { 0 } else { code }).collect();
    for isa in Isa::available() {
        for codes in all.as_chunks::<64>().0 {
            let mut words = [0.0; 32];
            // SAFETY: the set is available.
            unsafe { widened_fp8(isa, codes, &mut words) };
            let pairs = words.iter().flat_map(|word| [word.to_bits() << 16, word.to_bits() & 0xffff_0000]);
            for (code, bits) in codes.iter().zip(pairs) {
                assert_eq!(bits, e4m3(*code).to_bits(), "{isa:?} {code}");
            }
        }
    }
}
