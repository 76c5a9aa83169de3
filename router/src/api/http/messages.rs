//! Anthropic's Messages API over HTTP: its routes, and the layer that gives errors its status codes and shape.

use std::sync::Arc;

use axum::{
    Extension,
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use http::{HeaderName, header};

use super::{
    RequestId, Shared, Tools, collect, held, incoming, json_bytes, read, set_header, sse, with_ignored_fields,
};
use crate::{
    api::{
        anthropic::{self, MessageFrames, MessagesRequest, ThinkingSeal},
        headers::{RELAXED, listed},
        status::{anthropic_body, anthropic_code, http_response},
    },
    error::Error,
    request::{chat, generate::RequestContext},
    request_trace::Trace,
    state::RouterState,
};
use rein_text::fields::ParsedBody;

const PATH: &str = "/v1/messages";
/// Anthropic's header with the id of a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

pub async fn create(
    State(state): Shared,
    Extension(trace): Extension<Trace>,
    Extension(known): Tools,
    id: Option<Extension<RequestId>>,
    request: Request,
) -> Response {
    let answer = async {
        let mut incoming = incoming(&state, &request).await?;
        let seal = ThinkingSeal::new(&state.config.seal, incoming.requester().caller);
        let opener = seal.clone();
        let parse = move |body: &[u8]| anthropic::messages(body, &opener, &known.messages);
        let (ParsedBody { value, bytes, mut ignored }, charge) = read(&state, request, &mut incoming, parse).await?;
        let MessagesRequest { mut job, stream, answer, origins } = value;
        job.bytes = bytes;
        let choices = job.generation.choices() as usize;
        let (context, model) =
            incoming.admit_generation(&trace, job.model.as_deref(), &job.generation, choices).await?;
        let context = RequestContext { memory_charge: Some(Arc::new(charge)), ..context };
        ignored.extend(job.settle(model.text.template.as_ref()).iter().map(|field| origins.rename_field(field)));
        trace.record_request(model.name(), stream);
        let name = model.name().to_owned();
        let (events, relaxed) = chat::generate(context, model, job).await.map_err(|error| origins.rename(error))?;
        let mut response = if stream {
            let id = id.as_ref().and_then(|Extension(RequestId(id))| id.to_str().ok().map(str::to_owned));
            sse::response(trace.span.clone(), events, MessageFrames::new(answer, seal, origins, &name, id))
        } else {
            let events = collect(events).await.map_err(|error| origins.rename(error))?;
            json_bytes(anthropic::message_body(events, answer, &seal))
        };
        set_header(&mut response, RELAXED, &listed(&relaxed));
        Ok(with_ignored_fields(response, &ignored))
    };
    finish(&state, "messages", state.admission.unless_aborted(answer).await)
}

pub async fn count_tokens(State(state): Shared, Extension(known): Tools, request: Request) -> Response {
    let answer = async {
        let mut incoming = incoming(&state, &request).await?;
        let requester = incoming.requester();
        let seal = ThinkingSeal::new(&state.config.seal, requester.caller.clone());
        let parse = move |body: &[u8]| anthropic::count_tokens(body, &seal, &known.messages);
        let (ParsedBody { value, bytes, mut ignored }, _charge) = read(&state, request, &mut incoming, parse).await?;
        let MessagesRequest { mut job, origins, .. } = value;
        job.bytes = bytes;
        let (permit, model) = incoming.admit(job.model.as_deref()).await?;
        ignored.extend(job.settle(model.text.template.as_ref()).iter().map(|field| origins.rename_field(field)));
        let rendered = chat::render(&model, job, &requester).await.map_err(|error| origins.rename(error))?;
        let answer = json_bytes(anthropic::counted(rendered.ids.len()));
        Ok(held(&state, with_ignored_fields(answer, &ignored), permit))
    };
    finish(&state, "count_tokens", state.admission.unless_aborted(answer).await)
}

/// Turns an error into its response, and counts the request. [`errors`] writes the body.
fn finish(state: &RouterState, endpoint: &'static str, answer: Result<Response, Error>) -> Response {
    let response = answer.unwrap_or_else(|error| {
        let mut response = http_response(&error);
        *response.status_mut() = anthropic_code(&error);
        response
    });
    state.surfaces.request("http", endpoint, response.status().as_u16());
    response
}

/// Gives errors of this API, also those of authentication and of unknown paths below it, Anthropic's status and body.
/// Sets the header with the request's id that Anthropic's clients read.
pub async fn errors(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if !path.strip_prefix(PATH).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
        return next.run(request).await;
    }
    let id = request.extensions().get::<RequestId>().cloned();
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<Error>() {
        let text = id.as_ref().and_then(|RequestId(id)| id.to_str().ok());
        let body = anthropic_body(&error, text).to_string();
        *response.status_mut() = anthropic_code(&error);
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = Body::from(body);
    }
    if let Some(RequestId(id)) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}
