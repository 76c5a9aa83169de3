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
/// Steps of one compilation: about 0.3 s of a core. A step is a node of a schema that is copied or compared, or a unit of
/// llguidance's fuel.
pub const MAX_COMPILE_WORK: u64 = 3_000_000;
/// Steps of a first attempt, of which every small schema has enough: about 20 ms.
pub const MAX_FIRST_WORK: u64 = 200_000;
/// Steps of combining the parts of one schema.
pub const MAX_PART_WORK: u64 = 200_000;
/// Steps of telling whether schemas exclude each other, or of saying the opposite of one.
pub const MAX_COMPARISON_STEPS: u64 = 200_000;
/// Members that objects which are told apart by their members may have together.
pub const MAX_ROW_MEMBERS: usize = 4_500;
/// Properties that come in the order of the schema; objects with more are any object.
pub const MAX_IN_ORDER: usize = 2_200;
/// Patterns of properties that are told apart; with more, a key may be any.
pub const MAX_PATTERNS: usize = 16;
/// How often the conjuncts of an expression may go on in more than one way at one place, multiplied, the most ambiguous of
/// them left out. llguidance tries all combinations at once.
pub const MAX_OVERLAP: u64 = 256;
/// Fuel of llguidance that the lexer may take when it is built.
pub const MAX_LEXER_FUEL: u64 = 1_000_000;
/// The same however little of the budget is left.
pub const MIN_LEXER_FUEL: u64 = 200_000;
/// Fuel of llguidance for a mask, or for a few tokens without one: 10 to 30 ms.
pub const MAX_STEP_FUEL: u64 = 200_000;
/// Tokens that are accepted on the fuel of one step.
pub const TOKENS_PER_STEP: u32 = 8;
/// Bytes of the shortest text that a client's regular expression may ask for: what is forced is computed in one piece.
pub const MAX_SHORTEST_MATCH: usize = 16 << 10;
/// Tokens that are drawn from a client's own grammar before it is used.
pub const TRIAL_TOKENS: usize = 8;
/// Items that the parser may hold at one place.
pub const MAX_ROW_ITEMS: usize = 5_000;
/// Patterns and formats of JSON Schemas within a client's grammar.
pub const MAX_FOREIGN_PATTERNS: usize = 4;
/// Fuel of llguidance that 24 steps through texts that a string's constraints allow may take.
pub const MAX_WALK_FUEL: u64 = 400_000;
/// Fuel of llguidance that telling whether a string's constraints contradict each other may take. Every token of such a
/// string costs about as much.
pub const MAX_TEXT_FUEL: u64 = 20_000;
/// Ways to satisfy one schema that are spelled out because what it combines cannot be kept apart.
pub const MAX_SCHEMA_WAYS: usize = 500;
/// Bytes of a grammar, a regular expression or a list of choices that a client sends.
pub const MAX_CLIENT_GRAMMAR_BYTES: usize = 128 << 10;
/// Bytes of arguments or of a response that are judged where they end; more are judged off the asynchronous threads.
pub const MAX_QUICK_JUDGEMENT_BYTES: usize = 16 << 10;
/// Bytes that a regular expression may take once it is compiled to judge responses. The sizes are tried in turn; the one
/// that suffices counts in [`MAX_CACHED_BYTES`]. A regular expression beyond the last is left to the grammar.
pub const JUDGED_REGEX_SIZES: [usize; 4] = [256 << 10, 1 << 20, 4 << 20, 16 << 20];
/// Bytes of a regular expression that compile in one step of the budget.
pub const REGEX_BYTES_PER_STEP: usize = 32;
/// Repetitions that a structural tag may ask for.
pub const MAX_TAG_REPEAT: i64 = 1000;
/// Bytes of the whole grammar handed to the compiler.
pub const MAX_GRAMMAR_BYTES: usize = 4 << 20;
/// Symbols of a compiled grammar.
pub const MAX_GRAMMAR_SYMBOLS: usize = 500_000;
/// States of a grammar's lexer, about 1-2 KB each.
pub const MAX_LEXER_STATES: usize = 100_000;
/// Bytes of compiled grammars kept for later requests, per model.
pub const MAX_CACHED_BYTES: usize = 256 << 20;
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
