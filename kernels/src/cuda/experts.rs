//! The experts of one layer that a rank holds: slots of one size in one buffer, and a table of the experts in them.
//! Both keep their addresses when experts move, so that recorded steps stay valid. It does not know routes.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fast::Int4Plans;
use super::form::ExpertShape;
use super::ranks::HolderTable;
use super::upload::WeightWriter;
use super::weights::{DeviceVector, Prepared, aligned};
use super::{CudaDevice, DeviceBuffer};
use crate::backend::{ClampedGate, ExpertTable, ExpertWeights, HostMatrix, Precision};
use crate::error::{KernelError, Result};

/// In the table: no expert.
const EMPTY: u32 = u32::MAX;

fn wrong(op: &'static str, what: String) -> KernelError {
    KernelError::Shape { op, what }
}

impl ExpertShape {
    fn of([gate, up, down]: &[Prepared; 3], id: u32) -> Result<ExpertShape> {
        let (inter, hidden) = (gate.outs, gate.ins);
        let fits = |m: &Prepared, outs, ins| (m.outs, m.ins) == (outs, ins);
        if !(fits(up, inter, hidden) && fits(down, hidden, inter)) {
            let what = format!("expert {id}: gate and up must be [{inter}, {hidden}], down [{hidden}, {inter}]");
            return Err(wrong("experts", what));
        }
        Ok(ExpertShape::new(inter, hidden, [gate.form, up.form, down.form]))
    }
}

/// Room for experts of one shape: all first matrices, all their scales, all scales of their outputs, all second ones,
/// and so on.
#[derive(Debug)]
struct Slots {
    shape: ExpertShape,
    capacity: usize,
    data: DeviceBuffer,
    /// For each slot the expert in it, then for each slot its index: the table of `moe_align`, and that of `linear`.
    table: DeviceBuffer,
    /// The expert in each slot, as on the device.
    held: Mutex<Vec<u32>>,
}

impl Slots {
    fn new(device: &CudaDevice, shape: ExpertShape, capacity: usize) -> Result<Slots> {
        let bytes: usize = (0..3).flat_map(|which| shape.parts(which)).map(|bytes| aligned(capacity * bytes)).sum();
        let held = vec![EMPTY; capacity];
        let words: Vec<u32> = held.iter().copied().chain(0..capacity as u32).collect();
        let table = device.allocate(4 * words.len())?;
        table.write(device, 0, &words)?;
        Ok(Slots { shape, capacity, data: device.allocate(bytes)?, table, held: Mutex::new(held) })
    }

    fn held(&self) -> MutexGuard<'_, Vec<u32>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the parts of the matrices `which` begin in the buffer.
    fn regions(&self, which: usize) -> [usize; 3] {
        let all = (0..3).flat_map(|which| self.shape.parts(which)).map(|bytes| aligned(self.capacity * bytes));
        let before = |part| all.clone().take(3 * which + part).sum();
        [0, 1, 2].map(before)
    }

    /// Where the parts of the matrix `which` in a slot begin.
    fn starts(&self, slot: usize, which: usize) -> [usize; 3] {
        let (regions, bytes) = (self.regions(which), self.shape.parts(which));
        [0, 1, 2].map(|part| regions[part] + slot * bytes[part])
    }

    /// The parts of a slot: where they begin, and their bytes.
    fn parts(&self, slot: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..3).flat_map(move |which| std::iter::zip(self.starts(slot, which), self.shape.parts(which)))
    }

    fn find(&self, id: u32) -> Option<usize> {
        self.held().iter().position(|&held| held == id)
    }

    /// Copies an expert of other slots into one.
    fn copy(&self, device: &CudaDevice, slot: usize, from: &Slots, from_slot: usize) -> Result<()> {
        for ((to, bytes), (from_at, _)) in self.parts(slot).zip(from.parts(from_slot)) {
            if bytes > 0 {
                self.data.copy(device, to, &from.data, from_at, bytes)?;
            }
        }
        Ok(())
    }

    /// Writes the table to the device.
    fn publish(&self, device: &CudaDevice) -> Result<()> {
        let held = self.held();
        Ok(self.table.write(device, 0, &held)?)
    }
}

/// This rank's experts of one layer.
#[derive(Debug)]
pub struct DeviceExperts {
    table: ExpertTable,
    /// The same for kernels; None in a group of one rank.
    holders: Option<Arc<HolderTable>>,
    precision: Precision,
    /// None: no expert.
    slots: Option<Arc<Slots>>,
    ids: Vec<u32>,
    /// None: silu(gate) * up, without biases.
    clamped: Option<Arc<ClampedGate<DeviceVector>>>,
}

/// What kernels need of the experts.
pub(super) struct ExpertSlots<'a> {
    pub shape: ExpertShape,
    pub clamped: Option<&'a ClampedGate<DeviceVector>>,
    pub capacity: usize,
    pub held_ids: u64,
    pub weight_slots: u64,
    /// As the shape has them: the numbers, their scales, and those of the outputs.
    pub matrices: [[u64; 3]; 3],
}

impl DeviceExperts {
    pub(super) fn load(
        writer: WeightWriter,
        table: ExpertTable,
        weights: &mut dyn Iterator<Item = Result<ExpertWeights>>,
        precision: Precision,
        ranks: usize,
    ) -> Result<DeviceExperts> {
        let expected = weights.size_hint().1.unwrap_or(1);
        let holders = (ranks > 1).then(|| HolderTable::new(writer.device, &table, ranks).map(Arc::new)).transpose()?;
        let mut experts = DeviceExperts { table, holders, precision, slots: None, ids: Vec::new(), clamped: None };
        for weights in weights {
            experts.push(writer, weights?, expected)?;
        }
        if let Some(slots) = &experts.slots {
            slots.publish(writer.device)?;
        }
        // Another backend may use them.
        writer.wait()?;
        Ok(experts)
    }

    fn push(&mut self, writer: WeightWriter, weights: ExpertWeights, expected: usize) -> Result<()> {
        let ExpertWeights { id, gate, up, down } = weights;
        let prepare = |matrix: HostMatrix| Prepared::new(matrix, self.precision);
        let matrices = [prepare(gate)?, prepare(up)?, prepare(down)?];
        let mut shape = ExpertShape::of(&matrices, id)?;
        if writer.device.has_fast() && Int4Plans::of(&shape).is_some() {
            shape.tiled = Some(Int4Plans::COLUMNS);
        }
        if self.ids.contains(&id) {
            return Err(KernelError::expert_added_twice("experts", id));
        }
        let slot = self.ids.len();
        let slots = match &self.slots {
            Some(slots) if slots.shape != shape => {
                let what = format!("expert {id} is {shape:?}, the ones before {:?}", slots.shape);
                return Err(wrong("experts", what));
            }
            Some(slots) if slot < slots.capacity => Arc::clone(slots),
            full => {
                let capacity = expected.max(full.as_ref().map_or(1, |slots| 2 * slots.capacity));
                let grown = Slots::new(writer.device, shape, capacity)?;
                if let Some(old) = full {
                    writer.wait()?;
                    (0..old.capacity).try_for_each(|slot| grown.copy(writer.device, slot, old, slot))?;
                    grown.held()[..old.capacity].copy_from_slice(&old.held());
                }
                Arc::new(grown)
            }
        };
        let [first, second, last] = [0, 1, 2].map(|which| slots.starts(slot, which));
        let [gate, up, down] = matrices;
        if shape.tiled.is_some() {
            Prepared::write_tiled(vec![gate, up], writer, &slots.data, first)?;
            Prepared::write_tiled(vec![down], writer, &slots.data, last)?;
        } else {
            let of_up = shape.up_starts().map_or(second, |starts| [0, 1, 2].map(|part| first[part] + starts[part]));
            for (matrix, starts) in [(gate, first), (up, of_up), (down, last)] {
                matrix.write(writer, &slots.data, starts)?;
            }
        }
        slots.held()[slot] = id;
        self.ids.push(id);
        self.slots = Some(slots);
        Ok(())
    }

    /// The experts with these ids, in the slots of `self` if they are enough. Experts that leave make room for those
    /// that come, so `self` must not be used after a success.
    pub(super) fn regroup(&self, device: &CudaDevice, fresh: &DeviceExperts, ids: &[u32]) -> Result<DeviceExperts> {
        let of = |experts: &DeviceExperts, id| {
            let slots = experts.slots.as_ref()?;
            slots.find(id).map(|slot| (Arc::clone(slots), slot))
        };
        let missing = |id: u32| wrong("regroup", format!("expert {id} is not held"));
        let mut seen = HashSet::new();
        for &id in ids {
            of(self, id).or_else(|| of(fresh, id)).ok_or_else(|| missing(id))?;
            if !seen.insert(id) {
                return Err(KernelError::expert_added_twice("regroup", id));
            }
        }
        let (table, precision, clamped) = (fresh.table.clone(), self.precision, self.clamped.clone());
        let holders = self.holders.clone().or_else(|| fresh.holders.clone());
        if let Some(holders) = &holders {
            holders.write(device, &table)?;
        }
        let old = self.slots.as_ref().or(fresh.slots.as_ref());
        let Some(old) = old.filter(|_| !ids.is_empty()) else {
            return Ok(DeviceExperts { table, holders, precision, slots: None, ids: Vec::new(), clamped });
        };
        if let Some(other) = fresh.slots.as_ref().filter(|other| other.shape != old.shape) {
            return Err(wrong("regroup", format!("experts of {:?} and {:?}", old.shape, other.shape)));
        }
        let slots = match &self.slots {
            Some(slots) if ids.len() <= slots.capacity => Arc::clone(slots),
            _ => Arc::new(Slots::new(device, old.shape, ids.len())?),
        };
        let mut held: Vec<u32> = slots.held().iter().map(|id| if ids.contains(id) { *id } else { EMPTY }).collect();
        for id in ids {
            if held.contains(id) {
                continue;
            }
            let free = held.iter().position(|&held| held == EMPTY);
            let (Some((from, from_slot)), Some(slot)) = (of(self, *id).or_else(|| of(fresh, *id)), free) else {
                return Err(missing(*id));
            };
            slots.copy(device, slot, &from, from_slot)?;
            held[slot] = *id;
        }
        *slots.held() = held;
        slots.publish(device)?;
        Ok(DeviceExperts { table, holders, precision, slots: Some(slots), ids: ids.to_vec(), clamped })
    }

    /// Whether both are in the same memory.
    pub(super) fn same_slots(&self, other: &DeviceExperts) -> bool {
        match (&self.slots, &other.slots) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }

    pub(super) fn clamp(&mut self, gate: ClampedGate<DeviceVector>) {
        self.clamped = Some(Arc::new(gate));
    }

    pub(super) fn table(&self) -> &ExpertTable {
        &self.table
    }

    pub(super) fn holders(&self) -> Option<&HolderTable> {
        self.holders.as_deref()
    }

    pub(super) fn ids(&self) -> &[u32] {
        &self.ids
    }

    pub(super) fn slots(&self) -> Option<ExpertSlots<'_>> {
        let slots = self.slots.as_ref()?;
        let at = |offset: usize| slots.data.address() + offset as u64;
        Some(ExpertSlots {
            shape: slots.shape,
            clamped: self.clamped.as_deref(),
            capacity: slots.capacity,
            held_ids: slots.table.address(),
            weight_slots: slots.table.address() + 4 * slots.capacity as u64,
            matrices: std::array::from_fn(|which| slots.regions(which).map(at)),
        })
    }
}
