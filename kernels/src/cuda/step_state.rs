//! What is kept from one step to the next: buffers of inputs and recorded steps. It does not know ops.

use std::cell::{Cell, RefCell};

use super::DeviceBuffer;
use super::batch::{DeviceBatch, PlacedBatch, StepBuffers};
use super::draw::DeviceHistories;
use super::graphs::Graphs;
use super::step::StepLimits;

pub(super) struct StepState {
    pub graphs: RefCell<Graphs>,
    pub buffers: StepBuffers,
    pub limits: Cell<StepLimits>,
    /// None: the histories that penalties read travel with each step.
    pub histories: Option<DeviceHistories>,
    /// The last token of each slot; None: none are kept.
    pub drawn: Option<DeviceBuffer>,
    /// About how many tokens the vocabulary has.
    pub tokens: Cell<usize>,
    /// Experts have moved to other memory since the last step.
    pub experts_moved: Cell<bool>,
}

impl Default for StepState {
    fn default() -> Self {
        let most = usize::MAX;
        let limits =
            Cell::new(StepLimits { vocab: most, blocks: most, block_size: 1, split: None, cells: most, slots: 0 });
        StepState {
            graphs: RefCell::default(),
            buffers: StepBuffers::default(),
            limits,
            histories: None,
            drawn: None,
            tokens: Cell::new(0),
            experts_moved: Cell::new(false),
        }
    }
}

impl StepState {
    /// The current batch, for ops.
    pub fn placed<'a>(&self, batch: &'a DeviceBatch) -> PlacedBatch<'a> {
        self.buffers.placed(batch, self.limits.get())
    }
}
