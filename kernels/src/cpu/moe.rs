//! The experts of one rank. Rows are grouped by expert, and each expert's weights are read once for all its rows. The
//! contributions of several experts to a row are added in the order in which the experts are held.

mod adapted;
mod clamped;

use std::sync::Arc;

pub(crate) use clamped::ClampedExpert;

use super::gemm::{self, Packed};
use super::low_rank::AdaptedRows;
use super::pool::{SharedPtr, ThreadPool};
use super::route::Routes;
use super::rows::silu_mul;
use super::simd::Isa;
use super::weights::{GROUP, PANEL, Panels};
use super::{Cpu, Tensor, zeros};
use crate::backend::{ClampedGate, ExpertTable};
use crate::error::{KernelError, Result};

#[derive(Clone)]
struct Expert {
    id: u32,
    gate: Panels,
    up: Panels,
    down: Panels,
}

pub struct Experts {
    table: ExpertTable,
    held: Vec<Expert>,
    /// For each global id, its index among the held experts; `ABSENT` for experts of other ranks.
    place: Vec<u32>,
    /// None: silu(gate) * up, without biases.
    clamped: Option<Arc<ClampedGate<Vec<f32>>>>,
}

const ABSENT: u32 = u32::MAX;

impl Experts {
    pub fn new(table: ExpertTable) -> Experts {
        Experts { table, held: Vec::new(), place: Vec::new(), clamped: None }
    }

    pub fn table(&self) -> &ExpertTable {
        &self.table
    }

    /// [inter, hidden] of the held experts.
    pub fn shape(&self) -> Option<(usize, usize)> {
        self.held.first().map(|expert| (expert.gate.outs, expert.gate.ins))
    }

    pub fn clamp(&mut self, gate: ClampedGate<Vec<f32>>) {
        self.clamped = Some(Arc::new(gate));
    }

    fn clamped(&self, id: u32) -> Option<ClampedExpert<'_>> {
        let (inter, hidden) = self.shape()?;
        self.clamped.as_ref().map(|all| ClampedExpert::of(all, id, [inter, hidden]))
    }

    /// All experts take activations in the same way.
    pub fn push(&mut self, id: u32, [gate, up, down]: [Panels; 3]) -> Result<()> {
        let taken = |expert: [&Panels; 3]| expert.map(|panels| panels.takes());
        let first = self.held.first().map(|first| taken([&first.gate, &first.up, &first.down]));
        if gate.takes() != up.takes() || first.is_some_and(|first| first != taken([&gate, &up, &down])) {
            let what = format!("expert {id}: must be stored like the layer's other experts");
            return Err(KernelError::Shape { op: "experts", what });
        }
        self.insert(Expert { id, gate, up, down })
    }

    fn insert(&mut self, expert: Expert) -> Result<()> {
        let at = expert.id as usize;
        if self.place.len() <= at {
            self.place.resize(at + 1, ABSENT);
        }
        if self.place[at] != ABSENT {
            return Err(KernelError::expert_added_twice("experts", expert.id));
        }
        self.place[at] = self.held.len() as u32;
        self.held.push(expert);
        Ok(())
    }

    /// Each held expert's id and matrices, with its entry of `of`.
    fn with<'a, T>(&'a self, of: &'a [T]) -> impl Iterator<Item = (u32, [&'a Panels; 3], &'a T)> {
        self.held.iter().zip(of).map(|(expert, of)| (expert.id, [&expert.gate, &expert.up, &expert.down], of))
    }

    fn find(&self, id: u32) -> Option<usize> {
        self.place.get(id as usize).filter(|&&place| place != ABSENT).map(|&place| place as usize)
    }

    /// The experts with these ids, from `self` or from `fresh`, with the table of `fresh`. Weights are not copied.
    pub fn regroup(&self, fresh: &Experts, ids: &[u32]) -> Result<Experts> {
        let mut experts = Experts::new(fresh.table.clone());
        experts.clamped = self.clamped.clone();
        for &id in ids {
            let missing = || KernelError::Shape { op: "regroup", what: format!("expert {id} is not held") };
            let of = |from: &Experts| from.find(id).map(|place| from.held[place].clone());
            experts.insert(of(self).or_else(|| of(fresh)).ok_or_else(missing)?)?;
        }
        Ok(experts)
    }
}

/// One row's use of one expert: weight times the result is added to row `to`.
#[derive(Clone, Copy)]
struct Pick {
    from: usize,
    to: usize,
    weight: f32,
}

/// The rows of one expert.
struct Group<'a> {
    expert: &'a Expert,
    clamped: Option<ClampedExpert<'a>>,
    rows: Vec<Pick>,
}

/// By held expert, all routes that go to it, or those of `picks`.
fn picks_of(routes: &Routes, picks: Option<&[u32]>, experts: &Experts) -> Vec<Vec<Pick>> {
    let mut rows_of: Vec<Vec<Pick>> = vec![Vec::new(); experts.held.len()];
    let mut add = |route: usize, to: usize| {
        if let Some(place) = experts.find(routes.experts[route]) {
            rows_of[place].push(Pick { from: route / routes.top_k, to, weight: routes.weights[route] });
        }
    };
    match picks {
        Some(picks) => picks.iter().enumerate().for_each(|(to, &route)| add(route as usize, to)),
        None => (0..routes.experts.len()).for_each(|route| add(route, route / routes.top_k)),
    }
    rows_of
}

impl Cpu {
    fn through_experts(
        &self,
        x: &Tensor,
        routes: &Routes,
        picks: Option<&[u32]>,
        experts: &Experts,
        adapted: Option<&AdaptedRows>,
    ) -> Tensor {
        assert_eq!(routes.experts.len(), x.rows * routes.top_k, "moe: each row must have top_k routes");
        assert!(
            experts.shape().is_none_or(|(_, hidden)| hidden == x.cols),
            "moe: x must have as many columns as the experts have inputs"
        );
        let mut out = zeros(picks.map_or(x.rows, <[u32]>::len), x.cols);
        let mut rows_of = picks_of(routes, picks, experts);
        if let Some(adapted) = adapted {
            self.adapted_experts_into(x, adapted, &rows_of, experts, &mut out);
            rows_of.iter_mut().for_each(|picks| picks.retain(|pick| adapted.slot(pick.from).is_none()));
        }
        experts_into(&self.pool, self.isa, &x.data, rows_of, experts, &mut out.data);
        out
    }

    /// All routes to the experts of this rank. A row's contributions are added in the order in which the experts are
    /// held.
    pub(super) fn moe_experts(
        &self,
        x: &Tensor,
        routes: &Routes,
        experts: &Experts,
        adapted: Option<&AdaptedRows>,
    ) -> Tensor {
        self.through_experts(x, routes, None, experts, adapted)
    }

    /// Some of the routes, given by index: one row per route.
    pub(super) fn moe_parts(
        &self,
        x: &Tensor,
        routes: &Routes,
        picks: &[u32],
        experts: &Experts,
        adapted: Option<&AdaptedRows>,
    ) -> Tensor {
        self.through_experts(x, routes, Some(picks), experts, adapted)
    }
}

/// Adds to `out` what each held expert makes of its picks.
fn experts_into(pool: &ThreadPool, isa: Isa, x: &[f32], rows_of: Vec<Vec<Pick>>, experts: &Experts, out: &mut [f32]) {
    let Some((inter, hidden)) = experts.shape() else { return };
    let groups: Vec<Group> = experts
        .held
        .iter()
        .zip(rows_of)
        .filter(|(_, rows)| !rows.is_empty())
        .map(|(expert, rows)| Group { expert, clamped: experts.clamped(expert.id), rows })
        .collect();
    let Some(first) = groups.first().map(|group| group.expert) else { return };
    let last = groups.iter().flat_map(|group| &group.rows).map(|pick| pick.to + 1).max().unwrap_or(0);
    assert!(out.len() >= last * hidden, "experts: a result for each row");
    let (taken, between) = (first.gate.takes(), first.down.takes());
    let source: Vec<usize> = groups.iter().flat_map(|g| g.rows.iter().map(|pick| pick.from * hidden)).collect();
    let most = gemm::tile_rows(isa, taken).min(gemm::tile_rows(isa, between));
    let (tiles, ranges) = gemm::cut_groups(most, groups.iter().map(|g| g.rows.len()));
    let input = Packed::pack(pool, isa, tiles.clone(), x, hidden, taken, &|i| source[i]);
    let mut middle = Packed::room(isa, tiles, inter, between);

    // silu(gate) * up, packed as input of the second product.
    let mut items = Vec::new();
    for (g, group) in groups.iter().enumerate() {
        let gate = &group.expert.gate;
        let per_item = gate.panels_per_item(1);
        for block in gemm::row_blocks(isa, &input, ranges[g].clone()) {
            for p in (0..gate.panels()).step_by(per_item) {
                items.push((group, block.clone(), p..gate.panels().min(p + per_item)));
            }
        }
    }
    let writer = middle.writer(isa);
    // Panel p makes inputs p * PANEL.. of the second product.
    const GROUPS_OF_PANEL: usize = PANEL / GROUP;
    pool.run(items.len(), &|i| {
        let (Group { expert, clamped, .. }, block, panels) = &items[i];
        let first = input.tiles[block.start].first;
        let last = input.tiles[block.end - 1];
        let rows = last.first + last.rows - first;
        gemm::with_acc(2 * rows * PANEL, |acc| {
            let (gate, up) = acc.split_at_mut(rows * PANEL);
            for p in panels.clone() {
                // SAFETY: `isa` was detected; sizes are asserted inside.
                unsafe {
                    gemm::multiply_panel(isa, &expert.gate, p, &input, block.clone(), gate);
                    gemm::multiply_panel(isa, &expert.up, p, &input, block.clone(), up);
                    if clamped.is_none() {
                        silu_mul(isa, gate, up);
                    }
                }
                if let Some(clamped) = clamped {
                    let rows = gate.chunks_exact_mut(PANEL).zip(up.chunks_exact(PANEL));
                    rows.for_each(|(gate, up)| clamped.middle(p * PANEL, gate, up));
                }
                for tile in &input.tiles[block.clone()] {
                    for r in 0..tile.rows {
                        let row = &gate[(tile.first - first + r) * PANEL..][..PANEL];
                        // SAFETY: the tiles are those of `middle`, whose inputs are padded to whole panels. This item
                        // alone writes panel p of these rows.
                        unsafe { writer.write(*tile, r, p * GROUPS_OF_PANEL, row) };
                    }
                }
            }
        });
    });

    let panels = first.down.panels();
    // An item computes some output panels of every expert, so that one thread adds up a row's sum in one order.
    let per_item = first.down.panels_per_item(pool.threads());
    let out = SharedPtr(out.as_mut_ptr());
    pool.run(panels.div_ceil(per_item), &|item| {
        for (group, range) in groups.iter().zip(&ranges) {
            let down = &group.expert.down;
            for block in gemm::row_blocks(isa, &middle, range.clone()) {
                let at = middle.tiles[block.start].first - middle.tiles[range.start].first;
                let last = middle.tiles[block.end - 1];
                let rows = last.first + last.rows - middle.tiles[block.start].first;
                gemm::with_acc(rows * PANEL, |acc| {
                    for p in item * per_item..panels.min((item + 1) * per_item) {
                        // SAFETY: `isa` was detected; sizes are asserted inside.
                        unsafe { gemm::multiply_panel(isa, down, p, &middle, block.clone(), acc) };
                        let columns = PANEL.min(hidden - p * PANEL);
                        for (acc, pick) in acc.chunks_exact(PANEL).zip(&group.rows[at..at + rows]) {
                            // SAFETY: `to` is a row of out, as asserted above; panel p's columns belong to this item.
                            let out = unsafe {
                                std::slice::from_raw_parts_mut(out.get().add(pick.to * hidden + p * PANEL), columns)
                            };
                            match group.clamped {
                                None => out.iter_mut().zip(acc).for_each(|(o, a)| *o += pick.weight * a),
                                Some(clamped) => {
                                    let biases = &clamped.down[p * PANEL..][..columns];
                                    let parts = acc.iter().zip(biases).map(|(part, bias)| part + bias);
                                    out.iter_mut().zip(parts).for_each(|(o, a)| *o += pick.weight * a);
                                }
                            }
                        }
                    }
                });
            }
        }
    });
}
