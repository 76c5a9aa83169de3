//! Steps with more rows, and more routes to experts, than a grid has blocks along y.

use super::*;

const MOST_ALONG_Y: usize = 65_535;
const ROWS: usize = 8200;
const WIDTH: usize = 8;

/// Experts of WIDTH to WIDTH, all of them chosen by each row.
fn through_experts<D: Devices>(devices: &D, stored: Stored, x: &[f32]) -> Vec<f32> {
    let mut b = devices.open_beside(0).expect("a backend");
    let base = stored.base();
    let table = HostMatrix { rows: 1, cols: 1, data: HostData::F32(vec![1.0]) };
    b.embedding(given(devices, WeightRole::Embedding, table, base), 0, base).expect("embedding");
    let mut random = Random::new(3);
    let mut matrix = || given(devices, WeightRole::Expert, stored.matrix(&mut random, WIDTH, WIDTH), base);
    let weights: Vec<_> =
        (0..8).map(|id| Ok(ExpertWeights { id, gate: matrix(), up: matrix(), down: matrix() })).collect();
    let table = ExpertTable { layer: 0, holders: vec![vec![0]; 8] };
    let experts = b.experts(table, &mut weights.into_iter(), base).expect("experts");
    let ones = b.vector(vec![1.0; WIDTH]).expect("ones");
    let x = b.rms_norm(&b.to_device(ROWS, WIDTH, x.to_vec()), &ones, 1e-6);
    let spec =
        RouteSpec { top_k: 8, scoring: Scoring::Softmax, n_group: 1, topk_group: 1, normalize: true, scaling: 1.0 };
    let routes = b.moe_route(&b.to_device(ROWS, 8, vec![0.5; ROWS * 8]), None, &spec);
    let batch = b.begin(StepInputs { ids: vec![0; ROWS], ..StepInputs::default() }).expect("begin");
    let out = b.moe(&batch, &x, &routes, &experts, None, None).expect("moe");
    let out = b.to_host(&out);
    b.begin(StepInputs::default()).expect("no error");
    out
}

#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda.py"]
fn all_routes_of_a_large_step_are_computed() {
    let devices = devices();
    const { assert!(ROWS * 8 > MOST_ALONG_Y) };
    let x = Random::new(1).numbers(ROWS * WIDTH, 1.0);
    // The other form takes the emulation as long again: with REIN_CUDA_MODELS=all, as in `make chaos`.
    let forms = [(Stored::Fp8, 2e-2), (Stored::Wide(Precision::F32), 1e-4)];
    let all = std::env::var("REIN_CUDA_MODELS").is_ok_and(|models| models == "all");
    for (stored, apart) in forms.into_iter().take(if all { 2 } else { 1 }) {
        let rounding = RoundingDevices { cpu: CpuDevices { threads: 2 } };
        let (got, want) = (through_experts(&devices, stored, &x), through_experts(&rounding, stored, &x));
        let far = difference(&got, &want);
        assert!(far.max <= apart, "{stored:?}: {far}");
    }
}
