//! Reads a rank's parts of weights and puts them on its device. It does not know which weights a model has.

use std::ops::Range;
use std::sync::Arc;

use rein_control_plane::RankPlacement;
use rein_kernels::{
    Backend, CacheForm, Devices, HostForm, HostMatrix, HostPool, Precision, Result as KernelResult, RowOps, WeightRole,
};

use super::linear::{LinearSpec, Norm, StoredPart};
use super::low_rank::{LowRanks, TableId, TableIds};
use crate::checkpoint::{CheckpointWeights, LoadError};

/// Types of stored weights. Routers are always f32; embeddings and latent expansions are never int8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Precisions {
    /// f32 or bf16.
    pub base: Precision,
    /// The type of the large products: `base` or int8.
    pub linear: Precision,
    /// Whether the KV cache is FP8, not of the base type.
    pub fp8_cache: bool,
}

impl Precisions {
    /// Of a cache in which so many numbers of its entries can share a scale.
    pub fn cache(self, sharing: [usize; 2]) -> CacheForm {
        if self.fp8_cache { CacheForm::Fp8 { sharing } } else { CacheForm::of(self.base) }
    }

    pub fn of(self, role: WeightRole) -> Precision {
        match role {
            WeightRole::Embedding | WeightRole::LatentExpansion => self.base,
            WeightRole::Linear | WeightRole::Expert => self.linear,
            WeightRole::Router => Precision::F32,
        }
    }
}

/// Reads one rank's parts of weights, on any thread.
pub struct WeightReader<'a, D> {
    pub weights: &'a CheckpointWeights,
    pub precisions: Precisions,
    pub devices: &'a D,
    pub rank: &'a RankPlacement,
    pub ranks: usize,
    /// What is read goes here.
    pub pool: Arc<HostPool>,
    /// Receives the bytes of each part that was read.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

impl<D: Devices> WeightReader<'_, D> {
    pub fn read(&self, l: &LinearSpec) -> Result<HostMatrix, LoadError> {
        let (rows, cols) = l.cut(self.rank, self.ranks);
        let form = |stored| match self.devices.host_form(l.role, stored, self.precisions.of(l.role)) {
            HostForm::Stored if l.cuts_blocks(stored) => HostForm::Bf16,
            form => form,
        };
        let cost = self.weights.cost(&l.module, rows.len() * cols.len());
        if let Some(StoredPart { width: 1, stride, offset, .. }) = l.part {
            // What lies between is read too, rather than each row alone.
            let span = offset + rows.start * stride..offset + (rows.end * stride).saturating_sub(stride) + 1;
            let all = self.weights.matrix(&l.module, l.stored_shape(), span, cols, form, &self.pool)?;
            (self.progress)(cost);
            return Ok(all.every(stride)?);
        }
        let parts = l
            .stored_rows(rows)
            .into_iter()
            .map(|rows| self.weights.matrix(&l.module, l.stored_shape(), rows, cols.clone(), form, &self.pool));
        let matrix = HostMatrix::stack(parts.collect::<Result<_, _>>()?)?;
        (self.progress)(cost);
        Ok(matrix)
    }
}

/// Puts them on a device.
pub struct Loader<'a, D: Devices> {
    pub backend: &'a D::Backend,
    pub tables: &'a TableIds,
    pub reader: WeightReader<'a, D>,
}

impl<D: Devices> Loader<'_, D> {
    pub fn rank(&self) -> &RankPlacement {
        self.reader.rank
    }

    pub fn ranks(&self) -> usize {
        self.reader.ranks
    }

    pub fn precision(&self, role: WeightRole) -> Precision {
        self.reader.precisions.of(role)
    }

    pub fn linear(&self, l: &LinearSpec) -> Result<LoadedLinear<D::Backend>, LoadError> {
        self.linear_of(l, self.reader.read(l)?)
    }

    fn linear_of(&self, l: &LinearSpec, weight: HostMatrix) -> Result<LoadedLinear<D::Backend>, LoadError> {
        let weight = self.backend.linear_weight(weight, self.precision(l.role))?;
        let bias = self.bias(l)?.map(|bias| self.backend.vector(bias)).transpose()?;
        Ok(LoadedLinear { weight, bias, table: self.tables.get(l) })
    }

    fn bias(&self, l: &LinearSpec) -> Result<Option<Vec<f32>>, LoadError> {
        // The ranks' partial sums are added, so only one rank adds the bias.
        if !l.bias || l.is_partial() && self.rank().rank != 0 {
            return Ok(None);
        }
        let (rows, _) = l.cut(self.rank(), self.ranks());
        let parts = l.stored_rows(rows).into_iter().map(|rows| self.numbers(&format!("{}.bias", l.module), rows));
        Ok(Some(parts.collect::<Result<Vec<_>, _>>()?.concat()))
    }

    /// Linears of the same x: one product, if the backend wants that and they are stored alike.
    pub fn same_input<const N: usize>(&self, linears: [&LinearSpec; N]) -> Result<SameInput<D::Backend, N>, LoadError> {
        let wanted = <D::Backend as Backend>::JOINS_WEIGHTS;
        // One scale of each stays one of blocks, which costs nothing.
        let read = |l: &&LinearSpec| self.reader.read(l).map(|w| if wanted { w.with_one_scale() } else { w });
        let weights = linears.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let alike = |pair: &[&LinearSpec]| (pair[0].role, pair[0].bias) == (pair[1].role, pair[1].bias);
        let joins =
            wanted && linears.windows(2).all(alike) && weights.windows(2).all(|pair| pair[0].takes_below(&pair[1]));
        if !joins {
            let loaded = linears.iter().zip(weights).map(|(l, weight)| self.linear_of(l, weight));
            let loaded: Vec<_> = loaded.collect::<Result<_, _>>()?;
            return Ok(SameInput::Apart(loaded.try_into().unwrap_or_else(|_| unreachable!("one for each of N"))));
        }
        let mut from = 0;
        let results = std::array::from_fn(|i| {
            from += weights[i].rows;
            (from - weights[i].rows..from, self.tables.get(linears[i]))
        });
        let weight = self.backend.linear_weight(HostMatrix::stack(weights)?, self.precision(linears[0].role))?;
        let bias = linears.iter().filter_map(|l| self.bias(l).transpose()).collect::<Result<Vec<_>, _>>()?.concat();
        let bias = (!bias.is_empty()).then(|| self.backend.vector(bias)).transpose()?;
        Ok(SameInput::Joined(LoadedLinear { weight, bias, table: None }, results))
    }

    /// Rows of several modules as one matrix, without a bias.
    pub fn joined<'l>(
        &self,
        parts: impl Iterator<Item = (&'l LinearSpec, Range<usize>)>,
    ) -> Result<LoadedLinear<D::Backend>, LoadError> {
        let WeightReader { weights, precisions, devices, pool, .. } = &self.reader;
        let precision = precisions.of(WeightRole::Linear);
        let form = |stored| devices.host_form(WeightRole::Linear, stored, precision);
        let parts = parts.map(|(l, rows)| weights.matrix(&l.module, l.stored_shape(), rows, 0..l.inp, form, pool));
        let matrix = HostMatrix::stack(parts.collect::<Result<_, _>>()?)?;
        Ok(LoadedLinear { weight: self.backend.linear_weight(matrix, precision)?, bias: None, table: None })
    }

    /// Of a plain tensor.
    pub fn numbers(&self, tensor: &str, range: Range<usize>) -> Result<Vec<f32>, LoadError> {
        self.reader.weights.vector(tensor, range)
    }

    pub fn vector(&self, tensor: &str, range: Range<usize>) -> Result<<D::Backend as RowOps>::Vector, LoadError> {
        Ok(self.backend.vector(self.numbers(tensor, range)?)?)
    }

    pub fn norm(&self, norm: &Norm) -> Result<LoadedNorm<D::Backend>, LoadError> {
        let mut factors = self.numbers(&norm.tensor, 0..norm.size)?;
        if norm.from_one {
            factors.iter_mut().for_each(|factor| *factor += 1.0);
        }
        let bias = norm.bias.as_ref().map(|bias| self.vector(bias, 0..norm.size)).transpose()?;
        Ok(LoadedNorm { weight: self.backend.vector(factors)?, bias, eps: norm.eps })
    }
}

pub struct LoadedNorm<B: Backend> {
    pub weight: B::Vector,
    /// Of a layer norm.
    pub bias: Option<B::Vector>,
    pub eps: f32,
}

impl<B: Backend> LoadedNorm<B> {
    pub fn apply(&self, b: &B, x: &B::Tensor) -> B::Tensor {
        match &self.bias {
            None => b.rms_norm(x, &self.weight, self.eps),
            Some(bias) => b.layer_norm(x, &self.weight, bias, self.eps),
        }
    }

    /// Adds factor * y to x first.
    pub fn add(&self, b: &B, x: &mut B::Tensor, y: &B::Tensor, factor: f32) -> B::Tensor {
        if self.bias.is_none() {
            return b.add_norm(x, y, factor, &self.weight, self.eps);
        }
        b.add_scaled(x, y, factor);
        self.apply(b, x)
    }

    /// Adds factor * the sum over ranks of y to x first.
    pub fn add_sum(&self, b: &B, x: &mut B::Tensor, mut y: B::Tensor, factor: f32) -> KernelResult<B::Tensor> {
        if self.bias.is_none() {
            return b.sum_norm(x, y, factor, &self.weight, self.eps);
        }
        b.all_reduce(&mut y)?;
        Ok(self.add(b, x, &y, factor))
    }
}

pub struct LoadedLinear<B: Backend> {
    pub weight: B::Linear,
    bias: Option<B::Vector>,
    /// None: it takes no adapters.
    table: Option<TableId>,
}

/// Linears of the same x.
pub enum SameInput<B: Backend, const N: usize> {
    Apart([LoadedLinear<B>; N]),
    /// With the columns of each in the result, and where its adapters are.
    Joined(LoadedLinear<B>, [(Range<usize>, Option<TableId>); N]),
}

impl<B: Backend, const N: usize> SameInput<B, N> {
    pub fn apply(&self, pass: Pass<B>, x: &B::Tensor) -> [B::Tensor; N] {
        match self {
            SameInput::Apart(linears) => linears.each_ref().map(|linear| linear.apply(pass, x)),
            SameInput::Joined(linear, results) => {
                let all = linear.apply(pass, x);
                results.each_ref().map(|(columns, table)| {
                    let mut out = pass.b.slice_cols(&all, columns.start, columns.len());
                    pass.adapt(x, &mut out, *table);
                    out
                })
            }
        }
    }
}

/// What a module needs in a forward pass, besides its weights.
pub struct Pass<'a, 'b, B: Backend> {
    pub b: &'a B,
    pub batch: &'a B::Batch<'b>,
    /// None: the rank takes no adapters.
    pub adapters: Option<&'a LowRanks<B>>,
}

impl<B: Backend> Clone for Pass<'_, '_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Pass<'_, '_, B> {}

impl<'a, B: Backend> Pass<'a, '_, B> {
    fn adapters_of(self, table: Option<TableId>) -> Option<&'a B::LowRank> {
        self.adapters?.of(table?)
    }

    /// Adds what the adapters of a linear make of x.
    fn adapt(self, x: &B::Tensor, out: &mut B::Tensor, table: Option<TableId>) {
        if let Some(table) = self.adapters_of(table) {
            self.b.add_low_rank(self.batch, x, out, table);
        }
    }
}

impl<B: Backend> LoadedLinear<B> {
    pub fn apply(&self, pass: Pass<B>, x: &B::Tensor) -> B::Tensor {
        let mut out = pass.b.linear(x, &self.weight, self.bias.as_ref());
        pass.adapt(x, &mut out, self.table);
        out
    }

    /// `apply` to silu(gate) * up.
    pub fn apply_gated(&self, pass: Pass<B>, gate: &B::Tensor, up: &B::Tensor) -> B::Tensor {
        if pass.adapters_of(self.table).is_some() || self.bias.is_some() {
            return self.apply(pass, &pass.b.silu_mul(gate, up));
        }
        pass.b.silu_mul_linear(gate, up, &self.weight)
    }
}
