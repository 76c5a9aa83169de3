//! Decodes the body of `POST /v1/responses` and `/v1/responses/input_tokens`.

use std::sync::Arc;

use rein_grammar::Response;
use rein_text::{
    InvalidRequest,
    fields::{
        Fields, NeutralValues, ParsedBody, Refused,
        constraints::{self, TextConstraint},
        refused,
        shared::SharedField,
    },
};
use serde_json::{Map, Value, json};

use super::{
    builder::ResponseParameters,
    choice,
    items::{ConvertedInput, InputConverter, ReasoningOpener},
    origins::Origins,
    tools::{self, ConvertedTools, ToolTable},
};
use crate::{
    api::openai::{self, ReasoningFields},
    error::Error,
    limits,
    request::job::{ChatJob, ExactValues, Generation},
};

/// The path of everything that comes from a stored response.
const PREVIOUS: &str = "previous_response_id";
/// The value of `include` for sealed reasoning.
const SEALED_REASONING: &str = "reasoning.encrypted_content";
const LOGPROBS: &str = "message.output_text.logprobs";
/// Values of `include` for what only hosted tools or images can give.
const INCLUDE_WITHOUT_EFFECT: [&str; 6] = [
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
];
/// Fields that are repeated in the answer and have no other effect.
const REPEATED: [&str; 6] =
    ["max_tool_calls", "metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user"];

/// Fields that would change the answer, besides those that chats refuse as well.
pub(crate) const REFUSED: &[Refused] = &[
    refused("background", NeutralValues::Empty, "responses run while their request is open; use 'stream'"),
    refused("conversation", NeutralValues::None, "use 'previous_response_id', or send the whole conversation"),
    refused("prompt", NeutralValues::None, "this server keeps no prompts; use 'instructions' and 'input'"),
    refused("context_management", NeutralValues::Empty, "this server does not compact conversations"),
    refused(
        "truncation",
        NeutralValues::Texts(&["disabled"]),
        "the conversation is never cut; use 'truncate_prompt_tokens' to keep the end of the prompt",
    ),
    refused("moderation", NeutralValues::None, "this server does not moderate"),
    refused("messages", NeutralValues::Empty, "use 'input'; '/v1/chat/completions' takes messages"),
    refused("logprobs", NeutralValues::Empty, "use 'include' with 'message.output_text.logprobs'"),
    refused("return_grammar", NeutralValues::Empty, "'/v1/chat/completions' gives it"),
    refused("return_decisions", NeutralValues::Empty, "'/v1/chat/completions' gives them"),
    refused("system", NeutralValues::Empty, "use 'instructions'"),
];

/// A decoded request. Its messages come later, because they may continue a stored response.
pub struct ResponseRequest {
    job: ChatJob,
    instructions: Option<String>,
    input: Input,
    tools: Arc<ToolTable>,
    pub stream: bool,
    /// Whether the client wants the response to be kept.
    pub store: bool,
    pub previous: Option<String>,
    /// The client asked for token ids.
    pub token_ids: bool,
    /// The reasoning is to be sealed.
    pub seals: bool,
    hide_reasoning: bool,
    /// What the answer repeats of the request.
    echo: Map<String, Value>,
}

enum Input {
    Text(String),
    Items(Vec<Value>),
}

pub fn request(body: &[u8], known: &SharedField<Arc<ConvertedTools>>) -> Result<ParsedBody<ResponseRequest>, Error> {
    openai::body(body)?.read(|fields| read(fields, known))
}

fn read(fields: &mut Fields, known: &SharedField<Arc<ConvertedTools>>) -> Result<ResponseRequest, Error> {
    let echo = Map::from_iter(REPEATED.into_iter().filter_map(|name| Some((name.to_owned(), fields.take(name)?))));
    if let Some((name, value)) = echo.iter().find(|(_, value)| memory(value) > limits::REPEATED_FIELD_BYTES) {
        let (found, limit) = (memory(value), limits::REPEATED_FIELD_BYTES);
        return Err(Error::invalid(name, format!("'{name}' takes {found} bytes; the limit is {limit}")));
    }
    let store = fields.bool("store")?.unwrap_or(true);
    fields.refuse(openai::IN_CONVERSATIONS)?;
    fields.refuse(REFUSED)?;
    for name in ["client_metadata", "metadata"] {
        fields.take(name);
    }
    let limit = fields.integer("max_output_tokens", 1..=u32::MAX)?;
    let (mut generation, delivery) = openai::common(fields)?;
    if generation.choices() > 1 {
        return Err(Error::unsupported("n", "a response has one answer; '/v1/chat/completions' gives several"));
    }
    if generation.prompt_logprobs.is_some() {
        return Err(Error::unsupported("prompt_logprobs", "'/v1/chat/completions' gives them"));
    }
    generation.limits.max_tokens = limit.or(generation.limits.max_tokens);
    generation.max_tokens_param = Some("max_output_tokens");
    let include = include(fields)?;
    let top_logprobs = fields.integer("top_logprobs", 0..=limits::TOP_LOGPROBS)?;
    generation.logprobs =
        (include.logprobs || top_logprobs.is_some_and(|top| top > 0)).then(|| top_logprobs.unwrap_or(0));
    let given_reasoning = fields.take("reasoning");
    let ReasoningFields { on, effort, budget, hide } = openai::read_reasoning(fields)?;
    generation.thinking_token_budget = budget;
    let given_text = fields.take("text");
    let TextConstraint { response, blanks } = response(fields)?;
    let converted = known.read(fields, "tools", tools::convert)?;
    fields.extend_ignored(&converted.ignored);
    let given_choice = fields.take("tool_choice");
    let tool_choice = choice::read(fields, &converted.table)?;
    let parallel_tool_calls = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    let instructions = fields.string("instructions")?;
    let previous = fields.string("previous_response_id")?;
    let show_special_tokens = fields.bool("skip_special_tokens")? == Some(false);
    let token_ids = generation.return_token_ids;
    let mut echo = Map::from_iter([
        ("instructions".to_owned(), instructions.clone().into()),
        ("max_output_tokens".to_owned(), generation.limits.max_tokens.into()),
        ("parallel_tool_calls".to_owned(), parallel_tool_calls.into()),
        ("previous_response_id".to_owned(), previous.clone().into()),
        ("reasoning".to_owned(), repeated_reasoning(given_reasoning, effort.as_deref())),
        ("temperature".to_owned(), generation.sampling.temperature.into()),
        ("text".to_owned(), repeated_text(given_text)),
        ("tool_choice".to_owned(), given_choice.unwrap_or_else(|| "auto".into())),
        ("tools".to_owned(), converted.given.clone().into()),
        ("top_logprobs".to_owned(), top_logprobs.unwrap_or(0).into()),
        ("top_p".to_owned(), generation.sampling.top_p.into()),
        ("truncation".to_owned(), "disabled".into()),
        ("background".to_owned(), false.into()),
    ])
    .into_iter()
    .chain(echo)
    .collect::<Map<_, _>>();
    echo.entry("metadata").or_insert_with(|| json!({}));
    let job = ChatJob {
        model: fields.string("model")?,
        tools: converted.functions.clone(),
        tool_choice,
        parallel_tool_calls,
        response,
        blanks,
        documents: fields.array("documents")?,
        add_generation_prompt: fields.bool("add_generation_prompt")?,
        thinking: on,
        reasoning_effort: effort,
        template_kwargs: fields.object("chat_template_kwargs")?.unwrap_or_default(),
        show_special_tokens,
        exact: exact(fields),
        generation: Generation { return_token_ids: token_ids, ..generation },
        ..ChatJob::default()
    };
    Ok(ResponseRequest {
        job,
        instructions,
        input: input(fields, previous.is_some())?,
        tools: converted.table.clone(),
        stream: delivery.stream,
        store,
        previous,
        token_ids,
        seals: include.sealed,
        hide_reasoning: hide || delivery.hide_reasoning,
        echo,
    })
}

fn input(fields: &mut Fields, continues: bool) -> Result<Input, Error> {
    const SHAPES: &str = "a string or an array of items";
    match fields.take("input") {
        Some(Value::String(text)) => Ok(Input::Text(text)),
        Some(Value::Array(items)) if items.is_empty() && !continues => {
            Err(Error::invalid("input", "'input' must have at least one item, got none"))
        }
        Some(Value::Array(items)) => Ok(Input::Items(items)),
        Some(other) => Err(Error::wrong_type("input", SHAPES, &other)),
        None if continues => Ok(Input::Items(Vec::new())),
        None => Err(Error::missing("input", SHAPES)),
    }
}

/// Values with exact numbers. Messages have none: arguments and outputs are texts.
fn exact(fields: &mut Fields) -> Option<Box<ExactValues>> {
    let documents = fields.exact_array("documents");
    let template_kwargs = fields.exact("chat_template_kwargs").and_then(|value| value.as_object().cloned());
    let same = documents.is_none() && template_kwargs.is_none();
    (!same).then(|| Box::new(ExactValues { messages: None, documents, template_kwargs }))
}

struct Include {
    sealed: bool,
    logprobs: bool,
}

fn include(fields: &mut Fields) -> Result<Include, Error> {
    let mut include = Include { sealed: false, logprobs: false };
    let mut unknown = Map::new();
    for (i, value) in fields.array("include")?.unwrap_or_default().into_iter().enumerate() {
        let at = format!("include[{i}]");
        match &value {
            Value::String(name) if name == SEALED_REASONING => include.sealed = true,
            Value::String(name) if name == LOGPROBS => include.logprobs = true,
            Value::String(name) if INCLUDE_WITHOUT_EFFECT.contains(&name.as_str()) => {}
            Value::String(_) => drop(unknown.insert(at, value)),
            other => return Err(Error::wrong_type(&at, "a string", other)),
        }
    }
    fields.add_ignored(Fields::within("", unknown));
    Ok(include)
}

/// `text.format`, or a constraint in the form of chats.
fn response(fields: &mut Fields) -> Result<TextConstraint, Error> {
    let Some(mut text) = fields.fields("text")? else { return Ok(constraints::response(fields)?) };
    let neutral = |value: &Value| value == "medium";
    text.require("verbosity", neutral, "there is no such setting; ask for it in the prompt")?;
    let mut found = None;
    if let Some(mut format) = text.fields("format")? {
        found = text_format(&mut format)?;
        text.add_ignored(format);
    }
    fields.add_ignored(text);
    let asked = constraints::response(fields)?;
    match (found, asked.response) {
        (Some(_), Some(_)) => {
            let message =
                "'text.format' and another format of the answer, such as 'structured_outputs', cannot both be set";
            Err(Error::invalid("text.format", message))
        }
        (found, other) => Ok(TextConstraint { response: found.or(other), blanks: asked.blanks }),
    }
}

fn text_format(format: &mut Fields) -> Result<Option<Response>, Error> {
    match format.required("type", "'text', 'json_object' or 'json_schema'")?.as_str() {
        "text" => Ok(None),
        "json_object" => Ok(Some(Response::JsonObject)),
        "json_schema" => {
            format.required("name", "a name for the schema")?;
            format.string("description")?;
            let strict = format.bool("strict")?.unwrap_or(false);
            Ok(Some(Response::JsonSchema { schema: constraints::schema(format)?, strict }))
        }
        other => {
            let message = format!("'text.format.type' must be 'text', 'json_object' or 'json_schema', got '{other}'");
            Err(InvalidRequest::invalid("text.format.type", message).into())
        }
    }
}

fn repeated_reasoning(given: Option<Value>, effort: Option<&str>) -> Value {
    let field = |name: &str| given.as_ref().and_then(|given| given.get(name)).cloned().unwrap_or_default();
    json!({"effort": effort, "summary": field("summary")})
}

fn repeated_text(given: Option<Value>) -> Value {
    match given {
        Some(Value::Object(mut text)) => {
            text.entry("format").or_insert_with(|| json!({"type": "text"}));
            Value::Object(text)
        }
        _ => json!({"format": {"type": "text"}}),
    }
}

/// Whether an item is a call that was cut off: it has no output, and its arguments need not be JSON.
fn is_cut_call(item: &Value) -> bool {
    item.get("call_id").is_some() && item.get("status").is_some_and(|status| status == "incomplete")
}

/// Approximate memory of a value, in bytes.
fn memory(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(memory).sum(),
            Value::Object(map) => {
                map.iter().map(|(name, value)| size_of::<String>() + name.len() + memory(value)).sum()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}

/// A request whose messages are known.
pub struct PreparedRequest {
    pub job: ChatJob,
    pub origins: Origins,
    /// Fields of items that were not read.
    pub ignored: Vec<String>,
}

impl ResponseRequest {
    pub fn model(&self) -> Option<&str> {
        self.job.model.as_deref()
    }

    pub fn generation(&self) -> &Generation {
        &self.job.generation
    }

    /// Memory of what the answer repeats of the request.
    pub fn echo_bytes(&self) -> usize {
        self.echo.iter().map(|(name, value)| name.len() + memory(value)).sum()
    }

    /// The request's own items.
    pub fn items(&self) -> Vec<Value> {
        match &self.input {
            Input::Text(text) => vec![json!({"type": "message", "role": "user", "content": text})],
            Input::Items(items) => items.clone(),
        }
    }

    /// Replaces references to items by the items.
    pub fn items_mut(&mut self) -> &mut [Value] {
        match &mut self.input {
            Input::Text(_) => &mut [],
            Input::Items(items) => items,
        }
    }

    /// Converts the input, after `history`, the items of the response that it continues.
    pub fn prepare(
        &mut self,
        history: Vec<Value>,
        bytes: usize,
        open: &ReasoningOpener<'_>,
    ) -> Result<PreparedRequest, Error> {
        let instructions = self.instructions.take().filter(|text| !text.is_empty());
        let input = std::mem::replace(&mut self.input, Input::Items(Vec::new()));
        let read = |body: &mut Fields| -> Result<ConvertedInput, Error> {
            let mut converter = InputConverter::new(&self.tools, open);
            if let Some(instructions) = instructions {
                converter.text("instructions", "system", instructions);
            }
            for mut item in history {
                if is_cut_call(&item) {
                    continue;
                }
                // The stored reasoning itself is at hand.
                if let Some(item) = item.as_object_mut() {
                    item.shift_remove("encrypted_content");
                }
                converter.item(PREVIOUS, item, &mut Fields::within("", Map::new()))?;
            }
            match input {
                Input::Text(text) => converter.text("input", "user", text),
                Input::Items(items) => {
                    for (i, item) in items.into_iter().enumerate() {
                        converter.item(&format!("input[{i}]"), item, body)?;
                    }
                }
            }
            Ok(converter.finish())
        };
        let ParsedBody { value: converted, ignored, .. } = Fields::within("", Map::new()).read(read)?;
        let tools = self.tools.origins().collect();
        let job = ChatJob { messages: converted.messages, bytes, ..std::mem::take(&mut self.job) };
        let origins = Origins { messages: converted.origins, tools };
        Ok(PreparedRequest { job, origins, ignored })
    }

    /// What the answer needs of the request. `stored`: the response will be kept.
    pub fn parameters(self, id: String, created: u64, model: String, stored: bool) -> ResponseParameters {
        ResponseParameters {
            id,
            created,
            model,
            stored,
            echo: self.echo,
            tools: self.tools,
            hide_reasoning: self.hide_reasoning,
            token_ids: self.token_ids,
            seal: None,
        }
    }
}

/// Every field that a request may have, for tests of the documentation.
#[cfg(test)]
pub fn asked(body: Value) -> Vec<&'static str> {
    openai::names_read(&body, |fields| read(fields, &SharedField::new(crate::limits::KNOWN_TOOLS_BYTES)))
}
