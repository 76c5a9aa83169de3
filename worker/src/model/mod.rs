//! Models: a declarative description per architecture, and one loader and one forward for all of them.

mod arch;
mod blocks;
mod execute;
mod experts;
mod network;
mod rope;
mod spec;

pub use arch::{architectures, build, text_config};
pub use execute::{Executing, check_row};
pub use experts::ExpertCounts;
pub use network::{Network, Precisions, Swap, bytes_of_copies, bytes_to_hold, bytes_to_load};
pub use spec::{Attention, Layer, Spec};
