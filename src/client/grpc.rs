//! The gRPC dialect: `rein.v1.Inference/Chat` for callers that write OpenAI requests and read OpenAI chunks.

use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use rein_proto::v1::{self, chat_event::Event, inference_client::InferenceClient, response_format, tool_choice::Mode};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use super::{Endpoint, Failure, MAX_BODY_BYTES, MAX_ERROR_CHARS, retry_after};

pub type Client = InferenceClient<Channel>;
pub type Events = Streaming<v1::ChatEvent>;

/// Connects at its first use, and again when the connection is lost.
pub fn client(endpoint: &Endpoint) -> Result<Client, Failure> {
    // What is spoken inside of TLS begins with `http://`, too.
    let target = tonic::transport::Endpoint::try_from(format!("http://{}", endpoint.address));
    let target = target.map_err(|e| Failure::Connect(format!("{}: {e}", endpoint.address)))?;
    let endpoint = endpoint.clone();
    let connect = tower::service_fn(move |_| {
        let endpoint = endpoint.clone();
        async move { endpoint.socket().await.map(TokioIo::new) }
    });
    let channel = target.connect_with_connector_lazy(connect);
    Ok(InferenceClient::new(channel).max_decoding_message_size(MAX_BODY_BYTES))
}

/// With the endpoint's headers as metadata, but for those that are HTTP's own.
fn with_metadata<T>(endpoint: &Endpoint, message: T) -> Request<T> {
    let mut headers = endpoint.headers.clone();
    headers.remove(http::header::CONTENT_TYPE);
    headers.remove(http::header::USER_AGENT);
    let mut request = Request::new(message);
    *request.metadata_mut() = MetadataMap::from_headers(headers);
    request
}

pub async fn first_model(endpoint: &Endpoint) -> Result<String, Failure> {
    let request = with_metadata(endpoint, v1::ListModelsRequest {});
    let models = client(endpoint)?.list_models(request).await.map_err(|status| failure(&status))?.into_inner();
    let first = models.models.into_iter().next();
    first.map(|model| model.id).ok_or_else(|| Failure::BadResponse("the list is empty".into()))
}

/// A status as the HTTP status of the same meaning.
pub fn failure(status: &Status) -> Failure {
    let code = match status.code() {
        Code::InvalidArgument | Code::OutOfRange => 400,
        Code::Unauthenticated => 401,
        Code::PermissionDenied => 403,
        Code::NotFound => 404,
        Code::ResourceExhausted => 429,
        Code::Unimplemented => 501,
        Code::Unavailable => 503,
        Code::DeadlineExceeded => 504,
        _ => 500,
    };
    if is_own(status) {
        return if code == 503 { Failure::Connect(text(status)) } else { Failure::NoResponse(text(status)) };
    }
    let retry_after = status.metadata().get("retry-after").and_then(|after| retry_after(after.to_str().ok()?));
    Failure::Status { code, text: text(status), retry_after }
}

/// Whether the status was made here, of a connection that broke, and has not come from the server.
fn is_own(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

fn text(status: &Status) -> String {
    status.message().chars().take(MAX_ERROR_CHARS).collect()
}

/// Reads a stream to its end. `event` gets each event that an OpenAI stream has, as its chunk.
pub async fn read_events(
    mut events: Events,
    start: Instant,
    mut event: impl FnMut(&[u8], Duration),
) -> Result<bool, Failure> {
    let (mut begun, mut done) = (false, false);
    loop {
        match events.message().await {
            Ok(Some(message)) => {
                let at = start.elapsed();
                begun = true;
                done |= matches!(message.event, Some(Event::Done(_)));
                if let Some(chunk) = chunk(message) {
                    event(chunk.to_string().as_bytes(), at);
                }
            }
            Ok(None) => return Ok(done),
            Err(status) if begun && is_own(&status) => return Err(Failure::Broken(text(&status))),
            Err(status) if begun => return Err(Failure::InStream(text(&status))),
            Err(status) => return Err(failure(&status)),
        }
    }
}

/// None: OpenAI's streams do not tell it.
fn chunk(message: v1::ChatEvent) -> Option<Value> {
    let of = |delta: Value| json!({"choices": [{"index": message.choice, "delta": delta, "finish_reason": null}]});
    Some(match message.event? {
        Event::TextDelta(v1::Delta { text }) => of(json!({"content": text})),
        Event::ReasoningDelta(v1::Delta { text }) => of(json!({"reasoning_content": text})),
        Event::ToolCallStart(v1::ToolCallStart { index, id, name }) => {
            let function = json!({"name": name, "arguments": ""});
            of(json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}))
        }
        Event::ArgumentsDelta(v1::ArgumentsDelta { index, text }) => {
            of(json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]}))
        }
        Event::Done(done) => {
            let reason = match done.finish_reason() {
                v1::FinishReason::Stop => "stop",
                v1::FinishReason::Length => "length",
                v1::FinishReason::ToolCalls => "tool_calls",
                v1::FinishReason::Unspecified => return None,
            };
            json!({"choices": [{"index": message.choice, "delta": {}, "finish_reason": reason}]})
        }
        Event::Usage(v1::UsageEvent { usage: Some(usage) }) => {
            let (prompt, completion) = (usage.prompt_tokens, usage.completion_tokens);
            json!({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})
        }
        _ => return None,
    })
}

/// What of an OpenAI request goes over gRPC. A field that is not here is an error: left out, it would change what is measured.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Chat {
    model: String,
    messages: Vec<Message>,
    #[serde(default)]
    tools: Option<Vec<Tool>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    response_format: Option<ResponseFormat>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    seed: Option<u64>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    min_tokens: Option<u32>,
    stop: Option<OneOrMore>,
    stop_token_ids: Option<Vec<u32>>,
    ignore_eos: Option<bool>,
    script: Option<Vec<u32>>,
    thinking: Option<bool>,
    reasoning_effort: Option<String>,
    chat_template_kwargs: Option<Map<String, Value>>,
    user: Option<String>,
    /// Every answer is streamed, with its usage.
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
    #[serde(default)]
    tool_calls: Option<Vec<ToolCall>>,
    reasoning_content: Option<String>,
    #[serde(default)]
    tools: Option<Vec<Tool>>,
    /// As answers have it.
    #[serde(rename = "refusal")]
    _refusal: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
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
    function: Call,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    name: String,
    #[serde(default)]
    arguments: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tool {
    #[serde(rename = "type")]
    _type: String,
    function: Function,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Function {
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
    strict: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResponseFormat {
    Text,
    JsonObject,
    JsonSchema { json_schema: JsonSchema },
}

#[derive(Deserialize)]
struct JsonSchema {
    schema: Value,
    #[serde(default)]
    strict: Option<bool>,
}

pub fn request(endpoint: &Endpoint, body: &[u8]) -> Result<Request<v1::ChatRequest>, Failure> {
    let unsent = |what: String| Failure::BadRequest(what);
    let chat: Chat = serde_json::from_slice(body).map_err(|error| unsent(error.to_string()))?;
    let tool_choice = chat.tool_choice.as_ref().map(tool_choice).transpose().map_err(unsent)?;
    let request = v1::ChatRequest {
        model: chat.model,
        messages: chat.messages.into_iter().map(message).collect(),
        tools: tools(chat.tools),
        tool_choice,
        parallel_tool_calls: chat.parallel_tool_calls,
        sampling: Some(v1::Sampling {
            temperature: chat.temperature,
            top_p: chat.top_p,
            top_k: chat.top_k,
            min_p: chat.min_p,
            repetition_penalty: chat.repetition_penalty,
            presence_penalty: chat.presence_penalty,
            frequency_penalty: chat.frequency_penalty,
            seed: chat.seed,
            ..v1::Sampling::default()
        }),
        limits: Some(v1::Limits {
            max_tokens: chat.max_completion_tokens.or(chat.max_tokens),
            min_tokens: chat.min_tokens,
            stop: match chat.stop {
                None => Vec::new(),
                Some(OneOrMore::One(stop)) => vec![stop],
                Some(OneOrMore::More(stops)) => stops,
            },
            stop_token_ids: chat.stop_token_ids.unwrap_or_default(),
            ignore_eos: chat.ignore_eos.unwrap_or_default(),
            include_stop: false,
        }),
        thinking: chat.thinking,
        reasoning_effort: chat.reasoning_effort,
        chat_template_kwargs_json: chat.chat_template_kwargs.map(|kwargs| Value::Object(kwargs).to_string()),
        user: chat.user,
        script: chat.script.unwrap_or_default(),
        response_format: chat.response_format.and_then(response_format),
        ..v1::ChatRequest::default()
    };
    Ok(with_metadata(endpoint, request))
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
        let Call { name, arguments } = call.function;
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

fn tool_choice(choice: &Value) -> Result<v1::ToolChoice, String> {
    let of = |mode: Mode| v1::ToolChoice { mode: mode.into(), ..v1::ToolChoice::default() };
    let name = choice.pointer("/function/name").and_then(Value::as_str);
    match (choice.as_str(), name) {
        (Some("auto"), _) => Ok(of(Mode::Auto)),
        (Some("none"), _) => Ok(of(Mode::None)),
        (Some("required"), _) => Ok(of(Mode::Required)),
        (None, Some(name)) => Ok(v1::ToolChoice { name: name.to_owned(), ..of(Mode::Named) }),
        _ => Err(format!("`tool_choice` must be auto, none, required or a function, got {choice}")),
    }
}

fn response_format(format: ResponseFormat) -> Option<v1::ResponseFormat> {
    use response_format::{JsonSchema as Schema, Kind};
    let kind = match format {
        ResponseFormat::Text => return None,
        ResponseFormat::JsonObject => Kind::JsonObject(true),
        ResponseFormat::JsonSchema { json_schema: JsonSchema { schema, strict } } => {
            Kind::JsonSchema(Schema { schema_json: schema.to_string(), strict: strict.unwrap_or_default() })
        }
    };
    Some(v1::ResponseFormat { kind: Some(kind) })
}
