//! Assigns routed rows to ranks, and counts the rows of each expert. It does not know pending expert layouts.

use std::sync::atomic::{AtomicU64, Ordering};

use super::route::Routes;
use super::shape;
use crate::backend::ExpertTable;
use crate::error::Result;

/// The rank that computes each route of these tokens.
pub fn dispatch(table: &ExpertTable, routes: &Routes, ids: &[u32], positions: &[u32]) -> Result<Vec<u32>> {
    let rows = routes.experts.chunks(routes.top_k.max(1)).zip(ids.iter().zip(positions));
    let mut dispatch = Vec::with_capacity(routes.experts.len());
    for (experts, (&token, &position)) in rows {
        for &expert in experts {
            let holder = table.holder(expert, token, position);
            dispatch.push(holder.ok_or_else(|| shape("moe", format!("no rank holds expert {expert}")))?);
        }
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
