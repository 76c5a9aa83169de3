//! Named limits of what a request may ask of the grammar.

use std::time::Duration;

/// Tools per request, unless the server says otherwise.
pub const MAX_TOOLS: usize = 1_024;
/// Bytes of a tool's name.
pub const MAX_NAME_BYTES: usize = 128;
/// Bytes of one schema, as JSON.
pub const MAX_SCHEMA_BYTES: usize = 256 << 10;
/// Bytes of all schemas of a request together.
pub const MAX_SCHEMAS_BYTES: usize = 2 << 20;
/// Nesting of a schema, including what it refers to.
pub const MAX_SCHEMA_DEPTH: usize = 64;
/// Schema nodes compiled per request. References and combinations count each time they are expanded.
pub const MAX_SCHEMA_NODES: usize = 20_000;
/// Steps of one compilation: about 0.3 s of a core. A step is a schema node that is copied or compared, or a unit of
/// llguidance's fuel.
pub const MAX_COMPILE_WORK: u64 = 3_000_000;
/// Largest `multipleOf` that is enforced, without its decimal point.
pub const MAX_DIVISOR: u64 = 400;
/// The same for round numbers: those with at most nine factors of 2, any number of 5, and others of at most 9.
pub const MAX_ROUND_DIVISOR: u64 = 4_000;
/// Steps of a first attempt, enough for every small schema: about 20 ms.
pub const MAX_FIRST_WORK: u64 = 200_000;
/// Steps for combining the parts of one schema.
pub const MAX_PART_WORK: u64 = 200_000;
/// Steps for deciding whether schemas exclude each other, or for negating one.
pub const MAX_COMPARISON_STEPS: u64 = 200_000;
/// Maximum number of members, summed over the objects of a union that is told apart by the value of one member.
pub const MAX_ROW_MEMBERS: usize = 4_500;
/// Properties in the order of the schema; objects with more are not constrained.
pub const MAX_ORDERED_PROPERTIES: usize = 2_200;
/// Maximum number of `patternProperties` for which keys are constrained.
pub const MAX_PATTERNS: usize = 16;
/// Maximum number of combinations in which the conjuncts of one expression can continue at one place. The most
/// ambiguous conjunct is not counted. llguidance tries all combinations at once.
pub const MAX_OVERLAP: u64 = 256;
/// Bytes of the grammar of a string, once its characters are spelled as in JSON.
pub const MAX_SPELLED_GRAMMAR_BYTES: usize = 512 << 10;
/// Symbols of a grammar; llguidance numbers them with 16 bits.
pub const MAX_GRAMMAR_SYMBOLS: usize = 65_000;
/// llguidance's fuel for building the lexer.
pub const MAX_LEXER_FUEL: u64 = 2_000_000;
/// A minimum of that fuel, however little of the budget is left.
pub const MIN_LEXER_FUEL: u64 = 200_000;
/// llguidance's fuel for a mask, or for a few tokens without one: 5 to 30 ms.
pub const MAX_STEP_FUEL: u64 = 300_000;
/// More of it for each tool that may be called: where no marker begins calls, each name is looked for.
pub const STEP_FUEL_PER_TOOL: u64 = 4_000;
/// Processor time of one step of a client's own grammar.
pub const MAX_STEP_TIME: Duration = Duration::from_millis(200);
/// Processor time of drawing `TRIAL_TOKENS`.
pub const MAX_TRIAL_TIME: Duration = Duration::from_millis(500);
/// Tokens accepted on the fuel of one step.
pub const TOKENS_PER_STEP: u32 = 8;
/// Bytes of the shortest match of a client's regular expression: forced text is computed in one piece.
pub const MAX_SHORTEST_MATCH: usize = 16 << 10;
/// Tokens drawn from a client's own grammar before it is used.
pub const TRIAL_TOKENS: usize = 8;
/// Items of the parser at one place.
pub const MAX_ROW_ITEMS: usize = 5_000;
/// Patterns and formats of JSON Schemas within a client's grammar.
pub const MAX_FOREIGN_PATTERNS: usize = 4;
/// llguidance's fuel for 24 steps through texts that a string's constraints allow.
pub const MAX_WALK_FUEL: u64 = 400_000;
/// llguidance's fuel for deciding whether a string's constraints contradict each other. Every token of such a string
/// costs about as much.
pub const MAX_TEXT_FUEL: u64 = 20_000;
/// Expanded ways to satisfy one schema, when its combinations cannot be kept separate.
pub const MAX_SCHEMA_WAYS: usize = 500;
/// Bytes of a grammar, a regular expression or a list of choices that a client sends.
pub const MAX_CLIENT_GRAMMAR_BYTES: usize = 128 << 10;
/// Bytes of arguments or of a response that are validated where they end; more are validated off the async threads.
pub const MAX_QUICK_VALIDATION_BYTES: usize = 16 << 10;
/// Bytes of a compiled regular expression that validates responses. A larger one is left to the grammar.
pub const MAX_VALIDATED_REGEX_BYTES: usize = 16 << 20;
/// Maximum work of one validation for expressions with too many states for an automaton that is built on demand: bytes
/// of the expressions times bytes of the texts that they match. About 100 ms of a core. Expressions beyond it are not
/// validated; the grammar alone enforces them.
pub const MAX_VALIDATED_REGEX_WORK: usize = 1 << 30;
/// The same limit for a validation on an async thread, and for values and names within a schema: about 1 ms.
pub const MAX_QUICK_REGEX_WORK: usize = 10 << 20;
/// Steps that the engine for patterns with lookaround or back references backtracks in one text.
pub const MAX_BACKTRACKS: usize = 2_000;
/// Characters in the classes of a client's case-insensitive regular expression or grammar. Reading them takes 5 ns
/// each, several times.
pub const MAX_REGEX_FOLDS: u64 = 8_000_000;
/// The same of a pattern in a schema, which may have many patterns.
pub const MAX_PATTERN_FOLDS: u64 = 20_000;
/// Such characters per step of the budget.
pub const FOLDS_PER_STEP: u64 = 20;
/// Bytes of a compiled regular expression per step of the budget.
pub const REGEX_BYTES_PER_STEP: usize = 32;
/// Bytes of the patterns of one schema once they are compiled to validate finished arguments and responses, about 30
/// ms of a core. Patterns beyond are left to the grammar.
pub const MAX_VALIDATED_PATTERNS_BYTES: u64 = 10 << 20;
/// Bytes of a compiled pattern of property names. A larger one is matched by the grammar alone.
pub const MAX_NAME_PATTERN_BYTES: u64 = 2 << 20;
/// Bytes of compiled patterns of property names, kept for the whole process.
pub const MAX_CACHED_NAME_PATTERNS_BYTES: usize = 16 << 20;
/// Repetitions in a structural tag.
pub const MAX_TAG_REPEAT: i64 = 1000;
/// Bytes of the whole grammar given to the compiler.
pub const MAX_GRAMMAR_BYTES: usize = 4 << 20;
/// Bytes of a grammar whose other forms are made on an async thread: a few milliseconds.
pub const MAX_QUICK_GRAMMAR_BYTES: usize = 32 << 10;
/// States of a grammar's lexer, about 1-2 KB each.
pub const MAX_LEXER_STATES: usize = 100_000;
/// Bytes of the state of one output: its copy of the lexer, and the parser's items for all accepted text.
pub const MAX_MATCHER_BYTES: usize = 64 << 20;
/// Tokens after which the state of an output is measured again; it can grow by 12 MiB in between.
pub const TOKENS_PER_MEASUREMENT: u32 = 32;
/// Bytes of compiled grammars cached per model.
pub const MAX_CACHED_BYTES: usize = 256 << 20;
/// Blanks between JSON tokens, where they are allowed.
pub const MAX_BLANKS: usize = 8;
/// Indentation after a newline in JSON.
pub const MAX_INDENT: usize = 40;
/// Nesting of a value without a schema; JSON parsers stop at 128.
pub const MAX_FREE_DEPTH: usize = 32;
/// Undeclared members of an object that declares others, if its schema does not say that it takes more.
pub const MAX_UNDECLARED_MEMBERS: usize = 32;
/// The same if the schema says so, by `additionalProperties`, `unevaluatedProperties` or `patternProperties`.
pub const MAX_MAP_MEMBERS: usize = 1_000;
/// Properties of an object that may come in any order; more than this must come in the order of the schema.
pub const MAX_ANY_ORDER: usize = 63;
/// Digits of a call's number.
pub const MAX_COUNT_DIGITS: usize = 4;
/// Tokens returned as forced at once.
pub const MAX_FORCED_TOKENS: usize = 64;
