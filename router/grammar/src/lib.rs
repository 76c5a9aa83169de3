//! Tool-call formats as data: one literal per format in [`formats`], from which grammar, streaming [`Parser`] and
//! renderer ([`render`]) derive. This crate must not know tokio, the protocol or I/O.
//!
//! A model's output is a sequence of regions: reasoning, text, tool calls. The parser reads pieces of detokenized
//! output (bytes, or a special token by its text) and appends typed [`Event`]s. Concatenated, they do not depend on how
//! the output was split into pieces.

mod announced;
mod assemble;
mod budget;

mod cache;
mod call_validator;
mod canonical;
mod check;
mod code_blocks;
mod codec;
mod describe;
mod event;
mod finish;
mod foreign;
mod format;
mod formats;
mod grammars;
mod header;
mod held;
mod json_schema;
mod lark;
mod limits;
mod load;
mod lookalike;
mod marks;
mod mask;
mod matcher;
mod models;
mod output;
mod parse;
mod render;
mod response_template;
mod rules;
mod scan;
mod schema;
#[cfg(test)]
mod tests;
mod tools;
mod trial;
mod unmarked;
mod validate;
mod vocab;
mod watchdog;

pub use budget::{Budget, Cancel};
pub use cache::Cache;
pub use call_validator::CallValidator;
pub use canonical::Canonical;
pub use describe::{Description, markdown};
pub use event::Event;
pub use format::{
    Builtin, CallIdStyle, CallPosition, Codec, DetectionSigns, Format, Markers, Member, ModelDirFacts, Reasoning,
    Region, Step, Tags, Wrap, spelled,
};
pub use formats::{BARE, PLAIN, by_name, detect, formats, turn_ends};
pub use grammars::{Compiled, Grammars};
pub use held::{Held, HeldPart, HeldValues};
pub use limits::MAX_CACHED_BYTES;
pub use limits::MAX_TOOLS;
pub use load::FormatError;
pub use lookalike::{MAX_TEXT_BYTES as MAX_LOOKALIKE_BYTES, lookalike};
pub use matcher::{Matcher, MatcherError};
pub use models::{Recommendation, recommendations};
pub use parse::{Parser, ParserOptions};
pub use render::{Call, RenderOptions, Turn, render, render_text};
pub use response_template::{RESPONSE_TEMPLATE, ResponseTemplateError, from_response_template};
pub use rules::{
    Blanks, Cause, Enforcement, JsonStyle, PropertyOrder, Relaxation, Response, RuleError, Rules, ToolChoice, Violation,
};
pub use scan::{OwnedPiece, Piece};
pub use schema::LARK_KEYWORD;
pub use tools::{Tool, Tools};
pub use validate::SchemaValidator;
pub use vocab::{Encoder, Vocab, VocabError};
