//! When the experts of a group are laid out anew, and how. Pure.

use std::time::Duration;

use crate::experts::{Layout, imbalance, moved, spread};
use crate::limits;
use crate::placement::Placement;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rebalance {
    /// Layers in which the busiest rank has more than this times the mean of all ranks are laid out anew.
    pub above: f64,
    /// Least time between two layouts of a group.
    pub every: Duration,
}

/// What a new layout is for.
#[derive(Debug, Clone, PartialEq)]
pub struct Relayout {
    pub placement: Placement,
    /// Layers that change.
    pub layers: usize,
    /// Copies that are to be loaded.
    pub copies: usize,
    /// Whether there are layers for which ranks would have had to load more than they may at once.
    pub more: bool,
    /// The busiest rank's load over the mean, in the layer where that is worst, before and after.
    pub before: f64,
    pub after: f64,
}

/// Where the ranks' experts lie in a layer; None: these rows are not of this model.
fn layout(placement: &Placement, layer: usize, rows: &[u32]) -> Option<Layout> {
    let held = placement.ranks.iter().map(|rank| rank.experts.get(layer).cloned());
    let layout: Layout = held.collect::<Option<_>>()?;
    layout.iter().flatten().all(|&expert| (expert as usize) < rows.len()).then_some(layout)
}

/// The worst layer's imbalance under what was counted: `rows[layer][expert]`.
pub fn worst(placement: &Placement, rows: &[Vec<u32>]) -> f64 {
    let layers = rows.iter().enumerate().filter(|(_, rows)| !rows.is_empty());
    let known = layers.filter_map(|(layer, rows)| Some(imbalance(&weights(rows), &layout(placement, layer, rows)?)));
    known.fold(1.0, f64::max)
}

fn weights(rows: &[u32]) -> Vec<f64> {
    rows.iter().map(|&rows| f64::from(rows)).collect()
}

/// A better layout for what was counted, with that number; ranks have room for `redundant` copies beyond an even share.
/// None: nothing is worth a change, or too little was counted to say. The worst layer comes first, then others as far as the
/// copies that a rank may load at once go.
pub fn relayout(
    placement: &Placement,
    rows: &[Vec<u32>],
    redundant: usize,
    above: f64,
    number: u64,
) -> Option<Relayout> {
    let ranks = placement.ranks.len();
    let mut uneven: Vec<(f64, usize, Vec<f64>, Layout)> = Vec::new();
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
        Relayout { placement: placement.clone(), layers: 0, copies: 0, more: false, before, after: before };
    change.placement.layout = number;
    let mut loads = vec![0; ranks];
    for (imbalanced, layer, load, before) in &uneven {
        if *imbalanced <= above {
            break;
        }
        let room = vec![load.len().div_ceil(ranks) + redundant; ranks];
        let Some(next) = spread(load, &room, Some(before)) else { continue };
        let moves = moved(before, &next);
        // One layer may go beyond, or it would never change.
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
