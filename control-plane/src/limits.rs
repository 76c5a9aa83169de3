//! Named limits.

use std::time::Duration;

/// Longest wait for one call of the store.
pub const STORE_CALL: Duration = Duration::from_secs(2);
/// Calls of a process at once; more wait for their turn within their time. A call that is given up after it was sent
/// costs the store as much as one that is not, and is made again.
pub const STORE_CALLS: usize = 32;
/// Waits between attempts to reach a store grow from the first to the second.
pub const RETRY_FIRST: Duration = Duration::from_millis(50);
pub const RETRY_LONGEST: Duration = Duration::from_secs(1);
/// A stream on which a lease has been renewed once is kept for so long, for leases that live long.
pub const RENEWAL_FIRST: Duration = Duration::from_secs(600);
/// A store connection that gives no sign of life for this long is broken.
pub const STORE_SILENCE: Duration = Duration::from_secs(2);
/// Changes that wait for one watcher of a memory store; one that is slower has to read anew.
pub const WATCH_BACKLOG: usize = 1024;
/// Changes that a memory store keeps for watchers that come back.
pub const MEMORY_HISTORY: usize = 4096;
/// Changes that nodes of one process which share their view of the store may miss between a read and a watch.
pub const FAN_HISTORY: usize = 1024;
/// Transactions of such nodes that wait to be written together.
pub const FAN_WRITES: usize = 1024;

/// How long the keys of a process that says nothing stay.
pub const LEASE: Duration = Duration::from_secs(3);
/// A new controller, and one whose store has begun anew, gives the members of groups this long to be heard of.
pub const SETTLE: Duration = Duration::from_secs(3);
/// A worker that serves in a group of which the store knows nothing is left alone for so long: its leader tells the store.
pub const ORPHAN_TIME: Duration = Duration::from_secs(6);
/// A group that was put together anew is changed again no sooner than this after the last time, whatever for; the pause
/// doubles while changes follow each other ...
pub const REFORM_PAUSE: Duration = Duration::from_secs(1);
/// ... up to this. After a calm time of twice the pause it is the shortest one again.
pub const REFORM_PAUSE_LONGEST: Duration = Duration::from_secs(16);
/// A worker that a group was put together anew without, because its ranks did not come to it, is given no seat that others can do
/// without for so long; the pause doubles each time ...
pub const BLAME_PAUSE: Duration = Duration::from_secs(10);
/// ... up to this. After four times the pause, what has happened does not count any more.
pub const BLAME_PAUSE_LONGEST: Duration = Duration::from_secs(300);
/// Peers that a worker tries to link with.
pub const PROBED: usize = 16;
/// How long the controller waits to hear whether a new worker can link with its peers: longer than a worker tries.
pub const PROBE_PATIENCE: Duration = Duration::from_secs(4);
/// A member that leaves waits at least so long for routers to hear of it ...
pub const DRAIN_QUIET: Duration = Duration::from_millis(500);
/// ... and at most so long for sequences to finish; they go on elsewhere then.
pub const DRAIN_TIME: Duration = Duration::from_secs(30);
/// The controller looks at changes that come in one burst together.
pub const BURST: Duration = Duration::from_millis(20);
/// Writes of one transaction (etcd takes 128).
pub const WRITES: usize = 100;
/// Letters of a model's name in that of a group.
pub const GROUP_NAME: usize = 40;
/// Rows per expert of a layer, on the mean, that must have been counted before a layout is judged.
pub const EXPERT_ROWS: u64 = 32;
/// Experts that one rank loads for one layout at most, unless a single layer takes more; until it is taken up, they lie beside those that they replace.
pub const EXPERT_MOVES: usize = 64;
/// What a layer's new layout must take off its imbalance to be worth loading.
pub const EXPERT_GAIN: f64 = 0.02;
/// How soon the next layout follows one that could not do all at once.
pub const EXPERTS_AGAIN: Duration = Duration::from_secs(5);
