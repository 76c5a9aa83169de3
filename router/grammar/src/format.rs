//! What a format is made of. The table itself is in `formats.rs`.

use crate::parse::Region;

/// How a model writes reasoning, text and tool calls.
///
/// An output is `reasoning? text? (lead begin call (between call)* end)?`.
#[derive(Debug)]
pub struct Format {
    pub name: &'static str,
    /// Models known to write it, for people; `*` stands for any text.
    pub models: &'static [&'static str],
    pub markers: Markers,
    pub reasoning: Option<Reasoning>,
    /// Between text and the first call; not part of the text.
    pub lead: &'static str,
    pub begin: &'static [Step],
    pub between: &'static [Step],
    pub end: &'static [Step],
    /// Starts with the [`Step::Tok`] that opens a call. Empty: the format has no calls.
    pub call: &'static [Step],
    /// The call's header (the steps between its first two markers) is the call's id, and history has to spell it so.
    pub header_is_id: bool,
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
    pub open: &'static str,
    pub close: &'static str,
    /// What the renderer writes after `open`, before `close` and after `close`. Not empty: newlines at those places are
    /// layout and belong to neither reasoning nor text (the models' own templates strip them from history too).
    pub layout: [&'static str; 3],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A marker, spelled as [`Markers`] says.
    Tok(&'static str),
    /// Written by the renderer. The parser forgives blanks and prefixes that are missing.
    Lit(&'static str),
    /// The tool's name.
    Name,
    /// The call's number, in decimal.
    Index,
    /// The arguments.
    Args(Codec),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// One JSON object: the arguments.
    Json,
    /// One JSON object that holds name and arguments: the first key of each list is written, any is read, in any order.
    /// `ignored` members carry nothing that an event could tell.
    Object { name: &'static [&'static str], arguments: &'static [&'static str], ignored: &'static [&'static str] },
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

impl Format {
    /// The region that the model's output starts in after `prompt`: the prompt may end inside the reasoning.
    pub fn start_after(&self, prompt: &str) -> Region {
        match &self.reasoning {
            Some(r) if prompt.trim_end().ends_with(r.open) => Region::Reasoning,
            _ => Region::Text,
        }
    }

    /// The id that a model of this format expects in history for call number `index` (counted over the conversation, from
    /// 0). None: the format has no ids of its own.
    pub fn native_id(&self, name: &str, index: usize) -> Option<String> {
        if !self.header_is_id {
            return None;
        }
        let mut id = String::new();
        for step in self.header() {
            match step {
                Step::Lit(s) => id.push_str(s),
                Step::Name => id.push_str(name),
                Step::Index => id.push_str(&index.to_string()),
                Step::Tok(_) | Step::Args(_) => {}
            }
        }
        Some(id)
    }

    /// Whether `text` is one of this format's markers. Other added tokens never become text: a caller that wants to see
    /// them (tokenizers mark such as `special: false`) hands them to the parser as bytes.
    pub fn is_marker(&self, text: &str) -> bool {
        let reasoning = self.reasoning.as_ref().is_some_and(|r| text == r.open || text == r.close);
        reasoning || self.marker_texts().any(|m| m == text)
    }

    /// Whether calls are told by this format at all.
    pub fn has_calls(&self) -> bool {
        !self.call.is_empty()
    }

    /// The steps between the first two markers of a call, when they name the tool.
    pub(crate) fn header(&self) -> &'static [Step] {
        let inner = self.call.get(1..).unwrap_or_default();
        match inner.iter().position(|s| matches!(s, Step::Tok(_))) {
            Some(n) if inner[..n].contains(&Step::Name) => &inner[..n],
            _ => &[],
        }
    }

    pub(crate) fn codec(&self) -> Codec {
        let codec = self.call.iter().find_map(|s| if let Step::Args(c) = s { Some(*c) } else { None });
        codec.unwrap_or(Codec::Json)
    }

    pub(crate) fn marker_texts(&self) -> impl Iterator<Item = &'static str> {
        let steps = self.begin.iter().chain(self.call).chain(self.between).chain(self.end);
        steps.filter_map(|s| if let Step::Tok(t) = s { Some(*t) } else { None })
    }
}
