use super::*;
use crate::cpu::Cpu;
use crate::random::Random;

const ROWS: usize = 5;
const HIDDEN: usize = 64;
const INTER: usize = 32;
const EXPERTS: usize = 4;

fn lockstep() -> (Lockstep<Cpu>, LockstepReport) {
    let report = LockstepReport::default();
    let devices = LockstepDevices::new(CpuDevices { threads: 1 }, 1, report.clone());
    (devices.open_beside(0).expect("cpu"), report)
}

fn matrix(random: &mut Random, rows: usize, cols: usize) -> HostMatrix {
    let numbers = random.numbers(rows * cols, (cols as f32).powf(-0.5));
    HostMatrix { rows, cols, data: HostData::F32(numbers) }
}

/// A layer's ops with weights of `precision`. `wrong`: the device's weight is not the one that the oracle has.
fn play(precision: Precision, wrong: bool) -> BTreeMap<&'static str, OpDifference> {
    let (mut b, report) = lockstep();
    let random = &mut Random::new(17);
    let embed = b.embedding(matrix(random, 50, HIDDEN), 0, precision).expect("embedding");
    let norm = b.vector(vec![1.0; HIDDEN]).expect("norm");
    let mut linear = b.linear_weight(matrix(random, HIDDEN, HIDDEN), precision).expect("weight");
    let other = b.linear_weight(matrix(random, HIDDEN, HIDDEN), precision).expect("weight");
    if wrong {
        linear.device = other.device;
    }
    let router = b.linear_weight(matrix(random, EXPERTS, HIDDEN), Precision::F32).expect("router");
    let table = ExpertTable { layer: 0, holders: vec![vec![0]; EXPERTS] };
    let mut experts = (0..EXPERTS as u32).map(|id| {
        let mut one = |rows, cols| matrix(random, rows, cols);
        Ok(ExpertWeights { id, gate: one(INTER, HIDDEN), up: one(INTER, HIDDEN), down: one(HIDDEN, INTER) })
    });
    let experts = b.experts(table, &mut experts, precision).expect("experts");
    let mut cache = b.cache(4, 4, [HIDDEN, HIDDEN], CacheForm::of(precision)).expect("cache");
    let blocks = [2, 0];
    let spans = vec![Span { row: 0, len: ROWS, start: 0, blocks: &blocks }];
    let score = Score { row: ROWS - 1, token: 3, top: 2 };
    let rows = StepInputs {
        ids: (0..ROWS as u32).collect(),
        spans,
        scores: vec![score],
        states: vec![1],
        ..StepInputs::default()
    };
    let batch = b.begin(rows).expect("begin");
    let hidden = b.run(&batch, |b| {
        let mut x = b.embed(&embed, &batch);
        let h = b.rms_norm(&x, &norm, 1e-5);
        let q = b.linear(&h, &linear, None);
        let spec = GqaSpec { heads: 4, kv_heads: 4, head_dim: HIDDEN / 4, scale: 0.25, window: None };
        let mixed = b.gqa_attention(&batch, &q, &h, &h, None, &mut cache, &spec);
        let h = b.add_norm(&mut x, &mixed, 1.0, &norm, 1e-5);
        let spec =
            RouteSpec { top_k: 2, scoring: Scoring::Softmax, n_group: 1, topk_group: 1, normalize: true, scaling: 1.0 };
        let routes = b.moe_route(&b.linear(&h, &router, None), None, &spec);
        let out = b.moe(&batch, &h, &routes, &experts, None, Some(&h))?;
        b.add_scaled(&mut x, &out, 1.0);
        Ok(x)
    });
    let head = b.linear_weight(matrix(&mut Random::new(19), 50, HIDDEN), precision).expect("head");
    let head = OutputHead { norm: &norm, norm_bias: None, eps: 1e-5, weight: Some(&head), scale: 1.0 };
    let drawn = b.draw(&batch, Some(&hidden.expect("hidden")), &head).expect("draw");
    assert_eq!(drawn.scores.len(), 1);
    report.ops()
}

#[test]
fn every_op_of_a_layer_is_compared() {
    for (precision, allowed) in [(Precision::F32, 1e-5), (Precision::Bf16, 2e-2)] {
        let ops = play(precision, false);
        let names: Vec<_> = ops.keys().copied().collect();
        let want = [
            "add_norm",
            "add_norm: x",
            "add_scaled: x",
            "draw",
            "embed",
            "gqa_attention",
            "linear",
            "moe_route, moe",
            "rms_norm",
            "state",
        ];
        assert_eq!(names, want);
        for (op, found) in ops {
            assert!(found.worst.apart <= allowed, "{precision:?}, {op}: {found:?}");
        }
    }
}

#[test]
fn only_the_op_that_is_wrong_differs() {
    for (op, found) in play(Precision::F32, true) {
        assert_eq!(found.worst.apart > 1e-2, op == "linear", "{op}: {found:?}");
    }
}

#[test]
fn the_first_of_equally_wrong_ops_is_named() {
    let report = LockstepReport::default();
    assert_eq!(report.worst(), None);
    report.add("linear", &[1.0], &[1.0]);
    report.add("silu_mul", &[f32::NAN], &[1.0]);
    report.add("linear", &[f32::NAN], &[f32::NAN]);
    report.add("rope", &[2.0], &[1.0]);
    let (op, found) = report.worst().expect("three ops");
    assert_eq!((op, found.worst.apart, found.before, report.calls()), ("silu_mul", f64::INFINITY, 1, 4));
    let rope = report.ops()["rope"];
    assert_eq!((rope.worst.apart, rope.before), (0.5, 3));
}
