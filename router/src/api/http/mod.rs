//! The OpenAI API over HTTP: routes, bodies, status codes, server-sent events.

mod cors;
mod playground;
mod sse;

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    extract::{Path, Request, State, rejection::PathRejection},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures::StreamExt;
use http::{HeaderValue, Method, Uri, header};
use rein_proto::v1;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::Instrument;
use uuid::Uuid;

use crate::{
    admission::keys::ApiCaller,
    api::{
        authenticate, body,
        headers::{IGNORED_FIELDS, RELAXED, SESSION, listed},
        incoming::IncomingRequest,
        openai::{self, Chunks, Read, TokenizeInput},
        openapi,
        status::http_response,
    },
    error::{Error, Kind},
    metrics::CONTENT_TYPE,
    request::{
        chat, completion, delivery::ChatEvents, generate::RequestContext, job::ChatJob, memory::MemoryCharge,
        model::ServedModel,
    },
    state::RouterState,
    trace::{REQUEST_ID, Trace, is_request_id},
};

/// Seconds that the client gives a request.
const REQUEST_TIMEOUT: &str = "x-request-timeout";

/// Requests that are traced, if they are POSTs: by path, the endpoint's name and what its ids begin with.
const TRACED: [(&str, &str, &str); 5] = [
    ("/v1/chat/completions", "chat", "chatcmpl"),
    ("/v1/completions", "completions", "cmpl"),
    ("/v1/chat/completions/render", "render", "req"),
    ("/tokenize", "tokenize", "req"),
    ("/detokenize", "detokenize", "req"),
];

pub fn routes(state: Arc<RouterState>) -> axum::Router {
    axum::Router::new()
        .route("/", get(playground::page))
        .route("/playground/{file}", get(playground::file))
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/chat/completions/render", post(render))
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi_json))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn_with_state(state.clone(), authenticate::http))
        .layer(middleware::from_fn(request_id))
        .layer(middleware::from_fn_with_state(state.clone(), cors::allow))
        .with_state(state)
}

type Shared = State<Arc<RouterState>>;

async fn chat_completions(State(state): Shared, Extension(trace): Extension<Trace>, request: Request) -> Response {
    let answer = async {
        let arrival = arrival(&state, &request)?;
        let (Read { value: openai::ChatRequest { mut job, delivery }, bytes, mut ignored }, held) =
            read(&state, request, arrival.deadline(), openai::chat).await?;
        job.bytes = bytes;
        let call = RequestContext { held: Some(Arc::new(held)), ..arrival.call(&trace, &job.generation).await? };
        let model = state.model(job.model.as_deref())?.clone();
        ignored.extend(job.unread(model.text.template.as_ref()));
        trace.asks(model.name(), delivery.stream);
        // The usage so far is counted in token ids, whoever else wants them.
        let token_ids = std::mem::replace(&mut job.generation.return_token_ids, delivery.continuous_usage);
        job.generation.return_token_ids |= token_ids;
        let (events, relaxed) = chat::generate(call, model, job).await?;
        let mut response = if delivery.stream {
            let mut chunks = Chunks::new(delivery, token_ids);
            sse::response(trace.span.clone(), events, move |event| openai::encode_chat(&mut chunks, &event))
        } else {
            json_bytes(openai::chat_body(all(events).await?, delivery, token_ids))
        };
        set_header(&mut response, RELAXED, &listed(&relaxed));
        Ok(labelled(response, &ignored))
    };
    finish(&state, "chat", state.admission.unless_aborted(answer).await)
}

async fn completions(State(state): Shared, Extension(trace): Extension<Trace>, request: Request) -> Response {
    let answer = async {
        let arrival = arrival(&state, &request)?;
        let (Read { value: openai::CompletionRequest { mut job, delivery }, ignored, .. }, held) =
            read(&state, request, arrival.deadline(), openai::completion).await?;
        let call = RequestContext { held: Some(Arc::new(held)), ..arrival.call(&trace, &job.generation).await? };
        let model = state.model(job.model.as_deref())?.clone();
        trace.asks(model.name(), delivery.stream);
        // The usage so far is counted in token ids, whoever else wants them.
        let token_ids = std::mem::replace(&mut job.generation.return_token_ids, delivery.continuous_usage);
        job.generation.return_token_ids |= token_ids;
        let (events, relaxed) = completion::generate(call, model, job).await?;
        let mut response = if delivery.stream {
            let mut chunks = Chunks::new(delivery, token_ids);
            sse::response(trace.span.clone(), events, move |event| openai::encode_completion(&mut chunks, &event))
        } else {
            json_bytes(openai::completion_body(all(events).await?, token_ids))
        };
        set_header(&mut response, RELAXED, &listed(&relaxed));
        Ok(labelled(response, &ignored))
    };
    finish(&state, "completions", state.admission.unless_aborted(answer).await)
}

async fn render(State(state): Shared, request: Request) -> Response {
    let answer = async {
        let arrival = arrival(&state, &request)?;
        let deadline = arrival.deadline();
        let (Read { value: openai::ChatRequest { mut job, .. }, bytes, mut ignored }, _held) =
            read(&state, request, deadline, openai::chat).await?;
        let _permit = arrival.permit().await?;
        job.bytes = bytes;
        let model = state.model_or_only(job.model.as_deref())?;
        ignored.extend(job.unread(model.text.template.as_ref()));
        let rendered = chat::render(&model, job, deadline).await?;
        let write = move |model: &ServedModel| Ok(openai::rendered(model.name(), &rendered));
        let answer = model.prepare(bytes, deadline, write).await?;
        Ok(labelled(json_bytes(answer), &ignored))
    };
    finish(&state, "render", state.admission.unless_aborted(answer).await)
}

async fn tokenize(State(state): Shared, request: Request) -> Response {
    let answer = async {
        let arrival = arrival(&state, &request)?;
        let deadline = arrival.deadline();
        let (Read { value: openai::Tokenize { input, model, return_token_strs }, bytes, mut ignored }, _held) =
            read(&state, request, deadline, openai::tokenize).await?;
        let _permit = arrival.permit().await?;
        let model = state.model_or_only(model.as_deref())?;
        let ids = match input {
            TokenizeInput::Text { prompt, add_special_tokens } => {
                model.encode(prompt, add_special_tokens, "prompt", deadline, None).await?
            }
            TokenizeInput::Chat(job) => {
                ignored.extend(job.unread(model.text.template.as_ref()));
                chat::render(&model, ChatJob { bytes, ..*job }, deadline).await?.ids
            }
        };
        let context = model.bounds().await?.context;
        let write = move |model: &ServedModel| Ok(openai::tokenized(model, &ids, context, return_token_strs));
        let answer = model.prepare(bytes, deadline, write).await?;
        Ok(labelled(json_bytes(answer), &ignored))
    };
    finish(&state, "tokenize", state.admission.unless_aborted(answer).await)
}

async fn detokenize(State(state): Shared, request: Request) -> Response {
    let answer = async {
        let arrival = arrival(&state, &request)?;
        let deadline = arrival.deadline();
        let (Read { value: openai::Detokenize { model, tokens }, bytes, ignored }, _held) =
            read(&state, request, deadline, openai::detokenize).await?;
        let _permit = arrival.permit().await?;
        let model = state.model_or_only(model.as_deref())?;
        let write = move |model: &ServedModel| Ok(openai::detokenized(&model.detokenize(&tokens)?));
        let answer = model.prepare(bytes, deadline, write).await?;
        Ok(labelled(json_bytes(answer), &ignored))
    };
    finish(&state, "detokenize", state.admission.unless_aborted(answer).await)
}

/// Reads a request's body within the budget, and what `parse` makes of it.
async fn read<T: Send + 'static>(
    state: &RouterState,
    request: Request,
    deadline: Instant,
    parse: fn(&[u8]) -> Result<Read<T>, Error>,
) -> Result<(Read<T>, MemoryCharge), Error> {
    let (body, mut held) = body::read(request, state.config.body_bytes, state.memory.hold(), deadline).await?;
    let read = state.memory.parse(body.len(), deadline, move || parse(&body)).await?;
    held.charge(read.bytes, deadline).await?;
    Ok((read, held))
}

/// A model as clients see it; its context is unknown while its engine does not answer.
async fn describe(model: &Arc<ServedModel>) -> Value {
    openai::model(model, model.bounds().await.ok().map(|bounds| bounds.context))
}

async fn models(State(state): Shared) -> Response {
    let mut list = Vec::new();
    for model in state.models().iter() {
        list.push(describe(model).await);
    }
    finish(&state, "models", Ok(Json(openai::models(list)).into_response()))
}

async fn model(State(state): Shared, id: Result<Path<String>, PathRejection>) -> Response {
    let found = match &id {
        Ok(Path(id)) => state.model(Some(id)),
        Err(rejection) => Err(Error::invalid("model", format!("the path is not right: {}", rejection.body_text()))),
    };
    let answer = match found {
        Ok(model) => Ok(Json(describe(&model).await).into_response()),
        Err(error) => Err(error),
    };
    finish(&state, "models", answer)
}

/// The process is alive.
async fn health() -> Response {
    Json(json!({"status": "ok"})).into_response()
}

/// Requests can be answered.
async fn ready(State(state): Shared) -> Response {
    let answer = state.ready().await.map(|()| Json(json!({"status": "ready"})).into_response());
    finish(&state, "ready", answer)
}

async fn metrics(State(state): Shared) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], state.report().await).into_response()
}

async fn openapi_json() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi::DOCUMENT).into_response()
}

async fn no_route(State(state): Shared, uri: Uri) -> Response {
    let message = format!("there is no {}; GET /openapi.json lists what there is", uri.path());
    finish(&state, "none", Err(Error { code: Some("unknown_url"), ..Error::new(Kind::NotFound, message) }))
}

async fn no_method(State(state): Shared, method: Method, uri: Uri) -> Response {
    let message = format!("{method} is not allowed for {}; the header 'allow' says what is", uri.path());
    let error = Error { code: Some("method_not_allowed"), ..Error::new(Kind::MethodNotAllowed, message) };
    finish(&state, "none", Err(error))
}

/// The request's place, before its body is read.
fn arrival(state: &Arc<RouterState>, request: &Request) -> Result<IncomingRequest, Error> {
    let wanted = match request.headers().get(REQUEST_TIMEOUT) {
        None => None,
        Some(value) => Some(value.to_str().ok().and_then(timeout).ok_or_else(|| {
            let message = "the header 'x-request-timeout' must be a number of seconds above 0, such as 30 or 0.5";
            Error::invalid(REQUEST_TIMEOUT, message)
        })?),
    };
    let session = request.headers().get(SESSION).and_then(|name| name.to_str().ok());
    IncomingRequest::new(state, request.extensions().get::<ApiCaller>(), wanted, session)
}

fn timeout(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok().filter(|seconds| *seconds > 0.0)?;
    // Longer than anything else counts as that.
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

async fn all(mut events: ChatEvents) -> Result<Vec<v1::ChatEvent>, Error> {
    let mut all = Vec::new();
    while let Some(event) = events.next().await {
        all.push(event?);
    }
    Ok(all)
}

fn json_bytes(body: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Every answer has an id: the client's own if it sent one, else the completion's, else a new one. What is traced is so
/// from here on.
async fn request_id(mut request: Request, next: Next) -> Response {
    let valid = |id: &&HeaderValue| id.to_str().is_ok_and(is_request_id);
    let given = request.headers().get(REQUEST_ID).filter(valid).cloned();
    let traced = |(path, ..): &(&str, &str, &str)| request.method() == Method::POST && request.uri().path() == *path;
    let (mut response, id) = match TRACED.into_iter().find(traced) {
        Some((_, endpoint, prefix)) => {
            let headers = request.headers();
            let trace = Trace::new("http", endpoint, prefix, &|name| headers.get(name)?.to_str().ok());
            request.extensions_mut().insert(trace.clone());
            let response = next.run(request).instrument(trace.span.clone()).await;
            trace.answered(response.status().as_u16(), response.status().is_server_error());
            (response, trace.id)
        }
        None => (next.run(request).await, format!("req-{}", Uuid::new_v4().simple())),
    };
    if let Some(id) = given.or_else(|| HeaderValue::from_str(&id).ok()) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// Adds the names of the fields that nobody read.
fn labelled(mut response: Response, ignored: &[String]) -> Response {
    set_header(&mut response, IGNORED_FIELDS, &listed(ignored));
    response
}

fn set_header(response: &mut Response, name: &'static str, value: &str) {
    if let (false, Ok(value)) = (value.is_empty(), HeaderValue::from_str(value)) {
        response.headers_mut().insert(name, value);
    }
}

/// Turns an error into its response, and counts.
fn finish(state: &RouterState, endpoint: &'static str, answer: Result<Response, Error>) -> Response {
    let response = answer.unwrap_or_else(|error| http_response(&error));
    state.surfaces.request("http", endpoint, response.status().as_u16());
    response
}
