//! Limits of downloads.

use std::time::Duration;

/// Files that are downloaded at once.
pub const MAX_CONCURRENT_FILES: usize = 8;
/// Redirects of one request.
pub const MAX_REDIRECTS: usize = 10;
/// Attempts in a row that bring no byte, after which a request fails.
pub const MAX_ATTEMPTS: u32 = 5;
/// Wait before the second attempt; doubled before each further one.
pub const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Longest wait for the Hub's Retry-After.
pub const MAX_WAIT: Duration = Duration::from_secs(300);
/// Longest time to connect.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time without a byte of an answer.
pub const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest list of a repository's files.
pub const MAX_LISTING_BYTES: usize = 32 << 20;
/// Largest index of a checkpoint's files.
pub const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Largest error body that is read for its message.
pub const MAX_ERROR_BYTES: usize = 64 << 10;
