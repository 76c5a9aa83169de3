//! The choice of experts, and the lists of each expert's routes. It does not know what experts compute.

use super::arena::ArenaBlock;
use super::args::{MoeAlignArgs, RouteArgs};
use super::experts::ExpertSlots;
use super::form::Element;
use super::op_stream::OpStream;
use super::plan::{LaunchPlan, int};
use super::tensor::DeviceTensor;
use super::weights::DeviceVector;
use crate::backend::{RouteSpec, Scoring};

/// The most experts of a row that `moe_combine` adds.
const MOST_ROUTES: usize = 64;

/// For each row, `top_k` experts (global ids) with their weights.
#[derive(Debug)]
pub struct DeviceRoutes {
    pub(super) rows: usize,
    pub(super) top_k: usize,
    /// Of all ranks.
    pub(super) experts: usize,
    pub(super) ids: ArenaBlock,
    pub(super) weights: ArenaBlock,
}

/// The routes of each expert.
pub(super) struct Aligned {
    pub counts: ArenaBlock,
    pub starts: ArenaBlock,
    pub order: ArenaBlock,
}

impl OpStream {
    pub fn route(&self, scores: &DeviceTensor, bias: Option<&DeviceVector>, spec: &RouteSpec) -> DeviceRoutes {
        let RouteSpec { top_k, scoring, n_group, topk_group, normalize, scaling } = *spec;
        let (rows, experts) = (scores.rows, scores.cols);
        assert!(top_k <= experts.min(MOST_ROUTES), "top_k {top_k} of {experts} experts, at most {MOST_ROUTES}");
        assert!(bias.is_none_or(|b| b.len == experts), "routing bias and scores differ in the number of experts");
        assert!(scores.element == Element::F32 && scores.is_contiguous(), "scores are f32 and not a view");
        let (ids, weights) = (self.take(rows * top_k * 4), self.take(rows * top_k * 4));
        let args = RouteArgs {
            scores: scores.address,
            bias: bias.map_or(0, |bias| bias.data.address()),
            ids: ids.address,
            weights: weights.address,
            experts: int(experts),
            top_k: int(top_k),
            groups: int(n_group),
            top_groups: int(topk_group),
            sigmoid: (scoring == Scoring::Sigmoid).into(),
            normalize: normalize.into(),
            scaling,
        };
        // SAFETY: scores has `experts` numbers in each row, ids and weights top_k.
        unsafe { self.launch(&LaunchPlan::route(rows, experts, n_group), &args) };
        DeviceRoutes { rows, top_k, experts, ids, weights }
    }

    /// `ids`: the expert of each route; `tokens`: that of each row.
    pub fn align(&self, routes: &DeviceRoutes, experts: &ExpertSlots, [ids, tokens]: [u64; 2]) -> Aligned {
        let (count, held) = (routes.rows * routes.top_k, experts.capacity);
        let (counts, starts, order) = (self.take(4 * held), self.take(4 * (held + 1)), self.take(4 * count));
        let args = MoeAlignArgs {
            ids,
            held_ids: experts.held_ids,
            tokens,
            counts: counts.address,
            starts: starts.address,
            order: order.address,
            routes: int(count),
            held: int(held),
            top_k: int(routes.top_k),
        };
        // SAFETY: the arrays have as many words as moe.cu says.
        unsafe {
            self.launch(&LaunchPlan::by_row("moe_count", held), &args);
            self.launch(&LaunchPlan::by_row("moe_align", held + 1), &args);
        }
        Aligned { counts, starts, order }
    }
}
