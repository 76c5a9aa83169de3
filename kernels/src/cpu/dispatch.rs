//! Assigns routed rows to ranks, and counts the rows of each expert. It does not know layouts to come.

use std::sync::atomic::{AtomicU64, Ordering};

use super::route::Routes;
use super::shape;
use crate::error::Result;

/// The rank that computes each route: of several holders of an expert, the one with the least work in this step.
pub fn dispatch(holders: &[Vec<u32>], ranks: usize, routes: &Routes) -> Result<Vec<u32>> {
    let mut busy = vec![0usize; ranks];
    let mut dispatch = vec![u32::MAX; routes.experts.len()];
    let of = |expert: u32| holders.get(expert as usize).map_or(&[][..], Vec::as_slice);
    for (rank, &expert) in dispatch.iter_mut().zip(&routes.experts) {
        if let [only] = *of(expert) {
            *rank = only;
            busy[only as usize] += 1;
        }
    }
    for (rank, &expert) in dispatch.iter_mut().zip(&routes.experts).filter(|(rank, _)| **rank == u32::MAX) {
        let least = of(expert).iter().min_by_key(|&&holder| (busy[holder as usize], holder));
        *rank = *least.ok_or_else(|| shape("moe", format!("no rank holds expert {expert}")))?;
        busy[*rank as usize] += 1;
    }
    Ok(dispatch)
}

/// Rows per layer and expert; empty for dense layers.
pub struct Counts {
    layers: Vec<Vec<AtomicU64>>,
}

impl Counts {
    pub fn new(experts: &[usize]) -> Self {
        Counts { layers: experts.iter().map(|&n| (0..n).map(|_| AtomicU64::new(0)).collect()).collect() }
    }

    pub fn add(&self, layer: usize, routes: &Routes) {
        for &expert in &routes.experts {
            if let Some(count) = self.layers.get(layer).and_then(|layer| layer.get(expert as usize)) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Counts since `new`.
    pub fn read(&self) -> Vec<Vec<u64>> {
        self.layers.iter().map(|layer| layer.iter().map(|count| count.load(Ordering::Relaxed)).collect()).collect()
    }
}

#[cfg(test)]
mod tests;
