//! Every limit of the router. A request that exceeds one is refused with an error that names it.
//! docs/reference/limits.md is generated from these comments (`scripts/reference.py`).

use std::time::Duration;

pub use rein_text::limits::{HEADER_NAME_BYTES, HEADER_NAMES, VALUE_BYTES};

/// Bytes of a request body (HTTP) or message (gRPC).
pub const BODY_BYTES: usize = 32 << 20;
/// Bytes of bodies and their values that a router holds for all requests together (at least four bodies).
pub const BODY_MEMORY_BYTES: usize = 512 << 20;
/// Bytes of a field that a response repeats and that has no other effect, such as `user` and `metadata`.
pub const REPEATED_FIELD_BYTES: usize = 16 << 10;
/// Bytes of each request that do not count towards `BODY_MEMORY_BYTES`.
pub const UNCOUNTED_BODY_BYTES: usize = 64 << 10;
/// Bytes of the grammars' state that a router holds for all requests together, one state for each choice.
pub const MATCHER_MEMORY_BYTES: usize = 2 << 30;
/// Bytes of large answers that clients have not read yet, of all requests together.
pub const ANSWER_MEMORY_BYTES: usize = 256 << 20;
/// Bytes of memory that tokenizing takes for each byte of a text (39 of words; without a space 107).
pub const TOKENIZING_PER_BYTE: usize = 48;
/// Bytes that tokenizing may take, of all texts together.
pub const TOKENIZING_BYTES: usize = 4 << 30;
/// Bytes that are charged for the token ids of a text and their answer, for each byte of it, until the answer is there.
pub const IDS_PER_BYTE: usize = 12;
/// Bytes of each answer that do not count towards `ANSWER_MEMORY_BYTES`.
pub const UNCOUNTED_ANSWER_BYTES: usize = 64 << 10;
/// Bytes of each choice's grammar state that do not count towards `MATCHER_MEMORY_BYTES`.
pub const UNCOUNTED_MATCHER_BYTES: usize = 512 << 10;
/// Longest time in which an engine loads a LoRA adapter.
pub const LORA_LOAD_TIME: Duration = Duration::from_secs(600);

/// How long a request waits for memory of `BODY_MEMORY_BYTES` or `MATCHER_MEMORY_BYTES` before it is refused.
pub const MEMORY_WAIT: Duration = Duration::from_secs(5);
/// Time in which a body has to arrive.
pub const BODY_TIME: Duration = Duration::from_secs(60);
/// In-flight slots of a router, one for each choice; the default of `--max-in-flight`.
pub const IN_FLIGHT: u32 = 1024;
/// Requests that may wait for an in-flight slot; the default of `--max-queued`.
pub const QUEUED: u32 = 1024;
/// How long a body may take to arrive while the queue is full: then its request leaves it for a new one.
pub const PENDING_TIME: Duration = Duration::from_secs(5);
/// Shortest `Retry-After`.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Longest `Retry-After`.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// How long a client may leave its answer unread before its request ends; the default of `--client-stall-timeout`.
pub const CLIENT_STALL: Duration = Duration::from_secs(60);
/// How long a client may leave its answer unread before its sequences give up their engine slots.
pub const STALL_GRACE: Duration = Duration::from_secs(5);
/// Bytes of an answer that the transport gets at once.
pub const UNREAD_PIECE_BYTES: usize = 64 << 10;
/// Events of a stream that wait for a client that does not read.
pub const UNREAD_EVENTS: usize = 1_024;
/// Longest duration of a request; also the deadline of a request that sets none.
pub const REQUEST_TIME: Duration = Duration::from_secs(3600);
/// Longest wait for an engine's Info or Stats.
pub const ENGINE_CALL_TIME: Duration = Duration::from_secs(5);
/// Engines that are asked at once where the first answer is enough.
pub const ENGINES_ASKED_AT_ONCE: usize = 4;
/// Engines that are asked for Stats at once, for metrics.
pub const STATS_AT_ONCE: usize = 64;
/// Time for the Stats of all engines; an engine that has not answered by then counts as down.
pub const STATS_TIME: Duration = Duration::from_secs(2);
/// Interval at which a watched health service asks the engines.
pub const HEALTH_TIME: Duration = Duration::from_secs(1);
/// Silence on an SSE stream after which a comment is sent, so that proxies keep the connection.
pub const SSE_SILENCE: Duration = Duration::from_secs(10);
/// Bytes above which parsing, rendering and tokenizing leave the async threads.
pub const INLINE_TEXT_BYTES: usize = 8 << 10;
/// Threads for parsing, and for rendering and tokenizing of each model: half of the processors, within these bounds.
pub const BLOCKING_THREADS: std::ops::RangeInclusive<usize> = 2..=8;
/// Bytes above which work is large: at most half of those threads take large work.
pub const LARGE_WORK_BYTES: usize = 512 << 10;
/// Memory for the tools of earlier requests, bytes for each API.
pub const KNOWN_TOOLS_BYTES: usize = 32 << 20;
/// Bytes of text up to which the error for a too long prompt has its exact number of tokens.
pub const COUNTED_TEXT_BYTES: usize = 64 << 10;

/// Choices per prompt (`n`).
pub const CHOICES: u32 = 128;
/// Choices of a completion over all its prompts.
pub const COMPLETION_CHOICES: usize = 256;
/// Texts or lists of token ids of an embedding request (the OpenAI API's limit).
pub const EMBEDDING_INPUTS: usize = 2_048;
/// Inputs of an embedding request that are computed at once; each takes an in-flight slot.
pub const EMBEDDINGS_AT_ONCE: usize = 32;
/// Numbers of all embeddings of an answer.
pub const EMBEDDING_NUMBERS: usize = 8 << 20;
/// Equal calls in a row after which an answer ends: it would only repeat the call until its length.
pub const EQUAL_CALLS: u32 = 16;
/// The last part of `max_tokens`, as a fraction, in which `finish_structured` leads a JSON answer to its end.
pub const FINISHING_SHARE: u32 = 4;
/// From this many open objects and lists on, [`LEVEL_TOKENS`] for each are kept if they are more, at most half of
/// `max_tokens`.
pub const DEEP_LEVELS: u32 = 8;
/// Tokens that the end of an open object or list takes.
pub const LEVEL_TOKENS: u32 = 16;
/// Bytes at the end of a JSON answer that do nothing but repeat one text, after which it is led to its end.
pub const REPETITION_BYTES: usize = 4 << 10;
/// How often the text must be repeated in them.
pub const REPETITIONS: usize = 32;
/// Stop strings of a request.
pub const STOP_STRINGS: usize = 16;
/// Bytes of a stop string.
pub const STOP_STRING_BYTES: usize = 1_024;
/// Stop token ids of a request.
pub const STOP_TOKEN_IDS: usize = 256;
/// Entries of `bad_words`.
pub const BAD_WORDS: usize = 256;
/// Entries of `logit_bias`.
pub const LOGIT_BIAS: usize = 1_024;
/// Alternatives reported per token.
pub const TOP_LOGPROBS: u32 = 20;
/// Bytes of `cache_salt`.
pub const CACHE_SALT_BYTES: usize = 256;
/// Default of `max_tokens` for completions (the OpenAI API's).
pub const COMPLETION_TOKENS: u32 = 16;
/// Bytes of a client's `x-request-id` that is sent back; a longer one is replaced.
pub const REQUEST_ID_BYTES: usize = 128;
/// Bytes of an error's message, and of its `param`: both may repeat what the client sent.
pub const MESSAGE_BYTES: usize = 2 << 10;

/// Responses of `/v1/responses` that a router keeps. Beyond this, the API key with the most loses its oldest.
pub const STORED_RESPONSES: usize = 16_384;
/// Bytes of the kept responses, each with the whole conversation that it continues. Beyond this, the API key with the
/// most loses its oldest.
pub const STORED_RESPONSE_BYTES: usize = 256 << 20;
/// Responses that a router keeps of one API key, or of all clients where there are no keys; the oldest are dropped.
pub const STORED_RESPONSES_PER_KEY: usize = 4_096;
/// Bytes of the responses that a router keeps of one API key; the oldest are dropped.
pub const STORED_RESPONSE_BYTES_PER_KEY: usize = 64 << 20;
/// Responses that wait for being written to the directory of `--responses-store`; further ones are not kept.
pub const PENDING_RESPONSES: usize = 1_024;
/// Threads that read files of the directory of `--responses-store`. A file that hangs keeps its thread.
pub const STORE_READERS: usize = 16;
/// Threads that write files of the directory of `--responses-store`. A file that hangs keeps its thread.
pub const STORE_WRITERS: usize = 4;
/// How long a request waits for the directory of `--responses-store`.
pub const STORE_WAIT: Duration = Duration::from_secs(10);
/// How long a response is kept.
pub const STORED_RESPONSE_AGE: Duration = Duration::from_secs(24 * 3600);

/// Bytes of one message from an engine (prompt logprobs are the largest).
pub const ENGINE_MESSAGE_BYTES: usize = 256 << 20;
/// Resumes of a sequence without a token in between: a request that crashes engines must not crash all of them.
pub const RESUMES: u32 = 3;
/// Retries that each new sequence adds to the retry budget.
pub const RETRIES_PER_SEQUENCE: f64 = 0.2;
/// Retries that each second adds to the retry budget.
pub const RETRIES_PER_SECOND: f64 = 10.0;
/// Most retries that the retry budget can hold.
pub const RETRIES_AT_ONCE: f64 = 1000.0;
/// One in this many sequences may be hedged at a time, or one if there are fewer.
pub const HEDGED_ONE_IN: usize = 20;
/// Longest wait of a sequence that has lost its engine for another engine.
pub const RESUME_WAIT: Duration = Duration::from_secs(120);
/// How long a sequence that has lost its engine waits for one of its own kind: another kind's answer continues
/// differently.
pub const KIND_WAIT: Duration = Duration::from_secs(10);
/// Longest wait of a new sequence for an engine.
pub const ENGINE_WAIT: Duration = Duration::from_secs(10);
/// Sequences that an engine is assumed to compute at once until it reports its number.
pub const ENGINE_SLOTS: u32 = 64;
/// Shortest wait before engines are tried again when none is available.
pub const MIN_ENGINE_RETRY_WAIT: Duration = Duration::from_millis(5);
/// How long an engine that membership no longer lists is still used as the last choice.
pub const ENGINE_UNLISTED: Duration = Duration::from_secs(300);
/// Changes of membership within this time are applied together.
pub const MEMBERSHIP_BURST: Duration = Duration::from_millis(10);
/// Time between attempts to get a model's files from its workers.
pub const FILES_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of a model's text files.
pub const TEXT_FILES: usize = 512 << 20;
/// Steers that are queued for the engine, per sequence.
pub const STEER_QUEUE: usize = 16;

/// Bytes of the index of cached blocks, per model: 48 per block of one engine.
pub const ROUTE_INDEX_BYTES: usize = 512 << 20;
/// Engines in the index, including those that left since its last sweep.
pub const ROUTE_SLOTS: usize = 8_192;
/// Engines that must have left before the index is swept, or a quarter of all engines if that is more.
pub const ROUTE_SWEEP: usize = 8;
/// Sizes of KV blocks among the engines of a model; engines with other sizes are chosen by load.
pub const ROUTE_BLOCK_SIZES: usize = 4;
/// Blocks of a prompt that are looked up.
pub const ROUTE_BLOCKS: usize = 16_384;
/// How long, up to twice that, a prompt counts as cached where it was sent before the engine confirms it.
pub const ROUTE_UNCONFIRMED_TIME: Duration = Duration::from_secs(30);
/// Use of the KV cache, in percent, above which an engine with waiting sequences is the last choice.
pub const ROUTE_FULL_PERCENT: u64 = 90;
/// Shortest and longest interval between two messages of an engine's events.
pub const EVENTS_INTERVAL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Time that each engine adds to that interval, within `EVENTS_INTERVAL`.
pub const EVENTS_INTERVAL_PER_ENGINE: Duration = Duration::from_micros(500);
/// Silence after which an engine's events are requested again. A step of the engine may delay the first event.
pub const EVENTS_SILENCE: Duration = Duration::from_secs(10);
/// Shortest and longest pause before an engine's events are requested again.
pub const EVENTS_RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Refused tokens among the last `HOLD_WINDOW` after which a sequence draws under masks.
pub const HOLD_REFUSALS: u32 = 3;
/// Tokens over which refusals are counted; at most 31.
pub const HOLD_WINDOW: u32 = 16;
/// Tokens that a held sequence draws under masks.
pub const HOLD_TOKENS: u32 = 32;
/// Draws that a grammar may refuse at one position. From the second on, the grammar's own mask applies, so a refusal is
/// a defect.
pub const REFUSALS_IN_A_ROW: u32 = 8;
/// Forced tokens that justify a rewind; if there are fewer, the model draws them.
pub const FORCED_TOKENS: usize = 3;
/// Refused tokens that `return_grammar` reports.
pub const MAX_REPORTED_REFUSALS: usize = 64;
/// Tokens whose decisions `return_decisions` reports, from the first.
pub const MAX_REPORTED_DECISIONS: usize = 8192;
/// Bytes of the schemas and grammars of a request that gets a first attempt at compiling.
pub const SMALL_GRAMMAR_BYTES: usize = 64 << 10;
/// First attempts at compiling a grammar at once, per model; each takes some milliseconds.
pub const SHORT_COMPILES: usize = 2;
/// Grammars with a long compilation, compiled at once, per model.
pub const LONG_COMPILES: usize = 1;
/// Time of checking a choice's tokens above which its next tokens are checked off the async threads.
pub const INLINE_MATCH: Duration = Duration::from_millis(2);
/// Bytes of a grammar above which its tokens are checked off the async threads, because each choice copies it.
pub const INLINE_MATCHER_BYTES: usize = 1 << 20;
/// Choices with slow grammars that are checked at once, per model.
pub const SLOW_MATCHES: usize = 2;

/// Bytes of the name of a LoRA adapter.
pub const LORA_NAME_BYTES: usize = 256;
/// How long what this router did to an engine's LoRA adapters goes before what the engine's record says.
pub const LORA_SETTLE: Duration = Duration::from_secs(10);

/// How long an engine is asked to hold the blocks of a conversation whose tool runs, once its tools are known.
pub const TOOL_HOLD: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(600));
/// The same for a conversation whose tools are not known.
pub const FIRST_TOOL_HOLD: Duration = Duration::from_secs(60);
/// Conversations whose tools run, or ran last.
pub const TOOL_TURNS: usize = 65_536;
/// The last times that count for a session.
pub const TOOL_GAPS: usize = 9;
