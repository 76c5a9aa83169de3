//! Named limits of the control plane.

use std::time::Duration;

/// Time limit of one call of the store.
pub const STORE_CALL: Duration = Duration::from_secs(2);
/// Concurrent store calls of a process. Further calls wait, within their time limit: a call abandoned after it was sent
/// still costs the store, and is repeated.
pub const STORE_CALLS: usize = 32;
/// Shortest wait between attempts to reach the store; it grows with each failure.
pub const MIN_RETRY_WAIT: Duration = Duration::from_millis(50);
/// Longest wait between attempts to reach the store.
pub const MAX_RETRY_WAIT: Duration = Duration::from_secs(1);
/// How long to keep the stream of a lease that was renewed once, for leases with a long TTL.
pub const RENEWAL_FIRST: Duration = Duration::from_secs(600);
/// Shortest time between two looks whether the certificates for etcd have been replaced, after a failure.
pub const CERTIFICATE_CHECK: Duration = Duration::from_secs(1);
/// A store connection without a sign of life for this long is considered broken.
pub const STORE_SILENCE: Duration = Duration::from_secs(2);
/// Changes queued per watcher of a memory store. A slower watcher must read again.
pub const WATCH_BACKLOG: usize = 1024;
/// Changes that a memory store keeps for watchers that return.
pub const MEMORY_HISTORY: usize = 4096;
/// Changes that a shared store keeps for nodes between their read and their watch.
pub const SHARED_STORE_HISTORY: usize = 1024;
/// Queued transactions of a shared store.
pub const SHARED_STORE_WRITES: usize = 1024;

/// If two checks of a name that another process holds are further apart than this, the store was unreachable between
/// them.
pub const NAME_CHECK_GAP: Duration = Duration::from_secs(2);

/// TTL of the keys of a process: a silent process is considered lost after this time.
pub const LEASE: Duration = Duration::from_secs(3);
/// How long a new controller, or one whose store was reset, waits for members of groups to register.
pub const MEMBER_SETTLE_TIME: Duration = Duration::from_secs(3);
/// How long a router keeps engines that a store which was reset has lost, or which expired while it renewed no leases:
/// long enough for their owners to notice, whose calls may have to time out first, and to write them again.
pub const LOST_STAYS: Duration = Duration::from_secs(20);
/// How long a worker may serve in a group that the store does not have. Meanwhile the group's leader restores the
/// record.
pub const ORPHAN_TIME: Duration = Duration::from_secs(6);
/// Shortest pause between changes of a group. It doubles while changes follow each other.
pub const REFORM_PAUSE: Duration = Duration::from_secs(1);
/// Longest such pause. After twice the pause without a change it is reset.
pub const MAX_REFORM_PAUSE: Duration = Duration::from_secs(16);
/// How long the controller waits for reports of the other members after a member has reported that its group did not
/// form.
pub const REPORT_PATIENCE: Duration = Duration::from_secs(1);
/// How long other workers are preferred over one whose ranks did not join a group. It doubles each time.
pub const BLAME_PAUSE: Duration = Duration::from_secs(10);
/// Longest such time. After four times the pause it is reset.
pub const MAX_BLAME_PAUSE: Duration = Duration::from_secs(300);
/// Number of peers that a worker probes.
pub const PROBED_PEERS: usize = 16;
/// How long the controller waits for the probes of a new worker: longer than a probe may take.
pub const PROBE_PATIENCE: Duration = Duration::from_secs(4);
/// Shortest time that a draining member waits, so that routers notice.
pub const DRAIN_QUIET: Duration = Duration::from_millis(500);
/// Longest time that a draining member waits for sequences to finish. The remaining ones resume on another group.
pub const DRAIN_TIME: Duration = Duration::from_secs(30);
/// How often an active controller checks whether its lease is still valid.
pub const ACTIVE_CHECK: Duration = Duration::from_millis(500);
/// How long a lost worker is shown.
pub const LOST_WORKER_TIME: Duration = Duration::from_secs(3600);
/// Lost workers that are shown; the latest ones.
pub const LOST_WORKERS: usize = 100;
/// The controller handles changes within this time as one.
pub const CHANGE_BURST: Duration = Duration::from_millis(20);
/// Writes per transaction (etcd's limit is 128).
pub const WRITES: usize = 100;
/// Characters of the model's name in a group's name.
pub const GROUP_NAME: usize = 40;
/// Numbers in names of groups stay below this. Earlier releases used milliseconds since 1970.
pub const GROUP_NUMBERS: u64 = 1_000_000_000;
/// Mean rows per expert that must have been counted before a layer's layout is assessed.
pub const EXPERT_ROWS: u64 = 32;
/// Experts that one rank loads for one layout, unless a single layer takes more. Until the layout is in use, they take
/// memory beside those that they replace.
pub const EXPERT_MOVES: usize = 64;
/// The least reduction of a layer's imbalance that is worth loading a new layout for.
pub const EXPERT_GAIN: f64 = 0.02;
/// Pause before the next layout when one layout could not move everything.
pub const EXPERT_LAYOUT_PAUSE: Duration = Duration::from_secs(5);
