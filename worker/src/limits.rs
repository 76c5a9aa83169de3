//! Every bound of the engine, by name.

use std::time::Duration;

/// Commands on their way to the engine thread. A full queue delays the sender.
pub const COMMAND_QUEUE: usize = 1024;
/// Messages to one router that it has not read. A sequence whose queue is nearly full is paused.
pub const OUTPUT_QUEUE: usize = 64;
/// A step emits at most Admitted, Tokens and Finish for a sequence; one more for a Steer that finishes it.
pub const OUTPUT_HEADROOM: usize = 4;
/// Messages kept for a router that steers on without reading. Beyond it the sequence is cancelled.
pub const OUTPUT_BACKLOG: usize = 64;

/// Sequences computed at once, unless configured.
pub const MAX_SEQUENCES: usize = 64;
/// Sequences waiting for a slot before RESOURCE_EXHAUSTED, unless configured.
pub const MAX_QUEUE: usize = 1024;
/// Tokens computed in one step, unless configured. Long prompts are cut to this, so that streams keep flowing.
pub const STEP_TOKENS: usize = 512;

/// A row that waits for its router this long may lose its slot and its blocks to a sequence that could use them.
pub const PARK_GRACE: Duration = Duration::from_millis(50);
/// With more than total / RESERVE_DIVISOR blocks left a sequence joins others; the rest is for those to grow.
pub const RESERVE_DIVISOR: usize = 100;

/// One message, either way: prompts and prompt logprobs of the longest contexts.
pub const MAX_MESSAGE_BYTES: usize = 256 << 20;
pub const MAX_REQUEST_ID_BYTES: usize = 256;
pub const MAX_CACHE_SALT_BYTES: usize = 256;
pub const MAX_LOGIT_BIAS: usize = 4096;
pub const MAX_STOP_TOKENS: usize = 512;
/// Alternatives with their logprobs, per token.
pub const MAX_LOGPROBS: i32 = 20;

/// Routers that listen to one engine's events at once.
pub const EVENT_LISTENERS: usize = 256;
/// Changes of the prefix cache that are kept for listeners, if the cache is not smaller. One that misses more is sent all.
pub const EVENT_LOG: usize = 65_536;
/// Hashes in one part of a snapshot.
pub const EVENT_PART: usize = 32_768;
/// The shortest time between two messages that a listener may ask for ...
pub const EVENT_INTERVAL: Duration = Duration::from_millis(50);
/// ... and the longest: so often it hears of an engine in which nothing happens.
pub const EVENT_SILENCE: Duration = Duration::from_secs(1);

/// A read of the checkpoint that returns nothing for so long has stalled, unless configured.
pub const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// How often it is looked whether one has.
pub const STALL_LOOK: Duration = Duration::from_millis(250);
/// Checkpoints of at most so many bytes are hashed as a whole when a worker starts, of larger ones parts of each file.
pub const HASHED_WHOLE: u64 = 4 << 30;
/// Text files of a model together.
pub const TEXT_BYTES: u64 = 512 << 20;
