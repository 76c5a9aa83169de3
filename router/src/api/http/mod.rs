//! The APIs of OpenAI and Anthropic over HTTP: routes, bodies, status codes, server-sent events. It must not know
//! engines.

mod cors;
mod embeddings;
mod loras;
mod messages;
mod playground;
mod responses;
mod sse;
mod unread_body;

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    extract::{Path, Request, State, rejection::PathRejection},
    middleware::{self, Next},
    response::{IntoResponse, Redirect, Response},
    routing::{get, post},
};
use futures::StreamExt;
use http::{HeaderValue, Method, Uri, header};
use rein_proto::v1;
use rein_text::surrogates;
use serde_json::{Value, json};
use tower::util::MapRequest;
use tracing::Instrument;
use uuid::Uuid;

use crate::{
    admission::{InFlightPermit, keys::ApiCaller},
    api::{
        authenticate, body,
        headers::{IGNORED_FIELDS, RELAXED, SESSION, listed},
        incoming::IncomingRequest,
        known_tools::KnownTools,
        openai::{self, Chunks, ParsedBody, TokenizeInput},
        openapi,
        status::http_response,
        unread::{self, AnswerHold},
    },
    error::{Error, ErrorKind},
    fair::Requester,
    limits,
    memory::MemoryCharge,
    metrics::CONTENT_TYPE,
    request::{chat, completion, delivery::ChatEvents, generate::RequestContext, job::ChatJob, model::ServedModel},
    request_trace::{REQUEST_ID, Trace, is_request_id},
    state::RouterState,
};

/// Header with the request's timeout in seconds.
const REQUEST_TIMEOUT: &str = "x-request-timeout";

/// What paths under `/v1/` begin with.
const VERSIONED: [&str; 8] = [
    "chat",
    "completions",
    "embeddings",
    "load_lora_adapter",
    "messages",
    "models",
    "responses",
    "unload_lora_adapter",
];

/// Traced POST requests: path, name of the endpoint, prefix of its ids.
const TRACED: [(&str, &str, &str); 10] = [
    ("/v1/chat/completions", "chat", "chatcmpl-"),
    ("/v1/completions", "completions", "cmpl-"),
    ("/v1/embeddings", "embeddings", "embd-"),
    ("/v1/messages", "messages", "msg_"),
    ("/v1/messages/count_tokens", "count_tokens", "req-"),
    ("/v1/responses", "responses", "resp_"),
    ("/v1/responses/input_tokens", "responses", "req-"),
    ("/v1/chat/completions/render", "render", "req-"),
    ("/tokenize", "tokenize", "req-"),
    ("/detokenize", "detokenize", "req-"),
];

/// The id of a request's response.
#[derive(Clone)]
struct RequestId(HeaderValue);

/// All routes. Clients whose base URL lacks `/v1` or whose paths end in a slash reach the same ones.
pub fn routes(state: Arc<RouterState>) -> axum::Router {
    axum::Router::new().fallback_service(MapRequest::new(versioned_routes(state), with_known_path))
}

/// The request under the path that it means.
fn with_known_path(mut request: Request) -> Request {
    let path = request.uri().path();
    let known = match path.split('/').nth(1) {
        Some("playground") if path == "/playground" => "/".to_owned(),
        Some("v1") => path.trim_end_matches('/').to_owned(),
        Some(first) if VERSIONED.contains(&first) => format!("/v1{}", path.trim_end_matches('/')),
        _ => return request,
    };
    let query = request.uri().query().map_or_else(String::new, |query| format!("?{query}"));
    // It was a valid path before.
    if let Ok(uri) = format!("{known}{query}").parse() {
        *request.uri_mut() = uri;
    }
    request
}

fn versioned_routes(state: Arc<RouterState>) -> axum::Router {
    axum::Router::new()
        .route("/", get(playground::page))
        .route("/playground/{file}", get(playground::file))
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/chat/completions/render", post(render))
        .route("/v1/completions", post(completions))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/input_tokens", post(responses::input_tokens))
        .route("/v1/responses/{id}", get(responses::retrieve).delete(responses::delete))
        .route("/v1/responses/{id}/cancel", post(responses::cancel))
        .route("/v1/responses/{id}/input_items", get(responses::input_items))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/load_lora_adapter", post(loras::load))
        .route("/v1/unload_lora_adapter", post(loras::unload))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi_json))
        .route("/docs", get(playground::docs))
        .route("/version", get(version))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(Extension(Arc::new(KnownTools::new(state.config.memory.tools))))
        .layer(middleware::from_fn_with_state(state.clone(), authenticate::http))
        .layer(middleware::from_fn(messages::errors))
        .layer(middleware::from_fn(request_id))
        .layer(middleware::from_fn(unread_body::announce_close))
        .layer(middleware::from_fn_with_state(state.clone(), cors::allow))
        .with_state(state)
}

type Shared = State<Arc<RouterState>>;
type Tools = Extension<Arc<KnownTools>>;
/// None: the server has no keys.
type Caller = Option<Extension<ApiCaller>>;

async fn chat_completions(
    State(state): Shared,
    Extension(trace): Extension<Trace>,
    Extension(known): Tools,
    request: Request,
) -> Response {
    let answer = async {
        let mut incoming = incoming(&state, &request).await?;
        let (ParsedBody { value: openai::ChatRequest { mut job, delivery }, bytes, mut ignored }, charge) =
            read(&state, request, &mut incoming, move |body: &[u8]| openai::chat(body, &known.chat)).await?;
        job.bytes = bytes;
        let choices = job.generation.choices() as usize;
        let (context, model) =
            incoming.admit_generation(&trace, job.model.as_deref(), &job.generation, choices).await?;
        let context = RequestContext { memory_charge: Some(Arc::new(charge)), ..context };
        ignored.extend(job.settle(model.text.template.as_ref()));
        trace.record_request(model.name(), delivery.stream);
        // `continuous_usage` counts token ids, even if the client does not request them.
        let token_ids = std::mem::replace(&mut job.generation.return_token_ids, delivery.continuous_usage);
        job.generation.return_token_ids |= token_ids;
        let (events, relaxed) = chat::generate(context, model, job).await?;
        let mut response = if delivery.stream {
            let mut chunks = Chunks::new(delivery, token_ids);
            sse::chunks(trace.span.clone(), events, move |event| openai::encode_chat(&mut chunks, &event))
        } else {
            json_bytes(openai::chat_body(collect(events).await?, delivery, token_ids))
        };
        set_header(&mut response, RELAXED, &listed(&relaxed));
        Ok(with_ignored_fields(response, &ignored))
    };
    finish(&state, "chat", state.admission.unless_aborted(answer).await)
}

async fn completions(State(state): Shared, Extension(trace): Extension<Trace>, request: Request) -> Response {
    let answer = async {
        let mut incoming = incoming(&state, &request).await?;
        let (ParsedBody { value: openai::CompletionRequest { mut job, delivery }, ignored, .. }, charge) =
            read(&state, request, &mut incoming, openai::completion).await?;
        let (context, model) =
            incoming.admit_generation(&trace, job.model.as_deref(), &job.generation, job.choices()).await?;
        let context = RequestContext { memory_charge: Some(Arc::new(charge)), ..context };
        trace.record_request(model.name(), delivery.stream);
        // `continuous_usage` counts token ids, even if the client does not request them.
        let token_ids = std::mem::replace(&mut job.generation.return_token_ids, delivery.continuous_usage);
        job.generation.return_token_ids |= token_ids;
        let (events, relaxed) = completion::generate(context, model, job).await?;
        let mut response = if delivery.stream {
            let mut chunks = Chunks::new(delivery, token_ids);
            sse::chunks(trace.span.clone(), events, move |event| openai::encode_completion(&mut chunks, &event))
        } else {
            json_bytes(openai::completion_body(collect(events).await?, token_ids))
        };
        set_header(&mut response, RELAXED, &listed(&relaxed));
        Ok(with_ignored_fields(response, &ignored))
    };
    finish(&state, "completions", state.admission.unless_aborted(answer).await)
}

async fn render(State(state): Shared, Extension(known): Tools, request: Request) -> Response {
    let answer = async {
        let mut incoming = incoming(&state, &request).await?;
        let requester = incoming.requester();
        let (ParsedBody { value: openai::ChatRequest { mut job, .. }, bytes, mut ignored }, _charge) =
            read(&state, request, &mut incoming, move |body: &[u8]| openai::chat(body, &known.chat)).await?;
        let (permit, model) = incoming.admit(job.model.as_deref()).await?;
        job.bytes = bytes;
        ignored.extend(job.settle(model.text.template.as_ref()));
        let charge = state.memory.charge_answer(limits::IDS_PER_BYTE * bytes, &requester).await?;
        let rendered = chat::render(&model, job, &requester).await?;
        let write = move |model: &ServedModel| Ok(openai::rendered(model.name(), &rendered));
        let answer = model.run_text_work(bytes, &requester, write).await?;
        held_bytes(&state, answer, &ignored, permit, charge, &requester).await
    };
    finish(&state, "render", state.admission.unless_aborted(answer).await)
}

async fn tokenize(State(state): Shared, Extension(known): Tools, request: Request) -> Response {
    let answer = async {
        let mut incoming = incoming(&state, &request).await?;
        let requester = incoming.requester();
        let (ParsedBody { value: openai::Tokenize { input, model, return_token_strs }, bytes, mut ignored }, _charge) =
            read(&state, request, &mut incoming, move |body: &[u8]| openai::tokenize(body, &known.chat)).await?;
        let (permit, model) = incoming.admit(model.as_deref()).await?;
        let charge = state.memory.charge_answer(limits::IDS_PER_BYTE * bytes, &requester).await?;
        let ids = match input {
            TokenizeInput::Text { prompt, add_special_tokens } => {
                model.encode(prompt, add_special_tokens, "prompt", &requester).await?
            }
            TokenizeInput::Chat(mut job) => {
                ignored.extend(job.settle(model.text.template.as_ref()));
                chat::render(&model, ChatJob { bytes, ..*job }, &requester).await?.ids
            }
        };
        let context = model.bounds().await?.context;
        let write = move |model: &ServedModel| Ok(openai::tokenized(model, &ids, context, return_token_strs));
        let answer = model.run_text_work(bytes, &requester, write).await?;
        held_bytes(&state, answer, &ignored, permit, charge, &requester).await
    };
    finish(&state, "tokenize", state.admission.unless_aborted(answer).await)
}

async fn detokenize(State(state): Shared, request: Request) -> Response {
    let answer = async {
        let mut incoming = incoming(&state, &request).await?;
        let requester = incoming.requester();
        let (ParsedBody { value: openai::Detokenize { model, tokens }, bytes, ignored }, _charge) =
            read(&state, request, &mut incoming, openai::detokenize).await?;
        let (permit, model) = incoming.admit(model.as_deref()).await?;
        let charge = state.memory.charge_answer(limits::IDS_PER_BYTE * bytes, &requester).await?;
        let write = move |model: &ServedModel| Ok(openai::detokenized(&model.detokenize(&tokens)?));
        let answer = model.run_text_work(bytes, &requester, write).await?;
        held_bytes(&state, answer, &ignored, permit, charge, &requester).await
    };
    finish(&state, "detokenize", state.admission.unless_aborted(answer).await)
}

/// Reads a request's body and decodes it with `parse`. Also returns the memory that is charged for it.
async fn read<T: Send + 'static>(
    state: &RouterState,
    request: Request,
    incoming: &mut IncomingRequest,
    parse: impl FnOnce(&[u8]) -> Result<ParsedBody<T>, Error> + Send + 'static,
) -> Result<(ParsedBody<T>, MemoryCharge), Error> {
    let requester = incoming.requester();
    let deadline = requester.deadline;
    let charge = state.memory.open_charge(requester.caller.clone());
    let body = body::read(request, state.config.memory.body, charge, deadline);
    let (body, mut charge) = incoming.unless_evicted(body).await?;
    let body_bytes = body.len();
    let parse = move || {
        let (body, replaced) = surrogates::replaced_in_body(&body);
        let mut read = parse(&body)?;
        read.ignored.extend(replaced);
        Ok(read)
    };
    let read = state.memory.parse(body_bytes, &requester, parse).await?;
    charge.resize(read.bytes, deadline).await?;
    Ok((read, charge))
}

/// A model as clients see it. Its context is unknown while its engine does not answer.
async fn describe(state: &RouterState, name: &str) -> Value {
    match state.named(name) {
        Some(model) => openai::model(&model, model.bounds().await.ok().map(|bounds| bounds.context)),
        None => openai::expected_model(name),
    }
}

async fn models(State(state): Shared, caller: Caller) -> Response {
    let mut list = Vec::new();
    let names = state.names_for(caller.as_deref());
    for name in &names {
        list.push(describe(&state, name).await);
    }
    for (alias, model) in state.aliases(&names) {
        list.push(openai::aliased(describe(&state, model).await, alias, model));
    }
    finish(&state, "models", Ok(Json(openai::models(list)).into_response()))
}

async fn model(State(state): Shared, caller: Caller, id: Result<Path<String>, PathRejection>) -> Response {
    let found = match &id {
        Ok(Path(id)) => state.known(Some(id), caller.as_deref()),
        Err(rejection) => {
            Err(Error::invalid("model", format!("'model' in the path is invalid: {}", rejection.body_text())))
        }
    };
    let answer = match (found, id) {
        (Ok(name), Ok(Path(id))) if id != name => Ok(openai::aliased(describe(&state, &name).await, &id, &name)),
        (Ok(name), _) => Ok(describe(&state, &name).await),
        (Err(error), _) => Err(error),
    };
    let answer = answer.map(|model| Json(model).into_response());
    finish(&state, "models", answer)
}

/// Liveness: the process answers.
async fn health() -> Response {
    Json(json!({"status": "ok"})).into_response()
}

/// Readiness: requests can be answered.
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

async fn version() -> Response {
    Json(json!({"version": env!("CARGO_PKG_VERSION")})).into_response()
}

async fn no_route(State(state): Shared, uri: Uri) -> Response {
    // The page's links are relative to the folder above.
    if uri.path() == "/playground/" {
        return Redirect::temporary("..").into_response();
    }
    let message = format!("the path {} does not exist; GET /openapi.json lists all paths", uri.path());
    finish(&state, "none", Err(Error { code: Some("unknown_url"), ..Error::new(ErrorKind::NotFound, message) }))
}

async fn no_method(State(state): Shared, method: Method, uri: Uri) -> Response {
    let message = format!("{method} is not allowed for {}; the header 'allow' lists the allowed methods", uri.path());
    let error = Error { code: Some("method_not_allowed"), ..Error::new(ErrorKind::MethodNotAllowed, message) };
    finish(&state, "none", Err(error))
}

/// Registers the request before its body is read.
fn incoming(
    state: &Arc<RouterState>,
    request: &Request,
) -> impl Future<Output = Result<IncomingRequest, Error>> + use<> {
    // The future must not hold the body, which threads cannot share.
    let (state, caller) = (state.clone(), request.extensions().get::<ApiCaller>().cloned());
    let wanted = wanted_time(request.headers());
    let session = request.headers().get(SESSION).and_then(|name| name.to_str().ok()).map(str::to_owned);
    async move { IncomingRequest::new(&state, caller.as_ref(), wanted?, session.as_deref()).await }
}

/// The time that the client allows.
fn wanted_time(headers: &http::HeaderMap) -> Result<Option<Duration>, Error> {
    Ok(match headers.get(REQUEST_TIMEOUT) {
        None => None,
        Some(value) => Some(value.to_str().ok().and_then(timeout).ok_or_else(|| {
            let got = value.to_str().unwrap_or("(not text)");
            let message = format!("the header '{REQUEST_TIMEOUT}' must be a number of seconds above 0, got {got}");
            Error::invalid(REQUEST_TIMEOUT, message)
        })?),
    })
}

fn timeout(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok().filter(|seconds| *seconds > 0.0)?;
    // A duration that does not fit counts as the longest one.
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

async fn collect(mut events: ChatEvents) -> Result<Vec<v1::ChatEvent>, Error> {
    let mut all = Vec::new();
    while let Some(event) = events.next().await {
        all.push(event?);
    }
    Ok(all)
}

fn json_bytes(body: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Sets the id of every response: the client's own id if it sent one, else that of the trace, else a new one. Starts
/// the trace of traced requests.
async fn request_id(mut request: Request, next: Next) -> Response {
    let valid = |id: &&HeaderValue| id.to_str().is_ok_and(is_request_id);
    let given = request.headers().get(REQUEST_ID).filter(valid).cloned();
    let identify = |request: &mut Request, id: &str| {
        let id = given.clone().or_else(|| HeaderValue::from_str(id).ok())?;
        request.extensions_mut().insert(RequestId(id.clone()));
        Some(id)
    };
    let traced = |(path, ..): &(&str, &str, &str)| request.method() == Method::POST && request.uri().path() == *path;
    let (mut response, id) = match TRACED.into_iter().find(traced) {
        Some((_, endpoint, prefix)) => {
            let headers = request.headers();
            let trace = Trace::new("http", endpoint, prefix, &|name| headers.get(name)?.to_str().ok());
            request.extensions_mut().insert(trace.clone());
            let id = identify(&mut request, &trace.id);
            let response = next.run(request).instrument(trace.span.clone()).await;
            trace.record_status(response.status().as_u16(), response.status().is_server_error());
            (response, id)
        }
        None => {
            let id = identify(&mut request, &format!("req-{}", Uuid::new_v4().simple()));
            (next.run(request).await, id)
        }
    };
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// A single answer that keeps its slot until the client has read it.
fn held(state: &RouterState, response: Response, permit: InFlightPermit) -> Response {
    unread::hold(response, AnswerHold::new(Some(permit), None), state.config.client_stall)
}

/// The same for a text, which may be large, with what was charged for it before it was written.
async fn held_bytes(
    state: &RouterState,
    text: Vec<u8>,
    ignored: &[String],
    permit: InFlightPermit,
    mut charge: MemoryCharge,
    requester: &Requester,
) -> Result<Response, Error> {
    charge.resize(text.len().min(state.memory.answers.most(&requester.caller)), requester.deadline).await?;
    let response = with_ignored_fields(json_bytes(text), ignored);
    Ok(unread::hold(response, AnswerHold::new(Some(permit), Some(charge)), state.config.client_stall))
}

/// Adds the header with the names of ignored fields.
fn with_ignored_fields(mut response: Response, ignored: &[String]) -> Response {
    set_header(&mut response, IGNORED_FIELDS, &listed(ignored));
    response
}

fn set_header(response: &mut Response, name: &'static str, value: &str) {
    if let (false, Ok(value)) = (value.is_empty(), HeaderValue::from_str(value)) {
        response.headers_mut().insert(name, value);
    }
}

/// Turns an error into its response, and counts the request.
fn finish(state: &RouterState, endpoint: &'static str, answer: Result<Response, Error>) -> Response {
    let response = answer.unwrap_or_else(|error| http_response(&error));
    state.surfaces.request("http", endpoint, response.status().as_u16());
    response
}
