//! Which rank computes what a row's router chose, and how much each expert is used.

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

    /// An expert that nobody holds.
    pub fn missing(&self) -> Option<usize> {
        self.ranks.iter().position(Vec::is_empty)
    }

    /// The rank that computes each route. Where several could, the one that has least to do in this step.
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

/// How many rows each expert has had, by layer; none in dense ones.
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

    /// Since the group began.
    pub fn read(&self) -> Vec<Vec<u64>> {
        self.layers.iter().map(|layer| layer.iter().map(|count| count.load(Ordering::Relaxed)).collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use rein_control_plane::{ModelShape, place};

    use super::*;

    fn routes(experts: &[u32]) -> Routes {
        Routes { top_k: 2, experts: experts.to_vec(), weights: vec![1.0; experts.len()] }
    }

    #[test]
    fn copies_share_the_rows_of_a_hot_expert() {
        let shape = ModelShape { attention_heads: 2, kv_heads: 2, experts: vec![0, 4] };
        let mut placement = place(&shape, 2, 1).expect("fits");
        let holders = Holders::new(&placement, 1, 4);
        assert_eq!(holders.dispatch(&routes(&[0, 1, 0, 1, 0, 3])), [0, 0, 0, 0, 0, 1]);
        placement.ranks[1].experts[1] = vec![0, 2, 3];
        let holders = Holders::new(&placement, 1, 4);
        // Rank 0 has expert 1's two rows, rank 1 that of expert 3: expert 0's three make it even.
        assert_eq!(holders.dispatch(&routes(&[0, 1, 0, 1, 0, 3])), [1, 0, 0, 0, 1, 1]);
        assert_eq!(holders.missing(), None);
        placement.ranks[0].experts[1] = vec![0];
        assert_eq!(Holders::new(&placement, 1, 4).missing(), Some(1));
    }

    #[test]
    fn counts_add_up() {
        let counts = ExpertCounts::new(&[0, 4]);
        counts.add(1, &routes(&[0, 1, 0, 3]));
        counts.add(1, &routes(&[0, 2]));
        assert_eq!(counts.read(), [vec![], vec![3, 1, 1, 1]]);
    }
}
