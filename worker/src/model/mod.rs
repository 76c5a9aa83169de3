//! Models: a declarative description per architecture, one loader and one forward pass for all of them. It does not
//! know the scheduler.

mod arch;
mod blocks;
mod execute;
mod experts;
mod footprint;
mod host_tier;
mod linear;
mod load;
mod low_rank;
mod mixer;
mod network;
mod readers;
mod rope;
mod spec;

pub use arch::{architectures, build, build_for, renamed, text_config};
pub use execute::{Executing, StepUnderWay, check_row};
pub use footprint::{Footprint, WeightParts};
pub use host_tier::{HostLimits, HostTier, least};
pub use linear::LinearSpec;
pub use load::Precisions;
pub use low_rank::numbers_of_rank_one;
pub use mixer::{MixerSpec, StateSize, StateSpec};
pub use network::{LayoutSwap, Network, WeightSource, bytes_to_load};
pub use spec::{Gated, LayerSpec, Mlp, Spec};
