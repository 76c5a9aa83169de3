//! The experts of one rank. Rows are grouped by expert and each expert's weights are read once for all of its rows; a
//! row's contributions are added in the order in which the experts were loaded.

use super::gemm::{self, Packed};
use super::pool::{Pool, SharedPtr};
use super::simd::{Isa, Simd, simd_fn};
use super::weights::{PANEL, Panels, steps_of};
use crate::backend::{Precision, Routes};

pub struct Experts {
    pub precision: Precision,
    /// Place of each global id among the experts here; `ABSENT` for those of other ranks.
    pub place: Vec<u32>,
    pub gate: Vec<Panels>,
    pub up: Vec<Panels>,
    pub down: Vec<Panels>,
}

pub const ABSENT: u32 = u32::MAX;

/// The rows that one expert gets.
struct Group {
    expert: usize,
    rows: Vec<(usize, f32)>,
}

pub fn experts(pool: &Pool, isa: Isa, x: &[f32], hidden: usize, routes: &Routes, experts: &Experts, out: &mut [f32]) {
    let mut rows_of: Vec<Vec<(usize, f32)>> = vec![Vec::new(); experts.gate.len()];
    for (i, (&id, &weight)) in routes.experts.iter().zip(&routes.weights).enumerate() {
        match experts.place.get(id as usize) {
            Some(&place) if place != ABSENT => rows_of[place as usize].push((i / routes.top_k, weight)),
            _ => {}
        }
    }
    let groups: Vec<Group> = rows_of
        .into_iter()
        .enumerate()
        .filter(|(_, rows)| !rows.is_empty())
        .map(|(expert, rows)| Group { expert, rows })
        .collect();
    if groups.is_empty() {
        return;
    }
    let precision = experts.precision;
    let source: Vec<usize> = groups.iter().flat_map(|g| g.rows.iter().map(|r| r.0 * hidden)).collect();
    let (tiles, ranges) = gemm::cut_groups(isa, groups.iter().map(|g| g.rows.len()));
    let input = Packed::pack(pool, isa, tiles.clone(), x, hidden, precision, &|i| source[i]);
    let inter = experts.gate[0].outs;
    let mut middle = Packed::room(tiles, inter, precision);

    // silu(gate) * up, packed as the input of the second product.
    let mut items = Vec::new();
    for (g, group) in groups.iter().enumerate() {
        let gate = &experts.gate[group.expert];
        let per_item = gate.panels_per_item(1);
        for block in gemm::row_blocks(input.steps, isa.tile_rows(), ranges[g].clone()) {
            for p in (0..gate.panels()).step_by(per_item) {
                items.push((group.expert, block.clone(), p..gate.panels().min(p + per_item)));
            }
        }
    }
    let (steps, words) = (middle.steps, SharedPtr(middle.words.as_mut_ptr().cast::<u32>()));
    let per_panel = steps_of(PANEL, precision);
    pool.run(items.len(), &|i| {
        let (expert, block, panels) = &items[i];
        let first = input.tiles[block.start].first;
        let last = input.tiles[block.end - 1];
        let rows = last.first + last.rows - first;
        gemm::with_acc(2 * rows * PANEL, |acc| {
            let (gate, up) = acc.split_at_mut(rows * PANEL);
            for p in panels.clone() {
                // SAFETY: `isa` was detected; sizes are asserted inside.
                unsafe {
                    gemm::multiply_panel(isa, &experts.gate[*expert], p, &input, block.clone(), gate);
                    gemm::multiply_panel(isa, &experts.up[*expert], p, &input, block.clone(), up);
                    silu_mul(isa, gate, up);
                }
                for tile in &input.tiles[block.clone()] {
                    for r in 0..tile.rows {
                        let row = &gate[(tile.first - first + r) * PANEL..][..PANEL];
                        // SAFETY: the tile's words are rows * steps from first * steps on; panel p is steps
                        // p * per_panel.. of them, and inputs are padded to whole panels. This item alone writes
                        // panel p of these rows.
                        unsafe {
                            let dst = words.get().add(tile.first * steps + p * per_panel * tile.rows + r);
                            gemm::pack_row(isa, row, dst, tile.rows, precision);
                        }
                    }
                }
            }
        });
    });

    let panels = experts.down[0].panels();
    // An item takes some output panels of every expert, so that a row's sum is made by one thread in one order.
    let per_item = experts.down[0].panels_per_item(pool.threads());
    let out = SharedPtr(out.as_mut_ptr());
    pool.run(panels.div_ceil(per_item), &|item| {
        for (group, range) in groups.iter().zip(&ranges) {
            let down = &experts.down[group.expert];
            for block in gemm::row_blocks(steps, isa.tile_rows(), range.clone()) {
                let first = middle.tiles[block.start].first - middle.tiles[range.start].first;
                let last = middle.tiles[block.end - 1];
                let rows = last.first + last.rows - middle.tiles[block.start].first;
                gemm::with_acc(rows * PANEL, |acc| {
                    for p in item * per_item..panels.min((item + 1) * per_item) {
                        // SAFETY: `isa` was detected; sizes are asserted inside.
                        unsafe { gemm::multiply_panel(isa, down, p, &middle, block.clone(), acc) };
                        let columns = PANEL.min(hidden - p * PANEL);
                        for (acc, &(row, weight)) in acc.chunks_exact(PANEL).zip(&group.rows[first..first + rows]) {
                            // SAFETY: rows of x and out correspond; panel p's columns belong to this item.
                            let out = unsafe {
                                std::slice::from_raw_parts_mut(out.get().add(row * hidden + p * PANEL), columns)
                            };
                            out.iter_mut().zip(acc).for_each(|(o, a)| *o += weight * a);
                        }
                    }
                });
            }
        }
    });
}

#[inline(always)]
unsafe fn silu_mul_generic<S: Simd>(gate: &mut [f32], up: &[f32]) {
    let len = gate.len().min(up.len());
    // SAFETY: whole vectors stay below len; the rest goes through a padded copy.
    unsafe {
        let one = S::splat(1.0);
        let zero = S::splat(0.0);
        let silu = |g, u| S::mul(S::div(g, S::add(one, S::exp(S::sub(zero, g)))), u);
        let whole = len / 16 * 16;
        for i in (0..whole).step_by(16) {
            let p = gate.as_mut_ptr().add(i);
            S::store(p, silu(S::load(p), S::load(up.as_ptr().add(i))));
        }
        if whole < len {
            let mut last = [0.0; 16];
            let g = S::load_n(gate.as_ptr().add(whole), len - whole);
            S::store(last.as_mut_ptr(), silu(g, S::load_n(up.as_ptr().add(whole), len - whole)));
            gate[whole..len].copy_from_slice(&last[..len - whole]);
        }
    }
}

simd_fn!(
    /// gate = silu(gate) * up
    pub fn silu_mul(gate: &mut [f32], up: &[f32]) = silu_mul_generic
);
