//! Renders messages to prompt text with a model's chat template, byte for byte as transformers does. It knows no
//! tokens.
//!
//! When a template is loaded, it is compiled and probed for the inputs it supports, such as lists of parts or arguments
//! as strings (`probe`). Each render converts the messages to these inputs (`normalize`) and runs the template under
//! limits. Rendering never panics.

mod continuation;
mod cpu_time;
mod engine;
mod error;
mod expression;
mod filters;
mod generators;
mod lazy;
pub mod lossless;
mod methods;
mod neutral_tools;
mod normalize;
mod operators;
mod printf;
mod probe;
mod python;
mod rewrite;
mod source;
mod system_turns;
#[cfg(test)]
mod tests;
mod typescript;
mod variadic;
mod views;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use minijinja::Value;
use serde_json::{Map, Value as Json};

pub use engine::parse_now;
pub use error::{Reason, TemplateError};
pub use source::Sources;

use engine::Engine;
use normalize::TemplateCapabilities;

use crate::limits::TEMPLATE_CPU_TIME;
use crate::tokenize::NAMED_SPECIAL_TOKENS;
use crate::tools::ToolSet;
use continuation::Continuation;
use lazy::LazyJson;
use neutral_tools::{Fill, filled};
use system_turns::KeptSystem;

/// Largest template source, bytes.
pub const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// Largest rendered prompt, bytes.
pub const MAX_PROMPT_BYTES: usize = 4 << 20;
/// Most instructions of one render. One message costs a few hundred.
pub const TEMPLATE_FUEL: u64 = 20_000_000;

/// Private-use characters that mark parts of a conversation, so that they can be found in the prompt. A template prints
/// them unchanged wherever it prints text. transformers uses the same characters.
pub(crate) const MARK_START: char = '\u{F0000}';
pub(crate) const MARK_END: char = '\u{F0001}';
/// The byte with which both begin in UTF-8.
const PRIVATE_USE_BYTE: u8 = 0xF3;

/// Whether a client may not set this variable of the template: arguments of transformers, special tokens, and names
/// that the renderer and the engine define.
pub fn is_reserved(variable: &str) -> bool {
    const ARGUMENTS: [&str; 17] = [
        "messages",
        "conversation",
        "conversations",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "sanitize_control_tokens",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
    ];
    const DEFINED: [&str; 10] = [
        typescript::VARIABLE,
        "raise_exception",
        "strftime_now",
        "range",
        "dict",
        "lipsum",
        "cycler",
        "joiner",
        "namespace",
        "additional_special_tokens",
    ];
    ARGUMENTS.contains(&variable)
        || DEFINED.contains(&variable)
        || NAMED_SPECIAL_TOKENS.contains(&variable)
        || variable.starts_with("__")
}

/// Options for the templates of a model.
#[derive(Debug, Clone)]
pub struct TemplateOptions {
    /// Fixed time of `strftime_now`; `None` for the local time.
    pub now: Option<chrono::NaiveDateTime>,
    /// Most instructions per render.
    pub fuel: u64,
    /// Most CPU time per render.
    pub cpu_time: Duration,
    /// Variables such as `bos_token` for the template.
    pub special_tokens: Map<String, Json>,
}

impl Default for TemplateOptions {
    fn default() -> Self {
        TemplateOptions { now: None, fuel: TEMPLATE_FUEL, cpu_time: TEMPLATE_CPU_TIME, special_tokens: Map::new() }
    }
}

/// One conversation to render.
#[derive(Debug, Clone)]
pub struct RenderInput {
    pub messages: Vec<Json>,
    pub tools: Option<ToolSet>,
    pub documents: Option<Vec<Json>>,
    /// Ends the prompt with the start of an assistant turn.
    pub add_generation_prompt: bool,
    /// Ends the prompt inside the last message, so that the model continues it.
    pub continue_final_message: bool,
    /// `chat_template_kwargs`: variables for the template. They never replace messages or tools. `documents` are taken
    /// from here if the input has none.
    pub kwargs: Map<String, Json>,
    /// The text that begins reasoning. It is needed to continue a message that has only reasoning, if the template does
    /// not show it.
    pub reasoning_open: Option<String>,
    /// Fail if the prompt does not show the tools.
    pub tools_must_show: bool,
    /// Render the messages like `render_jinja_template` of transformers, without normalization and checks.
    pub raw: bool,
    /// Prompts with different salts share no cached token ids.
    pub cache_salt: Option<String>,
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
            reasoning_open: None,
            tools_must_show: false,
            raw: false,
            cache_salt: None,
        }
    }
}

/// The chat templates of a model: one, or several with names.
#[derive(Debug)]
pub struct ChatTemplate {
    engine: Engine,
    templates: BTreeMap<String, Compiled>,
}

#[derive(Debug)]
struct Compiled {
    source: String,
    traits: TemplateCapabilities,
    /// The variables that the template reads; `None` if they cannot be determined.
    reads: Option<HashSet<String>>,
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
            let reads = Engine::reads(&source);
            templates.insert(name, Compiled { source, traits, reads });
        }
        if templates.is_empty() {
            return Err(TemplateError::new(Reason::Missing, "the model has no chat template"));
        }
        Ok(ChatTemplate { engine, templates })
    }

    /// Source of the template that plain chats use; empty if there is none for them.
    pub fn source(&self) -> &str {
        self.select(None, false).map_or("", |(_, compiled)| &compiled.source)
    }

    /// Source of the template that a chat with tools uses; empty if there is none for them.
    pub fn tool_source(&self) -> &str {
        self.select(None, true).map_or("", |(_, compiled)| &compiled.source)
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
            Some(name) => TemplateError::new(
                Reason::Missing,
                format!("no chat template is named '{name}'; the model has {}", names()),
            ),
            None => TemplateError::new(
                Reason::Missing,
                format!("the model has several chat templates but no default: {}", names()),
            ),
        })
    }

    /// Whether the template for chats with or without tools may read this variable.
    pub fn reads(&self, variable: &str, tools: bool) -> bool {
        let reads = self.select(None, tools).ok().and_then(|(_, compiled)| compiled.reads.as_ref());
        reads.is_none_or(|reads| reads.contains(variable))
    }

    /// The first tool of the conversation that its rendered `prompt` does not show to the model.
    pub fn dropped_tool(&self, input: &RenderInput, prompt: &str) -> Result<Option<String>, TemplateError> {
        let (_, compiled) = self.select(None, true)?;
        let names: Vec<&str> = tool_names(input).collect();
        // Most templates print the tools in order, so search behind the name before.
        let mut at = 0;
        let mut shows = |name: &&str| match prompt[at..].find(*name) {
            Some(found) => {
                at += found;
                true
            }
            None => prompt.contains(*name),
        };
        if names.is_empty() || (compiled.traits.tools && names.iter().all(&mut shows)) {
            return Ok(None);
        }
        // A tool's name may be in the prompt for other reasons, so render again with unique names.
        let unique_name = |i: usize| format!("xqzt{i}z");
        let mut renamed = input.clone();
        let declared = renamed.messages.iter_mut().filter_map(|message| message.get_mut("tools")?.as_array_mut());
        let mut tools = renamed.tools.as_ref().map(|tools| tools.exact().to_vec());
        for (i, tool) in tools.iter_mut().chain(declared).flatten().filter(|tool| tool_name(tool).is_some()).enumerate()
        {
            tool["function"]["name"] = unique_name(i).into();
        }
        renamed.tools = tools.map(ToolSet::from);
        // A template that rejects these names has read them.
        let Ok(prompt) = self.render(&renamed) else { return Ok(None) };
        let dropped = names.iter().enumerate().find(|(i, _)| !prompt.contains(&unique_name(*i)));
        Ok(dropped.map(|(_, name)| (*name).to_owned()))
    }

    /// Renders a conversation with the default template, or with `tool_use` if it exists and there are tools.
    pub fn render(&self, input: &RenderInput) -> Result<String, TemplateError> {
        self.prepare(None, input)?.render()
    }

    /// Like `render`, with the template of this name.
    pub fn render_named(&self, name: Option<&str>, input: &RenderInput) -> Result<String, TemplateError> {
        self.prepare(name, input)?.render()
    }

    /// Validates the input and, unless it is raw, converts it to what the template supports.
    pub(crate) fn prepare<'a>(
        &'a self,
        name: Option<&str>,
        input: &'a RenderInput,
    ) -> Result<PreparedInput<'a>, TemplateError> {
        let declares = |message: &Json| message.get("tools").is_some_and(|tools| !tools.is_null());
        let with_tools = match &input.tools {
            Some(tools) if input.raw || !tools.is_empty() => true,
            _ => !input.raw && input.messages.iter().any(declares),
        };
        let (name, compiled) = self.select(name, with_tools)?;
        let flag = |name: &str, given| match input.kwargs.get(name) {
            Some(Json::Bool(on)) => *on,
            _ => given,
        };
        let continued = flag("continue_final_message", input.continue_final_message);
        let generation_prompt = flag("add_generation_prompt", input.add_generation_prompt);
        if continued && generation_prompt {
            return Err(TemplateError::input(
                "continue_final_message",
                "continue_final_message and add_generation_prompt cannot both be true",
            ));
        }
        normalize::check(input)?;
        let reserved = ["messages", "tools", "documents", "add_generation_prompt", "continue_final_message"];
        let free = input.kwargs.iter().filter(|(key, _)| !reserved.contains(&key.as_str()));
        let given_tools = input.tools.as_ref().filter(|tools| input.raw || !tools.is_empty());
        let mut chat = PreparedInput {
            engine: &self.engine,
            name,
            source: &compiled.source,
            messages: Vec::new(),
            tool_set: input.tools.as_ref(),
            tools: given_tools.map(|tools| Cow::Borrowed(tools.exact())),
            documents: match (&input.documents, input.kwargs.get("documents")) {
                (None, Some(Json::Array(documents))) => Some(Cow::Borrowed(documents)),
                (documents, _) => documents.as_deref().map(Cow::Borrowed),
            },
            kwargs: free.map(|(name, value)| (name.clone(), value.clone())).collect(),
            generation_prompt,
            continuation: None,
            reasoning_open: input.reasoning_open.clone(),
            folds: !input.raw,
            declares_tools: false,
        };
        let messages = match input.raw {
            true => input.messages.clone(),
            false => chat.normalize(&input.messages, &compiled.traits),
        };
        chat.messages = messages.into_iter().map(normalize::alias_reasoning).collect();
        chat.continuation = continued.then(|| Continuation::of(chat.messages.last(), input.raw));
        // Normalization may have replaced absent content by an empty text.
        let absent = |message: &Json| message.get("content").is_none_or(Json::is_null);
        if chat.continuation == Some(Continuation::Content) && input.messages.last().is_some_and(absent) {
            return Err(Continuation::nothing_to_continue(input.messages.len() - 1));
        }
        Ok(chat)
    }
}

fn tool_name(tool: &Json) -> Option<&str> {
    tool.pointer("/function/name")?.as_str()
}

/// Names of all tools that a conversation declares, in order.
fn tool_names(input: &RenderInput) -> impl Iterator<Item = &str> {
    let declared = input.messages.iter().filter_map(|message| message.get("tools")?.as_array());
    input.tools.iter().flat_map(|tools| tools.iter()).chain(declared.flatten()).filter_map(tool_name)
}

/// A conversation in the form in which the template gets it.
#[derive(Debug, Clone)]
pub(crate) struct PreparedInput<'a> {
    engine: &'a Engine,
    name: &'a str,
    source: &'a str,
    pub messages: Vec<Json>,
    /// The tools of the request.
    tool_set: Option<&'a ToolSet>,
    /// Borrowed: they are those of the request, unchanged.
    pub tools: Option<Cow<'a, [Json]>>,
    pub documents: Option<Cow<'a, [Json]>>,
    pub kwargs: Map<String, Json>,
    generation_prompt: bool,
    continuation: Option<Continuation>,
    reasoning_open: Option<String>,
    /// Moves system messages that the template rejects.
    folds: bool,
    /// The variable of [`Self::declare_tools`] was set by it.
    declares_tools: bool,
}

impl PreparedInput<'_> {
    /// Returns the messages in the form that the template supports, and converts the tools.
    fn normalize(&mut self, messages: &[Json], traits: &TemplateCapabilities) -> Vec<Json> {
        let mut messages = Cow::Borrowed(messages);
        if !traits.message_tools && messages.iter().any(|message| message.get("tools").is_some()) {
            let declared = normalize::take_message_tools(messages.to_mut());
            if !declared.is_empty() {
                self.tools.get_or_insert_default().to_mut().extend(declared);
            }
        }
        self.declare_tools();
        normalize::normalize(&messages, traits)
    }

    /// Sets the variable with which some templates show the tools.
    fn declare_tools(&mut self) {
        if let Some(tools) = self.tools.as_mut().filter(|_| self.source.contains(typescript::VARIABLE)) {
            *tools = tools.iter().map(typescript::sorted).collect();
            // Without this variable the template falls back to JSON, as in Python.
            if let (false, Ok(text)) = (self.kwargs.contains_key(typescript::VARIABLE), typescript::declare(tools)) {
                self.kwargs.insert(typescript::VARIABLE.into(), text.into());
                self.declares_tools = true;
            }
        }
    }

    /// Removes these characters from all strings of the conversation.
    pub fn remove_chars(&mut self, chars: &[char]) {
        fn contains(json: &Json, chars: &[char]) -> bool {
            match json {
                Json::String(text) => has(text, chars),
                Json::Array(items) => items.iter().any(|item| contains(item, chars)),
                Json::Object(map) => map.iter().any(|(key, value)| has(key, chars) || contains(value, chars)),
                _ => false,
            }
        }
        // Searching for one byte is fast, and these characters are rare in any text.
        fn has(text: &str, chars: &[char]) -> bool {
            text.as_bytes().contains(&PRIVATE_USE_BYTE) && text.contains(chars)
        }
        fn remove(json: &mut Json, chars: &[char]) {
            match json {
                Json::String(text) if text.contains(chars) => text.retain(|c| !chars.contains(&c)),
                Json::Array(items) => items.iter_mut().for_each(|item| remove(item, chars)),
                Json::Object(map) => {
                    if map.keys().any(|key| key.contains(chars)) {
                        let kept = std::mem::take(map).into_iter();
                        *map = kept.map(|(key, value)| (key.replace(chars, ""), value)).collect();
                    }
                    map.values_mut().for_each(|value| remove(value, chars));
                }
                _ => {}
            }
        }
        for list in [&mut self.tools, &mut self.documents].into_iter().flatten() {
            if list.iter().any(|item| contains(item, chars)) {
                list.to_mut().iter_mut().for_each(|item| remove(item, chars));
            }
        }
        let owned = self.messages.iter_mut().chain(self.kwargs.values_mut());
        owned.filter(|json| contains(json, chars)).for_each(|json| remove(json, chars));
    }

    /// If the template rejects the conversation, neighbours of one side become one turn, system messages in the middle
    /// of it become part of the turns beside them, and then all system messages. A conversation that the template
    /// accepts stays as it is.
    ///
    /// If it fails all the same, tools get what they lack.
    pub fn render(&self) -> Result<String, TemplateError> {
        let failed = match self.render_turns() {
            Err(error) if matches!(error.reason, Reason::Raised | Reason::Failed) && self.folds => error,
            rendered => return rendered,
        };
        let given: &[Json] = match (&self.tools, self.tool_set) {
            (None, _) => return Err(failed),
            // Without the marks of exact numbers.
            (Some(Cow::Borrowed(_)), Some(declared)) => declared,
            (Some(tools), _) => tools,
        };
        for fill in [Fill::Function, Fill::Parameters, Fill::SingleTypes] {
            let mut chat = PreparedInput { tools: Some(Cow::Owned(filled(given, fill))), ..self.clone() };
            if chat.declares_tools {
                chat.kwargs.remove(typescript::VARIABLE);
            }
            chat.declare_tools();
            if let Ok(prompt) = chat.render_turns() {
                return Ok(prompt);
            }
        }
        Err(failed)
    }

    fn render_turns(&self) -> Result<String, TemplateError> {
        let rejected = match self.render_once() {
            Err(error) if error.reason == Reason::Raised && self.folds => error,
            rendered => return rendered,
        };
        let folded = [KeptSystem::First, KeptSystem::None].map(|kept| system_turns::fold(&self.messages, kept));
        let joined = |messages: &Vec<Json>| system_turns::join_neighbours(messages);
        let attempts = std::iter::once(system_turns::join_neighbours(&self.messages))
            .chain(folded.into_iter().flat_map(|folded| [folded.clone(), folded.as_ref().and_then(joined)]));
        for messages in attempts.flatten() {
            match (PreparedInput { messages, ..self.clone() }).render_once() {
                Err(error) if error.reason == Reason::Raised => {}
                rendered => return rendered,
            }
        }
        Err(rejected)
    }

    fn render_once(&self) -> Result<String, TemplateError> {
        match self.continuation {
            Some(continuation) => continuation.render(self),
            None => self.run(&self.messages, self.generation_prompt),
        }
    }

    fn run(&self, messages: &[Json], generation_prompt: bool) -> Result<String, TemplateError> {
        let list = |items: &[Json]| Value::from(items.iter().map(python::from_json).collect::<Vec<_>>());
        let optional = |items: Option<&Cow<'_, [Json]>>| items.map_or_else(|| Value::from(()), |items| list(items));
        let mut context: Vec<(&str, Value)> = Vec::with_capacity(8 + self.kwargs.len());
        context.extend(self.engine.special_tokens().iter().map(|(k, v)| (k.as_str(), python::from_json(v))));
        context.push(("add_generation_prompt", Value::from(generation_prompt)));
        context.extend(self.kwargs.iter().map(|(k, v)| (k.as_str(), python::from_json(v))));
        context.push(("messages", list(messages)));
        context.push(match (&self.tools, self.tool_set) {
            (None, _) => ("tools", Value::from(())),
            (Some(Cow::Borrowed(_)), Some(unchanged)) => ("tools", unchanged.template_value(LazyJson::list)),
            (Some(changed), _) => ("tools", LazyJson::list(changed)),
        });
        context.push(("documents", optional(self.documents.as_ref())));
        self.engine.render(self.name, self.source, Value::from_pairs(context))
    }
}
