//! The gRPC dialect: sends OpenAI chat requests to `rein.v1.Inference/Chat` and returns OpenAI chunks.

mod request;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use rein_proto::v1::{self, chat_event::Event, inference_client::InferenceClient};
use serde_json::{Value, json};
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use super::{Endpoint, Failure, MAX_BODY_BYTES, MAX_ERROR_CHARS, retry_after};

pub type InferenceChannel = InferenceClient<Channel>;
pub type GrpcEventStream = Streaming<v1::ChatEvent>;

/// A client that connects on first use and reconnects when the connection is lost.
pub fn client(endpoint: &Endpoint) -> Result<InferenceChannel, Failure> {
    // The scheme is `http` even with TLS, because the connector performs the TLS handshake.
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

/// Adds the endpoint's headers as metadata, except those that gRPC sets itself.
fn with_metadata<T>(endpoint: &Endpoint, message: T) -> Request<T> {
    let mut headers = endpoint.headers.clone();
    headers.remove(http::header::CONTENT_TYPE);
    headers.remove(http::header::USER_AGENT);
    let mut request = Request::new(message);
    *request.metadata_mut() = MetadataMap::from_headers(headers);
    request
}

/// Translates the body of an OpenAI chat request.
pub fn request(endpoint: &Endpoint, body: &[u8]) -> Result<Request<v1::ChatRequest>, Failure> {
    let chat = request::chat(body).map_err(|why| Failure::BadRequest(format!("gRPC: {why}")))?;
    Ok(with_metadata(endpoint, chat))
}

pub async fn first_model(endpoint: &Endpoint) -> Result<String, Failure> {
    let request = with_metadata(endpoint, v1::ListModelsRequest {});
    let models = client(endpoint)?.list_models(request).await.map_err(|status| failure(&status))?.into_inner();
    let first = models.models.into_iter().next();
    first.map(|model| model.id).ok_or_else(|| Failure::BadResponse("the list of models is empty".into()))
}

/// Maps a gRPC status to the HTTP status with the same meaning.
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

/// Whether the status comes from this client, because the connection failed, and not from the server.
fn is_own(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

fn text(status: &Status) -> String {
    status.message().chars().take(MAX_ERROR_CHARS).collect()
}

/// Reads a stream to its end. Calls `event` with the OpenAI chunk of each event. Returns whether the answer is
/// complete.
pub async fn read_events(
    mut events: GrpcEventStream,
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

/// Translates an event to an OpenAI chunk. None for events that OpenAI streams do not have.
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
