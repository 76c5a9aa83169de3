//! Which ranks hold the experts of a layer. It does not know layouts to come.

use rein_control_plane::Placement;
use rein_kernels::{ExpertTable, KernelError, Result as KernelResult};

use super::spec::Moe;

/// The holders of a layer's experts. Every expert must have one.
pub fn table(placement: &Placement, layer: usize, moe: &Moe) -> KernelResult<ExpertTable> {
    let table = ExpertTable { layer, holders: holders(placement, layer, moe.experts.len()) };
    match table.holders.iter().position(Vec::is_empty) {
        None => Ok(table),
        Some(id) => {
            Err(KernelError::Shape { op: "placement", what: format!("layer {layer}: no rank holds expert {id}") })
        }
    }
}

fn holders(placement: &Placement, layer: usize, experts: usize) -> Vec<Vec<u32>> {
    let mut holders = vec![Vec::new(); experts];
    for rank in &placement.ranks {
        for &expert in rank.experts.get(layer).into_iter().flatten() {
            if let Some(ranks) = holders.get_mut(expert as usize) {
                ranks.push(rank.rank as u32);
            }
        }
    }
    holders
}

#[cfg(test)]
mod tests;
