//! Decides which layers of a group get a new expert layout, from measured loads alone: without I/O and without a clock.
//!
//! This module does not know workers or the store.

use std::time::Duration;

use crate::experts::{ExpertLayout, compute_layout, imbalance, moved};
use crate::limits;
use crate::placement::Placement;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rebalance {
    /// Layers whose busiest rank has more than this times the mean load get a new layout.
    pub above: f64,
    /// Shortest time between two layouts of a group.
    pub every: Duration,
}

/// A new layout and its effect.
#[derive(Debug, Clone, PartialEq)]
pub struct LayoutChange {
    pub placement: Placement,
    /// Number of layers that change.
    pub layers: usize,
    /// Number of experts to load.
    pub copies: usize,
    /// Whether further layers would change if ranks could load more at once.
    pub more: bool,
    /// The imbalance of the worst layer (load of the busiest rank over the mean), before and after.
    pub before: f64,
    pub after: f64,
}

/// The layout of one layer. None: the counts are not of this model.
fn layout(placement: &Placement, layer: usize, rows: &[u32]) -> Option<ExpertLayout> {
    let held = placement.ranks.iter().map(|rank| rank.experts.get(layer).cloned());
    let layout: ExpertLayout = held.collect::<Option<_>>()?;
    layout.iter().flatten().all(|&expert| (expert as usize) < rows.len()).then_some(layout)
}

/// The imbalance of the worst layer under the counts `rows[layer][expert]`.
pub fn worst(placement: &Placement, rows: &[Vec<u32>]) -> f64 {
    let layers = rows.iter().enumerate().filter(|(_, rows)| !rows.is_empty());
    let known = layers.filter_map(|(layer, rows)| Some(imbalance(&weights(rows), &layout(placement, layer, rows)?)));
    known.fold(1.0, f64::max)
}

fn weights(rows: &[u32]) -> Vec<f64> {
    rows.iter().map(|&rows| f64::from(rows)).collect()
}

/// A better layout for these counts, with this number. Ranks have room for `redundant` experts beyond an even share.
/// The worst layer comes first, then others as long as ranks may load more at once. None: no change is worth it, or too
/// little was counted.
pub fn relayout(
    placement: &Placement,
    rows: &[Vec<u32>],
    redundant: usize,
    above: f64,
    number: u64,
) -> Option<LayoutChange> {
    let ranks = placement.ranks.len();
    let mut uneven: Vec<(f64, usize, Vec<f64>, ExpertLayout)> = Vec::new();
    for (layer, rows) in rows.iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
        let counted: u64 = rows.iter().map(|&rows| u64::from(rows)).sum();
        if counted < limits::EXPERT_ROWS * rows.len() as u64 {
            return None;
        }
        let (load, before) = (weights(rows), layout(placement, layer, rows)?);
        uneven.push((imbalance(&load, &before), layer, load, before));
    }
    uneven.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let before = uneven.first()?.0;
    let mut change =
        LayoutChange { placement: placement.clone(), layers: 0, copies: 0, more: false, before, after: before };
    change.placement.layout = number;
    let mut loads = vec![0; ranks];
    for (imbalanced, layer, load, before) in &uneven {
        if *imbalanced <= above {
            break;
        }
        let room = vec![load.len().div_ceil(ranks) + redundant; ranks];
        let Some(next) = compute_layout(load, &room, Some(before)) else { continue };
        let moves = moved(before, &next);
        // The first layer may exceed the limit; otherwise it could never change.
        let fits =
            change.layers == 0 || loads.iter().zip(&moves).all(|(so_far, more)| so_far + more <= limits::EXPERT_MOVES);
        if imbalance(load, &next) > imbalanced - limits::EXPERT_GAIN {
            continue;
        }
        if !fits {
            change.more = true;
            continue;
        }
        loads.iter_mut().zip(&moves).for_each(|(so_far, more)| *so_far += more);
        change.layers += 1;
        change.copies += moves.iter().sum::<usize>();
        for (rank, experts) in change.placement.ranks.iter_mut().zip(next) {
            rank.experts[*layer] = experts;
        }
    }
    if change.layers == 0 {
        return None;
    }
    change.after = worst(&change.placement, rows);
    Some(change)
}
