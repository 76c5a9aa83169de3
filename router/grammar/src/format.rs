//! The types of which a format consists. The table itself is in `formats.rs`.

/// A part of the output other than tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Region {
    Reasoning,
    #[default]
    Text,
}

/// How a model writes reasoning, text and tool calls.
///
/// An output is `reasoning? text? (lead begin call (between call)* end)? finish`, where [`CallPosition`] says how text
/// and calls combine.
#[derive(Debug)]
pub struct Format {
    pub name: &'static str,
    /// Other names of the format.
    pub aliases: &'static [&'static str],
    /// Models that use it, for people; `*` stands for any text.
    pub models: &'static [&'static str],
    pub markers: Markers,
    pub reasoning: Option<Reasoning>,
    /// What surrounds the answer's text. Empty: nothing.
    pub text: Wrap,
    /// What surrounds text that is followed by calls, if it differs from `text`.
    pub preamble: Option<Wrap>,
    pub calls: CallPosition,
    /// An output may begin with calls without a marker: objects that name a declared tool, in a code block or bare.
    pub opens: bool,
    /// More than one call per turn.
    pub many: bool,
    /// Between text and the first call; not part of the text.
    pub lead: &'static str,
    pub begin: &'static [Step],
    pub between: &'static [Step],
    pub end: &'static [Step],
    /// Empty: the format has no calls.
    pub call: &'static [Step],
    /// Other heads of a call, up to the marker before its arguments, which models and templates write where a call may
    /// begin. The first step is a [`Step::Lit`]; the renderer writes none of them.
    pub also: &'static [&'static [Step]],
    /// Calls of tools that the model knows from its training and writes differently.
    pub builtins: &'static [Builtin],
    /// After everything else, before the token that ends the turn.
    pub finish: &'static [Step],
    pub ids: CallIdStyle,
    /// Tokens that end a turn even if no configuration file lists them.
    pub stops: &'static [&'static str],
    /// Names of functions must begin with a letter, as the models' own API requires.
    pub letter_first: bool,
    pub signs: DetectionSigns,
}

/// How the markers of [`Step::Tok`] are tokenized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Markers {
    /// Always one special token each; the same letters in ordinary text are ordinary text.
    Special,
    /// One added token or several ordinary ones, depending on the tokenizer: the letters count.
    Either,
}

/// A `Maybe` in `open` or `close` is another spelling of the marker before it, which models write and the renderer does
/// not.
#[derive(Debug)]
pub struct Reasoning {
    /// Layout that the models write before `open`.
    pub lead: &'static str,
    pub open: &'static [Step],
    pub close: &'static [Step],
    /// What the renderer writes after `open`, before `close` and after `close`. Not empty: newlines in these places are
    /// layout and belong to neither reasoning nor text (the models' templates strip them from history too).
    pub layout: [&'static str; 3],
}

/// If it consists only of `Maybe`, models may omit it, and the letters count only at the beginning of a text.
#[derive(Debug)]
pub struct Wrap {
    pub open: &'static [Step],
    pub close: &'static [Step],
}

impl Wrap {
    /// Whether models always write it.
    pub(crate) fn is_needed(&self) -> bool {
        self.open.iter().chain(self.close).any(|s| matches!(s, Step::Tok(_)))
    }
}

/// How a model calls tools that it knows by name, if the request declares them.
#[derive(Debug)]
pub struct Builtin {
    pub names: &'static [&'static str],
    /// Begins with a special token; without it in the vocabulary there are no such calls.
    pub call: &'static [Step],
}

/// How text and calls combine in a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallPosition {
    /// Text may come first, then calls.
    AfterText,
    /// A turn is text or calls.
    InsteadOfText,
    /// Calls first, then text.
    BeforeText,
}

/// How the format writes the ids of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallIdStyle {
    /// No ids on the wire.
    None,
    /// The call's header (the steps between its first two markers) is its id, and history must spell it like that.
    Header,
    /// Nine letters or digits.
    NineAlphanumeric,
    /// The call's number in the conversation, in decimal.
    Ordinal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A marker, spelled as [`Markers`] says.
    Tok(&'static str),
    /// A marker that may be present; the renderer never writes it.
    Maybe(&'static str),
    /// Written by the renderer. The parser accepts missing blanks and prefixes.
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
    /// Inside [`Codec::Params`]: the argument's name, its value, its JSON type, and whether it is a string (`true`,
    /// `false`).
    Key,
    Value,
    Type,
    IsString,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// One JSON object: the arguments.
    Json,
    /// One JSON object with name and arguments, written in the order of the members and read in any order. `ignored`
    /// members are not reported.
    Object { members: &'static [Member], ignored: &'static [&'static str] },
    /// One JSON object with one member: the name is its key, the arguments are its value.
    Keyed,
    /// These steps once per argument. A string is written unquoted, everything else as JSON, so the schema (or `Type`,
    /// `IsString`) is needed to read it back. A raw value cannot contain the marker that ends it.
    Params(&'static [Step]),
    /// Python keyword arguments, `a="x", n=1`, up to the closing parenthesis.
    Python,
    /// An object with names without quotes, and strings without escapes between two equal markers, this step (Gemma). A
    /// string cannot contain the marker.
    Bare(&'static [Step]),
    /// Nested elements with this step, a marker, before each tag: members by their names, items of lists as `item`,
    /// everything else as its text, up to the first end tag outside them, which follows. A text cannot contain the
    /// marker, and needs the schema to be read back.
    Elements(&'static [Step]),
    /// Nested elements whose tags name the kind of their value. A string cannot contain the end tag.
    Tagged(Tags),
    /// In a [`Builtin`] only: the rest of the output is the tool's only argument, a string.
    Code,
}

/// The tags of [`Codec::Tagged`]: up to the attributes, and the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tags {
    pub open: &'static str,
    pub close: &'static str,
}

/// A member of [`Codec::Object`]: the first key of each list is written, any of them is read.
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

/// How the format is detected in a model directory.
#[derive(Debug)]
pub struct DetectionSigns {
    /// The chat template contains all of these ...
    pub template: &'static [&'static str],
    /// ... and none of these.
    pub not: &'static [&'static str],
    /// Or, if the template does not decide: the tokenizer has this added token.
    pub special: Option<&'static str>,
    /// Or the model's architecture is one of these.
    pub architectures: &'static [&'static str],
}

/// What is known about a model directory.
pub struct ModelDirFacts<'a> {
    pub template: Option<&'a str>,
    pub architecture: Option<&'a str>,
    /// Whether the tokenizer has an added token with this text.
    pub special: &'a dyn Fn(&str) -> bool,
}

impl Format {
    /// The region in which the model's output starts after `prompt`: the prompt may end inside the reasoning.
    pub fn start_after(&self, prompt: &str) -> Region {
        match &self.reasoning {
            Some(r) if prompt.trim_end().ends_with(spelled(r.open).trim_end()) => Region::Reasoning,
            _ => Region::Text,
        }
    }

    /// The id that a model of this format expects in history for call number `index` (counted over the conversation,
    /// from 0). None: the format has no ids of its own.
    pub fn native_id(&self, name: &str, index: usize) -> Option<String> {
        match self.ids {
            CallIdStyle::None => None,
            CallIdStyle::Ordinal => Some(index.to_string()),
            CallIdStyle::NineAlphanumeric => Some(nine(index)),
            CallIdStyle::Header => {
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
    /// them (tokenizers mark them `special: false`) passes them to the parser as bytes.
    pub fn is_marker(&self, text: &str) -> bool {
        self.all_steps().any(|s| marker(s) == Some(text))
    }

    /// The markers that a tokenizer may have as added tokens. What follows the mark of nested elements is text.
    pub(crate) fn token_markers(&self) -> Vec<&'static str> {
        let mark = if let Codec::Elements(_) = self.codec() { self.string_mark() } else { None };
        let whole = |marker: &&str| mark.is_none_or(|mark| *marker == mark || !marker.contains(mark));
        let mut markers: Vec<_> = self.all_steps().filter_map(marker).filter(whole).collect();
        markers.sort_unstable();
        markers.dedup();
        markers
    }

    /// The call marker of this format that `text` is.
    pub fn call_marker(&self, text: &str) -> Option<&'static str> {
        self.call_steps().filter_map(marker).find(|m| *m == text)
    }

    /// Whether markers of this format contain `text`, as DeepSeek's contain `｜DSML｜`.
    pub fn spells_markers_with(&self, text: &str) -> bool {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c.is_whitespace();
        let telling = text.chars().count() > 1 && !text.chars().all(word);
        telling && self.all_steps().filter_map(marker).any(|m| m != text && m.contains(text))
    }

    /// Whether an added token, which its tokenizer may mark `special`, has a meaning for a grammar. Other tokens, and
    /// parts of markers that are spelled, are text.
    pub fn is_control(&self, text: &str, special: bool) -> bool {
        let tags = match self.codec() {
            Codec::Elements(_) => self.string_mark() == Some(text),
            Codec::Tagged(tags) => [tags.open, tags.close].contains(&text),
            _ => false,
        };
        !tags && (self.is_marker(text) || special && !self.spells_markers_with(text))
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

    /// Whether a marker counts only as a single token.
    pub fn needs_tokens(&self) -> bool {
        self.markers == Markers::Special
    }

    /// Whether nothing follows a call: text needs a marker that only another turn could write.
    pub(crate) fn ends_with_call(&self) -> bool {
        self.text.is_needed() && self.text.close.is_empty()
    }

    /// Whether a conversation with this template has reasoning: the template has its markers, and the prompt does not
    /// end with reasoning that is over already, as templates write it where reasoning is turned off.
    pub fn reasons(&self, template: &str, prompt: &str) -> bool {
        let Some(reasoning) = &self.reasoning else { return false };
        let mut open = reasoning.open.iter().filter_map(|s| if let Step::Tok(t) = s { Some(*t) } else { None });
        open.all(|marker| template.contains(marker)) && !prompt.trim_end().ends_with(spelled(reasoning.close).trim())
    }

    /// Whether the format has calls at all.
    pub fn has_calls(&self) -> bool {
        !self.call.is_empty()
    }

    /// The steps between the first two markers of a call, if they include the name.
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

    /// The marker around strings, or before tags, that no string can contain.
    pub(crate) fn string_mark(&self) -> Option<&'static str> {
        match self.codec() {
            Codec::Bare(steps) | Codec::Elements(steps) => steps.iter().find_map(marker),
            _ => None,
        }
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
            Codec::Params(steps) | Codec::Bare(steps) | Codec::Elements(steps) => steps,
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

/// The marker of a step, if it is one.
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

/// Nine letters or digits that are unique per index and do not look like a count.
fn nine(index: usize) -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const RANGE: u128 = 62u128.pow(9);
    // Odd and not a multiple of 31, so the product modulo a power of 62 is a permutation.
    let mut rest = (index as u128 + 1) * 9_837_491_235_711_127 % RANGE;
    let mut id = String::with_capacity(9);
    for _ in 0..9 {
        id.push(char::from(DIGITS[(rest % 62) as usize]));
        rest /= 62;
    }
    id
}
