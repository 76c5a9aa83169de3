//! Limits of what a request may ask the grammar to hold.

/// Tools of one request.
pub const MAX_TOOLS: usize = 256;
/// Bytes of a tool's name.
pub const MAX_NAME_BYTES: usize = 128;
/// Bytes of one schema, as JSON.
pub const MAX_SCHEMA_BYTES: usize = 256 << 10;
/// Bytes of all schemas of a request together.
pub const MAX_SCHEMAS_BYTES: usize = 2 << 20;
/// Nesting of a schema, and of what it refers to.
pub const MAX_SCHEMA_DEPTH: usize = 64;
/// Schema nodes compiled per request; references and combinations count each time they are spelled out.
pub const MAX_SCHEMA_NODES: usize = 20_000;
/// Ways to satisfy one schema that are spelled out because what it combines cannot be kept apart.
pub const MAX_SCHEMA_WAYS: usize = 500;
/// Bytes of a grammar, a regular expression or a list of choices that a client sends.
pub const MAX_CLIENT_GRAMMAR_BYTES: usize = 128 << 10;
/// Bytes of arguments or of a response that are judged where they end; more are judged off the asynchronous threads.
pub const MAX_QUICK_JUDGEMENT_BYTES: usize = 16 << 10;
/// Repetitions that a structural tag may ask for.
pub const MAX_TAG_REPEAT: i64 = 1000;
/// Bytes of the whole grammar handed to the compiler.
pub const MAX_GRAMMAR_BYTES: usize = 4 << 20;
/// Symbols of a compiled grammar.
pub const MAX_GRAMMAR_SYMBOLS: usize = 500_000;
/// States of a grammar's lexer, about 1-2 KB each.
pub const MAX_LEXER_STATES: usize = 100_000;
/// Compiled grammars kept for later requests.
pub const MAX_CACHED_GRAMMARS: usize = 128;
/// Blanks between the tokens of JSON where a model may put them.
pub const MAX_BLANKS: usize = 8;
/// Indentation after a newline in JSON.
pub const MAX_INDENT: usize = 40;
/// Nesting of a value whose schema says nothing about it; readers of JSON stop at 128.
pub const MAX_FREE_DEPTH: usize = 32;
/// Properties of an object that may come in any order; with more they come in the order of the schema.
pub const MAX_ANY_ORDER: usize = 63;
/// Digits of a call's number.
pub const MAX_COUNT_DIGITS: usize = 4;
/// Tokens handed out as forced at once.
pub const MAX_FORCED_TOKENS: usize = 64;
