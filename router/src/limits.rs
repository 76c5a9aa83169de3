//! Every bound of the router by name. What is over one is refused with an error that states it.

use std::time::Duration;

/// Bytes of a request body (HTTP) or message (gRPC).
pub const BODY_BYTES: usize = 32 << 20;
/// Fields of a body's object.
pub const BODY_FIELDS: usize = 256;
/// Bytes that the values of a body may take once they are built, besides as many as the body has.
pub const VALUE_BYTES: usize = 32 << 20;
/// Bytes of bodies and their values that are held for all requests together, if that is at least four bodies ...
pub const HELD_BYTES: usize = 512 << 20;
/// ... not counting so many of each request ...
pub const FREE_BYTES: usize = 64 << 10;
/// ... and how long a request waits for others to give some back.
pub const HELD_WAIT: Duration = Duration::from_secs(5);
/// Time in which a body has to arrive.
pub const BODY_TIME: Duration = Duration::from_secs(60);
/// Requests in flight per router, if the configuration does not say.
pub const IN_FLIGHT: u32 = 1024;
/// Requests that may wait for one of those to end, if the configuration does not say.
pub const QUEUED: u32 = 1024;
/// What `Retry-After` says when the engine is full, and at least when the router is ...
pub const RETRY_AFTER: Duration = Duration::from_secs(1);
/// ... and at most.
pub const RETRY_AFTER_MOST: Duration = Duration::from_secs(60);
/// How long a client may leave a stream unread until its request ends, if the configuration does not say, ...
pub const CLIENT_STALL: Duration = Duration::from_secs(60);
/// ... and until its sequences give up their places on engines. They resume when it reads on.
pub const STALL_GRACE: Duration = Duration::from_secs(5);
/// Events of a stream that wait for such a client.
pub const UNREAD_EVENTS: usize = 1_024;
/// Longest life of a request that brings no deadline.
pub const REQUEST_TIME: Duration = Duration::from_secs(3600);
/// Longest wait for an engine's Info or Stats.
pub const ENGINE_CALL_TIME: Duration = Duration::from_secs(5);
/// Engines that are asked at once where the first answer will do.
pub const ENGINES_ASKED_AT_ONCE: usize = 4;
/// Engines whose Stats are asked for at once, for metrics ...
pub const STATS_AT_ONCE: usize = 64;
/// ... and how long for all of them; those that have not answered then count as down.
pub const STATS_TIME: Duration = Duration::from_secs(2);
/// How often a watched health asks the engines.
pub const HEALTH_TIME: Duration = Duration::from_secs(1);
/// Silence on an SSE stream after which a comment is sent, so that proxies keep the connection.
pub const SSE_SILENCE: Duration = Duration::from_secs(10);
/// Bytes above which parsing, rendering and tokenizing leave the async threads.
pub const INLINE_TEXT_BYTES: usize = 8 << 10;
/// Threads for parsing, and for rendering and tokenizing of each model: half of the processors, within these bounds.
pub const OFF_THREADS: std::ops::RangeInclusive<usize> = 2..=8;
/// Work on more bytes than this is large: half of those threads take it.
pub const LARGE_WORK_BYTES: usize = 512 << 10;
/// Bytes of text up to which a prompt's tokens are counted to the last, although they do not fit.
pub const COUNTED_TEXT_BYTES: usize = 64 << 10;

/// Messages of a conversation ...
pub const MESSAGES: usize = 16_384;
/// ... and calls in all of them together.
pub const CALLS: usize = 16_384;
/// Tools of a request.
pub const TOOLS: usize = 1_024;
/// Bytes of a tool's name.
pub const TOOL_NAME_BYTES: usize = 256;
/// Choices per prompt.
pub const CHOICES: u32 = 128;
/// Choices of a completion over all its prompts.
pub const COMPLETION_CHOICES: usize = 256;
/// Stop strings of a request.
pub const STOP_STRINGS: usize = 16;
/// Bytes of a stop string.
pub const STOP_STRING_BYTES: usize = 1_024;
/// Stop token ids of a request.
pub const STOP_TOKEN_IDS: usize = 256;
/// Words that a request refuses.
pub const BAD_WORDS: usize = 256;
/// Entries of a logit_bias.
pub const LOGIT_BIAS: usize = 1_024;
/// Alternatives reported per token.
pub const TOP_LOGPROBS: u32 = 20;
/// Bytes of a cache_salt.
pub const CACHE_SALT_BYTES: usize = 256;
/// Tokens a completion may generate if the request does not say (the OpenAI API's default).
pub const COMPLETION_TOKENS: u32 = 16;
/// Bytes of a client's `x-request-id` that is sent back; a longer one is replaced.
pub const REQUEST_ID_BYTES: usize = 128;
/// Ignored fields, and relaxed schemas, named in a response header ...
pub const HEADER_NAMES: usize = 32;
/// ... and bytes of each of them.
pub const HEADER_NAME_BYTES: usize = 128;
/// Bytes of an error's message, and of the field that it names: what a client sent may be part of both.
pub const MESSAGE_BYTES: usize = 2 << 10;

/// Bytes of one message from an engine (prompt logprobs are the largest).
pub const ENGINE_MESSAGE_BYTES: usize = 256 << 20;
/// Times that a sequence may go on elsewhere without a token in between: one that takes every engine down with it must not.
pub const RESUMES: u32 = 3;
/// What each new sequence adds to the budget for trying sequences again that no engine took, or that lost another engine
/// before a token ...
pub const RETRIES_PER_SEQUENCE: f64 = 0.2;
/// ... what each second adds, also without sequences ...
pub const RETRIES_PER_SECOND: f64 = 10.0;
/// ... and the most that it holds: what may be tried again at once when engines die under load.
pub const RETRIES_AT_ONCE: f64 = 1000.0;
/// Of so many sequences, one may be with two engines; of fewer, too.
pub const HEDGED_ONE_IN: usize = 20;
/// Longest wait of a sequence that has lost its engine for another one to join.
pub const RESUME_WAIT: Duration = Duration::from_secs(120);
/// So long it waits for one of the kind that it had: another kind's answer goes on otherwise than its would have.
pub const KIND_WAIT: Duration = Duration::from_secs(10);
/// Longest wait of a new sequence while no engine is there.
pub const ENGINE_WAIT: Duration = Duration::from_secs(10);
/// Sequences that an engine computes at once, until it has said how many.
pub const ENGINE_SLOTS: u32 = 64;
/// At least so long between two looks at engines that are avoided.
pub const ENGINE_LOOK: Duration = Duration::from_millis(5);
/// How long an engine is still tried, after all others, that membership no longer knows.
pub const ENGINE_UNLISTED: Duration = Duration::from_secs(300);
/// Changes of membership that come in one burst are looked at together.
pub const MEMBERSHIP_BURST: Duration = Duration::from_millis(10);
/// Between attempts to get a model's files from its workers.
pub const FILES_AGAIN: Duration = Duration::from_secs(1);
/// Bytes of a model's text files.
pub const TEXT_FILES: usize = 512 << 20;
/// Steers on their way to the engine, per sequence.
pub const STEER_QUEUE: usize = 16;

/// Bytes of the index of what engines have cached, per model: 48 for a block that one of them holds.
pub const ROUTE_INDEX_BYTES: usize = 512 << 20;
/// Engines in the index, those included that left since it was last swept ...
pub const ROUTE_SLOTS: usize = 8_192;
/// ... which is when a quarter of the engines have left, and at least so many.
pub const ROUTE_SWEEP: usize = 8;
/// Sizes of KV blocks among the engines of a model; engines with others get sequences by load.
pub const ROUTE_BLOCK_SIZES: usize = 4;
/// Blocks of a prompt that are looked for.
pub const ROUTE_BLOCKS: usize = 16_384;
/// How long, to twice that, a prompt counts as cached where it was sent before the engine says so.
pub const ROUTE_EXPECTED: Duration = Duration::from_secs(30);
/// An engine with waiting sequences and so much of its KV cache in use is the last choice.
pub const ROUTE_FULL_PERCENT: u64 = 90;
/// Time between two messages of an engine's events: the least and the most that engines allow ...
pub const EVENTS_INTERVAL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// ... and in between this much for each engine.
pub const EVENTS_EACH: Duration = Duration::from_micros(500);
/// Silence after which an engine's events are asked for again. A step of the engine may delay the first.
pub const EVENTS_SILENCE: Duration = Duration::from_secs(10);
/// Pause before an engine's events are asked for again: at first, and at last.
pub const EVENTS_RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A sequence draws under masks once so many of its last `HOLD_WINDOW` judged tokens were refused ...
pub const HOLD_REFUSALS: u32 = 3;
/// (at most 31) ...
pub const HOLD_WINDOW: u32 = 16;
/// ... and for so many tokens.
pub const HOLD_TOKENS: u32 = 32;
/// Draws that a grammar may refuse at one place. The second is under the grammar's own mask, so each further one is a fault.
pub const REFUSALS_IN_A_ROW: u32 = 8;
/// Forced tokens that are worth a rewind: fewer are left to the model to draw.
pub const FORCED_TOKENS: usize = 3;
/// Refused tokens that a response tells of.
pub const REFUSALS_TOLD: usize = 64;
/// Bytes of schemas and grammars of a request of which a first attempt is made.
pub const SMALL_GRAMMAR_BYTES: usize = 64 << 10;
/// First attempts to compile a grammar, of some milliseconds each, at once, per model; more wait for their turn.
pub const GRAMMARS_AT_FIRST: usize = 2;
/// Grammars that take longer, compiled at once, per model.
pub const LONG_GRAMMARS: usize = 1;
/// Judging tokens for longer than this leaves the async threads from the next tokens of the same choice on ...
pub const INLINE_MATCH: Duration = Duration::from_millis(2);
/// ... and so does a grammar of more bytes, which each choice copies.
pub const INLINE_MATCHER_BYTES: usize = 1 << 20;
/// Choices whose slow grammars are matched at once, per model; more wait for their turn.
pub const SLOW_MATCHES: usize = 2;
