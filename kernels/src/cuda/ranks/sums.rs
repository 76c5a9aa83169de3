//! Sums over ranks, in rank order: the same bits on all ranks, however the parts travel. Small ones are added by every
//! rank, large ones by the rank that has the row. It does not know what is summed.

use super::super::args::{AddNormRanksArgs, JoinColumnsArgs, JoinRowsArgs, SumRanksArgs};
use super::super::form::Element;
use super::super::op_stream::OpStream;
use super::super::plan::{LaunchPlan, int};
use super::super::tensor::DeviceTensor;
use super::super::weights::DeviceVector;
use super::{DeviceGroup, Offer, PartTable, RankOps};
use crate::error::{KernelError, Result};

/// Up to this many bytes of a rank's part, every rank reads the parts of all: one meeting costs less than reading
/// twice. Not measured on a GPU yet.
pub(in super::super) const WHOLE_SUM: usize = 256 << 10;

/// The rows of `rows` that a rank adds up for all.
pub(super) fn rows_of(rows: usize, ranks: usize, rank: usize) -> std::ops::Range<usize> {
    rows * rank / ranks..rows * (rank + 1) / ranks
}

/// The columns of logits that each rank computes.
pub(in super::super) struct VocabularyParts {
    widths: Vec<usize>,
    /// Where they begin, on the device; their end follows.
    starts: super::super::DeviceBuffer,
}

impl VocabularyParts {
    pub fn total(&self) -> usize {
        self.widths.iter().sum()
    }
}

impl RankOps<'_> {
    /// Whether sums of parts of this size are split over the ranks.
    pub fn splits(&self, bytes: usize) -> bool {
        bytes > self.group.whole_sum.get()
    }

    /// The sum of x over ranks, as f32.
    pub fn sum_over_ranks(&self, x: &DeviceTensor) -> DeviceTensor {
        assert!(x.is_contiguous(), "all_reduce: x must be no view");
        let (row, ranks, rank) = (x.cols * x.element.bytes(), self.group.ranks(), self.group.rank());
        if !self.splits(x.rows * row) {
            let table = self.exchange(&[Offer::of(x, &|_, _| 0..x.rows * row)]);
            let out = self.ops.tensor(x.rows, x.cols, Element::F32);
            self.add_up(&table, x.element, x.rows * x.cols, out.address);
            return out;
        }
        let table = self.exchange(&[Offer::of(x, &|reader, _| {
            let rows = rows_of(x.rows, ranks, reader);
            rows.start * row..rows.end * row
        })]);
        let own = self.ops.tensor(rows_of(x.rows, ranks, rank).len(), x.cols, Element::F32);
        self.add_up(&table, x.element, own.rows * own.cols, own.address);
        self.join_rows(&own, x.rows)
    }

    fn add_up(&self, table: &PartTable, of: Element, n: usize, out: u64) {
        let args = SumRanksArgs { parts: table.of(0), out, n, ranks: int(self.group.ranks()) };
        let plan = LaunchPlan::by_number(of.of("sum_ranks_f32", "sum_ranks_bf16"), n);
        // SAFETY: every part has n numbers from its address on, and out has room for them.
        unsafe { self.ops.launch(&plan, &args) };
    }

    /// All rows, of which each rank has its share.
    pub fn join_rows(&self, own: &DeviceTensor, rows: usize) -> DeviceTensor {
        let (ranks, row) = (self.group.ranks(), own.cols * Element::F32.bytes());
        let table = self.exchange(&[Offer::of(own, &|_, owner| 0..rows_of(rows, ranks, owner).len() * row)]);
        let out = self.ops.tensor(rows, own.cols, Element::F32);
        let (n, ranks) = (int(own.cols), int(ranks));
        let args = JoinRowsArgs { parts: table.of(0), out: out.address, rows: int(rows), n, ranks };
        let plan = LaunchPlan::by_column("join_rows", rows, own.cols);
        // SAFETY: rank r has its share of the rows, out all of them.
        unsafe { self.ops.launch(&plan, &args) };
        out
    }

    /// x += factor * the sum over ranks of y; the norm of the new x.
    pub fn norm_of_rank_sum(
        &self,
        x: &mut DeviceTensor,
        y: &DeviceTensor,
        factor: f32,
        weight: &DeviceVector,
        eps: f32,
    ) -> DeviceTensor {
        assert_eq!((x.rows, x.cols), (y.rows, y.cols), "sum_norm: x and y must have the same shape");
        assert_eq!(x.cols, weight.len, "sum_norm: x must have as many columns as the weight");
        assert!(x.element == Element::F32 && x.is_contiguous(), "sum_norm: x must be f32 and no view");
        assert!(y.is_contiguous(), "sum_norm: y must be no view");
        let bytes = y.rows * y.cols * y.element.bytes();
        if self.splits(bytes) {
            let sum = self.sum_over_ranks(y);
            return self.ops.norm_of_sum(x, Some(&sum), factor, weight, eps);
        }
        let table = self.exchange(&[Offer::of(y, &|_, _| 0..bytes)]);
        let out = self.ops.tensor(x.rows, x.cols, self.ops.activations.get());
        let name = match (y.element, out.element) {
            (Element::F32, Element::F32) => "add_norm_ranks_f32",
            (Element::Bf16, Element::Bf16) => "add_norm_ranks_bf16",
            (Element::F32, Element::Bf16) => "add_norm_ranks_f32_bf16",
            (Element::Bf16, Element::F32) => panic!("sum_norm: y must not be bf16 in a model of f32"),
        };
        let (n, ranks) = (int(x.cols), int(self.group.ranks()));
        let (parts, weight, to) = (table.of(0), weight.data.address(), self.ops.codes_of_norm(&out));
        let args = AddNormRanksArgs { x: x.changed(), parts, weight, out: out.address, to, n, ranks, factor, eps };
        // SAFETY: x, every part and out have rows * n numbers, weight n.
        unsafe { self.ops.launch(&LaunchPlan::by_row(name, x.rows), &args) };
        out
    }

    /// The ranks' logits side by side, on rank 0.
    pub fn gather_logits(&self, own: DeviceTensor) -> Option<DeviceTensor> {
        match &self.group.vocabulary {
            Some(parts) => self.logits_of_all(&own, parts),
            None => Some(own),
        }
    }

    /// The ranks' columns side by side, on rank 0; None on the others.
    fn logits_of_all(&self, own: &DeviceTensor, parts: &VocabularyParts) -> Option<DeviceTensor> {
        let row = |rank: usize| parts.widths[rank] * Element::F32.bytes();
        let reads = |reader, owner| if reader == 0 { 0..own.rows * row(owner) } else { 0..0 };
        let table = self.exchange(&[Offer::of(own, &reads)]);
        if self.group.rank() > 0 {
            return None;
        }
        let out = self.ops.tensor(own.rows, parts.total(), Element::F32);
        let (starts, n) = (parts.starts.address(), int(out.cols));
        let args = JoinColumnsArgs { parts: table.of(0), starts, out: out.address, n, ranks: int(self.group.ranks()) };
        let plan = LaunchPlan::by_column("join_columns", out.rows, out.cols);
        // SAFETY: rank r has starts[r + 1] - starts[r] columns of each row, out all of them.
        unsafe { self.ops.launch(&plan, &args) };
        Some(out)
    }
}

impl DeviceGroup {
    /// The size of the vocabulary, of which this rank computes `columns`. All ranks call it before they draw.
    pub fn vocabulary(&mut self, ops: &OpStream, columns: usize) -> Result<usize> {
        if self.ranks() > 1 && self.vocabulary.is_none() {
            self.vocabulary = Some(self.vocabulary_parts(ops, columns)?);
        }
        Ok(self.known_vocabulary(columns))
    }

    /// The same after `vocabulary`.
    pub fn known_vocabulary(&self, columns: usize) -> usize {
        self.vocabulary.as_ref().map_or(columns, VocabularyParts::total)
    }

    /// How the ranks share the vocabulary. All ranks call it, with the columns that they compute.
    fn vocabulary_parts(&self, ops: &OpStream, columns: usize) -> Result<VocabularyParts> {
        let wrong = |what: String| KernelError::Shape { op: "draw", what };
        let all = self.link.gather_bytes(&(columns as u64).to_le_bytes())?;
        let read = |bytes: &Vec<u8>| <[u8; 8]>::try_from(&**bytes).map(|bytes| u64::from_le_bytes(bytes) as usize);
        let widths: std::result::Result<Vec<_>, _> = all.iter().map(read).collect();
        let widths = widths.map_err(|_| wrong("a rank did not say how many logits it computes".into()))?;
        let mut starts = vec![0u32];
        for width in &widths {
            let end = starts.last().and_then(|start| start.checked_add(u32::try_from(*width).ok()?));
            starts.push(end.ok_or_else(|| wrong(format!("a vocabulary of {widths:?} tokens on the ranks")))?);
        }
        Ok(VocabularyParts { starts: ops.upload(&starts)?, widths })
    }
}
