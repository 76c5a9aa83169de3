//! Low-rank adapters on the device: a table for each module, whose address recorded steps keep. It does not know
//! layers.

use half::bf16;

use super::DeviceBuffer;
use super::args::LowRankArgs;
use super::batch::PlacedBatch;
use super::error::shape;
use super::form::Element;
use super::op_stream::OpStream;
use super::plan::{LaunchPlan, int};
use super::tensor::DeviceTensor;
use super::upload::WeightWriter;
use crate::backend::{HostData, HostForm, HostMatrix, LowRankPair, Precision};
use crate::error::Result;

/// Words of 64 bits of an entry, as low_rank.cu has them: both addresses, and the rank.
const ENTRY: usize = 3;

/// By place.
#[derive(Debug)]
pub struct DeviceLowRank {
    pairs: Vec<Option<Pair>>,
    table: DeviceBuffer,
    /// The largest rank of its adapters; 0: it has none.
    most: usize,
}

#[derive(Debug)]
struct Pair {
    rank: usize,
    /// Down, then up.
    _numbers: DeviceBuffer,
}

/// Whose rows a product has, for the adapters of experts.
#[derive(Clone, Copy)]
pub(super) struct ExpertRows {
    /// The route of each row; 0: the rows are the routes.
    pub routes: u64,
    /// The expert of each route; 0: they go round, as heads do.
    pub expert: u64,
    pub per_row: usize,
    /// 0: the place is the slot.
    pub experts: usize,
    /// x has a row for each row of the batch.
    pub of_batch: bool,
}

fn numbers(matrix: HostMatrix, what: &str) -> Result<Vec<f32>> {
    let matrix = matrix.into_form(HostForm::F32)?;
    match matrix.data {
        HostData::F32(numbers) => Ok(numbers),
        HostData::Bf16(numbers) => Ok(numbers.into_iter().map(bf16::to_f32).collect()),
        _ => Err(shape("low_rank", format!("{what}: {:?}", matrix.stored_form()))),
    }
}

impl DeviceLowRank {
    pub(super) fn new(writer: WeightWriter, places: usize) -> Result<Self> {
        let mut table = writer.allocate(8 * ENTRY * places)?;
        table.fill(writer.device, 0)?;
        Ok(Self { pairs: (0..places).map(|_| None).collect(), table, most: 0 })
    }

    /// Whether anything changed.
    pub(super) fn set(
        &mut self,
        writer: WeightWriter,
        place: usize,
        pair: Option<LowRankPair>,
        precision: Precision,
    ) -> Result<bool> {
        let count = self.pairs.len();
        let Some(held) = self.pairs.get_mut(place) else {
            return Err(shape("low_rank", format!("no place {place} of {count}")));
        };
        if held.is_none() && pair.is_none() {
            return Ok(false);
        }
        let (entry, fresh) = match pair {
            None => ([0; ENTRY], None),
            Some(LowRankPair { down, up }) if down.rows == up.cols => {
                let rank = down.rows;
                let (mut all, at) = (numbers(down, "down")?, numbers(up, "up")?);
                let middle = all.len();
                all.extend(at);
                let (buffer, size) = match precision {
                    Precision::F32 => {
                        let buffer = writer.allocate(4 * all.len())?;
                        buffer.write(writer.device, 0, &all)?;
                        (buffer, 4)
                    }
                    _ => {
                        let all: Vec<bf16> = all.into_iter().map(bf16::from_f32).collect();
                        let buffer = writer.allocate(2 * all.len())?;
                        buffer.write(writer.device, 0, &all)?;
                        (buffer, 2)
                    }
                };
                let first = buffer.address();
                ([first, first + (size * middle) as u64, rank as u64], Some(Pair { rank, _numbers: buffer }))
            }
            Some(LowRankPair { down, up }) => {
                let what = format!("ranks differ: [{}, {}], [{}, {}]", down.rows, down.cols, up.rows, up.cols);
                return Err(shape("low_rank", what));
            }
        };
        self.table.write(writer.device, 8 * ENTRY * place, &entry)?;
        // The kernels that read the former one have ended: the write has waited for the stream.
        *held = fresh;
        self.most = self.pairs.iter().flatten().map(|pair| pair.rank).max().unwrap_or(0);
        Ok(true)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.most == 0
    }
}

impl OpStream {
    pub fn add_low_rank(&self, batch: &PlacedBatch, x: &DeviceTensor, y: &DeviceTensor, table: &DeviceLowRank) {
        let of = ExpertRows { routes: 0, expert: 0, per_row: 1, experts: 0, of_batch: true };
        self.add_to_rows(batch, x, y, table, of);
    }

    /// Adds to y what the adapters of the batch make of x, which are rows of experts.
    pub fn add_to_rows(
        &self,
        batch: &PlacedBatch,
        x: &DeviceTensor,
        y: &DeviceTensor,
        table: &DeviceLowRank,
        of: ExpertRows,
    ) {
        if table.is_empty() || !batch.shape.loras {
            return;
        }
        let rows = y.rows;
        let (down, up) = match (x.element, y.element) {
            (Element::F32, Element::F32) => ("low_rank_down_f32", "low_rank_up_f32"),
            (Element::Bf16, Element::Bf16) => ("low_rank_down_bf16", "low_rank_up_bf16"),
            (Element::Bf16, Element::F32) => ("low_rank_down_bf16", "low_rank_up_bf16_f32"),
            (Element::F32, Element::Bf16) => panic!("low_rank: y must not be bf16 in a model of f32"),
        };
        let shape = [x.cols, x.stride, y.cols, y.stride];
        self.launch_low_rank(batch, [down, up], (x.address, y.changed()), rows, shape, table, of);
    }

    /// Adds to each head's columns of y what the adapter of that head makes of the first `ins` of the head's columns of
    /// x, whose heads are `head` apart.
    pub fn add_by_head(
        &self,
        batch: &PlacedBatch,
        heads: usize,
        (x, head, ins): (&DeviceTensor, usize, usize),
        y: &DeviceTensor,
        table: &DeviceLowRank,
    ) {
        if table.is_empty() || !batch.shape.loras {
            return;
        }
        assert!(x.is_contiguous() && x.cols == heads * head && y.is_contiguous(), "low_rank: heads must be rows");
        assert_eq!(x.element, y.element, "low_rank: x and y must hold the same kind of numbers");
        let kernels = match x.element {
            Element::F32 => ["low_rank_down_f32", "low_rank_up_f32"],
            Element::Bf16 => ["low_rank_down_bf16", "low_rank_up_bf16"],
        };
        let of = ExpertRows { routes: 0, expert: 0, per_row: heads, experts: heads, of_batch: false };
        let (rows, outs) = (y.rows * heads, y.cols / heads);
        self.launch_low_rank(batch, kernels, (x.address, y.changed()), rows, [ins, head, outs, outs], table, of);
    }

    /// x [.., k] and y [rows, n] with rows `x_stride` and `y_stride` apart.
    #[allow(clippy::too_many_arguments)]
    fn launch_low_rank(
        &self,
        batch: &PlacedBatch,
        [down, up]: [&'static str; 2],
        (x, y): (u64, u64),
        rows: usize,
        [k, x_stride, n, y_stride]: [usize; 4],
        table: &DeviceLowRank,
        of: ExpertRows,
    ) {
        let t = self.take(4 * rows * table.most);
        let args = LowRankArgs {
            x,
            y,
            t: t.address,
            table: table.table.address(),
            slots: batch.parts.loras,
            routes: of.routes,
            expert: of.expert,
            k: int(k),
            n: int(n),
            x_stride: int(x_stride),
            y_stride: int(y_stride),
            most: int(table.most),
            per_row: int(of.per_row),
            experts: int(of.experts),
            of_batch: of.of_batch.into(),
        };
        // SAFETY: x and y have these shapes, t a row of `most` numbers for each row of y, the table an entry for each
        // place; the batch has a slot for each of its rows, and `experts` is what its caller says.
        unsafe {
            self.launch(&LaunchPlan::by_warp(down, rows, table.most), &args);
            self.launch(&LaunchPlan::by_column(up, rows, n), &args);
        }
    }
}
