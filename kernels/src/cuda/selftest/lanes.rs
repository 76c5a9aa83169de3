//! Latent attention over a cache whose positions are split over ranks: the bits of 2, 4 and 8 ranks, and how far they
//! are from the CPU's. Ranks share the device.

use std::ops::Range;

use super::super::backend::Cuda;
use super::super::fast::KernelTier;
use super::super::form::Element;
use super::super::weights::DeviceVector;
use super::group::{Group, on_ranks};
use super::{DeviceCheck, Row};
use crate::backend::{Backend, CacheForm, HostData, HostMatrix, KvSplit, MlaSpec, Precision, RowOps, Span, StepInputs};
use crate::collective::threads;
use crate::cpu::Cpu;
use crate::diff::worst_number;
use crate::error::Result;
use crate::kv_split::TILE;
use crate::random::Random;

const RANKS: [usize; 3] = [2, 4, 8];
const HEADS: usize = 8;
const BLOCK: usize = 16;
/// Tokens of each sequence before its last: the first has tiles in all lanes and again in the first.
const PROMPTS: [usize; 2] = [530, 10];
/// Of the first sequence, so many are only stored: an emulated device is slow.
const STORED: usize = 510;
/// Most that a number may differ from the CPU's, relative to its size if that is above 1.
const F32: f32 = 1e-4;
const BF16: f32 = 4e-2;

/// What is computed.
#[derive(Debug, Clone, Copy)]
struct Case {
    kernels: KernelTier,
    element: Element,
    codes: bool,
    widths: [usize; 2],
}

impl Case {
    fn name(&self) -> String {
        let element = if self.element == Element::F32 { "f32" } else { "bf16" };
        let kernels = if self.kernels == KernelTier::Fast { "fast" } else { "plain" };
        let codes = if self.codes { ", codes" } else { "" };
        format!("latent attention over split positions, {element}{codes}, {kernels} kernels")
    }

    fn spec(&self, heads: usize) -> MlaSpec {
        let [kv_rank, rope_dim] = self.widths;
        MlaSpec { heads, nope_dim: 24, rope_dim, v_dim: 16, kv_rank, scale: 0.1 }
    }

    fn form(&self) -> CacheForm {
        match (self.codes, self.element) {
            (true, _) => CacheForm::Fp8 { sharing: [self.widths[0].min(128), 0] },
            (false, Element::F32) => CacheForm::F32,
            (false, Element::Bf16) => CacheForm::Bf16,
        }
    }

    fn precision(&self) -> Precision {
        if self.element == Element::F32 { Precision::F32 } else { Precision::Bf16 }
    }
}

pub fn lanes(device: usize, takes_fast: bool) -> Vec<DeviceCheck<'static>> {
    let plain = Case { kernels: KernelTier::Plain, element: Element::F32, codes: false, widths: [32, 16] };
    let narrow = Case { element: Element::Bf16, ..plain };
    let fast = Case { kernels: KernelTier::Fast, widths: [512, 64], ..narrow };
    let cases = [plain, Case { codes: true, ..narrow }, fast, Case { codes: true, ..fast }];
    let cases = cases.into_iter().filter(|case| takes_fast || case.kernels == KernelTier::Plain);
    cases
        .map(|case| {
            DeviceCheck::new(case.name(), move |rows| {
                rows(compare(device, case)?);
                Ok(())
            })
        })
        .collect()
}

/// Inputs and results of the steps, [rows, all heads] or [rows] each.
struct Steps {
    q: Vec<Vec<f32>>,
    latent: Vec<Vec<f32>>,
    rope: Vec<Vec<f32>>,
    out: Vec<Vec<f32>>,
}

fn compare(device: usize, case: Case) -> Result<Row> {
    let [two, four, eight] = RANKS.map(|ranks| on_device(&Group::of_peers(device, ranks), case));
    let mut found = vec![two?, four?, eight?];
    let nccl = Group::over_nccl(device, 2)?.ok();
    if let Some(group) = &nccl {
        found.push(on_device(group, case)?);
    }
    let bits = |steps: &Steps| steps.out.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
    let same = found.iter().all(|steps| bits(steps) == bits(&found[0]));
    let want = on_cpu(case, &found[0])?;
    let worst = worst_number(&found[0].out.concat(), &want.concat());
    let tolerance = if case.element == Element::F32 { F32 } else { BF16 };
    let value = format!(
        "{} bits of 2, 4 and 8 ranks{}, the CPU's within {:.1e} ({tolerance:.0e} allowed)",
        if same { "equal" } else { "unequal" },
        if nccl.is_some() { ", and of 2 by NCCL" } else { "" },
        worst.apart
    );
    Ok(Row { passed: same && worst.apart <= f64::from(tolerance), ..Row::passed(case.name(), value) })
}

/// The rows of each step, by sequence: those that are only stored, the rest of the prompts, and a token of each.
fn parts() -> [Vec<(usize, Range<usize>)>; 3] {
    let [long, short] = PROMPTS;
    let last = vec![(0, long..long + 1), (1, short..short + 1)];
    [vec![(0, 0..STORED)], vec![(0, STORED..long), (1, 0..short)], last]
}

/// Tables whose blocks are of the rank that owns their positions.
fn tables(ranks: usize) -> (usize, Vec<Vec<u32>>) {
    let (run, mut next) = (TILE / BLOCK, vec![0u32; ranks]);
    let mut block = |place: usize| {
        let rank = place / run % ranks;
        next[rank] += 1;
        (next[rank] - 1) * ranks as u32 + rank as u32
    };
    let tables = PROMPTS.map(|tokens| (0..(tokens + 1).div_ceil(BLOCK)).map(&mut block).collect());
    (next.iter().max().map_or(1, |&blocks| blocks as usize), tables.into())
}

fn spans<'a>(step: &[(usize, Range<usize>)], tables: &'a [Vec<u32>]) -> Vec<Span<'a>> {
    let mut row = 0;
    let span = |(sequence, at): &(usize, Range<usize>)| {
        row += at.len();
        Span { row: row - at.len(), len: at.len(), start: at.start, blocks: &tables[*sequence] }
    };
    step.iter().map(span).collect()
}

/// Rows of all heads, the same on every number of ranks. Four magnitudes in turn, so that the norm of some heads is
/// that of all, to the bit.
fn numbers(step: usize, rows: usize, width: usize, salt: u64) -> Vec<f32> {
    let signs = Random::new(salt + 17 * step as u64).numbers(rows * width, 1.0);
    signs.iter().enumerate().map(|(i, sign)| [0.25, 0.5, 1.0, 2.0][(i + i / width) % 4] * sign.signum()).collect()
}

fn kv_b(case: Case, heads: Range<usize>) -> HostMatrix {
    let MlaSpec { nope_dim, v_dim, kv_rank, .. } = case.spec(HEADS);
    let all = Random::new(7).numbers(HEADS * (nope_dim + v_dim) * kv_rank, 0.2);
    let of_head = (nope_dim + v_dim) * kv_rank;
    let data = HostData::F32(all[heads.start * of_head..heads.end * of_head].to_vec());
    HostMatrix { rows: heads.len() * (nope_dim + v_dim), cols: kv_rank, data }
}

fn on_device(group: &Group, case: Case) -> Result<Steps> {
    let ranks = group.ranks();
    let heads = HEADS / ranks;
    let found = on_ranks(group, case.kernels, |cuda: &mut Cuda| {
        let (rank, spec) = (cuda.rank(), case.spec(heads));
        cuda.ops.activations.set(case.element);
        let weight = cuda.mla_weight(kv_b(case, rank * heads..(rank + 1) * heads), &spec, case.precision())?;
        let (blocks, tables) = tables(ranks);
        let mut cache = cuda.cache(blocks, BLOCK, case.widths, case.form())?;
        cuda.split_cache(&mut cache, KvSplit { rank, ranks })?;
        let q_width = heads * (spec.nope_dim + spec.rope_dim);
        // Freed after all steps: the driver may wait for the device then, and a device for another one.
        let [of_q, of_latent, of_rope] =
            [q_width, spec.kv_rank, spec.rope_dim].map(|width| cuda.vector(vec![1.0; width]));
        let (of_q, of_latent, of_rope) = (of_q?, of_latent?, of_rope?);
        let mut steps = Steps { q: vec![], latent: vec![], rope: vec![], out: vec![] };
        for (i, step) in parts().iter().enumerate() {
            let spans = spans(step, &tables);
            let rows = spans.iter().map(|span| span.len).sum();
            let batch = cuda.begin(StepInputs { ids: vec![0; rows], spans, ..StepInputs::default() })?;
            // Activations have their type behind a norm.
            let made = |ones: &DeviceVector, all: usize, first: usize, salt: u64| {
                let (numbers, width) = (numbers(i, rows, all, salt), ones.len);
                let mine = numbers.chunks(all).flat_map(|row| row[first..first + width].to_vec()).collect();
                let x = cuda.to_device(rows, width, mine);
                if case.element == Element::F32 { x } else { cuda.rms_norm(&x, ones, 1e-6) }
            };
            let q = made(&of_q, q_width * ranks, q_width * rank, 1);
            let latent = made(&of_latent, spec.kv_rank, 0, 2);
            let rope = made(&of_rope, spec.rope_dim, 0, 3);
            let out = match i {
                0 => {
                    cuda.ops.store_latent(&cuda.steps.placed(&batch), [&latent, &rope], &cache);
                    cuda.to_device(rows, 0, Vec::new())
                }
                _ => cuda.mla_attention(&batch, &q, &latent, &rope, &weight, None, &mut cache, &spec)?,
            };
            steps.q.push(cuda.to_host(&q));
            steps.latent.push(cuda.to_host(&latent));
            steps.rope.push(cuda.to_host(&rope));
            steps.out.push(cuda.to_host(&out));
            cuda.ops.check()?;
            cuda.group.check()?;
            // Nothing is offered when the next step begins.
            cuda.over_ranks().exchange(&[]);
            cuda.group.forget_offers();
        }
        Ok(steps)
    })?;
    let joined = |of: &dyn Fn(&Steps) -> &Vec<Vec<f32>>, step: usize| -> Vec<f32> {
        let rows = rows_of(step);
        let row = |one: &Steps, row: usize| {
            let width = of(one)[step].len() / rows;
            of(one)[step][row * width..][..width].to_vec()
        };
        (0..rows).flat_map(|i| found.iter().flat_map(move |one| row(one, i))).collect()
    };
    let all = |of: &dyn Fn(&Steps) -> &Vec<Vec<f32>>| (0..parts().len()).map(|step| joined(of, step)).collect();
    let Some(first) = found.first() else { return Ok(Steps { q: vec![], latent: vec![], rope: vec![], out: vec![] }) };
    Ok(Steps {
        q: all(&|steps| &steps.q),
        latent: first.latent.clone(),
        rope: first.rope.clone(),
        out: all(&|steps| &steps.out),
    })
}

fn rows_of(step: usize) -> usize {
    parts()[step].iter().map(|(_, at)| at.len()).sum()
}

/// The same of one rank, of the queries, latents and keys that a device had.
fn on_cpu(case: Case, of: &Steps) -> Result<Vec<Vec<f32>>> {
    let mut cpu = Cpu::new(1, Box::new(threads::alone()));
    let spec = case.spec(HEADS);
    let weight = cpu.mla_weight(kv_b(case, 0..HEADS), &spec, case.precision())?;
    let (blocks, tables) = tables(1);
    let mut cache = cpu.cache(blocks, BLOCK, case.widths, case.form())?;
    let mut results = Vec::new();
    for (i, step) in parts().iter().enumerate() {
        let (spans, rows) = (spans(step, &tables), rows_of(i));
        let batch = cpu.begin(StepInputs { ids: vec![0; rows], spans, ..StepInputs::default() })?;
        let [q, latent, rope] =
            [&of.q, &of.latent, &of.rope].map(|x| cpu.to_device(rows, x[i].len() / rows, x[i].clone()));
        let out = cpu.mla_attention(&batch, &q, &latent, &rope, &weight, None, &mut cache, &spec)?;
        results.push(if i == 0 { Vec::new() } else { cpu.to_host(&out) });
    }
    Ok(results)
}
