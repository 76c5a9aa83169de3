//! Low-rank adapters of modules and of experts: several in one batch, rows without one, ranks up to the largest.

use super::{Pair, Row};
use crate::backend::*;
use crate::error::Result;

/// Of the adapters in slots; 0: the slot is empty.
const RANKS: [usize; 4] = [8, 0, 64, 3];
const HIDDEN: usize = 96;
const INTER: usize = 40;
const EXPERTS: usize = 6;

/// A span for each row, in slots that go round; every fifth has none.
fn step<'a>(rows: usize, blocks: &'a [u32]) -> StepInputs<'a> {
    let slot = |row: usize| (row % 5 != 4).then_some((row % RANKS.len()) as u32);
    StepInputs {
        ids: vec![0; rows],
        spans: (0..rows).map(|row| Span { row, len: 1, start: 0, blocks }).collect(),
        loras: (0..rows).map(slot).collect(),
        ..StepInputs::default()
    }
}

impl<B: Backend> Pair<B> {
    fn pair(&mut self, rank: usize, outs: usize, ins: usize) -> LowRankPair {
        LowRankPair { down: self.random.weight(rank, ins), up: self.random.weight(outs, rank) }
    }

    pub(super) fn low_rank(&mut self) -> Result<Row> {
        let mut check = self.differences();
        for (ins, outs) in [(1, 7), (HIDDEN, 70), (300, 513)] {
            let (mut table, mut table_cpu) = (self.device.low_rank(RANKS.len())?, self.cpu.low_rank(RANKS.len())?);
            for (slot, rank) in RANKS.into_iter().enumerate().filter(|(_, rank)| *rank > 0) {
                let pair = self.pair(rank, outs, ins);
                self.device.set_low_rank(&mut table, slot, Some(pair.clone()), self.precision)?;
                self.cpu.set_low_rank(&mut table_cpu, slot, Some(pair), self.precision)?;
            }
            for &rows in self.row_counts() {
                let ((x, x_cpu), (mut y, mut y_cpu)) = (self.activation(rows, ins)?, self.activation(rows, outs)?);
                let batch = self.device.begin(step(rows, &[0]))?;
                self.device.add_low_rank(&batch, &x, &mut y, &table);
                let batch = self.cpu.begin(step(rows, &[0]))?;
                self.cpu.add_low_rank(&batch, &x_cpu, &mut y_cpu, &table_cpu);
                check.compare(format_args!("[{rows}, {ins}] to {outs}"), &self.device.to_host(&y), y_cpu.data());
            }
        }
        Ok(check.row())
    }

    pub(super) fn adapted_experts(&mut self) -> Result<Row> {
        let mut check = self.differences_within();
        let shapes = [[INTER, HIDDEN], [INTER, HIDDEN], [HIDDEN, INTER]];
        let matrices: Vec<[HostMatrix; 3]> =
            (0..EXPERTS).map(|_| shapes.map(|[outs, ins]| self.random.weight(outs, ins))).collect();
        let weights = || {
            matrices.iter().zip(0..).map(|([gate, up, down], id)| {
                Ok(ExpertWeights { id, gate: gate.clone(), up: up.clone(), down: down.clone() })
            })
        };
        let table = ExpertTable { layer: 0, holders: vec![vec![0]; EXPERTS] };
        let on_device = self.device.experts(table.clone(), &mut weights(), self.precision)?;
        let on_cpu = self.cpu.experts(table, &mut weights(), self.precision)?;
        let places = RANKS.len() * EXPERTS;
        let mut tables = Vec::new();
        for [outs, ins] in shapes {
            let (mut table, mut table_cpu) = (self.device.low_rank(places)?, self.cpu.low_rank(places)?);
            for place in 0..places {
                // Not of every expert.
                let rank = RANKS[place / EXPERTS];
                if rank > 0 && place % 4 != 1 {
                    let pair = self.pair(rank, outs, ins);
                    self.device.set_low_rank(&mut table, place, Some(pair.clone()), self.precision)?;
                    self.cpu.set_low_rank(&mut table_cpu, place, Some(pair), self.precision)?;
                }
            }
            tables.push((table, table_cpu));
        }
        let [(gate, gate_cpu), (up, up_cpu), (down, down_cpu)] = &tables[..] else { unreachable!("three tables") };
        let adapters = ExpertAdapters { experts: EXPERTS, gate, up, down };
        let adapters_cpu = ExpertAdapters { experts: EXPERTS, gate: gate_cpu, up: up_cpu, down: down_cpu };
        let spec =
            RouteSpec { top_k: 2, scoring: Scoring::Softmax, n_group: 1, topk_group: 1, normalize: true, scaling: 1.0 };
        for &rows in self.row_counts() {
            let (x, x_cpu) = self.activation(rows, HIDDEN)?;
            let scores = self.scores(rows, EXPERTS);
            let routes = self.device.moe_route(&self.device.to_device(rows, EXPERTS, scores.clone()), None, &spec);
            let batch = self.device.begin(step(rows, &[0]))?;
            let got = self.device.moe(&batch, &x, &routes, &on_device, Some(adapters), None)?;
            let routes = self.cpu.moe_route(&self.cpu.to_device(rows, EXPERTS, scores), None, &spec);
            let batch = self.cpu.begin(step(rows, &[0]))?;
            let want = self.cpu.moe(&batch, &x_cpu, &routes, &on_cpu, Some(adapters_cpu), None)?;
            check.compare(format_args!("[{rows}, {HIDDEN}]"), &self.device.to_host(&got), want.data());
        }
        Ok(check.row())
    }
}
