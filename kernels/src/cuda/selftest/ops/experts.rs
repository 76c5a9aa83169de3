//! Routing and experts: groups, bias, experts without rows, shared experts, experts from two loads, quantized weights.

use super::products::{Stored, rounded};
use super::{BF16, Differences, Pair, Row};
use crate::backend::*;
use crate::error::Result;
use crate::reference;

/// Hidden and inner width, experts, how they are chosen.
struct Case {
    hidden: usize,
    inter: usize,
    experts: usize,
    biased: bool,
    shared: bool,
    spec: RouteSpec,
}

fn cases() -> [Case; 4] {
    let softmax =
        RouteSpec { top_k: 2, scoring: Scoring::Softmax, n_group: 1, topk_group: 1, normalize: true, scaling: 1.0 };
    let sigmoid = RouteSpec { scoring: Scoring::Sigmoid, scaling: 2.5, ..softmax };
    let groups = RouteSpec { top_k: 4, n_group: 4, topk_group: 2, ..sigmoid };
    let plain = RouteSpec { top_k: 3, normalize: false, ..softmax };
    [
        Case { hidden: 64, inter: 32, experts: 4, biased: false, shared: false, spec: softmax },
        Case { hidden: 70, inter: 45, experts: 7, biased: false, shared: true, spec: plain },
        Case { hidden: 96, inter: 40, experts: 16, biased: true, shared: true, spec: groups },
        Case { hidden: 33, inter: 130, experts: 24, biased: true, shared: false, spec: sigmoid },
    ]
}

/// Of an expert's matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpertForm {
    Bf16,
    Fp8,
    Fp8ByOutput,
    Int4(ScaleForm),
    /// Gate in int4, the others in bf16.
    Mixed,
}

/// The numbers that a product has, and what its results are multiplied with.
fn codes_and_scales(Stored { weight, numbers }: &Stored) -> Result<(Vec<f32>, Vec<f32>)> {
    let (codes, scales) = weight.clone().split_output_scales();
    match codes.into_form(HostForm::F32)?.data {
        HostData::F32(codes) if !scales.is_empty() => Ok((codes, scales)),
        _ => Ok((numbers.clone(), scales)),
    }
}

impl<B: Backend> Pair<B> {
    /// Scores with gaps that exceed any rounding; in the last row all are equal.
    pub(super) fn scores(&mut self, rows: usize, experts: usize) -> Vec<f32> {
        let mut scores = Vec::with_capacity(rows * experts);
        for row in 0..rows {
            let mut places: Vec<usize> = (0..experts).collect();
            for i in 0..experts {
                places.swap(i, i + self.random.below(experts - i));
            }
            let equal = row > 0 && row + 1 == rows;
            scores.extend(places.iter().map(|&p| if equal { 0.5 } else { 3.0 * p as f32 / experts as f32 - 1.5 }));
        }
        scores
    }

    fn bias(&mut self, experts: usize) -> Vec<f32> {
        (0..experts).map(|_| self.random.below(1000) as f32 * 1e-3 - 0.5).collect()
    }

    pub(super) fn experts(&mut self) -> Result<Row> {
        // The device stores the results of each product as bf16.
        let mut check = self.differences_within();
        for case in cases() {
            let Case { hidden, inter, experts, biased, shared, spec } = case;
            let matrices: Vec<[HostMatrix; 3]> = (0..experts)
                .map(|_| [(inter, hidden), (inter, hidden), (hidden, inter)].map(|(o, i)| self.random.weight(o, i)))
                .collect();
            let weights = |ids: std::ops::Range<usize>| {
                let matrices = &matrices;
                ids.map(move |id| {
                    let [gate, up, down] = matrices[id].clone();
                    Ok(ExpertWeights { id: id as u32, gate, up, down })
                })
            };
            let table = ExpertTable { layer: 0, holders: vec![vec![0]; experts] };
            let whole = self.cpu.experts(table.clone(), &mut weights(0..experts), self.precision)?;
            // As after a move: some were held, and another load brought the rest.
            let held = self.device.experts(table.clone(), &mut weights(0..experts / 2), self.precision)?;
            let fresh = self.device.experts(table, &mut weights(experts / 2..experts), self.precision)?;
            let all: Vec<u32> = (0..experts as u32).collect();
            let moved = self.device.regroup(&held, &fresh, &all)?;
            let bias = self.bias(experts);
            let (on_device, on_cpu) = (self.device.vector(bias.clone())?, self.cpu.vector(bias)?);
            for &rows in self.row_counts() {
                let (x, x_cpu) = self.activation(rows, hidden)?;
                let (add, add_cpu) = self.activation(rows, hidden)?;
                let scores = self.scores(rows, experts);
                let step = StepInputs { ids: vec![0; rows], ..StepInputs::default() };
                let of_device = self.device.to_device(rows, experts, scores.clone());
                let routes = self.device.moe_route(&of_device, biased.then_some(&on_device), &spec);
                let batch = self.device.begin(step.clone())?;
                let got = self.device.moe(&batch, &x, &routes, &moved, None, shared.then_some(&add))?;
                let of_cpu = self.cpu.to_device(rows, experts, scores);
                let routes = self.cpu.moe_route(&of_cpu, biased.then_some(&on_cpu), &spec);
                let batch = self.cpu.begin(step)?;
                let want = self.cpu.moe(&batch, &x_cpu, &routes, &whole, None, shared.then_some(&add_cpu))?;
                let name = format!("{} of {experts} experts, [{rows}, {hidden}], inner {inter}", spec.top_k);
                check.compare(name, &self.device.to_host(&got), want.data());
            }
        }
        Ok(check.row())
    }

    /// Against loops that round where the kernels do. Every row takes all experts with the same weight.
    pub(super) fn experts_of(&mut self, form: ExpertForm) -> Result<Row> {
        let mut check = Differences::within(BF16);
        for (hidden, inter, experts) in [(128, 64, 3), (160, 140, 2)] {
            let mut numbers = Vec::new();
            let mut weights = Vec::new();
            for id in 0..experts as u32 {
                let mut one = |form, outs, ins| match form {
                    ExpertForm::Bf16 | ExpertForm::Mixed => self.random.bf16(outs, ins),
                    ExpertForm::Fp8 => self.random.fp8(outs, ins),
                    ExpertForm::Fp8ByOutput => self.random.fp8_by_output(outs, ins),
                    ExpertForm::Int4(scales) => self.random.int4(outs, ins, 32, scales),
                };
                let of_gate = if form == ExpertForm::Mixed { ExpertForm::Int4(ScaleForm::Bf16) } else { form };
                let [gate, up, down] =
                    [one(of_gate, inter, hidden)?, one(form, inter, hidden)?, one(form, hidden, inter)?];
                numbers.push([codes_and_scales(&gate)?, codes_and_scales(&up)?, codes_and_scales(&down)?]);
                weights.push(Ok(ExpertWeights { id, gate: gate.weight, up: up.weight, down: down.weight }));
            }
            let table = ExpertTable { layer: 0, holders: vec![vec![0]; experts] };
            let on_device = self.device.experts(table, &mut weights.into_iter(), self.precision)?;
            let spec = RouteSpec {
                top_k: experts,
                scoring: Scoring::Softmax,
                n_group: 1,
                topk_group: 1,
                normalize: true,
                scaling: 1.0,
            };
            for &rows in self.row_counts() {
                let (x, x_cpu) = self.activation(rows, hidden)?;
                let scores = self.device.to_device(rows, experts, vec![1.0; rows * experts]);
                let routes = self.device.moe_route(&scores, None, &spec);
                let batch = self.device.begin(StepInputs { ids: vec![0; rows], ..StepInputs::default() })?;
                let got = self.device.moe(&batch, &x, &routes, &on_device, None, None)?;
                let quantize = |x: &[f32], cols| match form {
                    ExpertForm::Fp8 | ExpertForm::Fp8ByOutput => reference::quantize_fp8(x, cols),
                    ExpertForm::Bf16 | ExpertForm::Int4(_) | ExpertForm::Mixed => x.to_vec(),
                };
                let input = quantize(x_cpu.data(), hidden);
                let mut want = vec![0.0; rows * hidden];
                // Each result on the way is stored as bf16.
                let product = |x: &[f32], (weight, scales): &(Vec<f32>, Vec<f32>), ins| {
                    let mut out = rounded(&reference::linear(x, weight, ins, None));
                    if !scales.is_empty() {
                        out.iter_mut().zip(scales.iter().cycle()).for_each(|(x, scale)| *x *= scale);
                    }
                    rounded(&out)
                };
                for [gate, up, down] in &numbers {
                    let (gate, up) = (product(&input, gate, hidden), product(&input, up, hidden));
                    let middle = rounded(&reference::silu_mul(&gate, &up));
                    let part = product(&quantize(&middle, inter), down, inter);
                    want.iter_mut().zip(part).for_each(|(w, p)| *w += p / experts as f32);
                }
                let case = format!("{experts} experts, [{rows}, {hidden}], inner {inter}");
                check.compare(case, &self.device.to_host(&got), &want);
            }
        }
        Ok(check.row())
    }
}
