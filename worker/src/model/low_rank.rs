//! The low-rank adapters of a rank's modules, by slot. It does not know files or names of adapters.

use std::collections::HashMap;

use rein_control_plane::RankPlacement;
use rein_kernels::{
    Backend, ExpertAdapters, HostData, HostMatrix, KernelError, LowRankPair, Precision, Result as KernelResult,
    WeightRole,
};
use rein_proto::internal::LoraPart;

use super::linear::LinearSpec;

/// Where the adapters of a linear module are. Those of a stored weight that holds several modules are apart.
pub type TableId = usize;

/// Of the linear modules outside of experts, and of the expansions of latents.
#[derive(Debug, Default)]
pub struct TableIds {
    linears: HashMap<(String, usize), TableId>,
    latents: HashMap<String, TableId>,
}

fn key(l: &LinearSpec) -> (String, usize) {
    (l.module.clone(), l.part.map_or(0, |part| part.offset))
}

impl TableIds {
    /// Of all linear modules of a model.
    pub fn of<'a>(linears: impl Iterator<Item = &'a LinearSpec>) -> Self {
        let mut ids = Self::default();
        for l in linears.filter(|l| !l.joined) {
            match l.role {
                WeightRole::Linear | WeightRole::Router => {
                    let next = ids.linears.len();
                    ids.linears.entry(key(l)).or_insert(next);
                }
                WeightRole::LatentExpansion => {
                    let next = ids.latents.len();
                    ids.latents.entry(l.module.clone()).or_insert(next);
                }
                WeightRole::Expert | WeightRole::Embedding => {}
            }
        }
        ids
    }

    /// None: the module takes no adapters.
    pub fn get(&self, l: &LinearSpec) -> Option<TableId> {
        self.linears.get(&key(l)).copied()
    }

    /// Of an expansion of latents.
    pub fn latents(&self, l: &LinearSpec) -> Option<TableId> {
        self.latents.get(&l.module).copied()
    }
}

/// What a part of an adapter goes to.
pub enum Target {
    Linear {
        table: TableId,
        spec: LinearSpec,
    },
    /// For each head, outputs for keys and for values.
    Latent {
        table: TableId,
        nope: usize,
        value: usize,
        spec: LinearSpec,
    },
    Expert {
        layer: usize,
        expert: usize,
        which: usize,
        spec: LinearSpec,
    },
}

/// By module.
pub type Targets = HashMap<String, Vec<Target>>;

/// The tables of one rank.
pub struct LowRanks<B: Backend> {
    linears: Vec<B::LowRank>,
    /// From queries to latents and from latents to values, by slot and head of this rank.
    latents: Vec<[B::LowRank; 2]>,
    /// By layer, of all experts: any rank may get them.
    experts: Vec<Option<[B::LowRank; 3]>>,
    targets: Targets,
    counts: Vec<usize>,
    /// Of this rank.
    heads: usize,
    slots: usize,
    precision: Precision,
}

impl<B: Backend> LowRanks<B> {
    /// `counts`: experts by layer. `heads`: of this rank.
    pub fn new(
        b: &B,
        ids: &TableIds,
        targets: Targets,
        counts: Vec<usize>,
        heads: usize,
        slots: usize,
        precision: Precision,
    ) -> KernelResult<Self> {
        let linears = (0..ids.linears.len()).map(|_| b.low_rank(slots)).collect::<KernelResult<_>>()?;
        let of_heads = || Ok([b.low_rank(slots * heads)?, b.low_rank(slots * heads)?]);
        let latents = (0..ids.latents.len()).map(|_| of_heads()).collect::<KernelResult<_>>()?;
        let of_experts = |count: &usize| {
            let table = || b.low_rank(slots * count);
            (*count > 0).then(|| Ok([table()?, table()?, table()?])).transpose()
        };
        let experts = counts.iter().map(of_experts).collect::<KernelResult<_>>()?;
        Ok(Self { linears, latents, heads, experts, targets, counts, slots, precision })
    }

    /// Of a linear module.
    pub fn of(&self, table: TableId) -> Option<&B::LowRank> {
        self.linears.get(table)
    }

    pub fn of_latents(&self, table: TableId) -> Option<[&B::LowRank; 2]> {
        self.latents.get(table).map(|tables| tables.each_ref())
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
        let Self { linears, latents, experts, targets, counts, precision, heads, .. } = self;
        let targets = targets.get(&part.module).ok_or_else(|| wrong(format!("no module {}", part.module)))?;
        for target in targets {
            let (Target::Linear { spec, .. } | Target::Latent { spec, .. } | Target::Expert { spec, .. }) = target;
            let pair =
                cut(part, spec, rank, ranks).ok_or_else(|| wrong(format!("{}: the sizes differ", part.module)))?;
            let (table, place) = match *target {
                Target::Linear { table, .. } => (&mut linears[table], slot),
                Target::Latent { table, nope, value, .. } => {
                    for (head, pairs) in by_head(pair, nope, value).into_iter().enumerate() {
                        for (table, pair) in latents[table].iter_mut().zip(pairs) {
                            b.set_low_rank(table, slot * *heads + head, Some(pair), *precision)?;
                        }
                    }
                    continue;
                }
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
        for table in self.latents.iter_mut().flatten() {
            for place in slot * self.heads..(slot + 1) * self.heads {
                b.set_low_rank(table, place, None, precision)?;
            }
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
}

/// What an adapter of an expansion of latents changes in the products of each head: from its query to a latent, and
/// from a latent to its value. With A down, and K and V a head's rows of up: q K A, and latent A' V'.
fn by_head(LowRankPair { down, up }: LowRankPair, nope: usize, value: usize) -> Vec<[LowRankPair; 2]> {
    let (rank, width) = (down.rows, down.cols);
    let (HostData::F32(down), HostData::F32(up)) = (down.data, up.data) else { return Vec::new() };
    let matrix = |rows, cols, numbers| HostMatrix { rows, cols, data: HostData::F32(numbers) };
    let transposed = |numbers: &[f32], cols: usize| -> Vec<f32> {
        (0..cols).flat_map(|col| numbers.iter().skip(col).step_by(cols).copied()).collect()
    };
    let of_head = |rows: &[f32]| {
        let (keys, values) = rows.split_at(nope * rank);
        let to_latent = LowRankPair {
            down: matrix(rank, nope, transposed(keys, rank)),
            up: matrix(width, rank, transposed(&down, width)),
        };
        let to_value =
            LowRankPair { down: matrix(rank, width, down.clone()), up: matrix(value, rank, values.to_vec()) };
        [to_latent, to_value]
    };
    up.chunks_exact((nope + value) * rank).map(of_head).collect()
}

/// Numbers of an adapter of rank 1 of a module on a rank. Each head has its own products with an expansion of latents.
pub fn numbers_of_rank_one(l: &LinearSpec, rank: &RankPlacement, ranks: usize) -> usize {
    let (rows, cols) = l.cut(rank, ranks);
    let copies = if l.role == WeightRole::LatentExpansion { 2 * rank.heads.len() } else { 1 };
    rows.len() + copies * cols.len()
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
