//! Decoded requests and their validation. It must not know through which API a request arrived.

use std::{collections::HashMap, fmt::Display};

use rein_grammar::{Blanks, Response, ToolChoice};
use rein_proto::v1;
use rein_text::{
    conversation, results,
    template::{self, ChatTemplate},
    tools::ToolSet,
};
use serde_json::{Map, Value};

use crate::{error::Error, limits};

/// Generation options that chat and completions share.
#[derive(Debug, Clone, Default)]
pub struct Generation {
    pub sampling: v1::Sampling,
    pub limits: v1::Limits,
    pub n: Option<u32>,
    /// Return the logprob of each generated token, with this many alternatives.
    pub logprobs: Option<u32>,
    /// Return the logprob of each prompt token, with this many alternatives.
    pub prompt_logprobs: Option<u32>,
    pub return_token_ids: bool,
    pub cache_salt: Option<String>,
    pub script: Vec<u32>,
    /// The request field that set `max_tokens`, for error messages.
    pub max_tokens_param: Option<&'static str>,
    /// Return the grammar's counters and the tokens that it refused.
    pub return_grammar: bool,
    /// Return the grammar's decision about each token.
    pub return_decisions: bool,
    /// Requests with a lower value leave the queue earlier.
    pub priority: Option<i64>,
    /// Maximum number of reasoning tokens; then the router closes the reasoning.
    pub thinking_token_budget: Option<u32>,
    /// The answer, which must be JSON, is led to its end before its length is reached.
    pub finish_structured: bool,
    pub truncate_prompt_tokens: Option<Truncation>,
    /// Requests of one session are routed to the same engine if possible.
    pub session: Option<String>,
    /// A `max_tokens` above what the context leaves is lowered instead of refused.
    pub fit_max_tokens: bool,
    /// `Started` reports the prompt's tokens, so it waits until the prompt is computed.
    pub report_prompt: bool,
}

/// How many tokens are kept of the prompt's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncation {
    /// At most this many.
    To(u32),
    /// As many as leave room in the context for the generated tokens.
    Fitting,
}

impl Truncation {
    /// `tokens` must be at least 1, or -1 for [`Truncation::Fitting`]; None otherwise.
    pub fn new(tokens: i128) -> Option<Self> {
        match tokens {
            -1 => Some(Truncation::Fitting),
            1.. => Some(Truncation::To(tokens.try_into().unwrap_or(u32::MAX))),
            _ => None,
        }
    }

    pub fn invalid(value: impl Display) -> Error {
        let message = format!("'truncate_prompt_tokens' must be at least 1, or -1 to fit the context, got {value}");
        Error::invalid("truncate_prompt_tokens", message)
    }
}

#[derive(Debug, Clone, Default)]
pub struct ChatJob {
    pub model: Option<String>,
    /// In OpenAI's format, unchanged.
    pub messages: Vec<Value>,
    pub tools: ToolSet,
    pub tool_choice: ToolChoice,
    /// False: at most one call per answer.
    pub parallel_tool_calls: bool,
    /// The format that the answer's text must have.
    pub response: Option<Response>,
    /// Blanks in it, if it is JSON. None: the server's choice.
    pub blanks: Option<Blanks>,
    pub documents: Option<Vec<Value>>,
    /// Absent: true, unless the answer continues the final message.
    pub add_generation_prompt: Option<bool>,
    pub continue_final_message: bool,
    pub thinking: Option<bool>,
    pub reasoning_effort: Option<String>,
    pub template_kwargs: Map<String, Value>,
    /// Emit control tokens as text, except for the format's markers.
    pub show_special_tokens: bool,
    pub generation: Generation,
    /// Approximate memory of its values, in bytes.
    pub bytes: usize,
    /// Replaces the fields above for rendering, if a JSON number needs more than 64 bits.
    pub exact: Option<Box<ExactValues>>,
}

/// Values with exact JSON numbers (see `template::lossless`). None: the field has no number that needs it. A
/// [`ToolSet`] has its own.
#[derive(Debug, Clone)]
pub struct ExactValues {
    pub messages: Option<Vec<Value>>,
    pub documents: Option<Vec<Value>>,
    pub template_kwargs: Option<Map<String, Value>>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

#[derive(Debug, Clone)]
pub struct CompletionJob {
    pub model: Option<String>,
    pub prompts: Vec<Prompt>,
    pub echo: bool,
    pub add_special_tokens: bool,
    pub skip_special_tokens: bool,
    /// The format that the text must have.
    pub response: Option<Response>,
    /// As in [`ChatJob`].
    pub blanks: Option<Blanks>,
    pub generation: Generation,
}

#[derive(Debug, Clone)]
pub struct EmbedJob {
    pub model: Option<String>,
    pub inputs: Vec<Prompt>,
    /// The numbers of each embedding. None: as many as the model has.
    pub dimensions: Option<u32>,
    pub add_special_tokens: bool,
    pub cache_salt: Option<String>,
    /// As in [`Generation`].
    pub priority: Option<i64>,
    /// As in [`Generation`].
    pub session: Option<String>,
}

/// Template variables that turn reasoning on or off.
const THINKING: [&str; 2] = ["thinking", "enable_thinking"];
const REASONING_EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
/// Template variables that have a request field.
const KWARGS_WITH_FIELD: [&str; 5] =
    ["messages", "tools", "documents", "add_generation_prompt", "continue_final_message"];

impl ChatJob {
    pub fn check(&self) -> Result<(), Error> {
        conversation::check_messages(&self.messages)?;
        conversation::check_tools(&self.tools, &self.messages)?;
        self.check_choice()?;
        if self.continue_final_message && self.add_generation_prompt == Some(true) {
            let message = "'continue_final_message' and 'add_generation_prompt' cannot both be true";
            return Err(Error::invalid("continue_final_message", message));
        }
        if let (true, Some(last)) = (self.continue_final_message, self.messages.last()) {
            conversation::check_continuable("continue_final_message", last)?;
        }
        if let (Some(field), Some(true)) = (self.continue_field(), self.add_generation_prompt) {
            let at = format!("messages[{}].{field}", self.messages.len() - 1);
            let message = format!("'{at}' and 'add_generation_prompt' cannot both be true");
            return Err(Error::invalid(at, message));
        }
        if let Some(effort) = &self.reasoning_effort {
            check_effort("reasoning_effort", effort)?;
        }
        if let Some(name) = self.template_kwargs.keys().find(|name| template::is_reserved(name)) {
            let why = match KWARGS_WITH_FIELD.contains(&name.as_str()) {
                true => "use the request field of that name",
                false => "the server sets it",
            };
            let message = format!("'chat_template_kwargs' may not set '{name}': {why}");
            return Err(Error::invalid(format!("chat_template_kwargs.{name}"), message));
        }
        self.generation.check("top_logprobs")?;
        self.generation.check_response(self.response.as_ref())
    }

    /// `tool_choice` may only name declared tools.
    fn check_choice(&self) -> Result<(), Error> {
        let declared = |name: &str| {
            let names = self.declared_tools().into_iter().filter_map(|tool| tool.pointer("/function/name")?.as_str());
            let names: Vec<&str> = names.collect();
            match names.contains(&name) {
                true => Ok(()),
                false => {
                    let message = format!("'tool_choice' names '{name}', which is not declared in 'tools'");
                    Err(Error::invalid("tool_choice", message))
                }
            }
        };
        match &self.tool_choice {
            ToolChoice::Auto | ToolChoice::None => Ok(()),
            ToolChoice::Required if self.declared_tools().is_empty() => {
                Err(Error::invalid("tool_choice", "'tool_choice' may only be 'required' if 'tools' declares a tool"))
            }
            ToolChoice::Required => Ok(()),
            ToolChoice::Named(name) => declared(name),
            ToolChoice::Allowed { names, .. } => names.iter().try_for_each(|name| declared(name)),
        }
    }

    /// The field of the last message that requests its continuation.
    fn continue_field(&self) -> Option<&'static str> {
        let last = self.messages.last()?;
        conversation::CONTINUE_FIELDS.into_iter().find(|field| last.get(*field) == Some(&Value::Bool(true)))
    }

    /// Whether the answer continues the last message, whichever field requests it.
    pub fn continues(&self) -> bool {
        self.continue_final_message || self.continue_field().is_some()
    }

    pub fn generation_prompt(&self) -> bool {
        self.add_generation_prompt.unwrap_or(!self.continues())
    }

    /// Every tool that the model may call: the request's tools, then those that system messages declare. If a name is
    /// declared again, the latest declaration replaces the earlier one.
    pub fn declared_tools(&self) -> Vec<&Value> {
        let mut declared: Vec<&Value> = Vec::new();
        let mut places = HashMap::new();
        for tool in self.tools.iter().chain(conversation::message_tools(&self.messages)) {
            let place = *places.entry(tool.pointer("/function/name").and_then(Value::as_str)).or_insert(declared.len());
            match declared.get_mut(place) {
                Some(earlier) => *earlier = tool,
                None => declared.push(tool),
            }
        }
        declared
    }

    /// Replaces what no model could read in the history, which an agent cannot take back. Returns its paths, and those
    /// of fields that only a template can use and that this template never reads.
    pub fn settle(&mut self, template: Option<&ChatTemplate>) -> Vec<String> {
        let mut paths = results::replace_unreadable(&mut self.messages);
        if let Some(exact) = self.exact.as_mut().and_then(|exact| exact.messages.as_mut()) {
            results::replace_unreadable(exact);
        }
        paths.extend(conversation::broken_arguments(&self.messages));
        paths.extend(self.unread_fields(template));
        paths
    }

    /// Fields of the request that only a template can use and that this template never reads.
    fn unread_fields(&self, template: Option<&ChatTemplate>) -> Vec<String> {
        let Some(template) = template else { return Vec::new() };
        let tools = !self.declared_tools().is_empty();
        let reads = |names: &[&str]| names.iter().any(|name| template.reads(name, tools));
        let thinks = || reads(&THINKING);
        let no_effort = self.reasoning_effort.as_deref() == Some("none");
        let fields = [
            ("documents", self.documents.is_some(), reads(&["documents"])),
            ("thinking", self.thinking.is_some(), thinks()),
            (
                "reasoning_effort",
                self.reasoning_effort.is_some(),
                reads(&["reasoning_effort"]) || no_effort && thinks(),
            ),
        ];
        let unread = fields.iter().filter(|(_, given, read)| *given && !read).map(|(name, ..)| (*name).to_owned());
        let kwargs = self.template_kwargs.keys().filter(|name| !reads(&[name]));
        unread.chain(kwargs.map(|name| format!("chat_template_kwargs.{name}"))).collect()
    }

    /// Replaces the fields by their values with exact numbers, for rendering.
    pub fn use_exact(&mut self) {
        if let Some(exact) = self.exact.take() {
            let ExactValues { messages, documents, template_kwargs } = *exact;
            self.messages = messages.unwrap_or_else(|| std::mem::take(&mut self.messages));
            self.documents = documents.or_else(|| self.documents.take());
            self.template_kwargs = template_kwargs.unwrap_or_else(|| std::mem::take(&mut self.template_kwargs));
        }
    }

    /// The template's variables. `chat_template_kwargs` overrides the other fields.
    pub fn kwargs(&self) -> Map<String, Value> {
        let mut kwargs = Map::new();
        let thinking = self.thinking.or((self.reasoning_effort.as_deref() == Some("none")).then_some(false));
        if let Some(thinking) = thinking {
            kwargs.extend(THINKING.map(|name| (name.to_owned(), thinking.into())));
        }
        if let Some(effort) = &self.reasoning_effort {
            kwargs.insert("reasoning_effort".into(), effort.as_str().into());
        }
        kwargs.extend(self.template_kwargs.iter().map(|(name, value)| (name.clone(), value.clone())));
        kwargs
    }
}

impl CompletionJob {
    /// The text that is tokenized or decoded, in bytes.
    pub fn text_bytes(&self) -> usize {
        self.prompts.iter().map(Prompt::bytes).sum::<usize>() + self.generation.bad_words_bytes()
    }

    /// Choices over all prompts.
    pub fn choices(&self) -> usize {
        self.prompts.len() * self.generation.choices() as usize
    }

    pub fn check(&self) -> Result<(), Error> {
        if self.prompts.is_empty() {
            return Err(Error::invalid("prompt", "'prompt' must have at least one prompt, got none"));
        }
        let choices = self.choices();
        if choices > limits::COMPLETION_CHOICES {
            let message = format!(
                "'prompt' and 'n' may request at most {} choices, got {choices}: {} prompts with 'n' {}",
                limits::COMPLETION_CHOICES,
                self.prompts.len(),
                self.generation.choices(),
            );
            return Err(Error::invalid("prompt", message));
        }
        // `max_tokens` 0 with `echo` scores the prompt and generates nothing.
        if self.generation.limits.max_tokens == Some(0) && self.echo {
            let scored = Generation {
                limits: v1::Limits { max_tokens: Some(1), ..self.generation.limits.clone() },
                ..self.generation.clone()
            };
            return scored.check("logprobs");
        }
        self.generation.check("logprobs")?;
        self.generation.check_response(self.response.as_ref())
    }
}

impl Prompt {
    fn bytes(&self) -> usize {
        match self {
            Prompt::Text(text) => text.len(),
            Prompt::Ids(ids) => size_of_val(ids.as_slice()),
        }
    }
}

impl EmbedJob {
    /// The text that is tokenized, in bytes.
    pub fn text_bytes(&self) -> usize {
        self.inputs.iter().map(Prompt::bytes).sum()
    }

    pub fn check(&self) -> Result<(), Error> {
        if self.inputs.is_empty() {
            return Err(Error::invalid("input", "'input' must have at least one text or list of token ids, got none"));
        }
        at_most("input", "texts", self.inputs.len(), limits::EMBEDDING_INPUTS)?;
        check_salt(self.cache_salt.as_deref())
    }
}

impl Generation {
    pub fn choices(&self) -> u32 {
        self.n.unwrap_or(1)
    }

    /// The text of bad words that is tokenized: each word, alone and after a space.
    pub fn bad_words_bytes(&self) -> usize {
        2 * self.sampling.bad_words.iter().map(String::len).sum::<usize>()
    }

    /// Maximum number of prompt tokens: the context. None: the prompt is truncated to fit.
    pub fn max_prompt_tokens(&self, context: u32) -> Option<usize> {
        self.truncate_prompt_tokens.is_none().then_some(context as usize)
    }

    pub fn max_tokens_param(&self) -> &'static str {
        self.max_tokens_param.unwrap_or("max_tokens")
    }

    /// Only JSON can be led to its end.
    fn check_response(&self, response: Option<&Response>) -> Result<(), Error> {
        if !self.finish_structured || matches!(response, Some(Response::JsonObject | Response::JsonSchema { .. })) {
            return Ok(());
        }
        let message = "'finish_structured' may only be true if the response format is json_object or json_schema";
        Err(Error::invalid("finish_structured", message))
    }

    /// Checks values against their ranges. `logprobs` names the field with the number of alternatives.
    fn check(&self, logprobs: &str) -> Result<(), Error> {
        let sampling = &self.sampling;
        for (param, value, range) in [
            ("temperature", sampling.temperature, range::TEMPERATURE),
            ("top_p", sampling.top_p, range::TOP_P),
            ("min_p", sampling.min_p, range::MIN_P),
            ("repetition_penalty", sampling.repetition_penalty, range::REPETITION_PENALTY),
            ("presence_penalty", sampling.presence_penalty, range::PRESENCE_PENALTY),
            ("frequency_penalty", sampling.frequency_penalty, range::FREQUENCY_PENALTY),
        ] {
            value.map_or(Ok(()), |value| range.check(param, value, value))?;
        }
        for (&token, &bias) in &sampling.logit_bias {
            range::LOGIT_BIAS.check(&format!("logit_bias.{token}"), bias, bias)?;
        }
        at_most("logit_bias", "entries", sampling.logit_bias.len(), limits::LOGIT_BIAS)?;
        if self.limits.max_tokens == Some(0) {
            let param = self.max_tokens_param();
            return Err(Error::invalid(param, format!("'{param}' must be at least 1, got 0")));
        }
        if let (Some(min), Some(max)) = (self.limits.min_tokens, self.limits.max_tokens)
            && min > max
        {
            let param = self.max_tokens_param();
            let message = format!("'min_tokens' must be at most '{param}', which is {max}, got {min}");
            return Err(Error::invalid("min_tokens", message));
        }
        at_most("stop", "strings", self.limits.stop.len(), limits::STOP_STRINGS)?;
        for (i, stop) in self.limits.stop.iter().enumerate() {
            if stop.is_empty() {
                return Err(Error::invalid(format!("stop[{i}]"), format!("'stop[{i}]' must not be an empty string")));
            }
            at_most(&format!("stop[{i}]"), "bytes", stop.len(), limits::STOP_STRING_BYTES)?;
        }
        at_most("bad_words", "strings", sampling.bad_words.len(), limits::BAD_WORDS)?;
        for (i, word) in sampling.bad_words.iter().enumerate() {
            if word.trim().is_empty() {
                let message = format!("'bad_words[{i}]' must not be an empty string");
                return Err(Error::invalid(format!("bad_words[{i}]"), message));
            }
            at_most(&format!("bad_words[{i}]"), "bytes", word.len(), limits::STOP_STRING_BYTES)?;
        }
        at_most("stop_token_ids", "ids", self.limits.stop_token_ids.len(), limits::STOP_TOKEN_IDS)?;
        if self.n.is_some_and(|n| n == 0 || n > limits::CHOICES) {
            let message = format!("'n' must be between 1 and {}, got {}", limits::CHOICES, self.choices());
            return Err(Error::invalid("n", message));
        }
        for (param, value) in [(logprobs, self.logprobs), ("prompt_logprobs", self.prompt_logprobs)] {
            if let Some(value) = value.filter(|&value| value > limits::TOP_LOGPROBS) {
                let message = format!("'{param}' must be between 0 and {}, got {value}", limits::TOP_LOGPROBS);
                return Err(Error::invalid(param, message));
            }
        }
        check_salt(self.cache_salt.as_deref())
    }

    /// Checks that every token id of the request is in the model's vocabulary.
    pub fn check_vocabulary(&self, vocab: u32) -> Result<(), Error> {
        let check = |param: String, id: u32| match id < vocab {
            true => Ok(()),
            false => Err(out_of_vocabulary(param, id, vocab)),
        };
        for (i, &id) in self.limits.stop_token_ids.iter().enumerate() {
            check(format!("stop_token_ids[{i}]"), id)?;
        }
        for (i, &id) in self.sampling.allowed_token_ids.iter().enumerate() {
            check(format!("allowed_token_ids[{i}]"), id)?;
        }
        for &id in self.sampling.logit_bias.keys() {
            check(format!("logit_bias.{id}"), id)?;
        }
        self.script.iter().enumerate().try_for_each(|(i, &id)| check(format!("script[{i}]"), id))
    }
}

fn check_salt(salt: Option<&str>) -> Result<(), Error> {
    match salt {
        None => Ok(()),
        Some("") => Err(Error::invalid("cache_salt", "'cache_salt' must not be an empty string")),
        Some(salt) => at_most("cache_salt", "bytes", salt.len(), limits::CACHE_SALT_BYTES),
    }
}

/// `at` is the field that names the effort.
pub fn check_effort(at: &str, effort: &str) -> Result<(), Error> {
    if REASONING_EFFORTS.contains(&effort) {
        return Ok(());
    }
    Err(Error::invalid(at, format!("'{at}' must be one of {}, got '{effort}'", REASONING_EFFORTS.join(", "))))
}

pub fn out_of_vocabulary(param: impl Into<String>, id: u32, vocab: u32) -> Error {
    let param = param.into();
    let last = vocab.saturating_sub(1);
    let message = format!("'{param}' must be a token id of the model's vocabulary, between 0 and {last}, got {id}");
    Error { code: Some("token_out_of_vocabulary"), ..Error::invalid(param, message) }
}

/// Ranges of the sampling fields.
pub mod range {
    use rein_text::fields::AcceptedRange;

    pub const TEMPERATURE: AcceptedRange = AcceptedRange::between(0.0, 2.0);
    pub const TOP_P: AcceptedRange = AcceptedRange::above(0.0, 1.0);
    pub const MIN_P: AcceptedRange = AcceptedRange::between(0.0, 1.0);
    pub const REPETITION_PENALTY: AcceptedRange = AcceptedRange::above(0.0, 10.0);
    pub const PRESENCE_PENALTY: AcceptedRange = AcceptedRange::between(-2.0, 2.0);
    pub const FREQUENCY_PENALTY: AcceptedRange = AcceptedRange::between(-2.0, 2.0);
    pub const LOGIT_BIAS: AcceptedRange = AcceptedRange::between(-100.0, 100.0);
}

fn at_most(param: &str, what: &str, got: usize, limit: usize) -> Result<(), Error> {
    if got <= limit {
        return Ok(());
    }
    Err(Error::invalid(param, format!("'{param}' may have at most {limit} {what}, got {got}")))
}
