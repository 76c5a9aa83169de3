//! What a format is made of. The table itself is in `formats.rs`.

/// Part of an output, as far as prose goes: what is not a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Region {
    Reasoning,
    #[default]
    Text,
}

/// How a model writes reasoning, text and tool calls.
///
/// An output is `reasoning? text? (lead begin call (between call)* end)? finish`, where [`Calls`] says how text and calls
/// may stand together.
#[derive(Debug)]
pub struct Format {
    pub name: &'static str,
    /// Other names that people know it by.
    pub aliases: &'static [&'static str],
    /// Models known to write it, for people; `*` stands for any text.
    pub models: &'static [&'static str],
    pub markers: Markers,
    pub reasoning: Option<Reasoning>,
    /// What surrounds the answer's text. Empty: nothing does.
    pub text: Wrap,
    /// What surrounds text that calls follow, where that differs from `text`.
    pub preamble: Option<Wrap>,
    pub calls: Calls,
    /// More than one call in a turn.
    pub many: bool,
    /// Between text and the first call; not part of the text.
    pub lead: &'static str,
    pub begin: &'static [Step],
    pub between: &'static [Step],
    pub end: &'static [Step],
    /// Empty: the format has no calls.
    pub call: &'static [Step],
    /// After everything else, before the token that ends the turn.
    pub finish: &'static [Step],
    pub ids: Ids,
    /// Tokens that end a turn although no configuration file may say so.
    pub stops: &'static [&'static str],
    pub signs: Signs,
}

/// How the markers of [`Step::Tok`] reach us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Markers {
    /// Always one special token each; the same letters in ordinary text are ordinary text.
    Special,
    /// One added token or several ordinary ones, depending on the tokenizer: the letters count.
    Either,
}

#[derive(Debug)]
pub struct Reasoning {
    pub open: &'static [Step],
    pub close: &'static [Step],
    /// What the renderer writes after `open`, before `close` and after `close`. Not empty: newlines at those places are
    /// layout and belong to neither reasoning nor text (the models' own templates strip them from history too).
    pub layout: [&'static str; 3],
}

#[derive(Debug)]
pub struct Wrap {
    pub open: &'static [Step],
    pub close: &'static [Step],
}

/// How text and calls share a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// Text may come first, then calls.
    AfterText,
    /// A turn is text or calls.
    InsteadOfText,
    /// Calls first, then text.
    BeforeText,
}

/// Ids of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// None on the wire.
    None,
    /// The call's header (the steps between its first two markers) is its id, and history has to spell it so.
    Header,
    /// Nine letters or digits.
    Nine,
    /// The call's number in the conversation, in decimal.
    Ordinal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A marker, spelled as [`Markers`] says.
    Tok(&'static str),
    /// A marker that may be there; never written by the renderer.
    Maybe(&'static str),
    /// Written by the renderer. The parser forgives blanks and prefixes that are missing.
    Lit(&'static str),
    /// The tool's name.
    Name,
    /// The call's number in the conversation, in decimal, from 0.
    Index,
    /// The call's number in this turn, in decimal, from 1.
    Ordinal,
    /// The call's id: see [`Ids`].
    Id,
    /// The arguments.
    Args(Codec),
    /// Inside [`Codec::Params`]: the argument's name, its value, its JSON type, and whether it is a string (`true`, `false`).
    Key,
    Value,
    Type,
    IsString,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// One JSON object: the arguments.
    Json,
    /// One JSON object that holds name and arguments, written in the order of the members and read in any. `ignored`
    /// members carry nothing that an event could tell.
    Object { members: &'static [Member], ignored: &'static [&'static str] },
    /// These steps once per argument. A string is written as it is, everything else as JSON, so that the schema (or
    /// `Type`, `IsString`) is needed to read it back. A raw value cannot contain the marker that ends it.
    Params(&'static [Step]),
    /// Python keyword arguments, `a="x", n=1`, up to the closing parenthesis.
    Python,
}

/// A member of [`Codec::Object`]: the first key of each list is written, any is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Member {
    Name(&'static [&'static str]),
    Arguments(&'static [&'static str]),
    /// The call's id, a string: see [`Ids`].
    Id(&'static [&'static str]),
}

/// What tells a format when a model directory is opened.
#[derive(Debug)]
pub struct Signs {
    /// The chat template contains all of these ...
    pub template: &'static [&'static str],
    /// ... and none of these.
    pub not: &'static [&'static str],
    /// Or, when the template does not decide: the tokenizer has this added token.
    pub special: Option<&'static str>,
    /// Or the model's architecture is one of these.
    pub architectures: &'static [&'static str],
}

/// What is known about a model directory.
pub struct Detect<'a> {
    pub template: Option<&'a str>,
    pub architecture: Option<&'a str>,
    /// Whether the tokenizer has an added token of this text.
    pub special: &'a dyn Fn(&str) -> bool,
}
