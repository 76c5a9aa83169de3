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
    /// Calls of tools that the model knows from its training and writes in a way of their own.
    pub builtins: &'static [Builtin],
    /// After everything else, before the token that ends the turn.
    pub finish: &'static [Step],
    pub ids: Ids,
    /// Tokens that end a turn although no configuration file may say so.
    pub stops: &'static [&'static str],
    /// Names of functions have to begin with a letter, as the models' own API demands.
    pub letter_first: bool,
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

/// A `Maybe` in `open` or `close` is another spelling of the marker before it, which models write and the renderer does not.
#[derive(Debug)]
pub struct Reasoning {
    /// What the models write before `open`; layout.
    pub lead: &'static str,
    pub open: &'static [Step],
    pub close: &'static [Step],
    /// What the renderer writes after `open`, before `close` and after `close`. Not empty: newlines at those places are
    /// layout and belong to neither reasoning nor text (the models' own templates strip them from history too).
    pub layout: [&'static str; 3],
}

/// Nothing but `Maybe`: models may leave it out, and the letters mean something at the beginning of a text only.
#[derive(Debug)]
pub struct Wrap {
    pub open: &'static [Step],
    pub close: &'static [Step],
}

impl Wrap {
    /// Models write it always.
    pub(crate) fn is_needed(&self) -> bool {
        self.open.iter().chain(self.close).any(|s| matches!(s, Step::Tok(_)))
    }
}

/// How a model calls tools that it knows by name, where the request declares them.
#[derive(Debug)]
pub struct Builtin {
    pub names: &'static [&'static str],
    /// A special token first; without it in the vocabulary there are no such calls.
    pub call: &'static [Step],
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
    /// In a [`Builtin`] only: the rest of the output is the tool's one argument, a string.
    Code,
}

/// A member of [`Codec::Object`]: the first key of each list is written, any is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Member {
    Name(&'static [&'static str]),
    Arguments(&'static [&'static str]),
    /// The call's id, a string: see [`Ids`].
    Id(&'static [&'static str]),
}

impl Member {
    pub(crate) fn name(&self) -> Option<&'static [&'static str]> {
        if let Member::Name(keys) = self { Some(keys) } else { None }
    }

    pub(crate) fn arguments(&self) -> Option<&'static [&'static str]> {
        if let Member::Arguments(keys) = self { Some(keys) } else { None }
    }

    pub(crate) fn id(&self) -> Option<&'static [&'static str]> {
        if let Member::Id(keys) = self { Some(keys) } else { None }
    }
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
            Some(r) if prompt.trim_end().ends_with(spelled(r.open).trim_end()) => Region::Reasoning,
            _ => Region::Text,
        }
    }

    /// The id that a model of this format expects in history for call number `index` (counted over the conversation, from
    /// 0). None: the format has no ids of its own.
    pub fn native_id(&self, name: &str, index: usize) -> Option<String> {
        match self.ids {
            Ids::None => None,
            Ids::Ordinal => Some(index.to_string()),
            Ids::Nine => Some(nine(index)),
            Ids::Header => {
                let mut id = String::new();
                for step in self.header() {
                    match step {
                        Step::Lit(s) => id.push_str(s),
                        Step::Name => id.push_str(name),
                        Step::Index => id.push_str(&index.to_string()),
                        _ => {}
                    }
                }
                Some(id)
            }
        }
    }

    /// Whether `text` is one of this format's markers. Other added tokens never become text: a caller that wants to see
    /// them (tokenizers mark such as `special: false`) hands them to the parser as bytes.
    pub fn is_marker(&self, text: &str) -> bool {
        self.all_steps().any(|s| marker(s) == Some(text))
    }

    /// The marker of the format's calls that `text` is.
    pub fn call_marker(&self, text: &str) -> Option<&'static str> {
        self.call_steps().filter_map(marker).find(|m| *m == text)
    }

    /// Whether markers of this format are spelled with `text` in them, as DeepSeek's with `｜DSML｜`.
    pub fn spells_markers_with(&self, text: &str) -> bool {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c.is_whitespace();
        let telling = text.chars().count() > 1 && !text.chars().all(word);
        telling && self.all_steps().filter_map(marker).any(|m| m != text && m.contains(text))
    }

    /// Whether an added token, which its tokenizer may mark `special`, means something to a grammar. Any other is text.
    pub fn is_control(&self, text: &str, special: bool) -> bool {
        special || self.is_marker(text)
    }

    /// The markers of calls that its models always write.
    pub fn call_markers(&self) -> Vec<&'static str> {
        distinct(self.call_steps())
    }

    /// The other markers that its models always write: of reasoning and text.
    pub fn other_markers(&self) -> Vec<&'static str> {
        let calls = self.call_markers();
        distinct(self.all_steps()).into_iter().filter(|marker| !calls.contains(marker)).collect()
    }

    /// Whether a marker is one only as a single token.
    pub fn needs_tokens(&self) -> bool {
        self.markers == Markers::Special
    }

    /// Whether calls are told by this format at all.
    pub fn has_calls(&self) -> bool {
        !self.call.is_empty()
    }

    /// The steps between the first two markers of a call, when they name the tool.
    pub(crate) fn header(&self) -> &'static [Step] {
        let inner = self.call.get(1..).unwrap_or_default();
        match inner.iter().position(|s| marker(s).is_some()) {
            Some(n) if inner[..n].contains(&Step::Name) => &inner[..n],
            _ => &[],
        }
    }

    pub(crate) fn codec(&self) -> Codec {
        let codec = self.call.iter().find_map(|s| if let Step::Args(c) = s { Some(*c) } else { None });
        codec.unwrap_or(Codec::Json)
    }

    /// The steps of a call before its arguments, and after them.
    pub(crate) fn around_arguments(&self) -> (&'static [Step], &'static [Step]) {
        match self.call.iter().position(|s| matches!(s, Step::Args(_))) {
            Some(n) => (&self.call[..n], &self.call[n + 1..]),
            None => (self.call, &[]),
        }
    }

    /// The markers of the tool section.
    #[cfg(test)]
    pub(crate) fn marker_texts(&self) -> impl Iterator<Item = &'static str> {
        self.call_steps().filter_map(marker)
    }

    pub(crate) fn call_steps(&self) -> impl Iterator<Item = &'static Step> {
        let params: &'static [Step] = match self.codec() {
            Codec::Params(steps) => steps,
            _ => &[],
        };
        [self.begin, self.call, params, self.between, self.end].into_iter().flatten()
    }

    pub(crate) fn all_steps(&self) -> impl Iterator<Item = &'static Step> {
        let reasoning = self.reasoning.iter().flat_map(|r| [r.open, r.close]);
        let wraps = [Some(&self.text), self.preamble.as_ref()];
        let wraps = wraps.into_iter().flatten().flat_map(|w| [w.open, w.close]);
        reasoning.chain(wraps).chain([self.finish]).flatten().chain(self.call_steps())
    }
}

fn distinct(steps: impl Iterator<Item = &'static Step>) -> Vec<&'static str> {
    let mut markers: Vec<_> = steps.filter_map(|s| if let Step::Tok(t) = s { Some(*t) } else { None }).collect();
    markers.sort_unstable();
    markers.dedup();
    markers
}

/// The marker that a step is, if any.
pub(crate) fn marker(step: &Step) -> Option<&'static str> {
    match step {
        Step::Tok(t) | Step::Maybe(t) => Some(t),
        _ => None,
    }
}

/// The letters of markers and literals.
pub fn spelled(steps: &[Step]) -> String {
    steps.iter().filter_map(|s| if let Step::Tok(t) | Step::Lit(t) = s { Some(*t) } else { None }).collect()
}

/// Nine letters or digits that tell apart what the index tells apart, and that do not look like a count.
fn nine(index: usize) -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const RANGE: u128 = 62u128.pow(9);
    // Odd and no multiple of 31, so the product modulo a power of 62 is a permutation.
    let mut rest = (index as u128 + 1) * 9_837_491_235_711_127 % RANGE;
    let mut id = String::with_capacity(9);
    for _ in 0..9 {
        id.push(char::from(DIGITS[(rest % 62) as usize]));
        rest /= 62;
    }
    id
}
