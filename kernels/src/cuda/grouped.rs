//! The products of experts by grouped kernels: those of gemm.h for bf16 and FP8 weights, those of int4.h. Routes get
//! places in which each expert's rows follow each other.

use super::arena::ArenaBlock;
use super::args::{MoePlaceArgs, MoePlaceFewArgs, MoePlaces, ScatterArgs};
use super::experts::ExpertSlots;
use super::fast::{
    FastMap, Form, GemmPlan, INT4_THREADS, Int4Args, Int4Plans, Int4Tile, OperandType, Product, TileKernel,
};
use super::form::{Element, ExpertShape};
use super::gemm::Maps;
use super::op_stream::OpStream;
use super::outputs::RowsByExpert;
use super::plan::{LaunchPlan, int};
use super::routes::{Aligned, DeviceRoutes};
use super::tensor::{DeviceTensor, Operand, PlaceRows};
use super::tensor_map::TensorMap;

/// Ends and starts of experts are there for a multiple of so many experts.
const EXPERTS: usize = 64;

/// At most so many routes get their places at once, in one block.
const FEW_ROUTES: usize = 2048;

/// Experts of one launch with int4 weights.
const INT4_EXPERTS: usize = 64;

/// The kernels of an expert's matrices: gate and up, and down.
#[derive(Debug, Clone, Copy)]
pub(super) enum ExpertPlans {
    Gemm([GemmPlan; 2]),
    Int4(Int4Plans),
}

#[derive(Debug, Clone, Copy)]
enum Tiles {
    Gemm([&'static TileKernel; 2]),
    Int4([&'static Int4Tile; 2]),
}

/// A place for each route of an expert that is held.
pub(super) struct Placed {
    pub rows: PlaceRows,
    /// The place of each route that has one.
    pub of_routes: ArenaBlock,
    _routes: ArenaBlock,
    starts: ArenaBlock,
    ends: ArenaBlock,
    tiles: Tiles,
}

/// Places that routes to at most `held` experts can need, each expert's from a multiple of `tile` on.
pub(super) fn room_for(routes: usize, held: usize, tile: usize) -> usize {
    // Every expert that has a route may leave all but one place of its last tile free.
    (routes + routes.min(held) * (tile - 1)) / tile * tile
}

impl OpStream {
    /// The kernels of an expert's products on activations of an element, if fast kernels take all of them.
    pub fn expert_plans(&self, shape: &ExpertShape, capacity: usize, x: Element) -> Option<ExpertPlans> {
        if let Some(plans) = self.fast.as_ref().and_then(|_| Int4Plans::of(shape)) {
            assert!(x == Element::Bf16, "int4 experts of fast kernels have activations in bf16");
            return Some(ExpertPlans::Int4(plans));
        }
        let plan = |which: usize| {
            let (n, k, form) = shape.matrix(which);
            let numbers = OperandType::of(form).filter(|_| x == Element::Bf16)?;
            self.fast_plan(Product { numbers, out: Element::Bf16, form: Form::Grouped, n, k, groups: capacity })
        };
        Some(ExpertPlans::Gemm([plan(0).filter(|_| shape.up_at.is_some())?, plan(2)?]))
    }

    /// Finds the places of routes. `ids`: the expert of each; `tokens`: that of each row.
    pub fn place(
        &self,
        plans: ExpertPlans,
        of: &DeviceRoutes,
        experts: &ExpertSlots,
        [ids, tokens]: [u64; 2],
    ) -> Placed {
        let routes = of.rows * of.top_k;
        // An expert has so many rows if all of all ranks have equally many.
        let rows = routes / of.experts.max(1);
        let (tiles, tile, groups) = match plans {
            ExpertPlans::Gemm(plans) => {
                let tiles = plans.map(|plan| plan.tile_of_experts(rows));
                (Tiles::Gemm(tiles), tiles[0].rows, tiles[0].groups.max(tiles[1].groups))
            }
            // Each expert's rows begin where those of the one before end.
            ExpertPlans::Int4(plans) => (Tiles::Int4([0, 2].map(|which| plans.tile(which, rows))), 1, experts.capacity),
        };
        let (held, groups) = (experts.capacity, groups.next_multiple_of(EXPERTS));
        let room = room_for(routes, held, tile);
        let [places, ends, begins, of_routes] = [room, groups, groups + 1, routes].map(|count| self.take(4 * count));
        let to = MoePlaces {
            routes: places.address,
            ends: ends.address,
            begins: begins.address,
            places: of_routes.address,
            held: int(held),
            groups: int(groups),
            tile: int(tile),
            room: int(room),
        };
        if routes <= FEW_ROUTES {
            let (routes, top_k) = (int(routes), int(of.top_k));
            let args = MoePlaceFewArgs { ids, held_ids: experts.held_ids, tokens, to, routes, top_k };
            // SAFETY: the lists have as many words as moe.cu says; `room` is enough for any routes.
            unsafe { self.launch(&LaunchPlan::by_row("moe_place_few", 1), &args) };
        } else {
            let Aligned { counts, starts, order } = self.align(of, experts, [ids, tokens]);
            let [counts, starts, order] = [counts, starts, order].each_ref().map(|list| list.address);
            let args = MoePlaceArgs { counts, starts, order, to };
            // SAFETY: as above.
            unsafe { self.launch(&LaunchPlan::by_row("moe_place", held + 1), &args) };
        }
        // What begins after the last expert is the number of places that all have.
        let rows = PlaceRows { routes: places.address, used: begins.address + 4 * groups as u64, room };
        Placed { rows, of_routes, _routes: places, starts: begins, ends, tiles }
    }

    /// The product of each place's row with matrix `which` of its expert.
    pub fn placed_product(&self, placed: &Placed, x: &Operand, experts: &ExpertSlots, which: usize) -> DeviceTensor {
        let (n, k, form) = experts.shape.matrix(which);
        let of = usize::from(which == 2);
        let tile = match placed.tiles {
            Tiles::Gemm(tiles) => tiles[of],
            Tiles::Int4(tiles) => return self.int4_product(tiles[of], placed, x, experts, which),
        };
        let room = placed.rows.room;
        let out = self.tensor(room, n, Element::Bf16);
        let [weights, scales, of_outputs] = experts.matrices[which];
        let maps = Maps {
            x: (x.address, tile.x([1, room, k], [x.stride, 0])),
            w: (weights, tile.w([experts.capacity, n, k])),
            out: (out.address, tile.out([1, room, n], [n, 0])),
            scales: (tile.numbers == OperandType::Fp8).then(|| ((x.scales, tile.x_scales(room, k)), scales)),
        };
        // SAFETY: x and out have a row for each place, and all slots have weights of this shape.
        unsafe { self.fast_gemm(tile, &maps, placed.ends.address, [room, n, k]) };
        if form.by_output() {
            let rows = RowsByExpert { starts: placed.starts.address, order: 0, held: experts.capacity };
            self.scale_outputs(&out, of_outputs, None, Some(rows));
        }
        out
    }

    /// The product of each place's row with matrix `which` of its expert.
    fn int4_product(
        &self,
        tile: &Int4Tile,
        placed: &Placed,
        x: &Operand,
        experts: &ExpertSlots,
        which: usize,
    ) -> DeviceTensor {
        let room = placed.rows.room;
        let out = self.tensor(room, tile.n, Element::Bf16);
        if room == 0 || self.check().is_err() {
            return out;
        }
        let [weights, scales, _] = experts.matrices[which];
        let [weight_bytes, scale_bytes, _] = experts.shape.parts(which).map(|bytes| bytes as u64);
        let blocks = self.device.properties.multiprocessors as usize;
        // It would read `starts` before it waits.
        let plan = LaunchPlan { shared: tile.shared, ..LaunchPlan::apart(tile.kernel, [blocks, 1, 1], INT4_THREADS) };
        for first in (0..experts.capacity).step_by(INT4_EXPERTS) {
            let held = INT4_EXPERTS.min(experts.capacity - first);
            let boxes = tile.maps(room, held);
            let at = |base: u64, bytes: u64| base + first as u64 * bytes;
            let addresses = [x.address, at(weights, weight_bytes), at(scales, scale_bytes)];
            let map = |i: usize| self.keep(TensorMap::new(addresses[i], &boxes[i])).map(FastMap);
            let (Some(x), Some(w), Some(scales)) = (map(0), map(1), map(2)) else { return out };
            let args = Int4Args {
                x,
                w,
                out: out.address,
                unused: [0; 2],
                scales,
                none: [0; 6],
                starts: placed.starts.address + 4 * first as u64,
                buffers: [0; 2],
                rows: int(room) as u32,
                top_k: 1,
                long_starts: false,
            };
            // SAFETY: x and out have a row for each place; the slots from `first` on have weights of this shape, and
            // starts an entry for each expert of a launch and for the end.
            unsafe { self.launch(&plan, &args) };
        }
        out
    }

    /// Rows by route, from rows by place.
    pub fn by_route(&self, placed: &Placed, x: &DeviceTensor, routes: usize) -> DeviceTensor {
        let out = self.tensor(routes, x.cols, x.element);
        let PlaceRows { routes: index, used, .. } = placed.rows;
        let args = ScatterArgs { x: x.address, index, used, out: out.address, n: int(x.cols) };
        let blocks = PlaceRows::blocks(Some(placed.rows), x.rows);
        // SAFETY: x has a row for each place; the places' routes are rows of out.
        unsafe { self.launch(&LaunchPlan::by_columns("scatter_bf16", blocks, x.cols), &args) };
        out
    }
}
