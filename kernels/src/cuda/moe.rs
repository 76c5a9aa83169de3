//! The products of experts. It does not know where experts come from.

use super::args::{LinearArgs, MoeCombineArgs};
use super::batch::PlacedBatch;
use super::error::shape;
use super::experts::{DeviceExperts, ExpertSlots};
use super::form::{Element, ExpertShape};
use super::grouped::{ExpertPlans, Placed};
use super::linear::result_of;
use super::low_rank::{DeviceLowRank, ExpertRows};
use super::op_stream::OpStream;
use super::outputs::RowsByExpert;
use super::plan::{LaunchPlan, int};
use super::ranks::{LayerRoutes, RankOps};
use super::routes::{Aligned, DeviceRoutes};
use super::tensor::{CodeRows, DeviceTensor, Operand};
use crate::backend::ExpertAdapters;
use crate::error::Result;

/// What experts make of their routes: a row for each route, or for each place.
struct Parts {
    rows: DeviceTensor,
    placed: Option<Placed>,
}

/// The adapters of a layer's experts in a step that has some.
#[derive(Clone, Copy)]
struct AdaptedExperts<'a> {
    ops: &'a OpStream,
    batch: &'a PlacedBatch<'a>,
    adapters: ExpertAdapters<'a, DeviceLowRank>,
    /// The expert of each route.
    ids: u64,
}

impl<'a> AdaptedExperts<'a> {
    fn of(
        ops: &'a OpStream,
        batch: &'a PlacedBatch<'a>,
        adapters: Option<ExpertAdapters<'a, DeviceLowRank>>,
        ids: u64,
    ) -> Option<Self> {
        let adapters = adapters.filter(|_| batch.shape.loras)?;
        let any = [adapters.gate, adapters.up, adapters.down].iter().any(|table| !table.is_empty());
        any.then_some(AdaptedExperts { ops, batch, adapters, ids })
    }

    fn rows(&self, per_row: usize, routes: u64, of_batch: bool) -> ExpertRows {
        ExpertRows { routes, expert: self.ids, per_row, experts: self.adapters.experts, of_batch }
    }

    /// Changes gate and up. `routes`: of each of their rows (0: they are the routes).
    fn add_gate_and_up(&self, [x, gate, up]: [&DeviceTensor; 3], per_row: usize, routes: u64) {
        let rows = self.rows(per_row, routes, true);
        self.ops.add_to_rows(self.batch, x, gate, self.adapters.gate, rows);
        self.ops.add_to_rows(self.batch, x, up, self.adapters.up, rows);
    }

    fn add_down(&self, middle: &DeviceTensor, parts: &DeviceTensor, per_row: usize, routes: u64) {
        let rows = self.rows(per_row, routes, false);
        self.ops.add_to_rows(self.batch, middle, parts, self.adapters.down, rows);
    }
}

/// The outputs of gate and up, from the products of some rows with the matrices of their experts.
fn gate_and_up(shape: &ExpertShape, product: impl Fn(usize) -> DeviceTensor) -> [DeviceTensor; 2] {
    match (product(0), shape.up_at) {
        (both, Some(up_at)) => [both.columns(0, shape.inter), both.columns(up_at, shape.inter)],
        (gate, None) => [gate, product(1)],
    }
}

impl OpStream {
    /// The product of each route with matrix `which` of its expert. Route r reads row r / per_row of x.
    fn expert_product(
        &self,
        x: &Operand,
        per_row: usize,
        routes: &DeviceRoutes,
        aligned: &Aligned,
        experts: &ExpertSlots,
        which: usize,
    ) -> DeviceTensor {
        let (outs, ins, form) = experts.shape.matrix(which);
        let out = self.tensor(routes.rows * routes.top_k, outs, result_of(x.element, form));
        let [weights, scales, of_outputs] = experts.matrices[which];
        let args = LinearArgs {
            w: weights,
            w_scales: scales,
            order: aligned.order.address,
            starts: aligned.starts.address,
            weight_slots: experts.weight_slots,
            n: int(outs),
            k: int(ins),
            out_stride: int(outs),
            routes_per_row: int(per_row),
            ..LinearArgs::default()
        };
        // SAFETY: x has a row for each `per_row` routes, out one for each route, and all slots have weights of this
        // shape. A row's experts differ, so none has more routes than there are rows.
        unsafe { self.multiply(x, form, (out.address, out.element), [routes.rows, experts.capacity], args) };
        if form.by_output() {
            let (starts, order, held) = (aligned.starts.address, aligned.order.address, experts.capacity);
            self.scale_outputs(&out, of_outputs, None, Some(RowsByExpert { starts, order, held }));
        }
        out
    }

    /// What becomes of gate and up, as the input of the last product; and as numbers, where an adapter changes that one
    /// too. `ids`: the expert of each route.
    fn middle_of(
        &self,
        [x, gate, up]: [&DeviceTensor; 3],
        rows: CodeRows,
        per_row: usize,
        (ids, slots): (u64, &ExpertSlots),
        adapted: Option<AdaptedExperts>,
    ) -> (Operand, Option<DeviceTensor>) {
        let places = rows.places();
        let routes = places.map_or(0, |places| places.routes);
        adapted.iter().for_each(|adapted| adapted.add_gate_and_up([x, gate, up], per_row, routes));
        let form = slots.shape.forms[2];
        if let Some(clamped) = slots.clamped {
            let middle = self.clamped_mul(gate, up, places, ids, clamped);
            return (Operand::plain(&middle), Some(middle));
        }
        let middle = adapted.map(|_| self.silu_mul_rows(gate, up, places));
        (self.silu_mul_operand(gate, up, form, rows), middle)
    }

    /// What the held experts make of their routes, of which only these are written. `ids`: the expert of each route.
    fn parts_of(
        &self,
        batch: &PlacedBatch,
        x: &DeviceTensor,
        routes: &DeviceRoutes,
        ids: u64,
        slots: &ExpertSlots,
        adapters: Option<ExpertAdapters<'_, DeviceLowRank>>,
    ) -> Parts {
        let adapted = AdaptedExperts::of(self, batch, adapters, ids);
        assert_eq!(slots.shape.hidden, x.cols, "moe: x must have as many columns as the experts have inputs");
        let of = [ids, batch.parts.ids];
        let parts = match self.expert_plans(&slots.shape, slots.capacity, x.element) {
            Some(plans) => self.fast_parts(plans, x, routes, of, slots, adapted),
            None => self.plain_parts(x, routes, of, slots, adapted),
        };
        let places = parts.placed.as_ref().map(|placed| placed.rows);
        slots.clamped.iter().for_each(|clamped| self.add_expert_bias(&parts.rows, places, ids, &clamped.down));
        parts
    }

    fn plain_parts(
        &self,
        x: &DeviceTensor,
        routes: &DeviceRoutes,
        of @ [ids, _]: [u64; 2],
        slots: &ExpertSlots,
        adapted: Option<AdaptedExperts>,
    ) -> Parts {
        let aligned = &self.align(routes, slots, of);
        let middle = {
            let input = self.operand(x, slots.shape.forms[0]);
            let by = |which| self.expert_product(&input, routes.top_k, routes, aligned, slots, which);
            let [gate, up] = gate_and_up(&slots.shape, by);
            self.middle_of([x, &gate, &up], CodeRows::All, routes.top_k, (ids, slots), adapted)
        };
        let (operand, middle) = middle;
        let parts = self.expert_product(&operand, 1, routes, aligned, slots, 2);
        if let (Some(adapted), Some(middle)) = (adapted, middle) {
            adapted.add_down(&middle, &parts, routes.top_k, 0);
        }
        Parts { rows: parts, placed: None }
    }

    /// The same by the fast kernels.
    fn fast_parts(
        &self,
        plans: ExpertPlans,
        x: &DeviceTensor,
        routes: &DeviceRoutes,
        of @ [ids, _]: [u64; 2],
        slots: &ExpertSlots,
        adapted: Option<AdaptedExperts>,
    ) -> Parts {
        let placed = self.place(plans, routes, slots, of);
        let rows = CodeRows::Places { places: placed.rows, per_row: routes.top_k };
        let middle = {
            let input = if slots.shape.forms[0].is_fp8() {
                self.quantized(x, rows)
            } else {
                Operand::plain(&self.rows_of_places(x, placed.rows, routes.top_k))
            };
            let by = |which| self.placed_product(&placed, &input, slots, which);
            let [gate, up] = gate_and_up(&slots.shape, by);
            self.middle_of([x, &gate, &up], rows, routes.top_k, (ids, slots), adapted)
        };
        let (operand, middle) = middle;
        let parts = self.placed_product(&placed, &operand, slots, 2);
        if let (Some(adapted), Some(middle)) = (adapted, middle) {
            adapted.add_down(&middle, &parts, routes.top_k, placed.rows.routes);
        }
        Parts { rows: parts, placed: Some(placed) }
    }
}

impl RankOps<'_> {
    pub fn through_experts(
        &self,
        batch: &PlacedBatch,
        x: &DeviceTensor,
        routes: &DeviceRoutes,
        experts: &DeviceExperts,
        adapters: Option<ExpertAdapters<'_, DeviceLowRank>>,
        shared: Option<&DeviceTensor>,
    ) -> Result<DeviceTensor> {
        let rows = (batch.shape.rows, routes.rows);
        assert_eq!(rows, (x.rows, x.rows), "moe: the step and the routes must have as many rows as x");
        assert!(
            shared.is_none_or(|s| (s.rows, s.cols, s.element) == (x.rows, x.cols, x.element) && s.is_contiguous()),
            "moe: the shared experts' output must have the shape and the numbers of x, and be no view"
        );
        let codes = |slots: &ExpertSlots| slots.clamped.is_some() && slots.shape.forms[2].is_fp8();
        if experts.slots().as_ref().is_some_and(codes) {
            return Err(shape("moe", "experts with biases and limits must not be FP8".into()));
        }
        if self.group.ranks() > 1 {
            return self.through_experts_of_all(batch, x, routes, experts, adapters, shared);
        }
        let held = experts.ids().len();
        let Some(slots) = experts.slots().filter(|_| held == routes.experts) else {
            return Err(shape("moe", format!("the only rank holds {held} of {} experts", routes.experts)));
        };
        let top_k = routes.top_k;
        let parts = self.ops.parts_of(batch, x, routes, routes.ids.address, &slots, adapters);
        let out = self.ops.tensor(x.rows, x.cols, Element::F32);
        let args = MoeCombineArgs {
            parts: parts.rows.address,
            shared: shared.map_or(0, |shared| shared.address),
            ids: routes.ids.address,
            held: 0,
            tokens: batch.parts.ids,
            places: parts.placed.as_ref().map_or(0, |placed| placed.of_routes.address),
            weights: routes.weights.address,
            out: out.address,
            n: int(x.cols),
            top_k: int(top_k),
        };
        let kernel = parts.rows.element.of("moe_combine_f32", "moe_combine_bf16");
        // SAFETY: parts has a row for each route, or for its place, out and shared one for each row of x.
        unsafe { self.ops.launch(&LaunchPlan::by_column(kernel, x.rows, x.cols), &args) };
        Ok(out)
    }

    /// This rank's experts compute their routes; then the parts of all ranks are added.
    fn through_experts_of_all(
        &self,
        batch: &PlacedBatch,
        x: &DeviceTensor,
        routes: &DeviceRoutes,
        experts: &DeviceExperts,
        adapters: Option<ExpertAdapters<'_, DeviceLowRank>>,
        shared: Option<&DeviceTensor>,
    ) -> Result<DeviceTensor> {
        let (known, table) = (routes.experts, experts.table());
        let Some(holders) = experts.holders().filter(|_| table.holders.len() == known) else {
            return Err(shape("moe", format!("routes to {known} experts, a table of {}", table.holders.len())));
        };
        let of_layer = LayerRoutes {
            layer: table.layer,
            rows: routes.rows,
            top_k: routes.top_k,
            ids: routes.ids.address,
            weights: routes.weights.address,
        };
        let dispatched = self.dispatch(batch, of_layer, holders);
        let parts = match experts.slots() {
            // Other ranks read them by route.
            Some(slots) => match self.ops.parts_of(batch, x, routes, dispatched.mine.address, &slots, adapters) {
                Parts { rows, placed: None } => rows,
                Parts { rows, placed: Some(placed) } => self.ops.by_route(&placed, &rows, routes.rows * routes.top_k),
            },
            // Nobody reads what a rank without experts offers.
            None => self.ops.tensor(routes.rows * routes.top_k, x.cols, x.element),
        };
        assert_eq!(parts.element, x.element, "moe: experts must give the numbers that they get");
        Ok(self.combine_over_ranks(batch, of_layer, &dispatched, &parts, shared))
    }
}
