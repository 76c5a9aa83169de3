//! Small models on this backend and on the CPU's. These tests need a driver; `tests/py/test_cuda.py` runs them with one
//! that emulates devices.

use super::*;
use crate::cpu::CpuDevices;
use crate::cuda::CudaDevices;
use crate::diff::difference;
use crate::random::Random;
use crate::rounding::RoundingDevices;
use crate::sample::SampleSpec;

mod many_rows;
mod ranks;
mod steps;
mod ways;

const VOCAB: usize = 50;
const HIDDEN: usize = 40;
const INTER: usize = 24;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 8;
const EXPERTS: usize = 6;
const TOP_K: usize = 2;
const BLOCK_SIZE: usize = 4;
const BLOCKS: usize = 40;
const MLA: MlaSpec = MlaSpec { heads: HEADS, nope_dim: 8, rope_dim: 4, v_dim: 6, kv_rank: 16, scale: 0.3 };

fn devices() -> CudaDevices {
    CudaDevices::open(&[0]).expect("a device")
}

fn bytes(random: &mut Random, n: usize) -> Vec<u8> {
    (0..n).map(|_| random.below(256) as u8).collect()
}

/// How the weights of products are stored.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stored {
    Wide(Precision),
    Fp8,
    Fp8ByOutput,
    Int4(ScaleForm),
    /// The scales of `Int4(ScaleForm::Bf16)`, as f32.
    Int4Widened,
}

impl Stored {
    fn base(self) -> Precision {
        if let Stored::Wide(precision) = self { precision } else { Precision::Bf16 }
    }

    /// Weights so that a product of numbers near 1 is near 1.
    fn matrix(self, random: &mut Random, rows: usize, cols: usize) -> HostMatrix {
        let size = 1.0 / (cols as f32).sqrt();
        let data = match self {
            Stored::Wide(_) => HostData::F32(random.numbers(rows * cols, size)),
            Stored::Fp8 => {
                // Codes of magnitudes from 0.5 to 1.9.
                let codes = bytes(random, rows * cols).iter().map(|b| b & 0x8f | 0x30).collect();
                let scales = vec![size; rows.div_ceil(128) * cols.div_ceil(128)];
                HostData::Fp8 { codes, scales, block: [128, 128] }
            }
            Stored::Fp8ByOutput => {
                let codes = bytes(random, rows * cols).iter().map(|b| b & 0x8f | 0x30).collect();
                let scales = random.numbers(rows, size / 2.0).iter().map(|scale| size + scale).collect();
                HostData::Fp8 { codes, scales, block: [1, cols] }
            }
            Stored::Int4(_) | Stored::Int4Widened => {
                let scales = random.numbers(rows * cols.div_ceil(32), size / 4.0);
                let narrow = || GroupScales::Bf16(scales.iter().map(|&scale| half::bf16::from_f32(scale)).collect());
                let scales = match self {
                    Stored::Int4(ScaleForm::Bf16) => narrow(),
                    Stored::Int4Widened => GroupScales::F32(narrow().into_f32()),
                    _ => GroupScales::F32(scales),
                };
                HostData::Int4 { packed: bytes(random, rows * cols.div_ceil(8) * 4).into(), scales, group: 32 }
            }
        };
        HostMatrix { rows, cols, data }
    }
}

#[derive(Debug, Clone, Copy)]
struct Kind {
    stored: Stored,
    latent: bool,
    experts: bool,
}

enum Attends<B: Backend> {
    Gqa { q: B::Linear, k: B::Linear, v: B::Linear, bias: B::Vector, norm: B::Vector },
    Mla { q: B::Linear, kv: B::Linear, norm: B::Vector, kv_b: B::Expansion },
}

enum Mixes<B: Backend> {
    Dense([B::Linear; 3]),
    Moe { router: B::Linear, bias: B::Vector, experts: B::Experts, shared: [B::Linear; 3] },
}

struct ToyLayer<B: Backend> {
    norm: B::Vector,
    attends: Attends<B>,
    out: B::Linear,
    mlp_norm: B::Vector,
    mixes: Mixes<B>,
    cache: B::Cache,
}

/// Two layers.
struct Toy<B: Backend> {
    embed: B::Embedding,
    layers: Vec<ToyLayer<B>>,
    norm: B::Vector,
    head: B::Linear,
}

fn rope_spec(head_dim: usize, offset: usize, dims: usize, interleaved: bool) -> RopeSpec {
    let inv_freq = (0..dims / 2).map(|i| 0.3f64.powi(i as i32)).collect();
    RopeSpec { head_dim, offset, dims, interleaved, inv_freq, magnitude: 1.0, growth: None }
}

/// A weight as the loader gives it.
fn given<D: Devices>(devices: &D, role: WeightRole, matrix: HostMatrix, precision: Precision) -> HostMatrix {
    let form = devices.host_form(role, matrix.stored_form(), precision);
    matrix.into_form(form).expect("form")
}

fn expert<D: Devices>(devices: &D, stored: Stored, id: u32) -> ExpertWeights {
    let mut random = Random::new(1000 + u64::from(id));
    let mut read = |rows, cols| {
        let matrix = stored.matrix(&mut random, rows, cols);
        given(devices, WeightRole::Expert, matrix, stored.base())
    };
    ExpertWeights { id, gate: read(INTER, HIDDEN), up: read(INTER, HIDDEN), down: read(HIDDEN, INTER) }
}

fn experts<D: Devices>(devices: &D, b: &D::Backend, stored: Stored, ids: &[u32]) -> <D::Backend as Backend>::Experts {
    let table = ExpertTable { layer: 0, holders: vec![vec![0]; EXPERTS] };
    let mut weights = ids.iter().map(|&id| Ok(expert(devices, stored, id)));
    b.experts(table, &mut weights, stored.base()).expect("experts")
}

impl<B: Backend> Toy<B> {
    fn new<D: Devices<Backend = B>>(devices: &D, b: &B, kind: Kind) -> Toy<B> {
        let Kind { stored, latent, .. } = kind;
        let base = stored.base();
        let mut random = Random::new(7);
        let mut vector = |n: usize| {
            let values = random.numbers(n, 0.2).iter().map(|x| x + 1.0).collect();
            b.vector(values).expect("vector")
        };
        let norms: Vec<_> = (0..9).map(|_| vector(HIDDEN)).collect();
        let mut norms = norms.into_iter();
        let mut norm = || norms.next().expect("norm");
        let (small, latent_norm, bias) = (vector(HEAD_DIM), vector(MLA.kv_rank), vector(KV_HEADS * HEAD_DIM));
        let (mut small, mut bias) = (Some(small), Some(bias));
        let mut latent_norm = Some(latent_norm);
        let mut random = Random::new(11);
        let mut linear = |rows, cols| {
            let matrix = stored.matrix(&mut random, rows, cols);
            b.linear_weight(given(devices, WeightRole::Linear, matrix, base), base).expect("linear")
        };
        let mut random = Random::new(13);
        let mut wide = |rows: usize, cols: usize, size: f32| HostMatrix {
            rows,
            cols,
            data: HostData::F32(random.numbers(rows * cols, size)),
        };
        let table = wide(VOCAB, HIDDEN, 1.0);
        let embed = b.embedding(given(devices, WeightRole::Embedding, table, base), 0, base).expect("embedding");
        let mut layers = Vec::new();
        for layer in 0..2 {
            let attends = match (latent && layer == 0, &mut small, &mut bias, &mut latent_norm) {
                (true, _, _, norm) => {
                    let kv_b = wide(HEADS * (MLA.nope_dim + MLA.v_dim), MLA.kv_rank, 0.25);
                    Attends::Mla {
                        q: linear(HEADS * (MLA.nope_dim + MLA.rope_dim), HIDDEN),
                        kv: linear(MLA.kv_rank + MLA.rope_dim, HIDDEN),
                        norm: norm.take().expect("one"),
                        kv_b: b
                            .mla_weight(given(devices, WeightRole::LatentExpansion, kv_b, base), &MLA, base)
                            .expect("kv_b"),
                    }
                }
                (false, small, bias, _) => Attends::Gqa {
                    q: linear(HEADS * HEAD_DIM, HIDDEN),
                    k: linear(KV_HEADS * HEAD_DIM, HIDDEN),
                    v: linear(KV_HEADS * HEAD_DIM, HIDDEN),
                    bias: bias.take().unwrap_or_else(|| b.vector(vec![0.1; KV_HEADS * HEAD_DIM]).expect("bias")),
                    norm: small.take().unwrap_or_else(|| b.vector(vec![0.9; HEAD_DIM]).expect("norm")),
                },
            };
            let widths = match attends {
                Attends::Gqa { .. } => (KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM),
                Attends::Mla { .. } => (MLA.kv_rank, MLA.rope_dim),
            };
            let out = match attends {
                Attends::Gqa { .. } => linear(HIDDEN, HEADS * HEAD_DIM),
                Attends::Mla { .. } => linear(HIDDEN, HEADS * MLA.v_dim),
            };
            let mut gated = || [linear(INTER, HIDDEN), linear(INTER, HIDDEN), linear(HIDDEN, INTER)];
            let mixes = if kind.experts {
                let router = given(devices, WeightRole::Router, wide(EXPERTS, HIDDEN, 0.3), Precision::F32);
                // A row that rounding sends to another expert is far from the CPU's: where results are rounded, the
                // biases decide, for scores lie within 1 of each other.
                let bias = match stored {
                    Stored::Wide(Precision::F32) => vec![0.0, 0.1, 0.0, 0.2, 0.0, 0.05],
                    _ => vec![0.0, 3.0, 1.0, 5.0, 2.0, 4.0],
                };
                Mixes::Moe {
                    router: b.linear_weight(router, Precision::F32).expect("router"),
                    bias: b.vector(bias).expect("bias"),
                    experts: experts(devices, b, stored, &[0, 1, 2, 3, 4, 5]),
                    shared: gated(),
                }
            } else {
                Mixes::Dense(gated())
            };
            let cache = b.cache(BLOCKS, BLOCK_SIZE, widths.into(), CacheForm::of(base)).expect("cache");
            layers.push(ToyLayer { norm: norm(), attends, out, mlp_norm: norm(), mixes, cache });
        }
        let head = wide(VOCAB, HIDDEN, 0.3);
        let head = b.linear_weight(given(devices, WeightRole::Linear, head, base), base).expect("head");
        Toy { embed, layers, norm: norm(), head }
    }

    /// The result of the last layer, and what is drawn.
    fn step(&mut self, b: &mut B, rows: StepInputs) -> (Vec<f32>, StepOutputs) {
        let (hidden, drawn) = self.draw(b, rows);
        (b.to_host(&hidden), drawn)
    }

    fn draw(&mut self, b: &mut B, rows: StepInputs) -> (B::Tensor, StepOutputs) {
        let Toy { embed, layers, norm, head } = self;
        let batch = b.begin(rows).expect("begin");
        let hidden = b
            .run(&batch, |b| {
                let mut x = b.embed(embed, &batch);
                b.scale(&mut x, 1.5);
                let mut before: Option<B::Tensor> = None;
                for ToyLayer { norm, attends, out: o, mlp_norm, mixes, cache } in layers {
                    let h = match &before {
                        None => b.rms_norm(&x, norm, 1e-5),
                        Some(y) => b.add_norm(&mut x, y, 0.9, norm, 1e-5),
                    };
                    let out = match attends {
                        Attends::Gqa { q, k, v, bias, norm } => {
                            let (q, k, v) = (b.linear(&h, q, None), b.linear(&h, k, Some(bias)), b.linear(&h, v, None));
                            let (mut q, mut k) = (b.rms_norm(&q, norm, 1e-5), b.rms_norm(&k, norm, 1e-5));
                            let rope = rope_spec(HEAD_DIM, 0, HEAD_DIM, false);
                            b.rope(&batch, &mut q, &rope);
                            b.rope(&batch, &mut k, &rope);
                            let (heads, kv_heads, head_dim) = (HEADS, KV_HEADS, HEAD_DIM);
                            let spec = GqaSpec { heads, kv_heads, head_dim, scale: 0.35, window: Some(9) };
                            b.gqa_attention(&batch, &q, &k, &v, None, cache, &spec)
                        }
                        Attends::Mla { q, kv, norm, kv_b } => {
                            let mut q = b.linear(&h, q, None);
                            let (nope, rope) = (MLA.nope_dim, MLA.rope_dim);
                            b.rope(&batch, &mut q, &rope_spec(nope + rope, nope, rope, true));
                            let kv = b.linear(&h, kv, None);
                            let latent = b.rms_norm(&b.slice_cols(&kv, 0, MLA.kv_rank), norm, 1e-5);
                            let mut k_rope = b.slice_cols(&kv, MLA.kv_rank, rope);
                            b.rope(&batch, &mut k_rope, &rope_spec(rope, 0, rope, true));
                            b.mla_attention(&batch, &q, &latent, &k_rope, kv_b, None, cache, &MLA)?
                        }
                    };
                    let out = b.linear(&out, o, None);
                    let h = b.add_norm(&mut x, &out, 0.9, mlp_norm, 1e-5);
                    let gated = |[gate, up, down]: &[B::Linear; 3]| {
                        b.linear(&b.silu_mul(&b.linear(&h, gate, None), &b.linear(&h, up, None)), down, None)
                    };
                    before = Some(match mixes {
                        Mixes::Dense(weights) => gated(weights),
                        Mixes::Moe { router, bias, experts, shared } => {
                            let spec = RouteSpec {
                                top_k: TOP_K,
                                scoring: Scoring::Sigmoid,
                                n_group: 3,
                                topk_group: 2,
                                normalize: true,
                                scaling: 1.5,
                            };
                            let routes = b.moe_route(&b.linear(&h, router, None), Some(bias), &spec);
                            let shared = gated(shared);
                            b.moe(&batch, &h, &routes, experts, None, Some(&shared))?
                        }
                    });
                }
                before.iter().for_each(|y| b.add_scaled(&mut x, y, 0.9));
                Ok(x)
            })
            .expect("run");
        let head = OutputHead { norm, norm_bias: None, eps: 1e-5, weight: Some(head), scale: 0.5 };
        let drawn = b.draw(&batch, Some(&hidden), &head).expect("draw");
        let drawn = b.outputs(drawn).expect("outputs");
        (hidden, drawn)
    }
}

/// Two prompts of which one comes in two chunks, then decode steps of both; the last rows are drawn.
fn play<B: Backend>(toy: &mut Toy<B>, b: &mut B) -> Vec<(Vec<f32>, StepOutputs)> {
    let tables: [Vec<u32>; 2] = [vec![7, 3, 30, 2, 11, 5], vec![0, 39, 12, 6]];
    let span = |sequence: usize, row, len, start| Span { row, len, start, blocks: &tables[sequence] };
    let draw = |row| Draw {
        from: LogitsOf::Row(row),
        slot: None,
        sample: SampleSpec::default(),
        history: None,
        logprobs: Some(3),
    };
    let ids = |from: u32, n: u32| (from..from + n).map(|i| i * 7 % VOCAB as u32);
    let mut steps = Vec::new();
    let score = |row| Score { row, token: 3, top: 2 };
    let first = StepInputs {
        ids: ids(1, 9).chain(ids(20, 4)).collect(),
        spans: vec![span(0, 0, 9, 0), span(1, 9, 4, 0)],
        draws: vec![draw(12)],
        stashes: Vec::new(),
        scores: vec![score(2), score(8)],
        states: vec![8, 0],
        ..StepInputs::default()
    };
    steps.push(toy.step(b, first));
    let second = StepInputs {
        ids: ids(30, 3).chain(ids(40, 1)).collect(),
        spans: vec![span(0, 0, 3, 9), span(1, 3, 1, 4)],
        draws: vec![draw(3)],
        stashes: vec![Stash { row: 2, slot: 1 }],
        ..StepInputs::default()
    };
    steps.push(toy.step(b, second));
    for i in 0..5 {
        let from = |row: usize| if i == 0 && row == 0 { LogitsOf::Slot(1) } else { LogitsOf::Row(row) };
        let rows = StepInputs {
            ids: ids(i, 2).collect(),
            spans: vec![span(0, 0, 1, 12 + i as usize), span(1, 1, 1, 5 + i as usize)],
            draws: (0..2).map(|row| Draw { from: from(row), ..draw(row) }).collect(),
            ..StepInputs::default()
        };
        steps.push(toy.step(b, rows));
    }
    steps
}

fn played<D: Devices>(devices: &D, kind: Kind) -> Vec<(Vec<f32>, StepOutputs)> {
    let mut backend = devices.open_beside(0).expect("a backend");
    play(&mut Toy::new(devices, &backend, kind), &mut backend)
}

/// `apart` bounds differences and angles.
fn compare(devices: &CudaDevices, kind: Kind, apart: [f64; 2]) {
    compare_with(&CpuDevices { threads: 1 }, devices, kind, apart);
}

/// With the CPU that rounds as the device does.
fn compare_rounded(devices: &CudaDevices, kind: Kind, apart: [f64; 2]) {
    compare_with(&RoundingDevices { cpu: CpuDevices { threads: 1 } }, devices, kind, apart);
}

fn compare_with<D: Devices>(oracle: &D, devices: &CudaDevices, kind: Kind, apart: [f64; 2]) {
    let (want, got) = (played(oracle, kind), played(devices, kind));
    for (i, ((got, got_drawn), (want, want_drawn))) in got.iter().zip(&want).enumerate() {
        // Rows that fill up a bucket follow.
        let far = difference(&got[..want.len()], want);
        println!("{kind:?}, step {i}: {far}");
        assert!(far.max <= apart[0] && far.angle <= apart[1], "{kind:?}, step {i}: {far}");
        assert_eq!(
            (got_drawn.tokens.len(), got_drawn.scores.len(), got_drawn.states.len()),
            (want_drawn.tokens.len(), want_drawn.scores.len(), want_drawn.states.len())
        );
        let logprobs = |drawn: &StepOutputs| -> Vec<f32> {
            let of_tokens = drawn.tokens.iter().flatten().flat_map(|token| &token.logprob);
            of_tokens.chain(&drawn.scores).flat_map(|l| l.top.iter().map(|(_, l)| *l)).collect()
        };
        for (got, want) in got_drawn.states.iter().zip(&want_drawn.states) {
            let far = difference(got, want);
            assert!(far.max <= apart[0] && far.angle <= apart[1], "{kind:?}, step {i}: state {far}");
        }
        let far = difference(&logprobs(got_drawn), &logprobs(want_drawn));
        assert!(far.max <= apart[0] && far.angle <= apart[1], "{kind:?}, step {i}: logprobs {far}");
    }
}

#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda.py"]
fn a_model_of_f32_computes_as_on_the_cpu() {
    let devices = devices();
    for (latent, experts) in [(false, false), (true, true)] {
        compare(&devices, Kind { stored: Stored::Wide(Precision::F32), latent, experts }, [1e-4, 1e-9]);
    }
}

#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda.py"]
fn a_model_of_bf16_computes_as_on_the_cpu() {
    let devices = devices();
    for (latent, experts) in [(false, false), (true, true)] {
        compare(&devices, Kind { stored: Stored::Wide(Precision::Bf16), latent, experts }, [3e-2, 1e-4]);
    }
}

#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda.py"]
fn quantized_weights_are_multiplied_as_they_are_stored() {
    let devices = devices();
    compare(&devices, Kind { stored: Stored::Int4(ScaleForm::F32), latent: true, experts: true }, [5e-2, 1e-4]);
    for stored in [Stored::Int4(ScaleForm::F32), Stored::Int4(ScaleForm::Bf16)] {
        compare_rounded(&devices, Kind { stored, latent: true, experts: true }, [2e-2, 1e-4]);
    }
    // Scores of experts are added in another order than the CPU's. Their last bit may round an activation to the next
    // FP8 code, which is up to 1/8 away.
    for stored in [Stored::Fp8, Stored::Fp8ByOutput] {
        compare_rounded(&devices, Kind { stored, latent: true, experts: true }, [1e-1, 5e-4]);
    }
    // Activations are quantized too.
    compare(&devices, Kind { stored: Stored::Fp8, latent: true, experts: false }, [0.2, 2e-3]);
    compare(&devices, Kind { stored: Stored::Fp8, latent: true, experts: true }, [0.2, 2e-3]);
}

#[test]
#[ignore = "needs a CUDA driver: tests/py/test_cuda.py"]
fn bf16_scales_of_int4_give_the_bits_of_the_same_scales_in_f32() {
    let devices = devices();
    let bits = |stored| -> Vec<u32> {
        let steps = played(&devices, Kind { stored, latent: true, experts: true });
        steps.iter().flat_map(|(hidden, _)| hidden.iter().map(|x| x.to_bits())).collect()
    };
    assert_eq!(bits(Stored::Int4(ScaleForm::Bf16)), bits(Stored::Int4Widened));
}
