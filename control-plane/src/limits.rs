//! Named limits.

use std::time::Duration;

/// Longest wait for one call of the store.
pub const STORE_CALL: Duration = Duration::from_secs(2);
/// Waits between attempts to reach a store grow from the first to the second.
pub const RETRY_FIRST: Duration = Duration::from_millis(50);
pub const RETRY_LONGEST: Duration = Duration::from_secs(1);
/// A store connection that gives no sign of life for this long is broken.
pub const STORE_SILENCE: Duration = Duration::from_secs(2);
/// Changes that wait for one watcher of a memory store; one that is slower has to read anew.
pub const WATCH_BACKLOG: usize = 1024;
/// Changes that a memory store keeps for watchers that come back.
pub const MEMORY_HISTORY: usize = 4096;
