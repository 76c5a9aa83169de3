//! Adds the parts of a row that several ranks computed. Large results: each rank adds its columns of all rows, and
//! these are gathered. Small results: every rank gets all parts and adds everything. The bits are the same.

use super::dispatch::dispatch;
use super::low_rank::AdaptedRows;
use super::{Batch, Cpu, Experts, Routes, Tensor, shape, zeros};
use crate::backend::Backend;
use crate::collective::Collective;
use crate::error::Result;

/// Up to this many bytes of all parts, every rank gets everything: one exchange costs less than the repeated sums.
const LITTLE: usize = 64 << 10;

impl Cpu {
    /// The rank of each route, this rank's share of the parts, and the sum over ranks.
    pub(super) fn moe_over_ranks(
        &self,
        batch: &Batch,
        x: &Tensor,
        routes: &Routes,
        experts: &Experts,
        adapted: Option<&AdaptedRows>,
        shared: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (rank, table) = (self.rank(), experts.table());
        self.counts.iter().for_each(|counts| counts.add(table.layer, routes));
        let dispatch = dispatch(table, routes, &batch.rows.ids, batch.positions())?;
        let mine = dispatch.iter().enumerate().filter(|&(_, &to)| to as usize == rank);
        let picks: Vec<u32> = mine.map(|(route, _)| route as u32).collect();
        let parts = self.moe_parts(x, routes, &picks, experts, adapted);
        self.moe_combine(&parts, routes, &dispatch, shared)
    }

    /// Adds the results of `moe_parts` over the ranks that computed them, and the partial sums `shared`. `dispatch` has
    /// the rank of each route. A row's parts are added in the order of their experts.
    pub(super) fn moe_combine(
        &self,
        parts: &Tensor,
        routes: &Routes,
        dispatch: &[u32],
        shared: Option<&Tensor>,
    ) -> Result<Tensor> {
        combine(&*self.collective, parts, routes, dispatch, shared)
    }
}

fn combine(
    collective: &dyn Collective,
    parts: &Tensor,
    routes: &Routes,
    dispatch: &[u32],
    shared: Option<&Tensor>,
) -> Result<Tensor> {
    let (me, ranks, hidden) = (collective.rank(), collective.size(), parts.cols);
    let rows = routes.experts.len() / routes.top_k;
    assert_eq!(dispatch.len(), routes.experts.len(), "moe_combine: a rank for each route");
    assert!(shared.is_none_or(|s| (s.rows, s.cols) == (rows, hidden)), "moe_combine: shared");
    let parts_in_all = routes.experts.len() + shared.map_or(0, |_| ranks * rows);
    let at_once = parts_in_all * hidden * size_of::<f32>() <= LITTLE;
    let columns = |rank: usize| match at_once {
        true => 0..hidden,
        false => hidden * rank / ranks..hidden * (rank + 1) / ranks,
    };
    let cut = |x: &Tensor, rank: usize| -> Vec<f32> {
        x.data.chunks_exact(hidden).flat_map(|row| &row[columns(rank)]).copied().collect()
    };
    let outgoing = |rank: usize| {
        let mut part = cut(parts, rank);
        shared.iter().for_each(|shared| part.extend(cut(shared, rank)));
        part
    };
    let incoming = match at_once {
        true => collective.all_gather(&outgoing(me))?,
        false => collective.all_to_all((0..ranks).map(outgoing).collect())?,
    };

    // Where each route's part begins in the data of its rank.
    let width = columns(me).len();
    let mut sent = vec![0; ranks];
    let mut starts = Vec::with_capacity(dispatch.len());
    for &rank in dispatch {
        let Some(count) = sent.get_mut(rank as usize) else {
            return Err(shape("moe_combine", format!("no rank {rank}; the group has {ranks} ranks")));
        };
        starts.push(*count * width);
        *count += 1;
    }
    for (rank, part) in incoming.iter().enumerate() {
        let expected = (sent[rank] + if shared.is_some() { rows } else { 0 }) * width;
        if part.len() != expected {
            let what = format!("rank {rank} sent {} numbers, expected {expected}", part.len());
            return Err(shape("moe_combine", what));
        }
    }
    let mut mine = zeros(rows, width);
    let mut order: Vec<usize> = Vec::with_capacity(routes.top_k);
    for (row, out) in mine.data.chunks_exact_mut(width.max(1)).enumerate() {
        order.clear();
        order.extend(row * routes.top_k..(row + 1) * routes.top_k);
        order.sort_by_key(|&route| routes.experts[route]);
        for &route in &order {
            let part = &incoming[dispatch[route] as usize][starts[route]..][..width];
            out.iter_mut().zip(part).for_each(|(o, p)| *o += p);
        }
        if shared.is_some() {
            let mut sum = vec![0.0; width];
            for (rank, part) in incoming.iter().enumerate() {
                let part = &part[(sent[rank] + row) * width..][..width];
                sum.iter_mut().zip(part).for_each(|(s, p)| *s += p);
            }
            out.iter_mut().zip(&sum).for_each(|(o, s)| *o += s);
        }
    }

    if at_once {
        return Ok(mine);
    }
    let all = collective.all_gather(&mine.data)?;
    let mut out = zeros(rows, hidden);
    for (rank, part) in all.iter().enumerate() {
        let columns = columns(rank);
        if part.len() != rows * columns.len() {
            return Err(shape("moe_combine", format!("rank {rank} has a different number of rows")));
        }
        for (row, part) in out.data.chunks_exact_mut(hidden).zip(part.chunks_exact(columns.len().max(1))) {
            row[columns.clone()].copy_from_slice(part);
        }
    }
    Ok(out)
}
