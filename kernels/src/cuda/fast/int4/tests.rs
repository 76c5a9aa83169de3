use super::*;

const LIST: &str = include_str!("../../../../cuda/fast/int4.h");
const INT4: WeightForm = WeightForm::Int4 { group: GROUP, scales: ScaleForm::Bf16 };

fn shape(inter: usize, hidden: usize, form: WeightForm) -> ExpertShape {
    ExpertShape::new(inter, hidden, [form; 3])
}

#[test]
fn tiles_are_those_that_are_compiled() {
    let lines = LIST.lines().filter_map(|line| line.strip_prefix("KERNEL(")?.strip_suffix(')'));
    let known = TILES.iter().map(|Int4Tile { kernel, rows, stages, n, k, floats, .. }| {
        let weight = if *floats { "FLOATS" } else { "INTEGERS" };
        format!("{kernel}, {rows}, {stages}, {n}, {k}, {}, {weight}", padded(*n) - n)
    });
    assert_eq!(known.collect::<Vec<_>>(), lines.collect::<Vec<_>>());
    for tile in TILES {
        assert!(tile.n % REPACKED == 0 && tile.k % DEPTH == 0 && DEPTH.is_multiple_of(GROUP), "{}", tile.kernel);
        assert!(tile.shared <= super::super::MOST_SHARED, "{}", tile.kernel);
    }
}

#[test]
fn experts_of_k2_have_kernels() {
    let plans = Int4Plans::of(&shape(2048, 7168, INT4)).expect("kernels");
    let kernels = [(0, 16), (1, 17), (2, 1), (2, 1000)].map(|(which, rows)| plans.tile(which, rows).kernel);
    let expected = ["int4_few_4096x7168", "int4_many_4096x7168", "int4_few_7168x2048", "int4_many_7168x2048"];
    assert_eq!(kernels, expected);
}

#[test]
fn experts_of_gpt_oss_have_kernels_and_padded_outputs() {
    let mut shape = shape(2880, 2880, WeightForm::Mxfp4);
    let plans = Int4Plans::of(&shape).expect("kernels");
    let kernels = [(0, 16), (2, 17)].map(|(which, rows)| plans.tile(which, rows).kernel);
    assert_eq!(kernels, ["mxfp4_few_5760x2880", "mxfp4_many_2880x2880"]);
    shape.tiled = Some(Int4Plans::COLUMNS);
    assert_eq!(shape.parts(0), [5888 * 1440, 5888 * 90 * 2, 0]);
    assert_eq!(shape.parts(1), [0; 3]);
    assert_eq!(shape.parts(2), [3072 * 1440, 3072 * 90 * 2, 0]);
    let [x, weights, scales] = plans.tile(0, 1).maps(5, 32);
    assert_eq!(x.dims, [2880, 5, 1]);
    assert_eq!((weights.dims, weights.bytes()), ([16, 736, 32 * 180], 32 * 5888 * 1440));
    assert_eq!((scales.dims, scales.bytes()), ([16, 368, 32 * 90], 32 * 5888 * 90 * 2));
}

#[test]
fn other_experts_have_none() {
    assert_eq!(Int4Plans::of(&shape(2048, 4096, INT4)), None, "other widths");
    assert_eq!(Int4Plans::of(&shape(2048, 7168, WeightForm::Mxfp4)), None, "MXFP4 of other widths");
    for form in [
        WeightForm::Bf16,
        WeightForm::Int4 { group: 128, scales: ScaleForm::Bf16 },
        WeightForm::Int4 { group: GROUP, scales: ScaleForm::F32 },
    ] {
        assert_eq!(Int4Plans::of(&shape(2048, 7168, form)), None, "{form:?}");
    }
    for mixed in [[INT4, INT4, WeightForm::Bf16], [INT4, WeightForm::Bf16, INT4]] {
        assert_eq!(Int4Plans::of(&ExpertShape::new(2048, 7168, mixed)), None, "mixed forms");
    }
}

#[test]
fn scales_change_their_places_within_64_columns() {
    // Of 128 columns, padded to 256, and 2 groups: the scale of column c and group g is 2 c + g.
    let scales: Vec<bf16> = (0..256u16).map(|i| bf16::from_f32(i.into())).collect();
    let tiled: Vec<f32> = tiled_scales(&scales, 128).into_iter().map(bf16::to_f32).collect();
    assert_eq!(tiled.len(), 512);
    assert_eq!(tiled[..10], [0.0, 16.0, 32.0, 48.0, 64.0, 80.0, 96.0, 112.0, 2.0, 18.0]);
    assert_eq!(tiled[64], 128.0);
    assert_eq!(tiled[256], 1.0);
    for (at, scale) in tiled[..128].iter().enumerate() {
        let (block, i, j) = (at / 64, at % 64 / 8, at % 8);
        assert_eq!(*scale as usize, 2 * (64 * block + 8 * j + i));
    }
}

#[test]
fn scales_of_padding_are_zero() {
    let scales: Vec<bf16> = (1..=192u16).map(|i| bf16::from_f32(i.into())).collect();
    let tiled: Vec<f32> = tiled_scales(&scales, 192).into_iter().map(bf16::to_f32).collect();
    assert_eq!(tiled.len(), 256);
    assert!(tiled[..192].iter().all(|&scale| scale > 0.0) && tiled[192..].iter().all(|&scale| scale == 0.0));
}

#[test]
fn maps_describe_weights_of_several_experts() {
    let [x, weights, scales] = TILES[0].maps(300, 48);
    assert_eq!((x.dims, x.strides, x.boxes, x.swizzled), ([7168, 300, 1], [7168, 0], [64, 16, 1], true));
    assert_eq!((weights.dims, weights.strides), ([16, 512, 48 * 448], [16, 8192]));
    assert_eq!((weights.element, weights.boxes), (MapElement::Word, [16, 32, 4]));
    assert_eq!(weights.bytes(), 48 * INT4.bytes(4096, 7168));
    assert_eq!((scales.dims, scales.strides, scales.boxes), ([16, 256, 48 * 224], [16, 4096], [16, 16, 2]));
    assert_eq!(scales.bytes(), 48 * INT4.scale_bytes(4096, 7168));
    assert!([x, weights, scales].iter().all(|map| map.fits(4096)));
}
