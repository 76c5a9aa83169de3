//! Experts that ranks share: which rank computes a route, and the sum of the parts that the ranks computed. It does not
//! know layouts to come.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys;

use super::super::arena::ArenaBlock;
use super::super::args::{MoeCombineRanksArgs, MoeDispatchArgs, MoePackArgs, MoeSlotsArgs};
use super::super::batch::PlacedBatch;
use super::super::device::Context;
use super::super::error::check;
use super::super::form::Element;
use super::super::graphs::Mode;
use super::super::memory::read;
use super::super::plan::{LaunchPlan, int};
use super::super::tensor::DeviceTensor;
use super::super::{CudaDevice, CudaError, DeviceBuffer};
use super::sums::rows_of;
use super::{Offer, RankOps};
use crate::backend::{ExpertCounts, ExpertTable};
use crate::error::{KernelError, Result};

const SLOTS_THREADS: u32 = 256;

/// The ranks that hold each expert of a layer, on the device: for each expert their number, then as many as there are
/// ranks. The address stays when experts move.
#[derive(Debug)]
pub(in super::super) struct HolderTable {
    experts: usize,
    ranks: usize,
    pub data: DeviceBuffer,
}

impl HolderTable {
    pub fn new(device: &CudaDevice, table: &ExpertTable, ranks: usize) -> Result<HolderTable> {
        let experts = table.holders.len();
        let holders = HolderTable { experts, ranks, data: device.allocate(4 * experts * (1 + ranks))? };
        holders.write(device, table)?;
        Ok(holders)
    }

    /// Between two steps.
    pub fn write(&self, device: &CudaDevice, table: &ExpertTable) -> Result<()> {
        if table.holders.len() != self.experts {
            let what = format!("a table of {} experts for a layer of {}", table.holders.len(), self.experts);
            return Err(KernelError::Shape { op: "experts", what });
        }
        let mut words = Vec::with_capacity(self.experts * (1 + self.ranks));
        for (expert, holders) in table.holders.iter().enumerate() {
            let held = !holders.is_empty() && holders.len() <= self.ranks;
            if !held || holders.iter().any(|&rank| rank as usize >= self.ranks) {
                let what = format!("expert {expert} is on the ranks {holders:?} of {}", self.ranks);
                return Err(KernelError::Shape { op: "experts", what });
            }
            words.push(holders.len() as u32);
            words.extend(holders);
            words.resize(words.len() + self.ranks - holders.len(), 0);
        }
        Ok(self.data.write(device, 0, &words)?)
    }
}

/// Counts the routes of each expert, layer by layer, on the device.
pub(in super::super) struct ExpertCounters {
    counts: Arc<CountedExperts>,
    layers: Vec<usize>,
}

struct CountedExperts {
    data: DeviceBuffer,
    context: Arc<Context>,
    total: usize,
}

impl CountedExperts {
    /// On any thread. Kernels may count meanwhile: a number is whole, the numbers need not be of one moment.
    fn read(&self) -> std::result::Result<Vec<u64>, CudaError> {
        self.context.enter()?;
        let mut counts = vec![0u64; self.total];
        // SAFETY: both have that many numbers. The copy is of no stream of a rank, and ends before the call returns.
        check("cuMemcpyDtoH", unsafe {
            sys::cuMemcpyDtoH_v2(counts.as_mut_ptr().cast(), self.data.address(), 8 * self.total)
        })?;
        Ok(counts)
    }
}

impl ExpertCounters {
    pub fn new(device: &CudaDevice, layers: &[usize]) -> super::super::Result<ExpertCounters> {
        let total = layers.iter().sum::<usize>();
        let mut data = device.allocate(8 * total.max(1))?;
        data.fill(device, 0)?;
        device.wait()?;
        let counts = Arc::new(CountedExperts { data, context: Arc::clone(device.context()), total });
        Ok(ExpertCounters { counts, layers: layers.to_vec() })
    }

    /// The address of a layer's counts; 0 if nothing is counted.
    fn of(&self, layer: usize) -> u64 {
        let before: usize = self.layers.iter().take(layer).sum();
        let counted = self.layers.get(layer).is_some_and(|&experts| experts > 0);
        if counted { self.counts.data.address() + 8 * before as u64 } else { 0 }
    }

    /// A device that has failed counts nothing.
    pub fn reader(&self) -> ExpertCounts {
        let (counts, layers) = (Arc::clone(&self.counts), self.layers.clone());
        Arc::new(move || {
            let all = counts.read().unwrap_or_else(|_| vec![0; counts.total]);
            let mut rest = all.into_iter();
            layers.iter().map(|&experts| rest.by_ref().take(experts).collect()).collect()
        })
    }
}

/// For each route, the rank that computes it, and the expert if that is this rank.
pub(in super::super) struct Dispatched {
    ranks_of: ArenaBlock,
    pub mine: ArenaBlock,
}

/// The routes of a layer.
#[derive(Clone, Copy)]
pub(in super::super) struct LayerRoutes {
    pub layer: usize,
    pub rows: usize,
    pub top_k: usize,
    /// Addresses of experts (global ids) and weights by route.
    pub ids: u64,
    pub weights: u64,
}

impl RankOps<'_> {
    pub fn dispatch(&self, batch: &PlacedBatch, routes: LayerRoutes, holders: &HolderTable) -> Dispatched {
        let count = routes.rows * routes.top_k;
        let dispatched = Dispatched { ranks_of: self.ops.take(4 * count), mine: self.ops.take(4 * count) };
        let args = MoeDispatchArgs {
            ids: routes.ids,
            tokens: batch.parts.ids,
            positions: batch.parts.positions,
            holders: holders.data.address(),
            ranks_of: dispatched.ranks_of.address,
            mine: dispatched.mine.address,
            counts: self.group.counters.as_ref().map_or(0, |counters| counters.of(routes.layer)),
            routes: int(count),
            top_k: int(routes.top_k),
            rank: int(self.group.rank()),
            ranks: int(self.group.ranks()),
        };
        let plan = LaunchPlan::by_number("moe_dispatch", count);
        // SAFETY: routes go to experts of the layer, for which holders and counts have entries.
        unsafe { self.ops.launch(&plan, &args) };
        dispatched
    }

    /// Adds the ranks' parts [routes, n] of each row, and the partial sums `shared` [rows, n].
    pub fn combine_over_ranks(
        &self,
        batch: &PlacedBatch,
        routes: LayerRoutes,
        dispatched: &Dispatched,
        parts: &DeviceTensor,
        shared: Option<&DeviceTensor>,
    ) -> DeviceTensor {
        let LayerRoutes { rows, top_k, .. } = routes;
        let (n, ranks, element) = (parts.cols, self.group.ranks(), parts.element);
        let split = self.splits(rows * top_k * n * element.bytes());
        let share = |rank: usize| if split { rows_of(rows, ranks, rank) } else { 0..rows };
        let bytes_of = |reader, numbers: usize| {
            let rows = share(reader);
            rows.start * numbers * element.bytes()..rows.end * numbers * element.bytes()
        };
        let packed = (split && self.sends_parts()).then(|| self.pack_parts(routes, dispatched, parts));
        if self.ops.check().is_err() {
            return self.ops.tensor(rows, n, Element::F32);
        }
        let packed = packed.flatten();
        let (of_whole, of_shared) = (|reader, _| bytes_of(reader, top_k * n), |reader, _| bytes_of(reader, n));
        let of_packed = |reader, owner| packed.as_ref().map_or(0..0, |packed| packed.share(reader, owner));
        let mut offers = vec![match &packed {
            Some(packed) => Offer::of(&packed.parts, &of_packed),
            None => Offer { partly: true, ..Offer::of(parts, &of_whole) },
        }];
        offers.extend(shared.map(|shared| Offer::of(shared, &of_shared)));
        let table = self.exchange(&offers);
        let own = share(self.group.rank());
        let out = self.ops.tensor(own.len(), n, Element::F32);
        let args = MoeCombineRanksArgs {
            parts: table.of(0),
            shared: if shared.is_some() { table.of(1) } else { 0 },
            ids: routes.ids,
            ranks_of: dispatched.ranks_of.address,
            tokens: batch.parts.ids,
            slots: packed.as_ref().map_or(0, |packed| packed.slots.address),
            starts: packed.as_ref().map_or(0, |packed| packed.starts.address),
            weights: routes.weights,
            out: out.address,
            first: int(own.start),
            n: int(n),
            top_k: int(top_k),
            rank: int(self.group.rank()),
            ranks: int(ranks),
        };
        let kernel = element.of("moe_combine_ranks_f32", "moe_combine_ranks_bf16");
        // SAFETY: the rank of a route has its part; all ranks have parts of `shared`. out has a row for each row of
        // `own`.
        unsafe { self.ops.launch(&LaunchPlan::by_column(kernel, own.len(), n), &args) };
        if split { self.join_rows(&out, rows) } else { out }
    }

    /// Whether the ranks send each other parts, in a step that may wait for the device: then they send those that are
    /// needed. The same on all ranks.
    fn sends_parts(&self) -> bool {
        let recorded = self.graphs.borrow().mode() != Mode::Plain;
        !recorded && self.group.data.as_ref().is_some_and(|data| data.peers().is_none())
    }

    /// Packs the parts of this rank's routes, and waits for their number.
    fn pack_parts(&self, routes: LayerRoutes, dispatched: &Dispatched, parts: &DeviceTensor) -> Option<PackedParts> {
        let LayerRoutes { rows, top_k, .. } = routes;
        let (ranks, count) = (self.group.ranks(), rows * top_k);
        let (slots, starts) = (self.ops.take(4 * count), self.ops.take(4 * ranks * (ranks + 1)));
        let ranks_of = dispatched.ranks_of.address;
        let args = MoeSlotsArgs {
            ranks_of,
            slots: slots.address,
            starts: starts.address,
            rows: int(rows),
            top_k: int(top_k),
            ranks: int(ranks),
        };
        // SAFETY: ranks_of and slots have an entry for each route, starts one for each rank and share, and for the end.
        unsafe { self.ops.launch(&LaunchPlan::new("moe_slots", [ranks, 1, 1], SLOTS_THREADS), &args) };
        self.ops.check().ok()?;
        // SAFETY: starts has that many words.
        let bounds = self.ops.keep(unsafe { read::<u32>(&self.ops.device, starts.address, ranks * (ranks + 1)) })?;
        let own = bounds[self.group.rank() * (ranks + 1) + ranks] as usize;
        let row_bytes = parts.cols * parts.element.bytes();
        let packed = self.ops.tensor(own, parts.cols, parts.element);
        let (n, rank) = (int(parts.cols), int(self.group.rank()));
        let args =
            MoePackArgs { parts: parts.address, ranks_of, slots: slots.address, packed: packed.address, n, rank };
        let kernel = parts.element.of("moe_pack_f32", "moe_pack_bf16");
        // SAFETY: parts has a row for each route, packed one for each route of this rank.
        unsafe { self.ops.launch(&LaunchPlan::by_column(kernel, count, parts.cols), &args) };
        Some(PackedParts { parts: packed, slots, starts, bounds, ranks, row_bytes })
    }
}

/// The parts of a rank's routes, without gaps.
struct PackedParts {
    parts: DeviceTensor,
    slots: ArenaBlock,
    starts: ArenaBlock,
    /// `starts`, on the host.
    bounds: Vec<u32>,
    ranks: usize,
    row_bytes: usize,
}

impl PackedParts {
    /// The bytes of the parts that one rank (the second) has for another (the first).
    fn share(&self, reader: usize, owner: usize) -> Range<usize> {
        let at = owner * (self.ranks + 1) + reader;
        let [begin, end] = [at, at + 1].map(|at| self.bounds[at] as usize * self.row_bytes);
        begin..end
    }
}
