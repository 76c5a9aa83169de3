//! Named limits of the adapter.

use std::time::Duration;

/// Draws in a row that ignore the mask, after which a sequence ends.
pub const IGNORED_MASKS: u32 = 8;
/// Draws at one position under a mask that is too wide for one request, after which a sequence ends.
pub const WIDE_DRAWS: u32 = 64;
/// Requests in a row that end without a token, after which a sequence ends.
pub const EMPTY_REQUESTS: u32 = 8;

/// Entries of a sequence's logit bias; vLLM's engine takes no more in one request.
pub const MAX_LOGIT_BIAS: usize = 1024;
/// Stop tokens of a sequence.
pub const MAX_STOP_TOKENS: usize = 512;
/// Bytes of a request's id.
pub const MAX_REQUEST_ID_BYTES: usize = 256;
/// Bytes of a cache salt.
pub const MAX_CACHE_SALT_BYTES: usize = 256;
/// Alternatives with logprobs per token; vLLM has the same limit by default.
pub const MAX_LOGPROBS: i32 = 20;
/// Highest temperature: vLLM rejects more.
pub const MAX_TEMPERATURE: f32 = 2.0;

/// Bytes of one event of an engine's stream.
pub const EVENT_BYTES: usize = 8 << 20;
/// Bytes of an engine's answer that is read as a whole.
pub const ANSWER_BYTES: usize = 8 << 20;
/// Bytes of an engine's error that are read.
pub const ERROR_BYTES: usize = 64 << 10;
/// Characters of an engine's error that are repeated.
pub const ERROR_CHARS: usize = 300;
/// Characters of the reason for which an engine is refused.
pub const PROBLEM_CHARS: usize = 1000;
/// Characters of an engine's version that are kept.
pub const VERSION_CHARS: usize = 64;
/// Bytes of the name of an engine's model.
pub const MODEL_NAME_BYTES: usize = 512;
/// Events of an engine's stream in a row without a token, after which its sequence ends.
pub const IDLE_EVENTS: u32 = 1024;

/// The part of a chunk's time for which the next chunk waits. In it, a router that refuses a token of the chunk steers,
/// and nothing is abandoned: llama-server computes an abandoned chunk for up to a second, and its slot, which has the
/// cached prompt, stays taken.
pub const CHUNK_PAUSE: u32 = 50;
/// The largest such part for a chunk after a refused token. More of them are likely, and the router may be slow.
pub const REFUSED_PAUSE: u32 = 8;
/// A chunk after a refused token waits for so many times the time that routers took to refuse tokens of late.
pub const VERDICTS_WAITED: u32 = 2;
/// Each refusal shortens the remembered time of slower ones by one part of so many.
pub const VERDICT_DECAY: u64 = 16;
/// Chunks after a refused token that wait so long.
pub const REFUSED_CHUNKS: u32 = 8;
/// Time in which a connection to an engine is opened.
pub const CONNECT_TIME: Duration = Duration::from_secs(2);
/// How often an engine is asked again what it was asked when it joined.
pub const PROOF_INTERVAL: Duration = Duration::from_secs(60);
/// Default time without a token, or without the head of an answer, after which the engine's stream counts as hung.
pub const TOKEN_DEADLINE: Duration = Duration::from_secs(60);
/// Longest wait for an engine's health, model or other facts.
pub const CALL_TIME: Duration = Duration::from_secs(5);
/// How often a request in the middle of a sequence is sent again when the engine is full (429).
pub const FULL_RETRIES: u32 = 5;
/// Shortest and longest wait before such a request is sent again.
pub const FULL_WAIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Idle connections that are kept to an engine.
pub const IDLE_CONNECTIONS: usize = 256;
/// How long an idle connection is kept; uvicorn closes its own after 5 s.
pub const IDLE_TIME: Duration = Duration::from_secs(4);

/// How much longer the first token may take for each token of the prompt: a processor may compute 20 in a second.
pub const PREFILL_TIME: Duration = Duration::from_millis(50);

/// Default number of sequences that are computed at once.
pub const MAX_SEQUENCES: usize = 256;
/// Default number of sequences beyond those, which wait in the engine's own queue.
pub const MAX_QUEUE: usize = 1024;
/// Messages queued for one router. While the queue is full, the engine's stream is not read.
pub const OUTPUT_QUEUE: usize = 64;
/// Messages from the reader of an engine's stream that wait for the sequence.
pub const FRAME_QUEUE: usize = 16;
/// Steers that wait for the sequence.
pub const STEER_QUEUE: usize = 16;
/// Size of one message in either direction.
pub const MAX_MESSAGE_BYTES: usize = 256 << 20;
/// The shortest and longest interval between two messages of events.
pub const EVENT_INTERVAL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Routers that listen to the events of one engine.
pub const EVENT_LISTENERS: usize = 256;
/// Wait before an engine's block events are asked for again, and between two looks at their silence.
pub const EVENT_RETRY: Duration = Duration::from_secs(2);
/// Time without block events, while new prompts are computed, after which they count as silent.
pub const EVENT_SILENCE: Duration = Duration::from_secs(30);
/// Prompts with new blocks that must have been sent in this time.
pub const SILENT_PROMPTS: u32 = 8;
/// Blocks of an engine that are remembered by its own hash; with more, the list is reset.
pub const REPORTED_BLOCKS: usize = 1 << 21;
