//! The fast kernels against the plain ones on the same device, at the widths of a rank of Kimi K2 (eight ranks):
//! numbers, and bits over the number of rows. On an emulated device the widths are small. A device without the fast
//! kernels has the figures alone.

use super::super::super::error::shape;
use super::super::super::fast::TileKernel;
use super::super::super::form::Element;
use super::super::super::image::has_fast_kernels;
use super::super::super::tensor::{CodeRows, Operand};
use super::super::super::{Cuda, CudaDevice, CudaDevices, KernelTier};
use super::super::{DeviceCheck, Row};
use super::{BF16, Differences, FEW_MULTIPROCESSORS, Stored};
use crate::backend::*;
use crate::error::Result;
use crate::random::Random;

/// Rows on both sides of the limit between tiles, and of a tile's end.
const ROWS: &[usize] = &[1, 64, 65, 200];
const ROWS_SMALL: &[usize] = &[1, 64, 70];

/// Widths of what is multiplied.
#[derive(Clone, Copy)]
struct Widths {
    /// Of a residual stream, of an expert, of the rank's part of the vocabulary.
    hidden: usize,
    inter: usize,
    vocab: usize,
    experts: usize,
    top_k: usize,
    heads: usize,
    /// Of a sequence in attention.
    length: usize,
    rows: &'static [usize],
}

const K2: Widths =
    Widths { hidden: 7168, inter: 2048, vocab: 20_480, experts: 12, top_k: 4, heads: 8, length: 4000, rows: ROWS };
const SMALL: Widths =
    Widths { hidden: 256, inter: 256, vocab: 264, experts: 5, top_k: 2, heads: 2, length: 530, rows: ROWS_SMALL };

/// Of attention over the latent cache.
const NOPE: usize = 128;
const ROPE: usize = 64;
const LATENT: usize = 512;
const BLOCK_SIZE: usize = 64;

/// A device with each kind of kernels, and what they are compared over.
pub(super) struct Tiers {
    pub fast: Cuda,
    pub plain: Cuda,
    pub random: Random,
    widths: Widths,
}

type TierCheck = fn(&mut Tiers) -> Result<Row>;

pub fn fast(device: &CudaDevice) -> Result<Vec<DeviceCheck<'static>>> {
    let devices = CudaDevices::open(&[device.index])?;
    let small = device.properties.multiprocessors < FEW_MULTIPROCESSORS;
    let widths = if small { SMALL } else { K2 };
    let opened = devices.clone();
    let figures = DeviceCheck::new("figures", move |rows| Tiers::new(&opened, widths)?.figures(small, rows));
    if !device.takes_fast() {
        let why = if has_fast_kernels() { "the device is not of compute capability 9.0" } else { "built without them" };
        let row = Row::passed("fast kernels", format!("skipped: {why}"));
        let skipped = DeviceCheck::new("fast kernels", move |rows| {
            rows(row);
            Ok(())
        });
        return Ok(vec![skipped, figures]);
    }
    let all: [(&str, TierCheck); 14] = [
        ("products with bf16 weights", |tiers| tiers.products(TestWeights::Bf16)),
        ("products with FP8 weights", |tiers| tiers.products(TestWeights::Fp8)),
        ("products with FP8 weights by output", |tiers| tiers.products(TestWeights::Fp8ByOutput)),
        ("experts in bf16", |tiers| tiers.experts(TestWeights::Bf16)),
        ("experts in FP8", |tiers| tiers.experts(TestWeights::Fp8)),
        ("experts in FP8 by output", |tiers| tiers.experts(TestWeights::Fp8ByOutput)),
        ("experts in int4", |tiers| tiers.experts(TestWeights::Int4)),
        ("experts in MXFP4", |tiers| tiers.experts(TestWeights::Mxfp4)),
        ("latent attention", Tiers::latent),
        ("bits of products over rows", Tiers::bits_of_products),
        ("bits of products over tiles", Tiers::bits_of_tiles),
        ("bits of products with shared codes", Tiers::bits_of_codes),
        ("bits of experts over rows", Tiers::bits_of_experts),
        ("bits of latent attention over rows", Tiers::bits_of_latent),
    ];
    let check = |(name, run): (&'static str, TierCheck)| {
        let devices = devices.clone();
        DeviceCheck::new(name, move |rows| {
            let mut tiers = Tiers::new(&devices, widths)?;
            let found = run(&mut tiers)?;
            // Results are zeros after an op that the device could not run: the error says more.
            tiers.fast.begin(StepInputs::default())?;
            rows(Row { name: name.into(), ..found });
            Ok(())
        })
    };
    let mut checks: Vec<_> = all.into_iter().map(check).collect();
    checks.push(figures);
    Ok(checks)
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum TestWeights {
    Bf16,
    Fp8,
    Fp8ByOutput,
    Int4,
    Mxfp4,
}

impl TestWeights {
    /// Of so many numbers, with scales of four-bit weights.
    pub fn bytes(self, numbers: usize) -> usize {
        match self {
            TestWeights::Bf16 => 2 * numbers,
            TestWeights::Fp8 | TestWeights::Fp8ByOutput => numbers,
            TestWeights::Int4 | TestWeights::Mxfp4 => numbers / 2 + numbers / 16,
        }
    }

    /// Hidden and inner width of experts with fast kernels: those of gpt-oss for MXFP4.
    pub fn widths_of_experts(self, usual: [usize; 2]) -> [usize; 2] {
        match self {
            TestWeights::Mxfp4 if usual[0] == K2.hidden => [2880; 2],
            TestWeights::Mxfp4 => [192; 2],
            _ => usual,
        }
    }

    fn of_experts(self, widths: Widths) -> Widths {
        let [hidden, inter] = self.widths_of_experts([widths.hidden, widths.inter]);
        Widths { hidden, inter, ..widths }
    }

    /// The widths at which experts are compared: DeepGEMM's kernels take multiples of 64 too.
    fn all_of_experts(self, widths: Widths) -> Vec<Widths> {
        let usual = self.of_experts(widths);
        // Half a block of scales is left.
        let odd = |width: usize| (width / 4).next_multiple_of(128) + 64;
        let odd = Widths { hidden: odd(usual.hidden), inter: odd(usual.inter), ..usual };
        match self {
            TestWeights::Int4 | TestWeights::Mxfp4 => vec![usual],
            TestWeights::Bf16 | TestWeights::Fp8 | TestWeights::Fp8ByOutput => vec![usual, odd],
        }
    }
}

pub(super) fn latent_spec(heads: usize) -> MlaSpec {
    let scale = ((NOPE + ROPE) as f32).powf(-0.5);
    MlaSpec { heads, nope_dim: NOPE, rope_dim: ROPE, v_dim: NOPE, kv_rank: LATENT, scale }
}

/// One sequence that a step continues: rows from `start` on.
struct Sequence {
    blocks: Vec<u32>,
    start: usize,
    len: usize,
}

/// A layer of latent attention and what its rows are made of, for `length` positions.
struct LatentLayer {
    spec: MlaSpec,
    kv_b: HostMatrix,
    queries: Vec<f32>,
    latents: Vec<f32>,
    ropes: Vec<f32>,
}

impl Tiers {
    fn new(devices: &CudaDevices, widths: Widths) -> Result<Tiers> {
        let open = |kernels| devices.clone().with_kernels(kernels).open_beside(0);
        let (fast, plain, mut random) = (open(KernelTier::Fast)?, open(KernelTier::Plain)?, Random::new(3));
        for backend in [&fast, &plain] {
            // The embedding decides the type of activations.
            backend.embedding(random.weight(1, 1), 0, Precision::Bf16)?;
        }
        Ok(Tiers { fast, plain, random, widths })
    }

    pub fn weight(&mut self, outs: usize, ins: usize, weights: TestWeights) -> Result<HostMatrix> {
        let Stored { weight, .. } = match weights {
            TestWeights::Bf16 => self.random.bf16(outs, ins)?,
            TestWeights::Fp8 => self.random.fp8(outs, ins)?,
            TestWeights::Fp8ByOutput => self.random.fp8_by_output(outs, ins)?,
            TestWeights::Int4 => self.random.int4(outs, ins, 32, ScaleForm::Bf16)?,
            TestWeights::Mxfp4 => self.random.mxfp4(outs, ins)?,
        };
        Ok(weight)
    }

    /// Activations: what a norm of these numbers gives.
    pub fn activation(backend: &Cuda, numbers: &[f32], cols: usize) -> Result<<Cuda as RowOps>::Tensor> {
        let ones = backend.vector(vec![1.0; cols])?;
        let x = backend.to_device(numbers.len() / cols, cols, numbers.to_vec());
        Ok(backend.rms_norm(&x, &ones, 1e-6))
    }

    fn products(&mut self, weights: TestWeights) -> Result<Row> {
        let mut check = Differences::within(BF16);
        let Widths { hidden, inter, vocab, rows, .. } = self.widths;
        for (ins, outs) in [(hidden, inter), (inter, hidden), (hidden, vocab), (128, 72)] {
            let weight = self.weight(outs, ins, weights)?;
            let on_fast = self.fast.linear_weight(weight.clone(), Precision::Bf16)?;
            let on_plain = self.plain.linear_weight(weight, Precision::Bf16)?;
            for &rows in rows {
                let numbers = self.random.numbers(rows * ins, 1.0);
                let product = |backend: &Cuda, weight| -> Result<Vec<f32>> {
                    let x = Self::activation(backend, &numbers, ins)?;
                    Ok(backend.to_host(&backend.linear(&x, weight, None)))
                };
                let (got, want) = (product(&self.fast, &on_fast)?, product(&self.plain, &on_plain)?);
                check.compare(format_args!("[{rows}, {ins}] to {outs}"), &got, &want);
            }
        }
        Ok(check.row())
    }

    /// Of an FP8 weight and what is quantized for it: once for two products, again after it has changed, and with
    /// silu(gate) * up made in the same kernel.
    fn bits_of_codes(&mut self) -> Result<Row> {
        let mut check = Differences::within(0.0);
        let Widths { hidden, inter, rows, .. } = self.widths;
        let weight = self.weight(inter, hidden, TestWeights::Fp8)?;
        for backend in [&self.fast, &self.plain] {
            let weight = backend.linear_weight(weight.clone(), Precision::Bf16)?;
            for &rows in rows {
                let numbers = [(); 2].map(|()| self.random.numbers(rows * hidden, 1.0));
                let [gate, up] = numbers.each_ref().map(|numbers| Self::activation(backend, numbers, hidden));
                let (gate, up) = (gate?, up?);
                let product = |x: &<Cuda as RowOps>::Tensor| backend.to_host(&backend.linear(x, &weight, None));
                let want = product(&backend.silu_mul(&gate, &up));
                let got = backend.to_host(&backend.silu_mul_linear(&gate, &up, &weight));
                check.compare(format_args!("silu(gate) * up, {rows} rows"), &got, &want);

                let mut x = backend.slice_cols(&gate, 0, hidden);
                let before = product(&x);
                check.compare(format_args!("codes of {rows} rows, again"), &product(&gate), &before);
                backend.sigmoid_mul(&mut x, &up);
                let mut fresh = Self::activation(backend, &numbers[0], hidden)?;
                backend.sigmoid_mul(&mut fresh, &up);
                check.compare(format_args!("codes of {rows} changed rows"), &product(&gate), &product(&fresh));
            }
        }
        Ok(check.row())
    }

    /// The bits of rows alone and among others.
    fn bits_of_products(&mut self) -> Result<Row> {
        let mut check = Differences::within(0.0);
        let Widths { hidden: ins, inter: outs, rows, .. } = self.widths;
        for weights in [TestWeights::Bf16, TestWeights::Fp8] {
            let weight = self.weight(outs, ins, weights)?;
            let weight = self.fast.linear_weight(weight, Precision::Bf16)?;
            let most = rows[rows.len() - 1];
            let numbers = self.random.numbers(most * ins, 1.0);
            let product = |rows: std::ops::Range<usize>| -> Result<Vec<f32>> {
                let x = Self::activation(&self.fast, &numbers[rows.start * ins..rows.end * ins], ins)?;
                Ok(self.fast.to_host(&self.fast.linear(&x, &weight, None)))
            };
            let all = product(0..most)?;
            for part in [0..1, most - 1..most, 3..67, 1..66] {
                let want = &all[part.start * outs..part.end * outs];
                check.compare(format_args!("rows {part:?} of {most}"), &product(part.clone())?, want);
            }
        }
        Ok(check.row())
    }

    /// The bits of a product by each tile that takes it.
    fn bits_of_tiles(&mut self) -> Result<Row> {
        let mut check = Differences::within(0.0);
        let (ins, rows) = (self.widths.hidden, 70);
        for (weights, out) in
            [(TestWeights::Bf16, Element::Bf16), (TestWeights::Bf16, Element::F32), (TestWeights::Fp8, Element::Bf16)]
        {
            let weight = self.weight(328, ins, weights)?;
            let weight = self.fast.linear_weight(weight, Precision::Bf16)?.0;
            let x = Self::activation(&self.fast, &self.random.numbers(rows * ins, 1.0), ins)?;
            let ops = &self.fast.ops;
            let operand = match weights {
                TestWeights::Fp8 => ops.quantized(&x, CodeRows::ByGroup),
                _ => Operand::plain(&x),
            };
            let plan = ops.dense_plan(&x, &weight, out).ok_or_else(|| shape("tiles", "no fast kernel".into()))?;
            let by = |tile: &TileKernel| {
                let result = ops.tensor(rows, weight.outs, out);
                ops.fast_dense(tile, &operand, &weight, &result);
                self.fast.to_host(&result)
            };
            let want = by(plan.tile(rows));
            plan.tiles().for_each(|tile| check.compare(tile.kernel, &by(tile), &want));
        }
        Ok(check.row())
    }

    /// Experts, a router's scores for rows, and the rows. The first expert gets no row, the second one of each.
    fn moe(&mut self, weights: TestWeights, widths: Widths, rows: usize) -> Result<MoeCase> {
        let Widths { hidden, inter, experts, .. } = widths;
        let matrices = (0..experts)
            .map(|_| {
                let gate = self.weight(inter, hidden, weights)?;
                Ok([gate, self.weight(inter, hidden, weights)?, self.weight(hidden, inter, weights)?])
            })
            .collect::<Result<Vec<_>>>()?;
        let mut scores = self.random.numbers(rows * experts, 1.0);
        for row in scores.chunks_mut(experts) {
            (row[0], row[1]) = (-9.0, 9.0);
        }
        // gpt-oss has biases and limits.
        let biases = (weights == TestWeights::Mxfp4)
            .then(|| [inter, inter, hidden].map(|width| self.random.numbers(experts * width, 0.3)));
        Ok(MoeCase { matrices, biases, scores, numbers: self.random.numbers(rows * hidden, 1.0) })
    }

    fn experts(&mut self, weights: TestWeights) -> Result<Row> {
        let mut check = Differences::of_roundings();
        let most = *self.widths.rows.last().expect("some rows");
        for widths in weights.all_of_experts(self.widths) {
            let case = self.moe(weights, widths, most)?;
            let (fast, plain) = (case.load(&self.fast)?, case.load(&self.plain)?);
            for &rows in widths.rows {
                let got = case.run(&mut self.fast, &fast, 0..rows, widths)?;
                let want = case.run(&mut self.plain, &plain, 0..rows, widths)?;
                let Widths { hidden, inter, experts, top_k, .. } = widths;
                let name = format_args!("{rows} rows to {top_k} of {experts} experts of {hidden} and {inter}");
                check.compare(name, &got, &want);
            }
        }
        Ok(check.row())
    }

    fn bits_of_experts(&mut self) -> Result<Row> {
        let mut check = Differences::within(0.0);
        // Enough rows for the largest tile, and for the one of 32 rows.
        let of_each = |rows: usize| rows * self.widths.experts / self.widths.top_k + 1;
        let (most, some) = (of_each(65), of_each(9));
        let forms = [TestWeights::Bf16, TestWeights::Fp8, TestWeights::Int4, TestWeights::Mxfp4];
        let cases =
            forms.into_iter().flat_map(|form| form.all_of_experts(self.widths).into_iter().map(move |w| (form, w)));
        for (weights, widths) in cases.collect::<Vec<_>>() {
            let case = self.moe(weights, widths, most)?;
            let experts = case.load(&self.fast)?;
            let all = case.run(&mut self.fast, &experts, 0..most, widths)?;
            for part in [0..1, most - 1..most, 3..67, 2..2 + some] {
                let got = case.run(&mut self.fast, &experts, part.clone(), widths)?;
                let want = &all[part.start * widths.hidden..part.end * widths.hidden];
                check.compare(format_args!("rows {part:?} of {most}"), &got, want);
            }
        }
        Ok(check.row())
    }

    fn latent_layer(&mut self) -> LatentLayer {
        let Widths { heads, length, .. } = self.widths;
        LatentLayer {
            spec: latent_spec(heads),
            kv_b: self.random.weight(heads * 2 * NOPE, LATENT),
            queries: self.random.numbers(length * heads * (NOPE + ROPE), 1.0),
            latents: self.random.numbers(length * LATENT, 1.0),
            ropes: self.random.numbers(length * ROPE, 1.0),
        }
    }

    /// A long sequence in chunks of all sizes, a short one beside its last.
    fn latent(&mut self) -> Result<Row> {
        let mut check = Differences::of_roundings();
        let (layer, length) = (self.latent_layer(), self.widths.length);
        let steps = latent_steps(length);
        for form in [CacheForm::Bf16, FP8_CACHE] {
            let (got, want) = (layer.run(&mut self.fast, form, &steps)?, layer.run(&mut self.plain, form, &steps)?);
            for (step, (got, want)) in got.iter().zip(&want).enumerate() {
                check.compare(format_args!("step {step} of a sequence of {length}, {form:?}"), got, want);
            }
        }
        Ok(check.row())
    }

    fn bits_of_latent(&mut self) -> Result<Row> {
        let mut check = Differences::within(0.0);
        let (layer, length) = (self.latent_layer(), self.widths.length);
        let width = self.widths.heads * NOPE;
        // All rows at once, and by chunks beside another sequence.
        for form in [CacheForm::Bf16, FP8_CACHE] {
            let whole = layer.run(&mut self.fast, form, &[vec![Sequence::new(0, 0, length, length)]])?.concat();
            let mut at = 0;
            let steps = latent_steps(length);
            for (step, rows) in steps.iter().zip(layer.run(&mut self.fast, form, &steps)?) {
                let len = step[0].len;
                let want = &whole[at * width..(at + len) * width];
                check.compare(format_args!("positions {at} to {}, {form:?}", at + len), &rows[..len * width], want);
                at += len;
            }
        }
        Ok(check.row())
    }
}

const FP8_CACHE: CacheForm = CacheForm::Fp8 { sharing: [128, 0] };

/// One sequence in chunks, in the last of which another begins.
fn latent_steps(length: usize) -> Vec<Vec<Sequence>> {
    let mut steps = Vec::new();
    let mut at = 0;
    for len in [length / 2, 1, 7, length / 2 - 10, 1, 1] {
        steps.push(vec![Sequence::new(0, at, len, length)]);
        at += len;
    }
    let last = steps.last_mut().expect("some steps");
    last.push(Sequence::new(length.div_ceil(BLOCK_SIZE) as u32, 0, 65, 65));
    steps
}

impl Sequence {
    /// With blocks from `first` on, in descending order.
    fn new(first: u32, start: usize, len: usize, length: usize) -> Sequence {
        let blocks = (0..length.div_ceil(BLOCK_SIZE) as u32).rev().map(|block| first + block).collect();
        Sequence { blocks, start, len }
    }
}

impl LatentLayer {
    /// The results of each step.
    fn run(&self, backend: &mut Cuda, form: CacheForm, steps: &[Vec<Sequence>]) -> Result<Vec<Vec<f32>>> {
        let weight = backend.mla_weight(self.kv_b.clone(), &self.spec, Precision::Bf16)?;
        let positions = self.latents.len() / LATENT;
        let blocks = positions.div_ceil(BLOCK_SIZE) + 2;
        let mut cache = backend.cache(blocks, BLOCK_SIZE, [LATENT, ROPE], form)?;
        let mut results = Vec::new();
        for step in steps {
            let of = |numbers: &[f32], width: usize| -> Vec<f32> {
                let rows = step.iter().map(|s| &numbers[s.start * width..(s.start + s.len) * width]);
                rows.flatten().copied().collect()
            };
            let query_width = self.spec.heads * (NOPE + ROPE);
            let q = Tiers::activation(backend, &of(&self.queries, query_width), query_width)?;
            let latent = Tiers::activation(backend, &of(&self.latents, LATENT), LATENT)?;
            let rope = Tiers::activation(backend, &of(&self.ropes, ROPE), ROPE)?;
            let mut row = 0;
            let spans = step.iter().map(|s| {
                let span = Span { row, len: s.len, start: s.start, blocks: &s.blocks[..] };
                row += s.len;
                span
            });
            let spans: Vec<_> = spans.collect();
            let inputs = StepInputs { ids: vec![0; row], spans, ..StepInputs::default() };
            let batch = backend.begin(inputs)?;
            let out = backend.mla_attention(&batch, &q, &latent, &rope, &weight, None, &mut cache, &self.spec)?;
            results.push(backend.to_host(&out));
        }
        Ok(results)
    }
}

struct MoeCase {
    matrices: Vec<[HostMatrix; 3]>,
    /// Of gates, ups and downs.
    biases: Option<[Vec<f32>; 3]>,
    scores: Vec<f32>,
    numbers: Vec<f32>,
}

impl MoeCase {
    fn load(&self, backend: &Cuda) -> Result<<Cuda as Backend>::Experts> {
        let weights = self.matrices.iter().zip(0u32..).map(|(matrices, id)| {
            let [gate, up, down] = matrices.clone();
            Ok(ExpertWeights { id, gate, up, down })
        });
        let table = ExpertTable { layer: 0, holders: vec![vec![0]; self.matrices.len()] };
        let mut experts = backend.experts(table, &mut weights.into_iter(), Precision::Bf16)?;
        if let Some(biases) = self.biases.clone() {
            let [gate, up, down] = biases.map(|bias| backend.vector(bias));
            let gate = ClampedGate { gate: gate?, up: up?, down: down?, alpha: 1.702, limit: 1.5 };
            backend.clamp_experts(&mut experts, gate);
        }
        Ok(experts)
    }

    fn run(
        &self,
        backend: &mut Cuda,
        experts: &<Cuda as Backend>::Experts,
        rows: std::ops::Range<usize>,
        widths: Widths,
    ) -> Result<Vec<f32>> {
        let Widths { hidden, experts: count, top_k, .. } = widths;
        let spec =
            RouteSpec { top_k, scoring: Scoring::Sigmoid, n_group: 1, topk_group: 1, normalize: true, scaling: 1.0 };
        let scores = self.scores[rows.start * count..rows.end * count].to_vec();
        let scores = backend.to_device(rows.len(), count, scores);
        let routes = backend.moe_route(&scores, None, &spec);
        let x = Tiers::activation(backend, &self.numbers[rows.start * hidden..rows.end * hidden], hidden)?;
        let batch = backend.begin(StepInputs { ids: vec![0; rows.len()], ..StepInputs::default() })?;
        let out = backend.moe(&batch, &x, &routes, experts, None, None)?;
        Ok(backend.to_host(&out))
    }
}
