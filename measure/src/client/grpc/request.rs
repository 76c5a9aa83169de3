//! Translates OpenAI chat requests to `rein.v1.ChatRequest`. It does not know about connections.
//!
//! A field without a counterpart in the message is an error: dropping it would change what is measured.

use std::collections::HashMap;

use rein_proto::v1::{self, response_format, tool_choice::Mode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Chat {
    model: String,
    messages: Vec<Message>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    response_format: Option<Map<String, Value>>,
    structured_outputs: Option<StructuredOutputs>,
    guided_whitespace_pattern: Option<String>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Option<HashMap<u32, f32>>,
    allowed_token_ids: Option<Vec<u32>>,
    bad_words: Option<Vec<String>>,
    seed: Option<u64>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    min_tokens: Option<u32>,
    stop: Option<Stop>,
    stop_token_ids: Option<Vec<u32>>,
    include_stop_str_in_output: Option<bool>,
    ignore_eos: Option<bool>,
    n: Option<u32>,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
    prompt_logprobs: Option<u32>,
    return_token_ids: Option<bool>,
    return_grammar: Option<bool>,
    return_decisions: Option<bool>,
    script: Option<Vec<u32>>,
    thinking: Option<bool>,
    reasoning_effort: Option<String>,
    thinking_token_budget: Option<u32>,
    finish_structured: Option<bool>,
    truncate_prompt_tokens: Option<i32>,
    skip_special_tokens: Option<bool>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    chat_template_kwargs: Option<Map<String, Value>>,
    cache_salt: Option<String>,
    priority: Option<i64>,
    user: Option<String>,
    /// Ignored: gRPC answers are always streamed and report their usage.
    #[serde(rename = "stream")]
    _stream: Option<bool>,
    #[serde(rename = "stream_options")]
    _stream_options: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    role: String,
    content: Option<Content>,
    name: Option<String>,
    tool_call_id: Option<String>,
    tool_calls: Option<Vec<ToolCall>>,
    reasoning_content: Option<String>,
    tools: Option<Vec<Tool>>,
    /// Ignored: assistant messages in a history may have it.
    #[serde(rename = "refusal")]
    _refusal: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of text parts")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    r#type: String,
    text: String,
}

#[derive(Deserialize)]
struct ToolCall {
    #[serde(default)]
    id: String,
    function: CalledFunction,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CalledFunction {
    name: String,
    #[serde(default)]
    arguments: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tool {
    #[serde(rename = "type")]
    _type: String,
    function: DeclaredFunction,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeclaredFunction {
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
    strict: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum Stop {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonSchema {
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "description")]
    _description: Option<String>,
    schema: Value,
    strict: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StructuredOutputs {
    json: Option<Value>,
    json_object: Option<bool>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
    structural_tag: Option<Value>,
    whitespace_pattern: Option<String>,
}

#[derive(Deserialize)]
struct AllowedTools {
    mode: Option<String>,
    tools: Vec<NamedTool>,
}

#[derive(Deserialize)]
struct NamedTool {
    function: ToolName,
}

#[derive(Deserialize)]
struct ToolName {
    name: String,
}

/// # Errors
/// Names the field that cannot be translated, and why.
pub fn chat(body: &[u8]) -> Result<v1::ChatRequest, String> {
    let body: Value = serde_json::from_slice(body).map_err(|error| format!("the body is not JSON: {error}"))?;
    let chat: Chat = read("", body)?;
    if chat.top_logprobs.is_some_and(|top| top > 0) && chat.logprobs != Some(true) {
        return Err("`top_logprobs` needs `logprobs` to be true".into());
    }
    Ok(v1::ChatRequest {
        model: chat.model,
        messages: chat.messages.into_iter().map(message).collect(),
        tools: tools(chat.tools),
        tool_choice: chat.tool_choice.map(tool_choice).transpose()?,
        parallel_tool_calls: chat.parallel_tool_calls,
        sampling: Some(v1::Sampling {
            temperature: chat.temperature,
            top_p: chat.top_p,
            top_k: chat.top_k,
            min_p: chat.min_p,
            repetition_penalty: chat.repetition_penalty,
            presence_penalty: chat.presence_penalty,
            frequency_penalty: chat.frequency_penalty,
            logit_bias: chat.logit_bias.unwrap_or_default(),
            seed: chat.seed,
            allowed_token_ids: chat.allowed_token_ids.unwrap_or_default(),
            bad_words: chat.bad_words.unwrap_or_default(),
        }),
        limits: Some(v1::Limits {
            max_tokens: chat.max_completion_tokens.or(chat.max_tokens),
            min_tokens: chat.min_tokens,
            stop: match chat.stop {
                None => Vec::new(),
                Some(Stop::One(stop)) => vec![stop],
                Some(Stop::Many(stops)) => stops,
            },
            stop_token_ids: chat.stop_token_ids.unwrap_or_default(),
            ignore_eos: chat.ignore_eos.unwrap_or_default(),
            include_stop: chat.include_stop_str_in_output.unwrap_or_default(),
        }),
        top_logprobs: (chat.logprobs == Some(true)).then(|| chat.top_logprobs.unwrap_or_default()),
        thinking: chat.thinking,
        reasoning_effort: chat.reasoning_effort,
        chat_template_kwargs_json: chat.chat_template_kwargs.map(|kwargs| Value::Object(kwargs).to_string()),
        add_generation_prompt: chat.add_generation_prompt,
        continue_final_message: chat.continue_final_message,
        return_token_ids: chat.return_token_ids.unwrap_or_default(),
        cache_salt: chat.cache_salt,
        n: chat.n,
        user: chat.user,
        script: chat.script.unwrap_or_default(),
        prompt_logprobs: chat.prompt_logprobs,
        response_format: response(chat.response_format, chat.structured_outputs, chat.guided_whitespace_pattern)?,
        return_grammar: chat.return_grammar.unwrap_or_default(),
        return_decisions: chat.return_decisions.unwrap_or_default(),
        priority: chat.priority,
        thinking_token_budget: chat.thinking_token_budget,
        truncate_prompt_tokens: chat.truncate_prompt_tokens,
        skip_special_tokens: chat.skip_special_tokens,
        finish_structured: chat.finish_structured.unwrap_or_default(),
    })
}

/// Parses the value of the field at this path. The error names the nested field that is wrong.
fn read<T: DeserializeOwned>(at: &str, value: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (path, what) = (error.path().to_string(), error.inner().to_string());
        // Leaves out serde's list of all fields.
        let what = what.split(", expected one of").next().unwrap_or_default();
        match (at, path.as_str()) {
            ("", ".") => what.to_owned(),
            (at, ".") => format!("`{at}`: {what}"),
            ("", path) => format!("`{path}`: {what}"),
            (at, path) => format!("`{at}.{path}`: {what}"),
        }
    })
}

fn message(message: Message) -> v1::Message {
    let (content, parts) = match message.content {
        None => (None, Vec::new()),
        Some(Content::Text(text)) => (Some(text), Vec::new()),
        Some(Content::Parts(parts)) => {
            (None, parts.into_iter().map(|part| v1::ContentPart { r#type: part.r#type, text: part.text }).collect())
        }
    };
    let call = |call: ToolCall| {
        let CalledFunction { name, arguments } = call.function;
        let arguments = match arguments {
            Value::String(text) => text,
            other => other.to_string(),
        };
        v1::ToolCall { id: call.id, name, arguments }
    };
    v1::Message {
        role: message.role,
        content,
        parts,
        name: message.name,
        tool_call_id: message.tool_call_id,
        tool_calls: message.tool_calls.into_iter().flatten().map(call).collect(),
        reasoning_content: message.reasoning_content,
        tools: tools(message.tools),
    }
}

fn tools(tools: Option<Vec<Tool>>) -> Vec<v1::Tool> {
    let tool = |Tool { function, .. }: Tool| v1::Tool {
        name: function.name,
        description: function.description,
        parameters_json: function.parameters.map(|schema| schema.to_string()),
        strict: function.strict,
    };
    tools.into_iter().flatten().map(tool).collect()
}

fn tool_choice(choice: Value) -> Result<v1::ToolChoice, String> {
    let of = |mode: Mode| v1::ToolChoice { mode: mode.into(), ..v1::ToolChoice::default() };
    let expected =
        || format!("`tool_choice` must be \"auto\", \"none\", \"required\", a function or allowed tools, got {choice}");
    match (choice.as_str(), choice.get("type").and_then(Value::as_str)) {
        (Some("auto"), _) => Ok(of(Mode::Auto)),
        (Some("none"), _) => Ok(of(Mode::None)),
        (Some("required"), _) => Ok(of(Mode::Required)),
        (None, Some("function")) => {
            let NamedTool { function } = read("tool_choice", choice.clone())?;
            Ok(v1::ToolChoice { name: function.name, ..of(Mode::Named) })
        }
        (None, Some("allowed_tools")) => {
            let allowed = choice.get("allowed_tools").cloned().unwrap_or_default();
            let AllowedTools { mode, tools } = read("tool_choice.allowed_tools", allowed)?;
            let mode = match mode.as_deref() {
                None | Some("auto") => Mode::Auto,
                Some("required") => Mode::Required,
                Some(_) => return Err(expected()),
            };
            let names = tools.into_iter().map(|tool| tool.function.name).collect();
            Ok(v1::ToolChoice { names, ..of(mode) })
        }
        _ => Err(expected()),
    }
}

/// The constraint on the answer's text, from `response_format` or `structured_outputs`.
fn response(
    format: Option<Map<String, Value>>,
    outputs: Option<StructuredOutputs>,
    blanks: Option<String>,
) -> Result<Option<v1::ResponseFormat>, String> {
    let format = format.map(response_format).transpose()?.flatten();
    let whitespace_pattern = outputs.as_ref().and_then(|outputs| outputs.whitespace_pattern.clone()).or(blanks);
    let mut kinds: Vec<_> = format.into_iter().chain(outputs.into_iter().flat_map(structured_outputs)).collect();
    match kinds.len() {
        0 | 1 => Ok(kinds.pop().map(|kind| v1::ResponseFormat { kind: Some(kind), whitespace_pattern })),
        _ => Err("`response_format` and `structured_outputs` must contain at most one constraint together".into()),
    }
}

fn response_format(mut format: Map<String, Value>) -> Result<Option<response_format::Kind>, String> {
    use response_format::Kind;
    let kind = format.shift_remove("type").unwrap_or_default();
    let part = |name: &str| format.get(name).cloned().unwrap_or_default();
    Ok(Some(match kind.as_str() {
        Some("text") => return Ok(None),
        Some("json_object") => Kind::JsonObject(true),
        Some("json_schema") => {
            let JsonSchema { schema, strict, .. } = read("response_format.json_schema", part("json_schema"))?;
            json_schema(&schema, strict.unwrap_or_default())
        }
        Some("grammar") => Kind::Lark(read("response_format.grammar", part("grammar"))?),
        Some("structural_tag") => Kind::StructuralTagJson(Value::Object(format).to_string()),
        _ => {
            let kinds = "text, json_object, json_schema, grammar or structural_tag";
            return Err(format!("`response_format.type` must be {kinds}, got {kind}"));
        }
    }))
}

fn json_schema(schema: &Value, strict: bool) -> response_format::Kind {
    response_format::Kind::JsonSchema(response_format::JsonSchema { schema_json: text(schema), strict })
}

/// JSON text of a schema that is given as a JSON value or as a string of JSON text.
fn text(json: &Value) -> String {
    json.as_str().map_or_else(|| json.to_string(), str::to_owned)
}

fn structured_outputs(outputs: StructuredOutputs) -> impl Iterator<Item = response_format::Kind> {
    use response_format::{Choice, Kind};
    [
        outputs.json.map(|schema| json_schema(&schema, false)),
        outputs.json_object.filter(|wanted| *wanted).map(Kind::JsonObject),
        outputs.regex.map(Kind::Regex),
        outputs.choice.map(|options| Kind::Choice(Choice { options })),
        outputs.grammar.map(Kind::Lark),
        outputs.structural_tag.map(|tag| Kind::StructuralTagJson(text(&tag))),
    ]
    .into_iter()
    .flatten()
}
