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
        assert!(FP8_GROUP.is_multiple_of(tile.cols), "{}", tile.kernel);
    }
}

#[test]
fn the_tiles_of_a_plan_sum_in_the_same_order() {
    let few = TILES.iter().filter(|tile| tile.kernel.contains("_few"));
    for few in few {
        let [least, many] = ["_least", "_many"].map(|name| named(&few.kernel.replace("_few", name)));
        let order = |tile: &TileKernel| (tile.numbers, tile.out, tile.form, tile.groups);
        assert_eq!([order(least), order(many)], [order(few); 2]);
        assert_eq!([least, few, many].map(|tile| tile.rows), [16, 64, 128]);
        assert_eq!(least.cols, few.cols);
    }
}

fn plan(numbers: OperandType, out: Element, form: Form, [n, k, groups]: [usize; 3]) -> Option<GemmPlan> {
    Product { numbers, out, form, n, k, groups }.plan()
}

#[test]
fn the_products_of_a_rank_of_k2_have_plans() {
    let kernels = |numbers, out, form, sizes| {
        let plan = plan(numbers, out, form, sizes).unwrap_or_else(|| panic!("{numbers:?} {form:?} {sizes:?}"));
        assert_eq!(plan.tile(16).kernel, plan.tile(64).kernel.replace("_few", "_least"));
        assert_eq!(plan.tile(17), plan.tile(64));
        let of_experts = [1, 8, 9, 64, 65].map(|rows| plan.tile_of_experts(rows).rows);
        assert_eq!(of_experts, [16, 16, 64, 64, 128]);
        [plan.tile(64).kernel, plan.tile(65).kernel]
    };
    let (bf16, fp8) = (OperandType::Bf16, OperandType::Fp8);
    // Query and latent projections, the output, dense layers; all of eight ranks.
    for sizes in [[1536, 7168, 1], [1536, 1536, 1], [576, 7168, 1], [7168, 1024, 1], [2304, 7168, 1], [7168, 2304, 1]] {
        assert_eq!(kernels(fp8, Element::Bf16, Form::Dense, sizes), ["fp8_dense_few", "fp8_dense_many"]);
        assert_eq!(kernels(bf16, Element::Bf16, Form::Dense, sizes), ["bf16_dense_few", "bf16_dense_many"]);
    }
    let logits = kernels(bf16, Element::F32, Form::Dense, [20_480, 7168, 1]);
    assert_eq!(logits, ["bf16_dense_few_f32", "bf16_dense_many_f32"]);
    // Heads to the latent and back.
    for sizes in [[512, 128, 8], [128, 512, 8]] {
        assert_eq!(kernels(bf16, Element::Bf16, Form::Batched, sizes), ["bf16_batched_few_8", "bf16_batched_many_8"]);
    }
    for sizes in [[2048, 7168, 48], [7168, 2048, 48]] {
        assert_eq!(kernels(fp8, Element::Bf16, Form::Grouped, sizes), ["fp8_grouped_few_64", "fp8_grouped_many_64"]);
    }
    assert_eq!(kernels(bf16, Element::Bf16, Form::Grouped, [2048, 7168, 65])[0], "bf16_grouped_few_256");
}

#[test]
fn products_that_no_kernel_takes_have_no_plan() {
    let (bf16, fp8) = (OperandType::Bf16, OperandType::Fp8);
    for (numbers, out, form, sizes, why) in [
        (fp8, Element::F32, Form::Dense, [512, 512, 1], "FP8 results are bf16"),
        (fp8, Element::Bf16, Form::Dense, [512, 500, 1], "part of a block of scales along k"),
        (fp8, Element::Bf16, Form::Grouped, [320, 512, 8], "experts' scales of part of a block"),
        (fp8, Element::Bf16, Form::Grouped, [384, 512, 8], "an odd number of tiles in clusters of two"),
        (fp8, Element::Bf16, Form::Grouped, [512, 512, 257], "too many experts"),
        (bf16, Element::Bf16, Form::Batched, [512, 128, 65], "too many heads"),
        (bf16, Element::Bf16, Form::Dense, [512, 12, 1], "rows of 24 bytes"),
        (bf16, Element::Bf16, Form::Dense, [12, 512, 1], "results of 24 bytes"),
        (bf16, Element::Bf16, Form::Dense, [0, 512, 1], "no columns"),
    ] {
        assert_eq!(plan(numbers, out, form, sizes), None, "{why}");
    }
    assert!(plan(fp8, Element::Bf16, Form::Dense, [200, 512, 1]).is_some(), "dense weights may end within a block");
}

#[test]
fn maps_describe_what_a_tile_copies() {
    let tile = named("fp8_grouped_many_64");
    let x = tile.x([1, 300, 7168], [7168, 0]);
    assert_eq!((x.element, x.dims, x.boxes, x.swizzled), (MapElement::Byte, [7168, 300, 1], [128, 128, 1], true));
    let w = tile.w([48, 2048, 7168]);
    assert_eq!((w.dims, w.strides, w.boxes), ([7168, 48 * 2048, 1], [7168, 0], [128, 128, 1]));
    let out = tile.out([1, 300, 2048], [2048, 0]);
    assert_eq!((out.element, out.boxes, out.swizzled), (MapElement::Bf16, [64, 128, 1], true));
    let scales = tile.x_scales(301, 7168);
    assert_eq!((scales.dims, scales.strides, scales.boxes), ([304, 56, 1], [304, 0], [128, 1, 1]));
    assert_eq!(scales.bytes(), 4 * 304 * 56);

    let heads = named("bf16_batched_few_8");
    // Queries of 8 heads of 192 columns, of which 128 are multiplied.
    let x = heads.x([8, 5, 128], [8 * 192, 192]);
    assert_eq!((x.dims, x.strides, x.boxes), ([128, 5, 8], [1536, 192], [64, 64, 1]));
    assert_eq!(x.bytes(), 2 * (4 * 1536 + 7 * 192 + 128));
    assert_eq!(heads.w([8, 512, 128]).strides, [128, 512 * 128]);
    let logits = named("bf16_dense_many_f32").out([1, 5, 1000], [1000, 0]);
    assert_eq!((logits.element, logits.boxes, logits.swizzled), (MapElement::F32, [128, 128, 1], false));
}

#[test]
fn maps_that_the_driver_refuses_are_known() {
    let good = named("bf16_dense_few").x([1, 5, 128], [136, 0]);
    assert!(good.fits(4096) && !good.fits(4104));
    assert!(!TensorBoxes { strides: [132, 0], ..good }.fits(4096), "a stride of 264 bytes");
    assert!(!TensorBoxes { boxes: [32, 64, 1], ..good }.fits(4096), "a swizzled box of 64 bytes");
    assert!(!TensorBoxes { dims: [128, 0, 1], ..good }.fits(4096), "no rows");
    assert!(!TensorBoxes { dims: [128, 5, 2], strides: [136, 4], ..good }.fits(4096), "matrices 8 bytes apart");
}
