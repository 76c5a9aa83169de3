use super::*;

const MOST_ALONG_X: usize = i32::MAX as usize;
const MOST_ALONG_Y: usize = 65_535;
/// Of a block without raising the kernel's limit.
const MOST_SHARED: usize = 48 << 10;
const INT4: WeightForm = WeightForm::Int4 { group: 32, scales: ScaleForm::Bf16 };

/// All plans for steps of so many rows of a large model, in which each row goes to 8 experts.
fn plans(rows: usize) -> Vec<LaunchPlan> {
    let (hidden, vocab, experts, heads) = (7168, 163_840, 384, 64);
    let routes = 8 * rows;
    let mut all = vec![
        LaunchPlan::by_row("embed_bf16", rows),
        LaunchPlan::by_column("moe_combine_bf16", rows, hidden),
        LaunchPlan::by_columns("silu_mul_bf16", routes, 18_432),
        LaunchPlan::by_group("group_norm_bf16", rows, heads),
        LaunchPlan::by_number("add_scaled_bf16", rows * hidden),
        LaunchPlan::by_fp8_group("quantize_fp8_bf16", routes, hidden),
        LaunchPlan::rope(Element::Bf16, rows, heads),
        LaunchPlan::cache_write(Element::Bf16, rows),
        LaunchPlan::attention(Element::Bf16, false, rows, heads, 576),
        LaunchPlan::route(rows, experts, 8),
        LaunchPlan::draw(rows),
        LaunchPlan::stash(rows, vocab),
    ];
    for (form, x, out) in [
        (WeightForm::F32, Element::F32, Element::F32),
        (WeightForm::F32, Element::Bf16, Element::F32),
        (WeightForm::Bf16, Element::Bf16, Element::Bf16),
        (WeightForm::Fp8 { by_output: false }, Element::Bf16, Element::F32),
        (INT4, Element::Bf16, Element::Bf16),
    ] {
        all.push(LaunchPlan::product(form, x, out, [rows, vocab, 1]));
        all.push(LaunchPlan::product(form, x, out, [rows, hidden, experts]));
    }
    all
}

#[test]
fn plans_fit_the_limits_of_a_device_for_any_token_budget() {
    // The largest is that of --token-budget.
    for rows in [1, 17, 8192, 65_535, 65_536, 1_000_000] {
        for plan in plans(rows) {
            let [x, y, z] = plan.grid;
            let fits = (1..=MOST_ALONG_X).contains(&x) && [y, z].iter().all(|n| (1..=MOST_ALONG_Y).contains(n));
            assert!(fits && plan.threads <= 1024 && plan.threads % 32 == 0 && plan.shared <= MOST_SHARED, "{plan}");
        }
    }
}

#[test]
fn the_kernel_does_not_depend_on_the_number_of_rows() {
    let kernels = |rows| plans(rows).iter().map(|plan| (plan.kernel, plan.threads, plan.shared)).collect::<Vec<_>>();
    assert!((2..200).all(|rows| kernels(rows) == kernels(1)));
}

#[test]
fn a_product_has_a_kernel_for_each_form_and_a_block_for_each_tile() {
    let plan = LaunchPlan::product(WeightForm::Bf16, Element::Bf16, Element::F32, [65, 130, 1]);
    let text = "kernel linear_bf16_f32 (3 x 2 x 1 blocks of 128 threads, 0 bytes of shared memory)";
    assert_eq!(plan.to_string(), text);
    let kernel = |form, x, out| LaunchPlan::product(form, x, out, [1, 1, 1]).kernel;
    assert_eq!(kernel(WeightForm::F32, Element::Bf16, Element::F32), "linear_mixed");
    assert_eq!(kernel(WeightForm::Fp8 { by_output: false }, Element::Bf16, Element::Bf16), "linear_fp8");
    assert_eq!(kernel(WeightForm::Fp8 { by_output: false }, Element::F32, Element::F32), "linear_fp8_f32");
    assert_eq!(kernel(INT4, Element::Bf16, Element::F32), "linear_int4_bf16_scales_f32");
    let f32_scales = WeightForm::Int4 { group: 128, scales: ScaleForm::F32 };
    assert_eq!(kernel(f32_scales, Element::Bf16, Element::Bf16), "linear_int4");
}

#[test]
fn few_blocks_draw_any_number_of_tokens() {
    assert_eq!([1, 128, 1000].map(|tasks| LaunchPlan::draw(tasks).grid[0]), [1, 128, 128]);
    assert_eq!(LaunchPlan::stash(3, 1000).grid, [4, 3, 1]);
    assert_eq!(LaunchPlan::stash(100, 163_840).grid, [32, 8, 1]);
}
