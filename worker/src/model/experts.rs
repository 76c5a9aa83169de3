//! Assigns routed rows to ranks, and counts the use of experts. It does not know layouts to come.

use std::sync::atomic::{AtomicU64, Ordering};

use rein_control_plane::Placement;
use rein_kernels::Routes;

/// The ranks that hold each expert of one layer.
pub struct Holders {
    /// By expert, ascending.
    ranks: Vec<Vec<u32>>,
    count: usize,
}

impl Holders {
    pub fn new(placement: &Placement, layer: usize, experts: usize) -> Self {
        let mut ranks = vec![Vec::new(); experts];
        for rank in &placement.ranks {
            for &expert in rank.experts.get(layer).into_iter().flatten() {
                if let Some(ranks) = ranks.get_mut(expert as usize) {
                    ranks.push(rank.rank as u32);
                }
            }
        }
        Holders { ranks, count: placement.ranks.len() }
    }

    /// An expert that no rank holds.
    pub fn missing(&self) -> Option<usize> {
        self.ranks.iter().position(Vec::is_empty)
    }

    /// The rank that computes each route: of several candidates, the one with the least work in this step.
    pub fn dispatch(&self, routes: &Routes) -> Vec<u32> {
        let mut busy = vec![0usize; self.count];
        let mut dispatch = vec![u32::MAX; routes.experts.len()];
        for (rank, &expert) in dispatch.iter_mut().zip(&routes.experts) {
            if let [only] = self.ranks[expert as usize][..] {
                *rank = only;
                busy[only as usize] += 1;
            }
        }
        for (rank, &expert) in dispatch.iter_mut().zip(&routes.experts).filter(|(rank, _)| **rank == u32::MAX) {
            let holders = self.ranks[expert as usize].iter();
            if let Some(&least) = holders.min_by_key(|&&holder| (busy[holder as usize], holder)) {
                *rank = least;
                busy[least as usize] += 1;
            }
        }
        dispatch
    }
}

/// Rows per layer and expert; empty for dense layers.
pub struct ExpertCounts {
    layers: Vec<Vec<AtomicU64>>,
}

impl ExpertCounts {
    pub fn new(experts: &[usize]) -> Self {
        ExpertCounts { layers: experts.iter().map(|&n| (0..n).map(|_| AtomicU64::new(0)).collect()).collect() }
    }

    pub fn add(&self, layer: usize, routes: &Routes) {
        for &expert in &routes.experts {
            if let Some(count) = self.layers[layer].get(expert as usize) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Counts since the group began.
    pub fn read(&self) -> Vec<Vec<u64>> {
        self.layers.iter().map(|layer| layer.iter().map(|count| count.load(Ordering::Relaxed)).collect()).collect()
    }
}

#[cfg(test)]
mod tests;
