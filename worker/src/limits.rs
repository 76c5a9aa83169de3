//! Named limits of the engine.

use std::time::Duration;

/// Commands queued for the engine thread. A full queue delays the sender.
pub const COMMAND_QUEUE: usize = 1024;
/// Messages queued for one router. A sequence whose queue is nearly full is paused.
pub const OUTPUT_QUEUE: usize = 64;
/// Messages that a step emits at most for a sequence: Admitted, Tokens and Finish, and one for a Steer that finishes
/// it.
pub const OUTPUT_HEADROOM: usize = 4;
/// Messages kept for a router that sends Steers without reading. Beyond this the sequence is cancelled.
pub const OUTPUT_BACKLOG: usize = 64;

/// Default number of sequences computed at once.
pub const MAX_SEQUENCES: usize = 64;
/// Default number of sequences that wait for a slot; beyond it, RESOURCE_EXHAUSTED.
pub const MAX_QUEUE: usize = 1024;
/// Default number of tokens computed in one step. Longer prompts are split, so that other streams keep going.
pub const TOKEN_BUDGET: usize = 512;

/// Recurrent states that a sequence keeps of its last steps, one of which the next step writes. A Steer that takes back
/// tokens of fewer steps recomputes nothing.
pub const RECENT_STATES: usize = 4;

/// A row that waits for its router this long may lose its slot and its blocks to another sequence.
pub const PARK_GRACE: Duration = Duration::from_millis(50);
/// Waiting callers without a slot that are tried in a step, until there is room for one.
pub const NEWCOMERS: usize = 8;
/// A sequence is admitted beside others only if more than total / RESERVE_DIVISOR blocks stay free for those to grow.
pub const RESERVE_DIVISOR: usize = 100;

/// Size of one message in either direction: prompts and prompt logprobs of the longest contexts.
pub const MAX_MESSAGE_BYTES: usize = 256 << 20;
/// Bytes of a request's id.
pub const MAX_REQUEST_ID_BYTES: usize = 256;
/// Bytes of a cache salt.
pub const MAX_CACHE_SALT_BYTES: usize = 256;
/// Entries of a sequence's logit bias.
pub const MAX_LOGIT_BIAS: usize = 4096;
/// Stop tokens of a sequence.
pub const MAX_STOP_TOKENS: usize = 512;
/// Alternatives with logprobs per token.
pub const MAX_LOGPROBS: i32 = 20;

/// Routers that listen to the events of one engine.
pub const EVENT_LISTENERS: usize = 256;
/// Changes of the prefix cache kept for listeners, or the size of the cache if that is smaller. A listener that misses
/// more gets a snapshot.
pub const EVENT_LOG: usize = 65_536;
/// Hashes in one part of a snapshot.
pub const EVENT_PART: usize = 32_768;
/// The shortest interval between two messages of events that a listener may ask for.
pub const EVENT_INTERVAL: Duration = Duration::from_millis(50);
/// The longest interval between two messages of events, also from an idle engine.
pub const EVENT_SILENCE: Duration = Duration::from_secs(1);

/// Default time after which a read of the checkpoint that returns nothing counts as stalled.
pub const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// How often stalled reads are looked for.
pub const STALL_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Checkpoints up to this size are hashed completely when a worker starts; of larger ones, parts of each file.
pub const FULL_HASH_BYTES: u64 = 4 << 30;
/// Total size of a model's text files.
pub const TEXT_BYTES: u64 = 512 << 20;
/// The largest rank of a LoRA adapter, as in PEFT's usual range.
pub const MAX_LORA_RANK: usize = 256;
/// Size of `adapter_config.json`.
pub const MAX_LORA_CONFIG_BYTES: u64 = 4 << 20;
/// Bytes of the name of a LoRA adapter.
pub const MAX_LORA_NAME_BYTES: usize = 256;
/// LoRA adapters of an engine at the same time.
pub const MAX_LORAS: usize = 1024;

/// Blocks of conversations whose tool runs are at most 1 / this of the KV blocks.
pub const HOLD_DIVISOR: usize = 2;

/// The longest that a router may ask to hold blocks for.
pub const MAX_HOLD: Duration = Duration::from_secs(600);

/// Bytes of the salt of a sequence whose blocks a file of KV blocks keeps.
pub const MAX_KEPT_SALT: usize = 256;
