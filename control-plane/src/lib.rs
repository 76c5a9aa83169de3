//! Cluster membership and expert placement: the store (memory or etcd), the records that processes register in it, and
//! the controller, which assigns ranks as a pure function of these records. Every change carries an epoch that fences
//! older ones.
//!
//! This crate must not know the router, the worker or the kernels.

mod backoff;
pub mod connectivity;
pub mod controller;
pub mod decide;
pub mod election;
pub mod epoch;
pub mod etcd;
pub mod experts;
pub mod limits;
pub mod memory;
pub mod mirror;
pub mod placement;
pub mod rebalance;
pub mod records;
pub mod session;
pub mod shared_store;
mod stats;
pub mod store;
#[cfg(test)]
mod tests;
pub mod view;

pub use controller::ControllerOptions;
pub use election::{Leadership, campaign};
pub use etcd::{Etcd, EtcdError, EtcdOptions, EtcdTls};
pub use memory::MemoryStore;
pub use mirror::{Mirror, Patience, Renewal, Renewals};
pub use placement::{ModelShape, Placement, RankPlacement, place};
pub use records::Keys;
pub use session::{NameHolder, Session, SessionState};
pub use shared_store::SharedStore;
pub use stats::ControllerStats;
pub use store::{Changes, Entry, KeyCondition, LeaseId, Revision, Snapshot, Store, StoreError, Transaction};
pub use view::ClusterView;
