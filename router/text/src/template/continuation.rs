//! Renders prompts that end inside their last message, like `continue_final_message` of transformers: appends a tag to
//! the text to be continued, renders, and cuts the prompt at the tag.

use serde_json::Value as Json;

use super::PreparedInput;
use super::error::{Reason, TemplateError};
use super::normalize::REASONING;
use super::python;

/// The tag that transformers appends.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// The part of the last message that is continued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Continuation {
    Content,
    /// The message has only reasoning.
    Reasoning,
}

impl Continuation {
    /// The part to continue. Raw messages always continue their content, as in transformers.
    pub fn of(last: Option<&Json>, raw: bool) -> Self {
        let Some(last) = last else { return Continuation::Content };
        let reasoning =
            || REASONING.iter().any(|name| last.get(*name).and_then(Json::as_str).is_some_and(|r| !r.is_empty()));
        let content = match last.get("content") {
            Some(Json::String(text)) => !text.is_empty(),
            Some(Json::Array(parts)) => parts.iter().any(|part| part.get("text").is_some_and(|text| text != "")),
            _ => false,
        };
        if raw || content || !reasoning() { Continuation::Content } else { Continuation::Reasoning }
    }

    /// The error of a last message, at `index`, that has no text to continue.
    pub fn nothing_to_continue(index: usize) -> TemplateError {
        let why = "continue_final_message: the last message has no text to continue";
        TemplateError::input(&format!("messages[{index}].content"), why)
    }

    pub fn render(self, chat: &PreparedInput<'_>) -> Result<String, TemplateError> {
        let mut messages = chat.messages.clone();
        let index = messages.len().saturating_sub(1);
        let tagged = messages.last_mut().and_then(|last| self.append_tag(last));
        let text = tagged.ok_or_else(|| Self::nothing_to_continue(index))?;
        let cut = if self.is_read_by(chat.source) {
            cut_at_tag(chat.run(&messages, chat.generation_prompt)?, &text)
        } else {
            None
        };
        let with_reasoning = || match self {
            Continuation::Content => Ok(None),
            Continuation::Reasoning => append_reasoning(chat, &messages[..index], &text),
        };
        match cut {
            Some(prompt) => Ok(prompt),
            None => with_reasoning()?.ok_or_else(|| {
                let why = "continue_final_message: the template drops or changes the last message's text, so it cannot be continued";
                TemplateError::new(Reason::Failed, why)
            }),
        }
    }

    fn is_read_by(self, source: &str) -> bool {
        match self {
            Continuation::Content => source.contains("content"),
            Continuation::Reasoning => REASONING.iter().any(|name| source.contains(name)),
        }
    }

    /// Appends the tag to the message's text; returns that text.
    fn append_tag(self, last: &mut Json) -> Option<String> {
        if self == Continuation::Content {
            let text = match last.get_mut("content")? {
                Json::String(text) => text,
                Json::Array(parts) => parts.iter_mut().rev().find_map(|part| match part.get_mut("text") {
                    Some(Json::String(text)) => Some(text),
                    _ => None,
                })?,
                _ => return None,
            };
            let tagged = format!("{text}{TAG}");
            return Some(std::mem::replace(text, tagged));
        }
        // Tag the reasoning under all of its names: a template reads one of them.
        let mut original = None;
        for name in REASONING {
            if let Some(Json::String(text)) = last.get_mut(name) {
                let tagged = format!("{text}{TAG}");
                original = Some(std::mem::replace(text, tagged));
            }
        }
        original
    }
}

/// For a template that does not show unfinished reasoning: renders the generation prompt and appends the reasoning.
fn append_reasoning(
    chat: &PreparedInput<'_>,
    before: &[Json],
    reasoning: &str,
) -> Result<Option<String>, TemplateError> {
    let Some(open) = chat.reasoning_open.as_deref().filter(|_| !before.is_empty()) else { return Ok(None) };
    let mut prompt = chat.run(before, true)?;
    if !prompt.trim_end().ends_with(open.trim_end()) {
        prompt.push_str(open);
    }
    prompt.push_str(reasoning);
    Ok(Some(prompt))
}

fn cut_at_tag(mut prompt: String, text: &str) -> Option<String> {
    let tag = TAG.trim_end();
    let at = prompt.rfind(tag).filter(|_| prompt.contains(text.trim_matches(python::is_space)))?;
    let exact = prompt[at..].starts_with(TAG);
    prompt.truncate(at);
    if !exact {
        prompt.truncate(prompt.trim_end_matches(python::is_space).len());
    }
    Some(prompt)
}
