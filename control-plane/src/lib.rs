//! Who is there and who holds which weights: a store, membership over it, and placement as a pure function.
//! An epoch fences every change.

pub mod controller;
pub mod decide;
pub mod election;
pub mod etcd;
pub mod experts;
pub mod fan;
pub mod limits;
pub mod memory;
pub mod mirror;
pub mod placement;
pub mod reach;
pub mod rebalance;
pub mod records;
mod retry;
pub mod session;
pub mod store;
mod tally;
#[cfg(test)]
mod tests;
pub mod view;

pub use controller::ControllerOptions;
pub use election::{Leadership, campaign};
pub use etcd::{Etcd, EtcdError, EtcdOptions, EtcdTls};
pub use fan::Fan;
pub use memory::Memory;
pub use mirror::Mirror;
pub use placement::{ModelShape, Placement, RankPlacement, place};
pub use records::Keys;
pub use session::{Held, Rival, Session};
pub use store::{Changes, Condition, Entry, LeaseId, Revision, Snapshot, Store, StoreError, Transaction};
pub use tally::Tally;
pub use view::View;
