//! The renderer: writes what a model of the format would have written.

use serde_json::{Map, Value};

use crate::codec::{bare, elements, python, tagged};
use crate::format::{CallIdStyle, Codec, Format, Markers, Member, Region, Step, Wrap, marker};
use crate::scan::OwnedPiece;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Turn {
    pub reasoning: Option<String>,
    pub text: String,
    pub calls: Vec<Call>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// Text of a JSON object.
    pub arguments: String,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct RenderOptions {
    /// Where the output starts. Inside the reasoning, its start marker is part of the prompt.
    pub start: Region,
    /// The number of the first call, in formats that number calls.
    pub first_index: usize,
    /// Write a marker as text, in formats where it may be one token or ordinary text.
    pub spelled: bool,
}

/// The turn as pieces of output, one per marker and per run of text. Text beside calls is omitted if the format has no
/// place for it ([`CallPosition::InsteadOfText`](crate::Calls)).
pub fn render(format: &Format, turn: &Turn, options: RenderOptions) -> Vec<OwnedPiece> {
    let mut out = Pieces::new(options.spelled && format.markers == Markers::Either);
    match (&format.reasoning, &turn.reasoning) {
        (Some(r), Some(reasoning)) => {
            if options.start == Region::Text {
                out.text(r.lead);
                out.plain(r.open);
                out.text(r.layout[0]);
            }
            out.text(reasoning);
            out.text(r.layout[1]);
            out.plain(r.close);
            out.text(r.layout[2]);
        }
        (Some(r), None) if options.start == Region::Reasoning => {
            out.plain(r.close);
            out.text(r.layout[2]);
        }
        _ => {}
    }
    let has_calls = !turn.calls.is_empty() && format.has_calls();
    match format.calls {
        crate::format::CallPosition::AfterText => {
            let wrap = if has_calls { format.preamble.as_ref().unwrap_or(&format.text) } else { &format.text };
            out.wrapped(wrap, &turn.text);
            if has_calls && !turn.text.is_empty() {
                out.text(format.lead);
            }
            out.calls(format, turn, options);
        }
        crate::format::CallPosition::BeforeText => {
            out.calls(format, turn, options);
            out.wrapped(&format.text, &turn.text);
        }
        crate::format::CallPosition::InsteadOfText if has_calls => out.calls(format, turn, options),
        crate::format::CallPosition::InsteadOfText => out.wrapped(&format.text, &turn.text),
    }
    out.plain(format.finish);
    out.pieces
}

/// The pieces' text, as in a transcript.
pub fn render_text(pieces: &[OwnedPiece]) -> String {
    let bytes: Vec<u8> = pieces
        .iter()
        .flat_map(|p| match p {
            OwnedPiece::Bytes(b) => b.as_slice(),
            OwnedPiece::Special(s) => s.as_bytes(),
        })
        .copied()
        .collect();
    crate::scan::text(&bytes)
}

/// The values that the steps of one call refer to.
#[derive(Default)]
struct Scope<'a> {
    name: &'a str,
    arguments: &'a str,
    id: String,
    index: usize,
    ordinal: usize,
    /// Inside [`Codec::Params`].
    key: &'a str,
    value: Option<&'a Value>,
}

struct Pieces {
    spelled: bool,
    pieces: Vec<OwnedPiece>,
}

impl Pieces {
    fn new(spelled: bool) -> Self {
        Self { spelled, pieces: Vec::new() }
    }

    fn marker(&mut self, marker: &str) {
        if self.spelled {
            self.text(marker);
        } else {
            self.pieces.push(OwnedPiece::Special(marker.to_owned()));
        }
    }

    /// Text with such a marker in it.
    fn marked(&mut self, text: &str, marker: &str) {
        for (i, text) in text.split(marker).enumerate() {
            if i > 0 {
                self.marker(marker);
            }
            self.text(text);
        }
    }

    fn text(&mut self, text: &str) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(OwnedPiece::Bytes(b)) => b.extend_from_slice(text.as_bytes()),
            _ => self.pieces.push(OwnedPiece::Bytes(text.as_bytes().to_vec())),
        }
    }

    /// Steps outside any call.
    fn plain(&mut self, steps: &[Step]) {
        self.steps(steps, &Scope::default());
    }

    fn wrapped(&mut self, wrap: &Wrap, text: &str) {
        if !text.is_empty() {
            self.plain(wrap.open);
            self.text(text);
            self.plain(wrap.close);
        }
    }

    fn calls(&mut self, format: &Format, turn: &Turn, options: RenderOptions) {
        if turn.calls.is_empty() || !format.has_calls() {
            return;
        }
        self.plain(format.begin);
        for (i, call) in turn.calls.iter().enumerate() {
            if i > 0 {
                self.plain(format.between);
            }
            let index = options.first_index + i;
            let id = match format.ids {
                CallIdStyle::None | CallIdStyle::Header => String::new(),
                CallIdStyle::NineAlphanumeric | CallIdStyle::Ordinal => {
                    format.native_id(&call.name, index).unwrap_or_default()
                }
            };
            let (name, arguments) = (call.name.as_str(), call.arguments.as_str());
            let scope = Scope { name, arguments, id, index, ordinal: i + 1, ..Scope::default() };
            let builtin = format.builtins.iter().find(|b| b.names.contains(&name));
            self.steps(builtin.map_or(format.call, |b| b.call), &scope);
        }
        self.plain(format.end);
    }

    fn steps(&mut self, steps: &[Step], scope: &Scope<'_>) {
        for step in steps {
            match step {
                Step::Tok(t) => self.marker(t),
                Step::Maybe(_) => {}
                Step::Lit(l) => self.text(l),
                Step::Name => self.text(scope.name),
                Step::Index => self.text(&scope.index.to_string()),
                Step::Ordinal => self.text(&scope.ordinal.to_string()),
                Step::Id => self.text(&scope.id),
                Step::Key => self.text(scope.key),
                Step::Value => self.text(&raw(scope.value)),
                Step::Type => self.text(json_type(scope.value)),
                Step::IsString => self.text(if scope.value.is_some_and(Value::is_string) { "true" } else { "false" }),
                Step::Args(codec) => self.arguments(*codec, scope),
            }
        }
    }

    fn arguments(&mut self, codec: Codec, scope: &Scope<'_>) {
        match codec {
            Codec::Json => self.text(scope.arguments),
            Codec::Keyed => self.text(&format!("{{{}: {}}}", Value::from(scope.name), scope.arguments)),
            Codec::Object { members, .. } => {
                let quoted = |s: &str| Value::from(s).to_string();
                let members: Vec<String> = members
                    .iter()
                    .map(|member| {
                        let (keys, value) = match member {
                            Member::Name(keys) => (keys, quoted(scope.name)),
                            Member::Arguments(keys) => (keys, scope.arguments.to_owned()),
                            Member::Id(keys) => (keys, quoted(&scope.id)),
                        };
                        format!("{}: {value}", quoted(keys.first().copied().unwrap_or_default()))
                    })
                    .collect();
                self.text(&format!("{{{}}}", members.join(", ")));
            }
            Codec::Params(steps) => {
                for (key, value) in &object(scope.arguments) {
                    self.steps(steps, &Scope { key, value: Some(value), ..Scope::default() });
                }
            }
            Codec::Python => self.text(&python::keywords(&object(scope.arguments))),
            Codec::Bare(steps) => {
                let mark = steps.iter().find_map(marker).unwrap_or_default();
                self.marked(&bare::object(&object(scope.arguments), mark), mark);
            }
            Codec::Elements(steps) => {
                let mark = steps.iter().find_map(marker).unwrap_or_default();
                self.marked(&elements::members(&object(scope.arguments), mark), mark);
            }
            Codec::Tagged(tags) => self.text(&tagged::members(&object(scope.arguments), tags)),
            Codec::Code => self.text(&raw(object(scope.arguments).values().next())),
        }
    }
}

/// `Call` promises an object; other text has no members.
fn object(arguments: &str) -> Map<String, Value> {
    serde_json::from_str(arguments).unwrap_or(Map::new())
}

/// A string unquoted, everything else as JSON.
fn raw(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(s)) => s.clone(),
        Some(value) => spaced(value),
        None => String::new(),
    }
}

/// JSON with blanks after commas and colons, as templates write it.
fn spaced(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        Value::Object(members) => {
            let member = |(key, value): (&String, &Value)| format!("{}: {}", Value::from(key.as_str()), spaced(value));
            format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

fn json_type(value: Option<&Value>) -> &'static str {
    match value {
        Some(Value::String(_)) => "string",
        Some(Value::Number(_)) => "number",
        Some(Value::Bool(_)) => "boolean",
        Some(Value::Array(_)) => "array",
        Some(Value::Object(_)) => "object",
        Some(Value::Null) | None => "null",
    }
}

impl Format {
    /// Splits a transcript in which special tokens are spelled into pieces, like a tokenizer that has every marker of
    /// this format as a token: for transcripts without token ids.
    pub fn split(&self, transcript: &str) -> Vec<OwnedPiece> {
        let mut markers: Vec<&str> = self.all_steps().filter_map(marker).chain(self.stops.iter().copied()).collect();
        // Longest first: one may be a prefix of another.
        markers.sort_by_key(|m| std::cmp::Reverse(m.len()));
        markers.dedup();
        let mut out = Pieces::new(false);
        let mut rest = transcript;
        while !rest.is_empty() {
            if let Some(m) = markers.iter().find(|m| rest.starts_with(**m)) {
                out.marker(m);
                rest = &rest[m.len()..];
                continue;
            }
            let lead = |c: char| markers.iter().any(|m| m.starts_with(c));
            let n = rest.char_indices().skip(1).find(|(_, c)| lead(*c)).map_or(rest.len(), |(i, _)| i);
            out.text(&rest[..n]);
            rest = &rest[n..];
        }
        out.pieces
    }
}
