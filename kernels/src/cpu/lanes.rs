//! Attention over a cache whose positions are split over ranks: queries go to the ranks that share the positions, and
//! the results of each lane come back. It does not know kinds of attention.

use super::attention::LanePart;
use super::pool::SharedPtr;
use super::{Cpu, Tensor, zeros};
use crate::backend::KvSplit;
use crate::error::Result;
use crate::kv_split::LANES;

/// The queries of this rank's heads, in any layout. All ranks that share the positions have the same spec.
pub(super) struct LaneQueries<'a> {
    pub split: KvSplit,
    pub rows: usize,
    pub heads: usize,
    /// Numbers of a head's result.
    pub width: usize,
    pub queries: Vec<f32>,
    /// For each head a score that takes a share of the softmax, with no value.
    pub sinks: Option<&'a [f32]>,
}

impl Cpu {
    /// [rows, heads * width]. `attend` writes the sums of a lane for the queries of one rank. Lanes are joined in their
    /// order.
    pub(super) fn attend_split(
        &self,
        of: LaneQueries,
        attend: impl Fn(&[f32], LanePart, &mut [f32]),
    ) -> Result<Tensor> {
        let LaneQueries { split, rows, heads, width, queries, sinks } = of;
        let sharing = split.sharing(self.collective.rank());
        let all = if split.ranks == self.collective.size() {
            self.collective.all_gather(&queries)?
        } else {
            self.among(&sharing, vec![queries; split.ranks])?
        };
        // For each lane: the sums, then what they are divided by.
        let (sums, of_lane) = (rows * heads * width, rows * heads * (width + 2));
        let of_queries = |queries: &Vec<f32>| {
            let mut found = vec![0.0; split.lanes().count() * of_lane];
            for (lane, out) in split.lanes().zip(found.chunks_mut(of_lane.max(1))) {
                let (sums, weights) = out.split_at_mut(sums);
                attend(queries, LanePart { lane, weights: SharedPtr(weights.as_mut_ptr()) }, sums);
            }
            found
        };
        let found = self.among(&sharing, all.iter().map(of_queries).collect())?;
        let mut joined = vec![(f32::NEG_INFINITY, 0.0f32); rows * heads];
        let mut mixed = zeros(rows, heads * width);
        for lane in 0..LANES {
            let at = lane / split.ranks * of_lane;
            let (sums, weights) = found[lane % split.ranks][at..][..of_lane].split_at(sums);
            let of_queries = mixed.data.chunks_mut(width).zip(sums.chunks(width)).zip(weights.chunks(2));
            for ((largest, total), ((mixed, sums), weights)) in joined.iter_mut().zip(of_queries) {
                let (of_lane, sum) = (weights[0], weights[1]);
                if of_lane == f32::NEG_INFINITY {
                    continue;
                }
                let most = largest.max(of_lane);
                let (before, now) = ((*largest - most).exp(), (of_lane - most).exp());
                mixed.iter_mut().zip(sums).for_each(|(x, y)| *x = *x * before + y * now);
                (*largest, *total) = (most, *total * before + sum * now);
            }
        }
        for (i, (mixed, (largest, total))) in mixed.data.chunks_mut(width).zip(joined).enumerate() {
            // Rows of no sequence have none.
            if total > 0.0 {
                let sink = sinks.map_or(0.0, |sinks| (sinks[i % heads] - largest).exp());
                mixed.iter_mut().for_each(|x| *x /= total + sink);
            }
        }
        Ok(mixed)
    }

    /// Part i goes to rank i of those that share positions. What each of them sent to this one.
    fn among(&self, sharing: &std::ops::Range<usize>, parts: Vec<Vec<f32>>) -> Result<Vec<Vec<f32>>> {
        let mut all = vec![Vec::new(); self.collective.size()];
        all.iter_mut().skip(sharing.start).zip(parts).for_each(|(to, part)| *to = part);
        let mut found = self.collective.all_to_all(all)?;
        Ok(found.drain(sharing.clone()).collect())
    }
}
