//! Limits of a request's fields and conversation. A value over a limit is rejected with an error that states the limit.

use std::time::Duration;

/// Fields of a body.
pub const BODY_FIELDS: usize = 256;
/// Arrays and objects in each other, in a request and in a text that has to be JSON. It is serde_json's.
pub const JSON_DEPTH: usize = 127;
/// Bytes of memory that the values of a body may take once they are built, in addition to the size of the body.
pub const VALUE_BYTES: usize = 32 << 20;
/// Messages of a conversation.
pub const MESSAGES: usize = 16_384;
/// Tool calls of a conversation, over all messages.
pub const CALLS: usize = 16_384;
/// CPU time of one render of the chat template. A conversation of 1,000 messages and 2 MiB takes about 10 ms.
pub const TEMPLATE_CPU_TIME: Duration = Duration::from_secs(2);
/// Tools of a request.
pub const TOOLS: usize = 1_024;
/// Bytes of a tool's name.
pub const TOOL_NAME_BYTES: usize = 256;
/// Ignored fields, and relaxed schemas, that a response header names.
pub const HEADER_NAMES: usize = 32;
/// Bytes of each field or schema that a response header names.
pub const HEADER_NAME_BYTES: usize = 128;
/// Bytes of each model's prompt cache: the token ids of prompts, and their text.
pub const PROMPT_CACHE_BYTES: usize = 128 << 20;
