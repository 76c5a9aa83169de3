//! Prompts in which a client's text cannot become a control token.
//!
//! As transformers' `sanitize_control_tokens`: control tokens spelt in the conversation's strings are wrapped in
//! private-use markers before rendering; after it, what stands between markers is encoded as plain text and all else
//! normally. A marker that the template tore off its token is dropped, but still separates the text on its sides.

use serde_json::{Map, Value as Json};

use super::{Rendered, TextError, TextModel};
use crate::template::{Reason, RenderInput, TemplateError};
use crate::tokenize::{Encode, TokenizeError};

const OPEN: char = '\u{F0000}';
const CLOSE: char = '\u{F0001}';

impl TextModel {
    /// Like `render`, but control tokens in messages, tools, documents and kwargs stay text.
    pub fn render_sanitized(&self, input: &RenderInput) -> Result<Rendered, TextError> {
        let marker = Marker::new(self);
        let list = |items: &[Json]| items.iter().map(|item| marker.mark(item)).collect::<Vec<_>>();
        let marked = RenderInput {
            messages: list(&input.messages),
            tools: input.tools.as_deref().map(list),
            documents: input.documents.as_deref().map(list),
            kwargs: marker.mark_map(&input.kwargs),
            ..input.clone()
        };
        let prompt = self.chat_template()?.render(&marked)?;
        let ids = self.encode_marked(&prompt)?;
        Ok(Rendered { prompt: prompt.replace([OPEN, CLOSE], ""), ids })
    }

    fn encode_marked(&self, prompt: &str) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::new();
        let mut rest = prompt;
        let mut first = true;
        while !rest.is_empty() {
            let (piece, how);
            if let Some((token, after)) = self.marked_token(rest) {
                (piece, how, rest) = (token, Encode::TEXT, after);
            } else if let Some(after) = rest.strip_prefix([OPEN, CLOSE]) {
                (rest, first) = (after, false);
                continue;
            } else {
                let end = rest.find([OPEN, CLOSE]).unwrap_or(rest.len());
                (piece, how, rest) = (&rest[..end], Encode::TEMPLATED, &rest[end..]);
            }
            let encoded = if first { self.tokenizer.encode(piece, how)? } else { self.encode_middle(piece, how)? };
            if how == Encode::TEXT && self.tokenizer.special_id(piece).is_some_and(|id| encoded.contains(&id)) {
                return Err(TextError::Template(TemplateError {
                    reason: Reason::Input,
                    message: format!("{piece:?} cannot be kept as text: the tokenizer makes the control token of it"),
                    param: Some("messages".into()),
                }));
            }
            ids.extend(encoded);
            first = false;
        }
        Ok(ids)
    }

    fn marked_token<'a>(&self, text: &'a str) -> Option<(&'a str, &'a str)> {
        let (token, after) = text.strip_prefix(OPEN)?.split_once(CLOSE)?;
        self.has_special(token).then_some((token, after))
    }

    /// Encodes text from the middle of a prompt: behind a newline, so that a tokenizer that puts a blank before a text
    /// does not do so here.
    fn encode_middle(&self, piece: &str, how: Encode) -> Result<Vec<u32>, TokenizeError> {
        let newline = self.tokenizer.encode("\n", Encode::TEMPLATED)?;
        let behind = self.tokenizer.encode(&format!("\n{piece}"), how)?;
        match behind.strip_prefix(newline.as_slice()) {
            Some(ids) => Ok(ids.to_vec()),
            None => self.tokenizer.encode(piece, how),
        }
    }
}

/// Knows which tokens control the model: special ones, and those that the template writes.
struct Marker<'a>(Vec<&'a str>);

impl<'a> Marker<'a> {
    fn new(model: &'a TextModel) -> Self {
        let source = model.template_source();
        let controls = |(id, text): &(u32, &str)| {
            model.tokenizer.is_control(*id) || (source.contains(*text) && !text.trim().is_empty())
        };
        let mut tokens: Vec<&str> = model.tokenizer.added_tokens().filter(controls).map(|(_, text)| text).collect();
        // A token goes before those that it contains.
        tokens.sort_by_key(|text| std::cmp::Reverse(text.len()));
        Marker(tokens)
    }

    fn mark(&self, json: &Json) -> Json {
        match json {
            Json::String(text) => Json::String(self.mark_text(text)),
            Json::Array(items) => items.iter().map(|item| self.mark(item)).collect(),
            Json::Object(map) => Json::Object(self.mark_map(map)),
            other => other.clone(),
        }
    }

    fn mark_map(&self, map: &Map<String, Json>) -> Map<String, Json> {
        map.iter().map(|(key, value)| (key.clone(), self.mark(value))).collect()
    }

    fn mark_text(&self, text: &str) -> String {
        let text = text.replace([OPEN, CLOSE], "");
        let mut out = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(c) = rest.chars().next() {
            match self.0.iter().find(|token| rest.starts_with(**token)) {
                Some(token) => {
                    out.push(OPEN);
                    out.push_str(token);
                    out.push(CLOSE);
                    rest = &rest[token.len()..];
                }
                None => {
                    out.push(c);
                    rest = &rest[c.len_utf8()..];
                }
            }
        }
        out
    }
}
