//! Loads formats from files: JSON with the fields of [`Format`], for models that the table does not know yet.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;

use crate::format::{
    CallIdStyle, CallPosition, Codec, DetectionSigns, Format, Markers, Member, Reasoning, Step, Tags, Wrap,
};

/// Size limit of a format's file.
const MAX_BYTES: usize = 64 << 10;
/// Files that one process loads; each stays in memory.
const MAX_LOADED: usize = 64;

/// Why a file is not a format. Each error names the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    #[error("not a format: {0}")]
    Json(String),
    #[error("{field}: {message}")]
    Field { field: &'static str, message: &'static str },
    #[error("the file has {0} bytes; the limit is {MAX_BYTES}")]
    TooLong(usize),
    #[error("{MAX_LOADED} formats are loaded, which is the limit")]
    TooMany,
}

static LOADED: Mutex<Option<HashMap<String, &'static Format>>> = Mutex::new(None);

impl Format {
    /// A format from JSON. Equal texts give the same format, which lives as long as the process.
    pub fn from_json(text: &str) -> Result<&'static Format, FormatError> {
        if text.len() > MAX_BYTES {
            return Err(FormatError::TooLong(text.len()));
        }
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = loaded.get_or_insert_default();
        if let Some(format) = loaded.get(text) {
            return Ok(format);
        }
        let file: FormatFile = serde_json::from_str(text).map_err(|e| FormatError::Json(e.to_string()))?;
        file.check()?;
        if loaded.len() >= MAX_LOADED {
            return Err(FormatError::TooMany);
        }
        let format: &'static Format = Box::leak(Box::new(file.format()));
        loaded.insert(text.to_owned(), format);
        Ok(format)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FormatFile {
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(default)]
    models: Vec<String>,
    markers: MarkersFile,
    reasoning: Option<ReasoningFile>,
    #[serde(default)]
    text: WrapFile,
    preamble: Option<WrapFile>,
    #[serde(default)]
    calls: CallsFile,
    #[serde(default = "yes")]
    many: bool,
    #[serde(default)]
    opens: bool,
    #[serde(default)]
    lead: String,
    #[serde(default)]
    begin: Vec<StepFile>,
    #[serde(default)]
    between: Vec<StepFile>,
    #[serde(default)]
    end: Vec<StepFile>,
    #[serde(default)]
    call: Vec<StepFile>,
    #[serde(default)]
    finish: Vec<StepFile>,
    #[serde(default)]
    ids: IdsFile,
    #[serde(default)]
    stops: Vec<String>,
    #[serde(default)]
    letter_first: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum MarkersFile {
    Special,
    Either,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReasoningFile {
    #[serde(default)]
    lead: String,
    open: Vec<StepFile>,
    close: Vec<StepFile>,
    #[serde(default)]
    layout: [String; 3],
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct WrapFile {
    #[serde(default)]
    open: Vec<StepFile>,
    #[serde(default)]
    close: Vec<StepFile>,
}

#[derive(Deserialize, Default)]
enum CallsFile {
    #[default]
    #[serde(rename = "after_text")]
    After,
    #[serde(rename = "instead_of_text")]
    Instead,
    #[serde(rename = "before_text")]
    Before,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum IdsFile {
    #[default]
    None,
    Header,
    Nine,
    Ordinal,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum StepFile {
    Tok(String),
    Maybe(String),
    Lit(String),
    Name,
    Index,
    Ordinal,
    Id,
    Args(CodecFile),
    Key,
    Value,
    Type,
    IsString,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum CodecFile {
    Json,
    Object {
        members: Vec<MemberFile>,
        #[serde(default)]
        ignored: Vec<String>,
    },
    Keyed,
    Params(Vec<StepFile>),
    /// The marker around strings.
    Bare(String),
    /// The marker before tags.
    Elements(String),
    /// The first letters of a value's tag, and its end tag.
    Tagged {
        open: String,
        close: String,
    },
    Python,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum MemberFile {
    Name(Vec<String>),
    Arguments(Vec<String>),
    Id(Vec<String>),
}

fn yes() -> bool {
    true
}

impl FormatFile {
    fn check(&self) -> Result<(), FormatError> {
        let wrong = |field, message| Err(FormatError::Field { field, message });
        if self.name.is_empty() {
            return wrong("name", "must not be empty");
        }
        if crate::by_name(&self.name).is_some() {
            return wrong("name", "is the name of a built-in format");
        }
        if let Some(r) = &self.reasoning
            && [&r.open, &r.close].iter().any(|s| !matches!(s.first(), Some(StepFile::Tok(t)) if !t.is_empty()))
        {
            return wrong("reasoning", "open and close must each begin with {\"tok\": MARKER}");
        }
        let empty = |s: &&StepFile| matches!(s, StepFile::Tok(t) | StepFile::Maybe(t) if t.is_empty());
        for (field, steps) in [("begin", &self.begin), ("end", &self.end), ("call", &self.call)] {
            if steps.iter().any(|s| empty(&s)) {
                return wrong(field, "a marker must not be empty");
            }
        }
        if self.call.is_empty() {
            return Ok(());
        }
        let mut codecs = self.call.iter().filter_map(|s| if let StepFile::Args(c) = s { Some(c) } else { None });
        let (Some(codec), None) = (codecs.next(), codecs.next()) else {
            return wrong("call", "must have one {\"args\": ...}");
        };
        if self.opens && !matches!(codec, CodecFile::Object { .. }) {
            return wrong(
                "opens",
                "needs {\"args\": {\"object\": ...}}: only an object tells by itself that it is a call",
            );
        }
        let names = self.call.iter().filter(|s| matches!(s, StepFile::Name)).count();
        match codec {
            CodecFile::Object { members, .. } => {
                let has = |found: fn(&MemberFile) -> bool| members.iter().any(found);
                if !has(|m| matches!(m, MemberFile::Name(k) if !k.is_empty()))
                    || !has(|m| matches!(m, MemberFile::Arguments(k) if !k.is_empty()))
                {
                    return wrong("call", "the object needs members {\"name\": [KEY]} and {\"arguments\": [KEY]}");
                }
                if names > 0 {
                    return wrong("call", "must not have \"name\": it is a member of the object");
                }
            }
            CodecFile::Keyed if names > 0 => {
                return wrong("call", "must not have \"name\": it is the key of the object's member");
            }
            CodecFile::Keyed => {}
            _ if names != 1 => return wrong("call", "must have \"name\" once"),
            CodecFile::Params(steps) => {
                let at = |found: fn(&StepFile) -> bool| steps.iter().position(found);
                let (key, value) = (at(|s| matches!(s, StepFile::Key)), at(|s| matches!(s, StepFile::Value)));
                let ends = value.is_some_and(|n| steps[n..].iter().any(|s| matches!(s, StepFile::Tok(_))));
                if !matches!(steps.first(), Some(StepFile::Tok(_))) || key.is_none() || key > value || !ends {
                    return wrong("call", "params must be a tok, a \"key\", a \"value\" and a tok that ends it");
                }
            }
            CodecFile::Python if !self.call.iter().any(|s| matches!(s, StepFile::Lit(l) if l == "(")) => {
                return wrong("call", "python arguments must be between {\"lit\": \"(\"} and {\"lit\": \")\"}");
            }
            CodecFile::Bare(mark)
                if mark.chars().next().is_none_or(|first| mark[first.len_utf8()..].contains(first)) =>
            {
                return wrong(
                    "call",
                    "bare must be the marker around strings, in which its first character does not repeat",
                );
            }
            CodecFile::Elements(mark) if mark.is_empty() => {
                return wrong("call", "elements must be the marker before tags");
            }
            CodecFile::Tagged { open, close } if !open.starts_with('<') || !close.starts_with("</") => {
                return wrong(
                    "call",
                    "tagged must have the tags of a value, as in {\"open\": \"<v\", \"close\": \"</v>\"}",
                );
            }
            CodecFile::Json | CodecFile::Bare(_) | CodecFile::Elements(_) | CodecFile::Tagged { .. } => {}
            CodecFile::Python => {}
        }
        Ok(())
    }

    fn format(self) -> Format {
        Format {
            name: text(self.name),
            aliases: texts(self.aliases),
            models: texts(self.models),
            markers: match self.markers {
                MarkersFile::Special => Markers::Special,
                MarkersFile::Either => Markers::Either,
            },
            reasoning: self.reasoning.map(|r| Reasoning {
                lead: text(r.lead),
                open: steps(r.open),
                close: steps(r.close),
                layout: r.layout.map(text),
            }),
            text: wrap(self.text),
            preamble: self.preamble.map(wrap),
            calls: match self.calls {
                CallsFile::After => CallPosition::AfterText,
                CallsFile::Instead => CallPosition::InsteadOfText,
                CallsFile::Before => CallPosition::BeforeText,
            },
            opens: self.opens,
            many: self.many,
            lead: text(self.lead),
            begin: steps(self.begin),
            between: steps(self.between),
            end: steps(self.end),
            call: steps(self.call),
            also: &[],
            builtins: &[],
            finish: steps(self.finish),
            ids: match self.ids {
                IdsFile::None => CallIdStyle::None,
                IdsFile::Header => CallIdStyle::Header,
                IdsFile::Nine => CallIdStyle::NineAlphanumeric,
                IdsFile::Ordinal => CallIdStyle::Ordinal,
            },
            stops: texts(self.stops),
            letter_first: self.letter_first,
            signs: DetectionSigns { template: &[], not: &[], special: None, architectures: &[] },
        }
    }
}

fn text(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

fn texts(texts: Vec<String>) -> &'static [&'static str] {
    Box::leak(texts.into_iter().map(text).collect::<Box<[_]>>())
}

fn wrap(wrap: WrapFile) -> Wrap {
    Wrap { open: steps(wrap.open), close: steps(wrap.close) }
}

fn steps(steps: Vec<StepFile>) -> &'static [Step] {
    Box::leak(steps.into_iter().map(step).collect::<Box<[_]>>())
}

fn step(step: StepFile) -> Step {
    match step {
        StepFile::Tok(t) => Step::Tok(text(t)),
        StepFile::Maybe(t) => Step::Maybe(text(t)),
        StepFile::Lit(l) => Step::Lit(text(l)),
        StepFile::Name => Step::Name,
        StepFile::Index => Step::Index,
        StepFile::Ordinal => Step::Ordinal,
        StepFile::Id => Step::Id,
        StepFile::Key => Step::Key,
        StepFile::Value => Step::Value,
        StepFile::Type => Step::Type,
        StepFile::IsString => Step::IsString,
        StepFile::Args(codec) => Step::Args(match codec {
            CodecFile::Json => Codec::Json,
            CodecFile::Keyed => Codec::Keyed,
            CodecFile::Python => Codec::Python,
            CodecFile::Params(inner) => Codec::Params(steps(inner)),
            CodecFile::Bare(mark) => Codec::Bare(steps(vec![StepFile::Tok(mark)])),
            CodecFile::Elements(mark) => Codec::Elements(steps(vec![StepFile::Tok(mark)])),
            CodecFile::Tagged { open, close } => Codec::Tagged(Tags { open: text(open), close: text(close) }),
            CodecFile::Object { members, ignored } => Codec::Object {
                members: Box::leak(members.into_iter().map(member).collect::<Box<[_]>>()),
                ignored: texts(ignored),
            },
        }),
    }
}

fn member(member: MemberFile) -> Member {
    match member {
        MemberFile::Name(keys) => Member::Name(texts(keys)),
        MemberFile::Arguments(keys) => Member::Arguments(texts(keys)),
        MemberFile::Id(keys) => Member::Id(texts(keys)),
    }
}
