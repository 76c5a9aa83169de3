//! Times of ops at the widths of a rank of Kimi K2 over eight GPUs, with the fast kernels and the plain ones: as a
//! share of the rate at which a copy reads and writes, or as a rate of arithmetic. A device without the fast kernels
//! has the times of the plain ones. Times on an emulated device say nothing.

use super::super::super::Cuda;
use super::super::{RowSink, copy_rate, milliseconds};
use super::Row;
use super::fast::{TestWeights, Tiers, latent_spec};
use crate::backend::*;
use crate::error::Result;

const BLOCK_SIZE: usize = 64;

/// Sizes of what is timed.
#[derive(Clone, Copy)]
struct Sizes {
    hidden: usize,
    inter: usize,
    /// Columns of a dense weight in a step that decodes, and in a prefill.
    wide: usize,
    narrow: usize,
    experts: usize,
    /// Rows of a step that decodes, of smaller ones, of a prefill, and of an expert in one.
    rows: usize,
    fewer: &'static [usize],
    many: usize,
    of_expert: usize,
    heads: usize,
    context: usize,
}

const K2: Sizes = Sizes {
    hidden: 7168,
    inter: 2048,
    wide: 16_384,
    narrow: 4096,
    experts: 48,
    rows: 64,
    fewer: &[1, 16],
    many: 8192,
    of_expert: 256,
    heads: 8,
    context: 4096,
};
const SMALL: Sizes = Sizes {
    hidden: 256,
    inter: 256,
    wide: 256,
    narrow: 256,
    experts: 2,
    rows: 2,
    fewer: &[1],
    many: 3,
    of_expert: 2,
    heads: 2,
    context: 4,
};

/// What an op does at least.
enum Work {
    Bytes(usize),
    Operations(usize),
}

impl Work {
    /// `copied`: bytes per second of a copy, read and written.
    fn figure(&self, seconds: f64, copied: f64) -> String {
        let time = format!("{:.1} us", seconds * 1e6);
        match *self {
            Work::Bytes(bytes) => format!("{time}, {:.0} % of a copy's rate", bytes as f64 / seconds / copied * 100.0),
            Work::Operations(count) => format!("{time}, {:.1} TFLOP/s", count as f64 / seconds / 1e12),
        }
    }

    fn number(&self) -> (&'static str, f64) {
        match *self {
            Work::Bytes(bytes) => ("bytes", bytes as f64),
            Work::Operations(count) => ("operations", count as f64),
        }
    }
}

/// Seconds of an op.
fn seconds(backend: &Cuda, mut op: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut result = Ok(());
    let time = milliseconds(&backend.ops.device, || {
        if result.is_ok() {
            result = op();
        }
        Ok(())
    })?;
    result.and_then(|()| backend.ops.check())?;
    Ok(time / 1e3)
}

/// Seconds of an op with each kind of kernels.
struct Times {
    fast: Option<f64>,
    plain: f64,
}

impl Tiers {
    pub(super) fn figures(&mut self, small: bool, rows: &mut RowSink) -> Result<()> {
        let (sizes, copied) = (if small { SMALL } else { K2 }, copy_rate(&self.fast.ops.device)?);
        let mut row = |name: String, work: Work, Times { fast, plain }: Times| {
            let (mut numbers, mut values) = (vec![work.number()], Vec::new());
            for (tier, figure, seconds) in [("fast", "fast_us", fast), ("plain", "plain_us", Some(plain))] {
                let Some(seconds) = seconds else { continue };
                numbers.push((figure, seconds * 1e6));
                values.push(format!("{tier} {}", work.figure(seconds, copied)));
            }
            rows(Row { numbers, ..Row::passed(name, values.join("; ")) });
        };
        let Sizes { hidden, inter, experts, heads, context, .. } = sizes;
        for weights in [TestWeights::Fp8, TestWeights::Bf16, TestWeights::Int4, TestWeights::Mxfp4] {
            for &few in sizes.fewer.iter().chain([&sizes.rows]) {
                let times = self.dense(weights, [few, sizes.wide, hidden])?;
                let work = Work::Bytes(weights.bytes(sizes.wide * hidden));
                row(format!("{weights:?}: [{few}, {hidden}] to {}", sizes.wide), work, times);
            }
            let times = self.dense(weights, [sizes.many, sizes.narrow, hidden])?;
            let work = Work::Operations(2 * sizes.many * sizes.narrow * hidden);
            row(format!("{weights:?}: [{}, {hidden}] to {}", sizes.many, sizes.narrow), work, times);
        }
        for weights in [TestWeights::Fp8, TestWeights::Int4, TestWeights::Mxfp4] {
            let [hidden, inter] = weights.widths_of_experts([hidden, inter]);
            let sizes = Sizes { hidden, inter, ..sizes };
            let (few, many) = (sizes.rows, experts * sizes.of_expert);
            let times = self.moe_times(weights, few, sizes)?;
            let work = Work::Bytes(experts.min(few) * weights.bytes(3 * hidden * inter));
            row(format!("{weights:?}: {few} rows to {experts} experts"), work, times);
            let times = self.moe_times(weights, many, sizes)?;
            let work = Work::Operations(6 * many * hidden * inter);
            row(format!("{weights:?}: {many} rows to {experts} experts"), work, times);
        }
        let times = self.latent_times(sizes)?;
        let spec = latent_spec(heads);
        let work = Work::Bytes(sizes.rows * context * 2 * (spec.kv_rank + spec.rope_dim));
        row(format!("latent attention: {} rows after {context} tokens, {heads} heads", sizes.rows), work, times);
        Ok(())
    }

    fn times(&mut self, time: impl Fn(&mut Cuda) -> Result<f64>) -> Result<Times> {
        let has_fast = self.fast.ops.device.has_fast();
        Ok(Times { fast: has_fast.then(|| time(&mut self.fast)).transpose()?, plain: time(&mut self.plain)? })
    }

    fn dense(&mut self, weights: TestWeights, [rows, outs, ins]: [usize; 3]) -> Result<Times> {
        let (weight, numbers) = (self.weight(outs, ins, weights)?, self.random.numbers(rows * ins, 1.0));
        self.times(|backend: &mut Cuda| {
            let backend = &*backend;
            let held = backend.linear_weight(weight.clone(), Precision::Bf16)?;
            let x = Tiers::activation(backend, &numbers, ins)?;
            seconds(backend, || {
                backend.linear(&x, &held, None);
                Ok(())
            })
        })
    }

    /// Each row goes to one expert, one after the other.
    fn moe_times(&mut self, weights: TestWeights, rows: usize, sizes: Sizes) -> Result<Times> {
        let Sizes { hidden, inter, experts, .. } = sizes;
        let gate = self.weight(inter, hidden, weights)?;
        let (up, down) = (self.weight(inter, hidden, weights)?, self.weight(hidden, inter, weights)?);
        let numbers = self.random.numbers(rows * hidden, 1.0);
        let mut scores = vec![-1.0; rows * experts];
        (0..rows).for_each(|row| scores[row * experts + row % experts] = 1.0);
        self.times(|backend: &mut Cuda| {
            let mut all = (0..experts as u32).map(|id| {
                let [gate, up, down] = [&gate, &up, &down].map(HostMatrix::clone);
                Ok(ExpertWeights { id, gate, up, down })
            });
            let table = ExpertTable { layer: 0, holders: vec![vec![0]; experts] };
            let held = backend.experts(table, &mut all, Precision::Bf16)?;
            let spec = RouteSpec {
                top_k: 1,
                scoring: Scoring::Sigmoid,
                n_group: 1,
                topk_group: 1,
                normalize: true,
                scaling: 1.0,
            };
            let routes = backend.moe_route(&backend.to_device(rows, experts, scores.clone()), None, &spec);
            let x = Tiers::activation(backend, &numbers, hidden)?;
            let batch = backend.begin(StepInputs { ids: vec![0; rows], ..StepInputs::default() })?;
            let backend = &*backend;
            seconds(backend, || backend.moe(&batch, &x, &routes, &held, None, None).map(drop))
        })
    }

    /// Sequences of one length that draw a token each.
    fn latent_times(&mut self, sizes: Sizes) -> Result<Times> {
        let Sizes { rows, heads, context, .. } = sizes;
        let spec = latent_spec(heads);
        let MlaSpec { nope_dim, rope_dim, v_dim, kv_rank, .. } = spec;
        let kv_b = self.random.weight(heads * (nope_dim + v_dim), kv_rank);
        let numbers = self.random.numbers(rows * heads * (nope_dim + rope_dim).max(kv_rank), 1.0);
        let of_one = context.div_ceil(BLOCK_SIZE);
        let tables: Vec<Vec<u32>> =
            (0..rows).map(|i| (i * of_one..(i + 1) * of_one).map(|b| b as u32).collect()).collect();
        self.times(|backend: &mut Cuda| {
            let weight = backend.mla_weight(kv_b.clone(), &spec, Precision::Bf16)?;
            let mut cache = backend.cache(rows * of_one, BLOCK_SIZE, [kv_rank, rope_dim], CacheForm::Bf16)?;
            let of = |width: usize| Tiers::activation(backend, &numbers[..rows * width], width);
            let (q, latent, rope) = (of(heads * (nope_dim + rope_dim))?, of(kv_rank)?, of(rope_dim)?);
            // The cache has finite numbers at all positions.
            for start in 0..context {
                let batch = backend.begin(one_row_each(&tables, start))?;
                let backend = &*backend;
                if start + 1 < context {
                    backend.ops.store_latent(&backend.steps.placed(&batch), [&latent, &rope], &cache);
                    continue;
                }
                return seconds(backend, || {
                    backend.mla_attention(&batch, &q, &latent, &rope, &weight, None, &mut cache, &spec)?;
                    Ok(())
                });
            }
            unreachable!("a context of no tokens")
        })
    }
}

/// A step in which each sequence has one row, at the same position.
fn one_row_each(tables: &[Vec<u32>], start: usize) -> StepInputs<'_> {
    let spans = tables.iter().enumerate().map(|(row, blocks)| Span { row, len: 1, start, blocks });
    StepInputs { ids: vec![0; tables.len()], spans: spans.collect(), ..StepInputs::default() }
}
