//! Who holds which weights. Placement is a pure function; an epoch fences every change of it.

pub mod placement;

pub use placement::{ModelShape, Placement, RankPlacement, place};
