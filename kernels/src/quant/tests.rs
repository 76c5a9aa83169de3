use super::*;
use crate::backend::GroupScales;

#[test]
fn e4m3_codes_have_their_values() {
    assert_eq!(e4m3(0x00), 0.0);
    assert!(e4m3(0x80) == 0.0 && e4m3(0x80).is_sign_negative());
    assert_eq!(e4m3(0x01), 2f32.powi(-9));
    assert_eq!(e4m3(0x07), 7.0 * 2f32.powi(-9));
    assert_eq!(e4m3(0x08), 2f32.powi(-6));
    assert_eq!(e4m3(0x38), 1.0);
    assert_eq!(e4m3(0xbc), -1.5);
    assert_eq!(e4m3(0x7e), 448.0);
    assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    let mut finite: Vec<f32> = (0..=0x7e).map(e4m3).collect();
    assert!(finite.is_sorted());
    finite.dedup();
    assert_eq!(finite.len(), 0x7f);
}

#[test]
fn numbers_get_the_nearest_code_and_a_scale_that_is_a_power_of_two() {
    for code in (0..=0x7e).chain(0x80..=0xfe) {
        assert_eq!(to_e4m3(e4m3(code)), code);
    }
    let finite: Vec<f32> = (0..=0x7e).map(e4m3).collect();
    for (low, pair) in (0u8..).zip(finite.windows(2)) {
        let middle = (pair[0] + pair[1]) / 2.0;
        let even = low + low % 2;
        let near = [f32::from_bits(middle.to_bits() - 1), middle, f32::from_bits(middle.to_bits() + 1)];
        assert_eq!(near.map(to_e4m3), [low, even, low + 1], "around {middle}");
        assert_eq!(near.map(|x| to_e4m3(-x)), [low, even, low + 1].map(|code| code | 0x80));
    }
    assert_eq!([460.0, 1e9, f32::INFINITY].map(to_e4m3), [0x7e; 3]);
    for (largest, scale) in
        [(448.0, 1.0), (448.1, 2.0), (224.0, 0.5), (1.0, 2f32.powi(-8)), (0.0, 1.0), (1e-40, f32::MIN_POSITIVE)]
    {
        assert_eq!(e4m3_scale(largest), scale, "{largest}");
    }
}

#[test]
fn fp8_blocks_may_be_partial_at_the_edges() {
    let (rows, cols) = (130, 300);
    let codes: Vec<u8> = (0..rows * cols).map(|i| (i % 0x7f) as u8).collect();
    let scales: Vec<f32> = (0..6).map(|i| 0.5 + i as f32).collect();
    let out = fp8_block_dequant(&codes, rows, cols, &scales, [128, 128]).unwrap();
    for (r, c) in [(0, 0), (0, 127), (0, 128), (127, 256), (128, 0), (129, 299), (128, 255)] {
        let want = e4m3(codes[r * cols + c]) * scales[r / 128 * 3 + c / 128];
        assert_eq!(out[r * cols + c], want);
    }
    let nan = fp8_block_dequant(&[0x7f, 0x38], 1, 2, &[2.0], [128, 128]).unwrap();
    assert!(nan[0].is_nan() && nan[1] == 2.0);
    let error = fp8_block_dequant(&codes, rows, cols, &scales[1..], [128, 128]).unwrap_err();
    assert_eq!(error.to_string(), "fp8_block_dequant: weight_scale_inv must have 6 entries, got 5");
}

#[test]
fn int4_numbers_are_the_same_with_bf16_scales_as_with_f32_scales() {
    let scales = [0.0123, 1.5, -3.3e-4, 7.7e20].map(bf16::from_f32);
    let packed: Vec<u8> = (0..64).map(|i| (i * 37 % 256) as u8).collect();
    let wide = |scales: GroupScales| {
        let data = HostData::Int4 { packed: packed.clone().into(), scales, group: 32 };
        let HostData::F32(numbers) = (HostMatrix { rows: 2, cols: 64, data }).into_form(HostForm::F32).unwrap().data
        else {
            panic!("f32")
        };
        numbers
    };
    let of_bf16 = wide(GroupScales::Bf16(scales.to_vec()));
    assert_eq!(of_bf16, wide(GroupScales::F32(scales.map(bf16::to_f32).to_vec())));
    assert_eq!(of_bf16[0], (f32::from(packed[0] & 0xf) - 8.0) * scales[0].to_f32());
}

#[test]
fn int4_nibbles_are_unpacked_lowest_first() {
    // 0..=15 in order, lowest nibble first: values -8..=7.
    let words: [u32; 4] = [0x7654_3210, 0xfedc_ba98, 0x8888_8888, 0x0000_0000];
    let packed: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let out = int4_group_dequant(&packed, 1, 32, &[1.0, 2.0], 16).unwrap();
    let first: Vec<f32> = (-8..8).map(|v| v as f32).collect();
    assert_eq!(out[..16], first);
    assert_eq!(out[16..24], [0.0; 8]);
    assert_eq!(out[24..], [-16.0; 8]);
    // Partial groups and words at the end of each row.
    let out = int4_group_dequant(&packed, 2, 11, &[1.0, 3.0, 1.0, 1.0], 8).unwrap();
    assert_eq!(out[6..14], [-2.0, -1.0, 0.0, 3.0, 6.0, 0.0, 0.0, 0.0]);
    assert!(int4_group_dequant(&packed, 1, 32, &[1.0], 0).is_err());
    assert!(int4_group_dequant(&packed[1..], 1, 32, &[1.0, 2.0], 16).is_err());
}
