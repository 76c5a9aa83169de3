use super::*;

const LIST: &str = include_str!("../../../../cuda/fast/gemm.h");

fn named(kernel: &str) -> &'static TileKernel {
    TILES.iter().find(|tile| tile.kernel == kernel).unwrap_or_else(|| panic!("no kernel {kernel}"))
}

#[test]
fn tiles_are_those_that_are_compiled() {
    let lines = LIST.lines().filter_map(|line| line.strip_prefix("KERNEL(")?.strip_suffix(')'));
    let listed: Vec<String> = lines.map(|line| line.replace(", ", " ")).collect();
    let known = TILES.iter().map(|tile| {
        let (x, out) = (format!("{:?}", tile.numbers), format!("{:?}", tile.out));
        let form = format!("{:?}", tile.form);
        let names = [x, out, form].map(|name| name.to_lowercase()).join(" ");
        let TileKernel { kernel, rows, cols, stages, threads, cluster, groups, .. } = tile;
        format!("{kernel} {names} {rows} {cols} {stages} {threads} {cluster} {groups}")
    });
    assert_eq!(known.collect::<Vec<_>>(), listed);
}

#[test]
fn every_tile_fits_a_multiprocessor_and_the_rules_of_its_kernel() {
    for tile in TILES {
        let plan = tile.launch(18_432);
        assert!(plan.shared <= super::super::MOST_SHARED, "{plan}");
        // A warpgroup multiplies 64 rows, or some of them, and the registers of all threads are reassigned in
        // warpgroups.
        assert_eq!(tile.rows.max(64), tile.threads as usize / 2, "{}", tile.kernel);
        assert!(plan.threads % 128 == 0 && BLOCKS.is_multiple_of(tile.cluster), "{plan}");
        // The scales of one row of blocks are enough only if a tile is not wider than a block.
        assert!(tile.numbers == FP8 && FP8_GROUP.is_multiple_of(tile.cols) || tile.numbers == BF16, "{}", tile.kernel);
    }
}

fn plan(numbers: OperandType, out: Element, form: Form, [n, k, groups]: [usize; 3]) -> Option<GemmPlan> {
    Product { numbers, out, form, n, k, groups }.plan()
}

const FP8: OperandType = OperandType::Fp8;
const BF16: OperandType = OperandType::Bf16;

#[test]
fn the_products_of_a_rank_of_k2_have_tiles_by_rows_and_waves() {
    let tiles = |numbers, out, form, sizes| {
        let plan = plan(numbers, out, form, sizes).unwrap_or_else(|| panic!("{numbers:?} {form:?} {sizes:?}"));
        [1, 17, 64, 256, 8192].map(|rows| (plan.tile(rows).rows, plan.tile(rows).cols))
    };
    // q_a and kv_a in one, q_b, the shared expert's gate and up, o, and the logits: at most one wave where a tile is
    // narrow enough.
    for (n, k, expected) in [
        (2112, 7168, [(16, 16), (32, 32), (64, 32), (64, 64), (128, 128)]),
        (1536, 1536, [(16, 16), (32, 32), (64, 32), (64, 64), (128, 128)]),
        (4096, 7168, [(16, 32), (32, 32), (64, 32), (64, 128), (128, 128)]),
        (7168, 1024, [(16, 64), (32, 64), (64, 64), (128, 128), (128, 128)]),
        (20_480, 7168, [(16, 64), (32, 64), (64, 128), (128, 128), (128, 128)]),
    ] {
        assert_eq!(tiles(FP8, Element::Bf16, Form::Dense, [n, k, 1]), expected, "[{n}, {k}]");
    }
    let wide = tiles(BF16, Element::Bf16, Form::Dense, [7168, 1024, 1]);
    assert_eq!(wide[4], (128, 256), "bf16 products of prompts are limited by what a multiprocessor takes in");
    let logits = tiles(BF16, Element::F32, Form::Dense, [20_480, 7168, 1]);
    assert_eq!(logits, [(16, 64), (64, 128), (64, 128), (128, 128), (128, 128)]);
    // Heads to the latent and back.
    for sizes in [[512, 128, 8], [128, 512, 8]] {
        let expected = [(16, 64), (64, 64), (64, 64)];
        assert_eq!(tiles(BF16, Element::Bf16, Form::Batched, sizes)[..3], expected, "{sizes:?}");
    }
}

#[test]
fn experts_of_any_width_have_tiles() {
    let kernels = |numbers, sizes| {
        let plan = plan(numbers, Element::Bf16, Form::Grouped, sizes).unwrap_or_else(|| panic!("{sizes:?}"));
        [1, 8, 9, 16, 17, 64, 65, 1000].map(|rows| plan.tile_of_experts(rows).kernel)
    };
    let named = |tile: &str, many: &str| {
        let of = |rows: usize| tile.replace('*', &format!("{rows}x128"));
        [of(16), of(16), of(32), of(32), of(64), of(64), many.to_owned(), many.to_owned()]
    };
    // Kimi K2; Moonlight; widths of half a block of scales; GPT-OSS in bf16; more experts.
    for (numbers, sizes, tile, many) in [
        (FP8, [4096, 7168, 48], "fp8_grouped_*_of_64", "fp8_grouped_128x128_of_64"),
        (FP8, [2816, 2048, 64], "fp8_grouped_*_of_64", "fp8_grouped_128x128_of_64"),
        (FP8, [320, 448, 8], "fp8_grouped_*_of_64", "fp8_grouped_128x128_of_64_alone"),
        (BF16, [2880, 2880, 32], "bf16_grouped_*_of_64", "bf16_grouped_128x128_of_64_alone"),
        (BF16, [1536, 2048, 128], "bf16_grouped_*_of_128", "bf16_grouped_128x128_of_128"),
        (BF16, [2048, 7168, 129], "bf16_grouped_*_of_256", "bf16_grouped_128x128_of_256"),
    ] {
        assert_eq!(kernels(numbers, sizes).to_vec(), named(tile, many), "{sizes:?}");
    }
}

#[test]
fn products_that_no_kernel_takes_have_no_plan() {
    for (numbers, out, form, sizes, why) in [
        (FP8, Element::F32, Form::Dense, [512, 512, 1], "FP8 results are bf16"),
        (FP8, Element::Bf16, Form::Dense, [512, 500, 1], "rows of 500 bytes"),
        (FP8, Element::Bf16, Form::Grouped, [512, 512, 257], "too many experts"),
        (BF16, Element::Bf16, Form::Batched, [512, 128, 65], "too many heads"),
        (BF16, Element::Bf16, Form::Dense, [512, 12, 1], "rows of 24 bytes"),
        (BF16, Element::Bf16, Form::Dense, [12, 512, 1], "results of 24 bytes"),
        (BF16, Element::Bf16, Form::Dense, [0, 512, 1], "no columns"),
    ] {
        assert_eq!(plan(numbers, out, form, sizes), None, "{why}");
    }
    assert!(plan(FP8, Element::Bf16, Form::Dense, [200, 528, 1]).is_some(), "weights may end within a block of scales");
}

#[test]
fn maps_describe_what_a_tile_copies() {
    let tile = named("fp8_grouped_128x128_of_64");
    let x = tile.x([1, 300, 7168], [7168, 0]);
    assert_eq!((x.element, x.dims, x.boxes, x.swizzled), (MapElement::Byte, [7168, 300, 1], [128, 128, 1], true));
    let w = tile.w([48, 2048, 7168]);
    assert_eq!((w.dims, w.strides, w.boxes), ([7168, 48 * 2048, 1], [7168, 0], [128, 128, 1]));
    let out = tile.out([1, 300, 2048], [2048, 0]);
    assert_eq!((out.element, out.boxes, out.swizzled), (MapElement::Bf16, [64, 128, 1], true));
    let scales = tile.x_scales(301, 7168);
    assert_eq!((scales.dims, scales.strides, scales.boxes), ([304, 56, 1], [304, 0], [128, 1, 1]));
    assert_eq!(scales.bytes(), 4 * 304 * 56);

    let heads = named("bf16_batched_64x64_of_8");
    // Queries of 8 heads of 192 columns, of which 128 are multiplied.
    let x = heads.x([8, 5, 128], [8 * 192, 192]);
    assert_eq!((x.dims, x.strides, x.boxes), ([128, 5, 8], [1536, 192], [64, 64, 1]));
    assert_eq!(x.bytes(), 2 * (4 * 1536 + 7 * 192 + 128));
    assert_eq!(heads.w([8, 512, 128]).strides, [128, 512 * 128]);
    assert_eq!(named("fp8_dense_16x16").out([1, 5, 1000], [1000, 0]).boxes, [16, 16, 1]);
    let logits = named("bf16_dense_128x128_f32").out([1, 5, 1000], [1000, 0]);
    assert_eq!((logits.element, logits.boxes, logits.swizzled), (MapElement::F32, [128, 128, 1], false));
}

#[test]
fn maps_that_the_driver_refuses_are_known() {
    let good = named("bf16_dense_64x64").x([1, 5, 128], [136, 0]);
    assert!(good.fits(4096) && !good.fits(4104));
    assert!(!TensorBoxes { strides: [132, 0], ..good }.fits(4096), "a stride of 264 bytes");
    assert!(!TensorBoxes { boxes: [24, 64, 1], ..good }.fits(4096), "a swizzled box of 48 bytes");
    assert!(!TensorBoxes { dims: [128, 0, 1], ..good }.fits(4096), "no rows");
    assert!(!TensorBoxes { dims: [128, 5, 2], strides: [136, 4], ..good }.fits(4096), "matrices 8 bytes apart");
}
