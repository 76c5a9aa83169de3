//! Chat templates: messages to prompt text, byte for byte what transformers renders.
//!
//! A template is compiled once and probed once for what it understands (lists of parts, arguments as strings); a render
//! then normalises the messages for it (`normalize`), runs it under limits, and cannot panic.

mod engine;
mod error;
mod filters;
pub mod lossless;
mod methods;
mod normalize;
mod printf;
mod probe;
mod python;
mod rewrite;
mod source;
#[cfg(test)]
mod tests;
mod variadic;

use std::collections::BTreeMap;

use minijinja::Value;
use serde_json::{Map, Value as Json};

pub use engine::parse_now;
pub use error::{Reason, TemplateError};
pub use source::Sources;

use engine::Engine;
use normalize::Traits;

/// Longest template source, bytes.
pub const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// Longest rendered prompt, bytes.
pub const MAX_PROMPT_BYTES: usize = 4 << 20;
/// Instructions that a model's own template may run in one render. One message costs a few hundred.
pub const TEMPLATE_FUEL: u64 = 20_000_000;

/// What transformers appends to the last message, to find where to cut.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// How templates of a model run.
#[derive(Debug, Clone)]
pub struct TemplateOptions {
    /// The clock behind `strftime_now`; `None` is the local time.
    pub now: Option<chrono::NaiveDateTime>,
    /// Instructions per render.
    pub fuel: u64,
    /// Names such as `bos_token`, visible to the template.
    pub special_tokens: Map<String, Json>,
}

impl Default for TemplateOptions {
    fn default() -> Self {
        TemplateOptions { now: None, fuel: TEMPLATE_FUEL, special_tokens: Map::new() }
    }
}

/// One conversation to render.
#[derive(Debug, Clone)]
pub struct RenderInput {
    pub messages: Vec<Json>,
    pub tools: Option<Vec<Json>>,
    pub documents: Option<Vec<Json>>,
    /// Ends the prompt with the start of an assistant turn.
    pub add_generation_prompt: bool,
    /// Ends the prompt inside the last message, for the model to go on with it.
    pub continue_final_message: bool,
    /// `chat_template_kwargs`: variables for the template. They never replace messages or tools; `documents` are taken
    /// from here where the input has none.
    pub kwargs: Map<String, Json>,
    /// Renders the messages as transformers' `render_jinja_template` does, without our normalisation and checks.
    pub raw: bool,
}

impl Default for RenderInput {
    fn default() -> Self {
        RenderInput {
            messages: Vec::new(),
            tools: None,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: Map::new(),
            raw: false,
        }
    }
}

/// A model's chat template, or its set of named ones.
#[derive(Debug)]
pub struct ChatTemplate {
    engine: Engine,
    templates: BTreeMap<String, Compiled>,
}

#[derive(Debug)]
struct Compiled {
    source: String,
    traits: Traits,
}

impl ChatTemplate {
    /// Compiles one template source.
    pub fn from_source(source: &str, options: TemplateOptions) -> Result<Self, TemplateError> {
        Self::from_sources(Sources::single(source), options)
    }

    /// Compiles a model's templates.
    pub fn from_sources(sources: Sources, options: TemplateOptions) -> Result<Self, TemplateError> {
        let mut engine = Engine::new(options);
        let mut templates = BTreeMap::new();
        for (name, source) in sources.templates {
            engine.add(&name, &source)?;
            let traits = probe::probe(&engine, &name, &source);
            templates.insert(name, Compiled { source, traits });
        }
        if templates.is_empty() {
            return Err(TemplateError::new(Reason::Missing, "the model has no chat template"));
        }
        Ok(ChatTemplate { engine, templates })
    }

    /// Source of the template that plain chats use.
    pub fn source(&self) -> &str {
        self.select(None, false).map(|(_, compiled)| compiled.source.as_str()).unwrap_or_default()
    }

    /// Source of the template that a chat with tools uses.
    pub fn tool_source(&self) -> &str {
        self.select(None, true).map(|(_, compiled)| compiled.source.as_str()).unwrap_or_default()
    }

    fn select(&self, name: Option<&str>, tools: bool) -> Result<(&str, &Compiled), TemplateError> {
        let found = match name {
            Some(name) => self.templates.get_key_value(name),
            None => tools
                .then(|| self.templates.get_key_value("tool_use"))
                .flatten()
                .or_else(|| self.templates.get_key_value("default"))
                .or_else(|| self.templates.iter().next().filter(|_| self.templates.len() == 1)),
        };
        let names = || self.templates.keys().cloned().collect::<Vec<_>>().join(", ");
        found.map(|(name, compiled)| (name.as_str(), compiled)).ok_or_else(|| match name {
            Some(name) => {
                TemplateError::new(Reason::Missing, format!("no chat template named {name}; there are {}", names()))
            }
            None => TemplateError::new(
                Reason::Missing,
                format!("the model has several chat templates and no default; there are {}", names()),
            ),
        })
    }

    /// Renders a conversation with the default template (or `tool_use`, where there is one and tools are given).
    pub fn render(&self, input: &RenderInput) -> Result<String, TemplateError> {
        self.render_named(None, input)
    }

    /// Renders with the template of that name.
    pub fn render_named(&self, name: Option<&str>, input: &RenderInput) -> Result<String, TemplateError> {
        let tools = input.tools.as_ref().filter(|tools| !tools.is_empty() || input.raw);
        let (name, compiled) = self.select(name, tools.is_some())?;
        let continued = match input.kwargs.get("continue_final_message") {
            Some(Json::Bool(b)) => *b,
            _ => input.continue_final_message,
        };
        let generation_prompt = match input.kwargs.get("add_generation_prompt") {
            Some(Json::Bool(b)) => *b,
            _ => input.add_generation_prompt,
        };
        if continued && generation_prompt {
            return Err(TemplateError::input(
                "continue_final_message",
                "continue_final_message and add_generation_prompt exclude each other",
            ));
        }
        normalize::check(input)?;
        let messages = match input.raw {
            true => input.messages.clone(),
            false => normalize::normalize(&input.messages, &compiled.traits),
        };
        let mut messages: Vec<Json> = messages.into_iter().map(normalize::alias_reasoning).collect();
        let last = if continued { Some(tag_last(&mut messages, &compiled.source)?) } else { None };

        let list = |items: &[Json]| Value::from(items.iter().map(python::from_json).collect::<Vec<_>>());
        let documents = match (&input.documents, input.kwargs.get("documents")) {
            (None, Some(Json::Array(documents))) => Some(documents),
            (documents, _) => documents.as_ref(),
        };
        let optional = |items: Option<&Vec<Json>>| items.map_or_else(|| Value::from(()), |items| list(items));
        let mut context: Vec<(&str, Value)> = Vec::with_capacity(8 + input.kwargs.len());
        context.extend(self.engine.special_tokens().iter().map(|(k, v)| (k.as_str(), python::from_json(v))));
        context.push(("add_generation_prompt", Value::from(generation_prompt)));
        let reserved = ["messages", "tools", "documents", "add_generation_prompt", "continue_final_message"];
        let free = input.kwargs.iter().filter(|(key, _)| !reserved.contains(&key.as_str()));
        context.extend(free.map(|(k, v)| (k.as_str(), python::from_json(v))));
        context.push(("messages", list(&messages)));
        context.push(("tools", optional(tools)));
        context.push(("documents", optional(documents)));

        let prompt = self.engine.render(name, Value::from_pairs(context))?;
        match last {
            Some(last) => cut_at_tag(prompt, &last),
            None => Ok(prompt),
        }
    }
}

/// Appends the tag to the last message's text; returns that text.
fn tag_last(messages: &mut [Json], source: &str) -> Result<String, TemplateError> {
    let index = messages.len().saturating_sub(1);
    let param = format!("messages[{index}].content");
    let fail = |message: &str| TemplateError::input(&param, message);
    if !source.contains("content") {
        return Err(fail("continue_final_message: the template does not use a message's content"));
    }
    let content = messages.last_mut().and_then(|m| m.get_mut("content"));
    let text = match content {
        Some(Json::String(text)) => Some(text),
        Some(Json::Array(parts)) => parts.iter_mut().rev().find_map(|part| match part.get_mut("text") {
            Some(Json::String(text)) => Some(text),
            _ => None,
        }),
        _ => None,
    };
    let text = text.ok_or_else(|| fail("continue_final_message: the last message has no text to continue"))?;
    let last = text.clone();
    text.push_str(CONTINUE_TAG);
    Ok(last)
}

fn cut_at_tag(mut prompt: String, last: &str) -> Result<String, TemplateError> {
    let tag = CONTINUE_TAG.trim_end();
    let at = prompt.rfind(tag).filter(|_| prompt.contains(last.trim_matches(python::is_space)));
    let Some(at) = at else {
        return Err(TemplateError::new(
            Reason::Failed,
            "continue_final_message: the template drops or changes the last message's text, so it cannot be continued",
        ));
    };
    let exact = prompt[at..].starts_with(CONTINUE_TAG);
    prompt.truncate(at);
    if !exact {
        prompt.truncate(prompt.trim_end_matches(python::is_space).len());
    }
    Ok(prompt)
}
