//! The weights of linear modules and norms as data: their names, shapes, and how ranks share them.

use std::ops::Range;

use rein_control_plane::placement::{RankPlacement, share};
use rein_kernels::{StoredForm, WeightRole};

/// The part of a weight [out, in] that a rank holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shard {
    Whole,
    /// The outputs of its attention heads, this many per head.
    OutHeads(usize),
    OutKvHeads(usize),
    /// The inputs of its attention heads; the ranks' results are summed.
    InHeads(usize),
    /// An even share of the outputs or inputs.
    Out,
    In,
}

/// A linear module: `{module}.weight` [out, inp] in any weight format and, with `bias`, `{module}.bias` [out]; or some
/// of the outputs of a stored one.
#[derive(Debug, Clone)]
pub struct LinearSpec {
    pub module: String,
    pub out: usize,
    pub inp: usize,
    pub bias: bool,
    pub shard: Shard,
    pub role: WeightRole,
    /// Of a stored weight that holds several.
    pub part: Option<StoredPart>,
    /// Its rows and those of others are one matrix on the device, which takes no adapters.
    pub joined: bool,
}

/// Outputs of a stored weight of `rows`: every `stride` of them `width`, from `offset`.
#[derive(Debug, Clone, Copy)]
pub struct StoredPart {
    pub width: usize,
    pub stride: usize,
    pub offset: usize,
    pub rows: usize,
}

impl LinearSpec {
    pub fn new(module: impl Into<String>, [out, inp]: [usize; 2], bias: bool, shard: Shard) -> Self {
        Self { module: module.into(), out, inp, bias, shard, role: WeightRole::Linear, part: None, joined: false }
    }

    pub fn with_role(self, role: WeightRole) -> Self {
        Self { role, ..self }
    }

    /// The same of `rows` stored ones, from `offset`.
    pub fn within(self, rows: usize, offset: usize) -> Self {
        Self { part: Some(StoredPart { width: self.out, stride: rows, offset, rows }), ..self }
    }

    /// Runs of `width` of `rows` stored ones, which begin `stride` apart, from `offset`.
    pub fn runs(self, [width, stride]: [usize; 2], rows: usize, offset: usize) -> Self {
        Self { part: Some(StoredPart { width, stride, offset, rows }), ..self }
    }

    /// Every `step`th of `rows` stored ones, from `offset`.
    pub fn every(self, step: usize, rows: usize, offset: usize) -> Self {
        Self { part: Some(StoredPart { width: 1, stride: step, offset, rows }), ..self }
    }

    /// [out, inp] of the stored weight.
    pub fn stored_shape(&self) -> [usize; 2] {
        [self.part.map_or(self.out, |part| part.rows), self.inp]
    }

    /// The rows of the stored weight that are these outputs.
    pub fn stored_rows(&self, outputs: Range<usize>) -> Vec<Range<usize>> {
        match self.part {
            None => vec![outputs],
            Some(StoredPart { width, stride, offset, .. }) => {
                let runs = outputs.start / width..outputs.end.div_ceil(width);
                let run = |i: usize| {
                    let (from, to) = (outputs.start.max(i * width), outputs.end.min((i + 1) * width));
                    let first = offset + i * stride + from - i * width;
                    first..first + to - from
                };
                runs.map(run).collect()
            }
        }
    }

    /// Whether its runs of stored rows begin within FP8 blocks, whose scales would not fit together.
    pub fn cuts_blocks(&self, stored: StoredForm) -> bool {
        match (stored, self.part) {
            (StoredForm::Fp8 { block: [rows, _] }, Some(StoredPart { width, stride, offset, .. })) => {
                width < self.out && [width, stride, offset].iter().any(|size| !size.is_multiple_of(rows))
            }
            _ => false,
        }
    }

    /// Outputs and inputs of this rank.
    pub fn cut(&self, rank: &RankPlacement, ranks: usize) -> (Range<usize>, Range<usize>) {
        let of = |heads: &Range<usize>, width: usize| heads.start * width..heads.end * width;
        match self.shard {
            Shard::Whole => (0..self.out, 0..self.inp),
            Shard::OutHeads(width) => (of(&rank.heads, width), 0..self.inp),
            Shard::OutKvHeads(width) => (of(&rank.kv_heads, width), 0..self.inp),
            Shard::InHeads(width) => (0..self.out, of(&rank.heads, width)),
            Shard::Out => (share(self.out, ranks, rank.rank), 0..self.inp),
            Shard::In => (0..self.out, share(self.inp, ranks, rank.rank)),
        }
    }

    /// Whether the ranks' outputs are partial sums.
    pub fn is_partial(&self) -> bool {
        matches!(self.shard, Shard::InHeads(_) | Shard::In)
    }
}

/// The weight of an RMS norm or a layer norm, by full tensor name.
#[derive(Debug, Clone)]
pub struct Norm {
    pub tensor: String,
    pub size: usize,
    pub eps: f32,
    /// Its factors are one more than what is stored.
    pub from_one: bool,
    /// The bias of a layer norm. None: a norm without mean.
    pub bias: Option<String>,
}

impl Norm {
    /// Names and shapes of its tensors.
    pub fn stored(&self) -> impl Iterator<Item = (String, Vec<usize>)> {
        std::iter::once(&self.tensor).chain(&self.bias).map(|name| (name.clone(), vec![self.size]))
    }
}
