//! What is kept from one step to the next: buffers of inputs, tables of angles and recorded steps. It does not know
//! ops.

use std::cell::{Cell, RefCell};

use super::angles::DeviceAngles;
use super::batch::{DeviceBatch, PlacedBatch, StepBuffers};
use super::draw::DeviceHistories;
use super::graphs::Graphs;
use super::step::StepLimits;

pub(super) struct StepState {
    pub angles: RefCell<DeviceAngles>,
    pub graphs: RefCell<Graphs>,
    pub buffers: StepBuffers,
    pub limits: Cell<StepLimits>,
    /// None: the histories that penalties read travel with each step.
    pub histories: Option<DeviceHistories>,
    /// About how many tokens the vocabulary has.
    pub tokens: Cell<usize>,
    /// Experts have moved to other memory since the last step.
    pub experts_moved: Cell<bool>,
}

impl Default for StepState {
    fn default() -> Self {
        let limits = Cell::new(StepLimits { vocab: usize::MAX, blocks: usize::MAX, block_size: 1, cells: usize::MAX });
        let (angles, graphs, buffers) = (RefCell::default(), RefCell::default(), StepBuffers::default());
        StepState {
            angles,
            graphs,
            buffers,
            limits,
            histories: None,
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
