//! How a token sees the tokens before it: a file for each kind, with its weights, its state and its forward pass. It
//! does not know the rest of a layer.

mod delta_net;
mod gqa;
mod mla;

pub use delta_net::{DeltaInputs, DeltaNet};
pub use gqa::Gqa;
pub use mla::{Mla, MlaQuery};

use rein_control_plane::RankPlacement;
use rein_kernels::{Backend, Devices, KernelError, Result as KernelResult};

use super::linear::{LinearSpec, Norm};
use super::load::{Loader, Pass, Precisions};
use crate::checkpoint::LoadError;

/// What a rank keeps of a sequence for one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateSpec {
    /// For each position two entries of these widths, in blocks. In FP8 so many numbers of each share a scale.
    Paged { widths: [usize; 2], sharing: [usize; 2] },
    /// This many f32 that stand for all positions before. It cannot be truncated, so copies are kept in cells.
    Recurrent { numbers: usize },
}

/// Numbers of an entry of `width` that share a scale in FP8: at most 128, where that divides it.
fn sharing(width: usize) -> usize {
    const MOST: usize = 128;
    if width.is_multiple_of(MOST) { MOST } else { width }
}

/// The room for sequences on a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateSize {
    pub blocks: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Recurrent states.
    pub cells: usize,
    /// Ranks that share the positions: the blocks are this rank's part of theirs.
    pub kv_ranks: usize,
}

/// A kind of mixer as data, before its weights are loaded.
pub trait MixerParts {
    fn linears(&self) -> Vec<&LinearSpec>;
    fn norms(&self) -> Vec<&Norm>;
    /// Other tensors, with their shapes.
    fn vectors(&self) -> Vec<(String, Vec<usize>)> {
        Vec::new()
    }
    /// On one rank of `ranks`.
    fn state(&self, rank: &RankPlacement, ranks: usize) -> StateSpec;
    /// Numbers that a head multiplies for each position it sees, for scores and for values, and how many it sees at
    /// most.
    fn products(&self) -> (usize, Option<usize>);
    /// Heads that ranks must share evenly, other than the model's attention heads.
    fn own_heads(&self) -> Option<usize> {
        None
    }
}

/// A mixer with its weights and its state on one rank.
pub trait Mixer<B: Backend>: Send {
    /// Makes room for the state, which is undefined at first.
    fn open(&mut self, b: &B, size: &StateSize, precisions: Precisions) -> KernelResult<()>;
    /// Frees the state.
    fn close(&mut self);
    /// Its paged entries. None: it has none.
    fn cache(&mut self) -> Option<&mut B::Cache> {
        None
    }
    /// x [rows, hidden], normed. Reads and writes the state of the batch's sequences. The result is this rank's part of
    /// the sum over ranks.
    fn forward(&mut self, pass: Pass<B>, x: &B::Tensor) -> KernelResult<B::Tensor>;
}

#[derive(Debug, Clone)]
pub enum MixerSpec {
    Gqa(Gqa),
    Mla(Mla),
    DeltaNet(DeltaNet),
}

impl MixerSpec {
    pub fn parts(&self) -> &dyn MixerParts {
        match self {
            Self::Gqa(gqa) => gqa,
            Self::Mla(mla) => mla,
            Self::DeltaNet(net) => net,
        }
    }

    pub fn load<D: Devices>(&self, loader: &Loader<D>) -> Result<Box<dyn Mixer<D::Backend>>, LoadError> {
        Ok(match self {
            Self::Gqa(gqa) => Box::new(gqa.load(loader)?),
            Self::Mla(mla) => Box::new(mla.load(loader)?),
            Self::DeltaNet(net) => Box::new(net.load(loader)?),
        })
    }

    /// Tensors other than those of linear modules, with their shapes.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        self.parts().norms().into_iter().flat_map(Norm::stored).chain(self.parts().vectors()).collect()
    }
}

/// The state, which must have been opened.
fn opened<T>(state: &mut Option<T>) -> KernelResult<&mut T> {
    state.as_mut().ok_or_else(|| KernelError::Shape { op: "forward", what: "no room for sequences was made".into() })
}
