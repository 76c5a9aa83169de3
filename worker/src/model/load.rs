//! Reads a rank's parts of weights and puts them on its device. It does not know which weights a model has.

use std::ops::Range;

use rein_control_plane::RankPlacement;
use rein_kernels::{
    Backend, CacheForm, Devices, HostForm, HostMatrix, Precision, Result as KernelResult, RowOps, WeightRole,
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
            let all = self.weights.matrix(&l.module, l.stored_shape(), span, cols, form)?;
            (self.progress)(cost);
            return Ok(all.every(stride)?);
        }
        let parts = l
            .stored_rows(rows)
            .into_iter()
            .map(|rows| self.weights.matrix(&l.module, l.stored_shape(), rows, cols.clone(), form));
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
        let weight = self.backend.linear_weight(self.reader.read(l)?, self.precision(l.role))?;
        // The ranks' partial sums are added, so only one rank adds the bias.
        let bias = if l.bias && (!l.is_partial() || self.rank().rank == 0) {
            let (rows, _) = l.cut(self.rank(), self.ranks());
            let parts = l.stored_rows(rows).into_iter().map(|rows| self.numbers(&format!("{}.bias", l.module), rows));
            Some(self.backend.vector(parts.collect::<Result<Vec<_>, _>>()?.concat())?)
        } else {
            None
        };
        Ok(LoadedLinear { weight, bias, table: self.tables.get(l) })
    }

    /// Rows of several modules as one matrix, without a bias.
    pub fn joined<'l>(
        &self,
        parts: impl Iterator<Item = (&'l LinearSpec, Range<usize>)>,
    ) -> Result<LoadedLinear<D::Backend>, LoadError> {
        let WeightReader { weights, precisions, devices, .. } = &self.reader;
        let precision = precisions.of(WeightRole::Linear);
        let form = |stored| devices.host_form(WeightRole::Linear, stored, precision);
        let parts = parts.map(|(l, rows)| weights.matrix(&l.module, l.stored_shape(), rows, 0..l.inp, form));
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

impl<B: Backend> LoadedLinear<B> {
    pub fn apply(&self, pass: Pass<B>, x: &B::Tensor) -> B::Tensor {
        let mut out = pass.b.linear(x, &self.weight, self.bias.as_ref());
        let table = self.table.and_then(|table| pass.adapters?.of(table));
        if let Some(table) = table {
            pass.b.add_low_rank(pass.batch, x, &mut out, table);
        }
        out
    }
}
