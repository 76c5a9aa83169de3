//! Renders prompts in which a client's text cannot become a control token.
//!
//! Like `sanitize_control_tokens` of transformers: control tokens in the strings of the conversation are wrapped in
//! private-use markers before the template runs, so that its output shows which tokens came from a message and which
//! from the template. Differences from transformers:
//! - The prompt is the one that the template renders without markers.
//! - Keys of objects are marked too.
//! - Pieces of text that a template joins cannot form a token.
//! - An assistant message that begins with reasoning keeps the tokens that begin and end it.

use std::collections::HashSet;
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Map, Value as Json};
use tracing::info_span;

use super::{ModelText, RenderedPrompt, TextError};
use crate::template::{MARK_END as CLOSE, MARK_START as OPEN, PreparedInput, Reason, RenderInput, TemplateError};
use crate::tokenize::{Encode, EncodeLimit, TokenizeError};

/// The tokens that begin and end the reasoning of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningMarkers {
    pub open: String,
    pub close: String,
}

/// The tokens of a model that text of messages must not produce: special tokens, added tokens in the source of the
/// template, and markers of the format.
#[derive(Debug)]
pub struct ControlTokens {
    matcher: AhoCorasick,
    reasoning: Option<ReasoningMarkers>,
}

impl ControlTokens {
    /// `is_marker` tells the markers of the model's format.
    pub fn new(
        model: &ModelText,
        is_marker: impl Fn(&str) -> bool,
        reasoning: Option<ReasoningMarkers>,
    ) -> Result<Self, TextError> {
        let source = model.template_source();
        let controls = |(id, text): &(u32, &str)| {
            !text.is_empty()
                && (model.tokenizer.is_control(*id)
                    || is_marker(text)
                    || (source.contains(*text) && !text.trim().is_empty()))
        };
        let tokens = model.tokenizer.added_tokens().filter(controls).map(|(_, text)| text);
        // The longest token wins over the tokens that it contains.
        let matcher = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(tokens);
        let matcher = matcher.map_err(|error| TextError::Config {
            path: "tokenizer".into(),
            field: "added tokens".into(),
            message: error.to_string(),
        })?;
        Ok(ControlTokens { matcher, reasoning })
    }

    fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Range<usize>> + 'a {
        self.matcher.find_iter(text).map(|found| found.range())
    }

    /// Whether the conversation may have control tokens to mark. False is certain, and needs no copy.
    fn may_mark(&self, chat: &PreparedInput<'_>) -> bool {
        let several = |message: &Json| message.get("content").and_then(Json::as_array).is_some_and(|p| p.len() > 1);
        let lists = [Some(chat.messages.as_slice()), chat.tools.as_deref(), chat.documents.as_deref()];
        let mut values = lists.into_iter().flatten().flatten().chain(chat.kwargs.values());
        chat.messages.iter().any(several)
            || chat.kwargs.keys().any(|key| self.matcher.is_match(key))
            || values.any(|value| self.is_in(value))
    }

    fn is_in(&self, json: &Json) -> bool {
        match json {
            Json::String(text) => self.matcher.is_match(text),
            Json::Array(items) => items.iter().any(|item| self.is_in(item)),
            Json::Object(map) => map.iter().any(|(key, value)| self.matcher.is_match(key) || self.is_in(value)),
            _ => false,
        }
    }

    /// The conversation with its control tokens marked; `None` if it has none.
    fn mark<'a>(&self, chat: &PreparedInput<'a>) -> Option<PreparedInput<'a>> {
        if !self.may_mark(chat) {
            return None;
        }
        let mut marking = Marking { controls: self, marked: false };
        let mut out = chat.clone();
        for message in &mut out.messages {
            marking.message(message);
        }
        for list in [&mut out.tools, &mut out.documents].into_iter().flatten() {
            *list = list.iter().map(|item| marking.json(item)).collect();
        }
        out.kwargs = marking.map(&out.kwargs);
        marking.marked.then_some(out)
    }

    /// Where the text of an assistant message begins and ends its reasoning: the opening marker at the beginning of the
    /// text, and the first closing marker after it.
    fn reasoning_spans(&self, text: &str) -> Vec<Range<usize>> {
        let Some(ReasoningMarkers { open, close }) = &self.reasoning else { return Vec::new() };
        let begin = text.len() - text.trim_start().len();
        if open.is_empty() || !text[begin..].starts_with(open.as_str()) {
            return Vec::new();
        }
        let after = begin + open.len();
        let end = text[after..].find(close.as_str()).map(|at| after + at..after + at + close.len());
        std::iter::once(begin..after).chain(end).collect()
    }
}

struct Marking<'a> {
    controls: &'a ControlTokens,
    marked: bool,
}

impl Marking<'_> {
    fn message(&mut self, message: &mut Json) {
        let Json::Object(fields) = message else { return };
        let assistant = fields.get("role").is_some_and(|role| role == "assistant");
        for (name, value) in fields.iter_mut() {
            *value = match (name.as_str(), &*value) {
                // Templates build control tokens from the role, which is one of a few known words.
                ("role", role) => role.clone(),
                ("content", Json::String(text)) if assistant => Json::String(self.assistant_text(text)),
                ("content", Json::Array(parts)) => self.parts(parts, assistant),
                (_, value) => self.json(value),
            };
        }
    }

    /// Every part but the last ends in a marker, because a template that joins parts could form a token.
    fn parts(&mut self, parts: &[Json], assistant: bool) -> Json {
        let last = parts.len().saturating_sub(1);
        let mut part = |(i, part): (usize, &Json)| {
            let own = part
                .get("text")
                .and_then(Json::as_str)
                .filter(|_| assistant && i == 0)
                .map(|text| self.assistant_text(text));
            let mut part = self.json(part);
            if let (Some(own), Some(slot)) = (own, part.get_mut("text")) {
                *slot = own.into();
            }
            if let (true, Some(Json::String(text))) = (i < last, part.get_mut("text")) {
                text.push(CLOSE);
                self.marked = true;
            }
            part
        };
        parts.iter().enumerate().map(&mut part).collect()
    }

    fn json(&mut self, json: &Json) -> Json {
        match json {
            Json::String(text) => Json::String(self.text(text, &[])),
            Json::Array(items) => items.iter().map(|item| self.json(item)).collect(),
            Json::Object(map) => Json::Object(self.map(map)),
            other => other.clone(),
        }
    }

    fn map(&mut self, map: &Map<String, Json>) -> Map<String, Json> {
        map.iter().map(|(key, value)| (self.text(key, &[]), self.json(value))).collect()
    }

    fn assistant_text(&mut self, text: &str) -> String {
        let kept = self.controls.reasoning_spans(text);
        self.text(text, &kept)
    }

    fn text(&mut self, text: &str, kept: &[Range<usize>]) -> String {
        let mut out = String::with_capacity(text.len());
        let mut copied = 0;
        for found in self.controls.find(text) {
            if kept.iter().any(|kept| kept.start <= found.start && found.end <= kept.end) {
                continue;
            }
            out.push_str(&text[copied..found.start]);
            out.push(OPEN);
            out.push_str(&text[found.clone()]);
            out.push(CLOSE);
            copied = found.end;
            self.marked = true;
        }
        out.push_str(&text[copied..]);
        out
    }
}

/// A prompt without markers, and the control tokens in it that came from messages.
struct ScannedPrompt {
    prompt: String,
    forged: Vec<Range<usize>>,
}

impl ScannedPrompt {
    /// Removes the markers. A token came from a message if it was marked, or if a marker was inside it.
    fn from_marked(marked: &str, controls: &ControlTokens) -> Self {
        let mut prompt = String::with_capacity(marked.len());
        let (mut opens, mut closes, mut marks) = (HashSet::new(), HashSet::new(), Vec::new());
        for piece in marked.split_inclusive([OPEN, CLOSE]) {
            prompt.push_str(piece.trim_end_matches([OPEN, CLOSE]));
            match piece.chars().next_back() {
                Some(OPEN) => opens.insert(prompt.len()),
                Some(CLOSE) => closes.insert(prompt.len()),
                _ => continue,
            };
            marks.push(prompt.len());
        }
        let forged = |found: &Range<usize>| {
            let inside = marks.partition_point(|mark| *mark <= found.start);
            let torn = marks.get(inside).is_some_and(|mark| *mark < found.end);
            torn || (opens.contains(&found.start) && closes.contains(&found.end))
        };
        let forged = controls.find(&prompt).filter(forged).collect();
        ScannedPrompt { prompt, forged }
    }

    /// Transfers the result to `plain`, the prompt that the template renders without markers, if the two differ only in
    /// whitespace: markers keep a template from stripping it. If they differ in more, the template's output depends on
    /// the marked text, and the scanned prompt is used.
    fn transfer_to(self, plain: String, controls: &ControlTokens) -> Self {
        if self.prompt == plain {
            return self;
        }
        let solid = |text: &str| text.char_indices().filter(|(_, c)| !c.is_whitespace()).collect::<Vec<_>>();
        let (ours, theirs) = (solid(&self.prompt), solid(&plain));
        if !ours.iter().map(|(_, c)| c).eq(theirs.iter().map(|(_, c)| c)) {
            return self;
        }
        let forged: HashSet<usize> = self.forged.iter().map(|range| range.start).collect();
        let written: HashSet<usize> =
            controls.find(&self.prompt).map(|range| range.start).filter(|start| !forged.contains(start)).collect();
        // A token that exists only because whitespace was stripped does not count as the template's.
        let by_template = |found: &Range<usize>| {
            let place = theirs.binary_search_by_key(&found.start, |(at, _)| *at).ok();
            place.and_then(|place| ours.get(place)).is_some_and(|(at, _)| written.contains(at))
        };
        let forged = controls.find(&plain).filter(|found| !by_template(found)).collect();
        ScannedPrompt { prompt: plain, forged }
    }
}

impl ModelText {
    /// Like `render`, but control tokens in messages, tools, documents and `chat_template_kwargs` stay text.
    pub fn render_sanitized(&self, input: &RenderInput, controls: &ControlTokens) -> Result<RenderedPrompt, TextError> {
        self.render_sanitized_within(input, controls, EncodeLimit::default())
    }

    /// Like `render_sanitized`, within a bound on tokens and time.
    pub fn render_sanitized_within(
        &self,
        input: &RenderInput,
        controls: &ControlTokens,
        bound: EncodeLimit,
    ) -> Result<RenderedPrompt, TextError> {
        let (prompt, forged) = info_span!("template").in_scope(|| {
            let mut chat = self.chat_template()?.prepare(None, input)?;
            chat.remove_chars(&[OPEN, CLOSE]);
            let plain = chat.render()?;
            self.check_tools(input, &plain)?;
            let Some(marked) = controls.mark(&chat) else { return Ok((plain, Vec::new())) };
            let scanned = ScannedPrompt::from_marked(&marked.render()?, controls);
            let ScannedPrompt { prompt, forged } = scanned.transfer_to(plain, controls);
            Ok::<_, TextError>((prompt, forged))
        })?;
        let ids = info_span!("tokenize").in_scope(|| match forged.is_empty() {
            true => self.encode_prompt(&prompt, input, bound).map_err(TextError::from),
            false => self.encode_around(&prompt, &forged, input, bound),
        })?;
        Ok(RenderedPrompt { prompt, ids })
    }

    /// Encodes a prompt; the tokens at `forged` become text. The ids before the first of them come from the cache.
    fn encode_around(
        &self,
        prompt: &str,
        forged: &[Range<usize>],
        input: &RenderInput,
        bound: EncodeLimit,
    ) -> Result<Vec<u32>, TextError> {
        let mut done = forged.first().map_or(0, |token| token.start);
        let mut ids = self.encode_prompt(&prompt[..done], input, bound)?;
        for token in forged {
            self.encode_piece(&prompt[done..token.start], done == 0, Encode::TEMPLATED, bound, &mut ids)?;
            let piece = &prompt[token.clone()];
            let from = ids.len();
            self.encode_piece(piece, token.start == 0, Encode::TEXT, bound, &mut ids)?;
            if self.tokenizer.special_id(piece).is_some_and(|id| ids[from..].contains(&id)) {
                return Err(TextError::Template(TemplateError {
                    reason: Reason::Input,
                    message: format!(
                        "messages must not contain {piece:?}: the tokenizer always encodes it as a control token"
                    ),
                    param: Some("messages".into()),
                }));
            }
            done = token.end;
        }
        self.encode_piece(&prompt[done..], done == 0, Encode::TEMPLATED, bound, &mut ids)?;
        Ok(ids)
    }

    /// Encodes a piece of a prompt. A piece that is not the first is encoded after a newline, so that a tokenizer that
    /// prepends a space to each text does not do so here.
    fn encode_piece(
        &self,
        piece: &str,
        first: bool,
        how: Encode,
        bound: EncodeLimit,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizeError> {
        if piece.is_empty() {
            return Ok(());
        }
        let encode = |text: &str, before: usize| self.tokenizer.encode_within(text, how, bound.after(before));
        if first {
            ids.extend(encode(piece, ids.len())?);
            return Ok(());
        }
        let newline = self.tokenizer.encode("\n", Encode::TEMPLATED)?;
        // The tokens of the newline do not count.
        let behind = encode(&format!("\n{piece}"), ids.len().saturating_sub(newline.len()))?;
        match behind.strip_prefix(newline.as_slice()) {
            Some(behind) => ids.extend(behind),
            None => ids.extend(encode(piece, ids.len())?),
        }
        Ok(())
    }
}
