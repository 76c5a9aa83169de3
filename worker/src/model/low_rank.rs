//! The low-rank adapters of a rank's modules, by slot. It does not know files or names of adapters.

use std::collections::HashMap;

use rein_control_plane::RankPlacement;
use rein_kernels::{
    Backend, ExpertAdapters, HostData, HostMatrix, KernelError, LowRankPair, Precision, Result as KernelResult,
    WeightRole,
};
use rein_proto::internal::LoraPart;

use super::linear::LinearSpec;
use super::spec::{Mlp, Spec};

/// Where the adapters of a linear module are. Those of a stored weight that holds several modules are apart.
pub type TableId = usize;

/// Of the linear modules outside of experts.
#[derive(Debug, Default)]
pub struct TableIds(HashMap<(String, usize), TableId>);

fn key(l: &LinearSpec) -> (String, usize) {
    (l.module.clone(), l.part.map_or(0, |part| part.index))
}

impl TableIds {
    pub fn of(spec: &Spec) -> Self {
        let outside = spec.linears().filter(|l| l.role != WeightRole::Expert);
        Self(outside.enumerate().map(|(id, l)| (key(l), id)).collect())
    }

    /// None: the module takes no adapters.
    pub fn get(&self, l: &LinearSpec) -> Option<TableId> {
        self.0.get(&key(l)).copied()
    }
}

/// What a part of an adapter goes to.
enum Target {
    Linear { table: TableId, spec: LinearSpec },
    Expert { layer: usize, expert: usize, which: usize, spec: LinearSpec },
}

/// The tables of one rank.
pub struct LowRanks<B: Backend> {
    linears: Vec<B::LowRank>,
    /// By layer, of all experts: any rank may get them.
    experts: Vec<Option<[B::LowRank; 3]>>,
    targets: HashMap<String, Vec<Target>>,
    counts: Vec<usize>,
    slots: usize,
    precision: Precision,
}

impl<B: Backend> LowRanks<B> {
    pub fn new(b: &B, spec: &Spec, ids: &TableIds, slots: usize, precision: Precision) -> KernelResult<Self> {
        let mut targets: HashMap<String, Vec<Target>> = HashMap::new();
        for spec in spec.linears() {
            if let Some(table) = ids.get(spec) {
                let target = Target::Linear { table, spec: spec.clone() };
                targets.entry(spec.module.clone()).or_default().push(target);
            }
        }
        let mut experts = Vec::new();
        for (layer, of_layer) in spec.layers.iter().enumerate() {
            let Mlp::Moe(moe) = &of_layer.mlp else {
                experts.push(None);
                continue;
            };
            for (expert, gated) in moe.experts.iter().enumerate() {
                for (which, spec) in gated.linears().into_iter().enumerate() {
                    let target = Target::Expert { layer, expert, which, spec: spec.clone() };
                    targets.entry(spec.module.clone()).or_default().push(target);
                }
            }
            let table = || b.low_rank(slots * moe.experts.len());
            experts.push(Some([table()?, table()?, table()?]));
        }
        let linears = (0..ids.0.len()).map(|_| b.low_rank(slots)).collect::<KernelResult<_>>()?;
        Ok(Self { linears, experts, targets, counts: spec.shape().experts, slots, precision })
    }

    /// Of a linear module.
    pub fn of(&self, table: TableId) -> Option<&B::LowRank> {
        self.linears.get(table)
    }

    pub fn of_experts(&self, layer: usize) -> Option<ExpertAdapters<'_, B::LowRank>> {
        let [gate, up, down] = self.experts.get(layer)?.as_ref()?;
        Some(ExpertAdapters { experts: self.counts[layer], gate, up, down })
    }

    /// Keeps this rank's share of a part, or empties a slot.
    pub fn put(&mut self, b: &B, part: &LoraPart, rank: &RankPlacement, ranks: usize) -> KernelResult<()> {
        let wrong = |what: String| KernelError::Shape { op: "LoRA", what };
        let slot = part.slot as usize;
        if slot >= self.slots {
            return Err(wrong(format!("no slot {slot}; there are {}", self.slots)));
        }
        if part.module.is_empty() {
            return self.empty(b, slot);
        }
        let Self { linears, experts, targets, counts, precision, .. } = self;
        let targets = targets.get(&part.module).ok_or_else(|| wrong(format!("no module {}", part.module)))?;
        for target in targets {
            let (Target::Linear { spec, .. } | Target::Expert { spec, .. }) = target;
            let pair =
                cut(part, spec, rank, ranks).ok_or_else(|| wrong(format!("{}: the sizes differ", part.module)))?;
            let (table, place) = match *target {
                Target::Linear { table, .. } => (&mut linears[table], slot),
                Target::Expert { layer, expert, which, .. } => match &mut experts[layer] {
                    Some(tables) => (&mut tables[which], slot * counts[layer] + expert),
                    None => continue,
                },
            };
            b.set_low_rank(table, place, Some(pair), *precision)?;
        }
        Ok(())
    }

    fn empty(&mut self, b: &B, slot: usize) -> KernelResult<()> {
        let precision = self.precision;
        for table in &mut self.linears {
            b.set_low_rank(table, slot, None, precision)?;
        }
        for (tables, count) in self.experts.iter_mut().zip(&self.counts) {
            for table in tables.iter_mut().flatten() {
                for place in slot * count..(slot + 1) * count {
                    b.set_low_rank(table, place, None, precision)?;
                }
            }
        }
        Ok(())
    }

    pub fn clear(&mut self, b: &B) -> KernelResult<()> {
        (0..self.slots).try_for_each(|slot| self.empty(b, slot))
    }
}

/// This rank's share of a part. None: its sizes are not those of the module.
fn cut(part: &LoraPart, spec: &LinearSpec, rank: &RankPlacement, ranks: usize) -> Option<LowRankPair> {
    let (rank_of_part, [outs, ins]) = (part.rank as usize, spec.stored_shape());
    if part.down.len() != 4 * rank_of_part * ins || part.up.len() != 4 * outs * rank_of_part || rank_of_part == 0 {
        return None;
    }
    let (rows, cols) = spec.cut(rank, ranks);
    let number = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
    let (down, up) = (part.down.as_chunks().0, part.up.as_chunks().0);
    let down: Vec<f32> = down.chunks_exact(ins).flat_map(|row| row[cols.clone()].iter().map(number)).collect();
    let up: Vec<f32> = spec
        .stored_rows(rows)
        .into_iter()
        .flat_map(|rows| up[rows.start * rank_of_part..rows.end * rank_of_part].iter().map(number))
        .collect();
    let matrix = |rows, numbers: Vec<f32>| {
        let cols = numbers.len() / rows;
        HostMatrix { rows, cols, data: HostData::F32(numbers) }
    };
    let rows = up.len() / rank_of_part;
    let up = HostMatrix { rows, cols: rank_of_part, data: HostData::F32(up) };
    Some(LowRankPair { down: matrix(rank_of_part, down), up })
}
