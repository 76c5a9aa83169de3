//! `/v1/responses` over HTTP: runs requests, and serves the responses that are kept.

use std::sync::Arc;

use axum::{
    Extension, Json,
    body::Body,
    extract::{Path, RawQuery, Request, State, rejection::PathRejection},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::header;
use rein_proto::v1;
use rein_text::fields::ParsedBody;
use serde_json::Value;

use super::{Shared, Tools, collect, finish, held, incoming, json_bytes, read, set_header, sse, with_ignored_fields};
use crate::{
    admission::keys::{self, ApiCaller},
    api::{
        frames::{EncodeFrames, write_event},
        headers::{RELAXED, listed},
        responses::{
            self, Origins, Page, ReasoningSealer, ResponseBuilder, ResponseFrame, ResponseParameters, ResponseRequest,
            StoredItems,
        },
        unread::{self, AnswerHold},
    },
    error::{Error, ErrorKind},
    fair::{CallerName, Requester},
    limits,
    memory::MemoryCharge,
    request::{
        chat,
        generate::RequestContext,
        job::ChatJob,
        model::{ServedModel, now},
    },
    request_trace::Trace,
    response_store::StoredResponse,
    seal::{Seal, SealContext, SealPurpose},
    state::RouterState,
};

/// The endpoint's name in metrics.
const ENDPOINT: &str = "responses";
/// Memory of a stored JSON text once its values are built, as a multiple of its bytes.
const VALUES_PER_BYTE: usize = 4;

pub(super) async fn create(
    State(state): Shared,
    Extension(trace): Extension<Trace>,
    Extension(known): Tools,
    request: Request,
) -> Response {
    let answer = async {
        let mut incoming = incoming(&state, &request).await?;
        let requester = incoming.requester();
        let parse = move |body: &[u8]| responses::request(body, &known.responses);
        let (parsed, mut charge) = read(&state, request, &mut incoming, parse).await?;
        let received = receive(&state, parsed, &requester, &mut charge).await?;
        let stream = received.request.stream;
        let (named, generation) = (received.request.model(), received.request.generation());
        let (context, model) = incoming.admit_generation(&trace, named, generation, 1).await?;
        let context = RequestContext { memory_charge: Some(Arc::new(charge)), ..context };
        trace.record_request(model.name(), stream);
        let keeps = state.responses.is_on() && received.request.store;
        let Prepared { job, request, origins, ignored, input } =
            received.prepare(&state, &model, &requester, keeps.then(|| trace.id.clone())).await?;
        // The rest of the request is dropped when its prompt is known.
        let mut charge = state.memory.open_charge(requester.caller.clone());
        charge.resize(request.echo_bytes() + input.as_ref().map_or(0, |input| input.len()), requester.deadline).await?;
        let seals = request.seals;
        // After a failure, the answer promises nothing until a response could be written again.
        let kept = keeps && state.responses.keeps();
        let mut parameters = request.parameters(trace.id.clone(), now(), model.name().to_owned(), kept);
        parameters.seal = seals.then(|| sealer(&state, &model, &requester));
        let generated = chat::generate(context, model, job).await;
        let (events, relaxed) = generated.map_err(|error| origins.rename(error))?;
        let keeper = Keeper { state: state.clone(), caller: requester.caller, input, _charge: charge };
        let mut response = if stream {
            sse::response(trace.span.clone(), events, ResponseFrames::new(parameters, keeper))
        } else {
            let mut builder = ResponseBuilder::new(parameters);
            for event in collect(events).await? {
                builder.event(event, &mut |_| {});
            }
            json_bytes(keeper.keep(&builder))
        };
        set_header(&mut response, RELAXED, &listed(&relaxed));
        Ok(with_ignored_fields(response, &ignored))
    };
    finish(&state, ENDPOINT, state.admission.unless_aborted(answer).await)
}

/// Counts the tokens of a request's prompt. No engine is needed.
pub(super) async fn input_tokens(State(state): Shared, Extension(known): Tools, request: Request) -> Response {
    let answer = async {
        let mut incoming = incoming(&state, &request).await?;
        let requester = incoming.requester();
        let parse = move |body: &[u8]| responses::request(body, &known.responses);
        let (parsed, mut charge) = read(&state, request, &mut incoming, parse).await?;
        let received = receive(&state, parsed, &requester, &mut charge).await?;
        let (permit, model) = incoming.admit(received.request.model()).await?;
        let Prepared { job, origins, ignored, .. } = received.prepare(&state, &model, &requester, None).await?;
        let rendered = chat::render(&model, job, &requester).await.map_err(|error| origins.rename(error))?;
        let answer = Json(responses::input_tokens(rendered.ids.len())).into_response();
        Ok(held(&state, with_ignored_fields(answer, &ignored), permit))
    };
    finish(&state, ENDPOINT, state.admission.unless_aborted(answer).await)
}

pub(super) async fn retrieve(
    State(state): Shared,
    id: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
    caller: Caller,
) -> Response {
    let answer = async {
        let streams = pairs(query.as_deref()).any(|(name, value)| name == "stream" && value == "true");
        let (_, stored, charge) = find(&state, id, &caller).await?;
        if streams {
            return Err(Error::unsupported("stream", "a kept response is sent in one piece"));
        }
        // The client reads the kept bytes themselves.
        let body = Body::from(Bytes::from_owner(stored.response));
        let response = ([(header::CONTENT_TYPE, "application/json")], body).into_response();
        Ok(unread::hold(response, AnswerHold::new(None, Some(charge)), state.config.client_stall))
    };
    finish(&state, ENDPOINT, answer.await)
}

pub(super) async fn delete(State(state): Shared, id: Result<Path<String>, PathRejection>, caller: Caller) -> Response {
    let answer = async {
        let id = path_id(id)?;
        match state.responses.delete(&name(&caller), &id).await? {
            true => Ok(Json(responses::deleted(&id)).into_response()),
            false => Err(not_found(&state, None, &id)),
        }
    };
    finish(&state, ENDPOINT, answer.await)
}

pub(super) async fn cancel(State(state): Shared, id: Result<Path<String>, PathRejection>, caller: Caller) -> Response {
    let answer = async {
        find(&state, id, &caller).await?;
        let message = "only background responses can be cancelled, and this server has none: close the connection of a \
                       request to end it";
        Err(Error::new(ErrorKind::Invalid, message))
    };
    finish(&state, ENDPOINT, answer.await)
}

pub(super) async fn input_items(
    State(state): Shared,
    id: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
    caller: Caller,
) -> Response {
    let answer = async {
        let page = Page::of_query(pairs(query.as_deref()))?;
        let (id, stored, kept) = find(&state, id, &caller).await?;
        let deadline = tokio::time::Instant::now() + state.config.request_time;
        let requester = keys::requester(caller.as_deref(), deadline);
        let mut charge = state.memory.open_charge(requester.caller.clone());
        charge.resize(VALUES_PER_BYTE * stored.input.len(), deadline).await?;
        let shown = state.memory.parse(stored.input.len(), &requester, move || {
            let page = responses::page(responses::input_items(&id, values(&stored.input)?), &page)?;
            serde_json::to_vec(&page).map_err(|error| Error::internal("the answer could not be written", error))
        });
        Ok(unread::hold(json_bytes(shown.await?), AnswerHold::new(None, Some(kept)), state.config.client_stall))
    };
    finish(&state, ENDPOINT, answer.await)
}

/// A decoded request, with what it continues.
struct Received {
    request: ResponseRequest,
    history: StoredItems,
    bytes: usize,
    ignored: Vec<String>,
}

struct Prepared {
    job: ChatJob,
    request: ResponseRequest,
    origins: Origins,
    ignored: Vec<String>,
    /// The input to keep.
    input: Option<Arc<[u8]>>,
}

/// Loads what a request refers to.
async fn receive(
    state: &RouterState,
    parsed: ParsedBody<ResponseRequest>,
    requester: &Requester,
    charge: &mut MemoryCharge,
) -> Result<Received, Error> {
    let ParsedBody { value: mut request, mut bytes, ignored } = parsed;
    let mut load = async |param: &str, id: &str| {
        let cost = state.responses.cost(&requester.caller, id).await?.unwrap_or_default();
        let _reads = state.memory.charge_answer(cost, requester).await?;
        let found = state.responses.get(&requester.caller, id).await?;
        let stored = found.ok_or_else(|| not_found(state, Some(param), id))?;
        let size = stored.input.len() + stored.response.len();
        bytes += VALUES_PER_BYTE * size;
        charge.resize(bytes, requester.deadline).await?;
        let read = move || Ok((values(&stored.input)?, output(&stored.response)?));
        state.memory.parse(size, requester, read).await
    };
    let mut history = Vec::new();
    if let Some(id) = &request.previous {
        let (input, output) = load("previous_response_id", id).await?;
        history = input;
        history.extend(output);
    }
    for reference in responses::referenced(request.items_mut()) {
        let param = format!("input[{}].id", reference.index);
        let output = match &reference.response {
            Some(id) => load(&param, id).await?.1,
            None => Vec::new(),
        };
        let item = output.into_iter().find(|item| item.get("id").is_some_and(|id| *id == *reference.item));
        let item = item.ok_or_else(|| not_found(state, Some(&param), &reference.item))?;
        if let Some(place) = request.items_mut().get_mut(reference.index) {
            *place = item;
        }
    }
    Ok(Received { request, history, bytes, ignored })
}

impl Received {
    /// Converts the input. `keep` is the id under which it will be kept.
    async fn prepare(
        self,
        state: &Arc<RouterState>,
        model: &Arc<ServedModel>,
        requester: &Requester,
        keep: Option<String>,
    ) -> Result<Prepared, Error> {
        let Received { mut request, history, bytes, mut ignored } = self;
        let (seal, caller) = (state.config.seal.clone(), requester.caller.clone());
        let convert = move |model: &ServedModel| {
            let input = keep.map(|id| {
                let items: StoredItems = history.iter().cloned().chain(request.items()).collect();
                crate::api::to_json(&responses::input_items(&id, items)).into()
            });
            let open = |sealed: &str| {
                let plain = seal.open(context(model, &caller), sealed)?;
                String::from_utf8(plain).ok()
            };
            let prepared = request.prepare(history, bytes, &open)?;
            Ok((prepared, request, input))
        };
        let (mut prepared, request, input) = model.run_text_work(bytes, requester, convert).await?;
        ignored.extend(prepared.ignored);
        let unread = prepared.job.settle(model.text.template.as_ref());
        ignored.extend(unread.into_iter().map(|name| prepared.origins.field(name)));
        Ok(Prepared { job: prepared.job, request, origins: prepared.origins, ignored, input })
    }
}

fn context<'a>(model: &'a ServedModel, caller: &'a CallerName) -> SealContext<'a> {
    SealContext { purpose: SealPurpose::Reasoning, model: model.name(), caller: caller.as_deref() }
}

fn sealer(state: &RouterState, model: &Arc<ServedModel>, requester: &Requester) -> ReasoningSealer {
    let (seal, model, caller): (Seal, _, _) = (state.config.seal.clone(), model.clone(), requester.caller.clone());
    Box::new(move |text| seal.seal(context(&model, &caller), text.as_bytes()))
}

/// Keeps a response when it is complete.
struct Keeper {
    state: Arc<RouterState>,
    caller: CallerName,
    /// None: the response is not kept.
    input: Option<Arc<[u8]>>,
    /// Of what the answer repeats of the request, and of the input.
    _charge: MemoryCharge,
}

impl Keeper {
    /// Returns the response's object.
    fn keep(self, builder: &ResponseBuilder) -> Vec<u8> {
        let object = builder.object();
        if let Some(input) = self.input {
            let stored = StoredResponse { response: object.as_slice().into(), input };
            self.state.responses.put(&self.caller, builder.id(), stored);
        }
        object
    }
}

/// The events of a streamed response.
struct ResponseFrames {
    builder: ResponseBuilder,
    keeper: Option<Keeper>,
}

impl ResponseFrames {
    fn new(parameters: ResponseParameters, keeper: Keeper) -> Self {
        ResponseFrames { builder: ResponseBuilder::new(parameters), keeper: Some(keeper) }
    }

    /// Keeps the response before the client learns that it is complete.
    fn keep_final(&mut self) {
        if self.builder.is_final()
            && self.keeper.as_ref().is_some_and(|keeper| keeper.input.is_some())
            && let Some(keeper) = self.keeper.take()
        {
            drop(keeper.keep(&self.builder));
        }
    }
}

fn write_frame(frame: &ResponseFrame<'_>, out: &mut Vec<u8>) {
    let payload = crate::api::to_json(frame);
    write_event(frame.kind, &payload, out);
}

impl EncodeFrames for ResponseFrames {
    fn event(&mut self, event: v1::ChatEvent, out: &mut Vec<u8>) {
        self.builder.event(event, &mut |frame| write_frame(frame, out));
        self.keep_final();
    }

    fn error(&mut self, error: &Error, out: &mut Vec<u8>) {
        self.builder.fail(error, &mut |frame| write_frame(frame, out));
        self.keep_final();
    }

    fn end(&mut self, _: &mut Vec<u8>) {}
}

fn path_id(id: Result<Path<String>, PathRejection>) -> Result<String, Error> {
    id.map(|Path(id)| id).map_err(|rejection| {
        let message = format!("'response_id' in the path is invalid: {}", rejection.body_text());
        Error::invalid("response_id", message)
    })
}

/// The API key of a request without a body.
type Caller = Option<Extension<ApiCaller>>;

fn name(caller: &Caller) -> CallerName {
    keys::caller_name(caller.as_deref())
}

async fn find(
    state: &RouterState,
    id: Result<Path<String>, PathRejection>,
    caller: &Caller,
) -> Result<(String, StoredResponse, MemoryCharge), Error> {
    let id = path_id(id)?;
    let deadline = tokio::time::Instant::now() + limits::MEMORY_WAIT;
    let requester = keys::requester(caller.as_deref(), deadline);
    let cost = state.responses.cost(&requester.caller, &id).await?.ok_or_else(|| not_found(state, None, &id))?;
    let charge = state.memory.charge_answer(cost, &requester).await?;
    let found = state.responses.get(&requester.caller, &id).await?;
    found.map(|stored| (id.clone(), stored, charge)).ok_or_else(|| not_found(state, None, &id))
}

/// `param` is the field of a body that has the id.
fn not_found(state: &RouterState, param: Option<&str>, id: &str) -> Error {
    if !state.responses.is_on() {
        let what = param.map_or("responses cannot be fetched".to_owned(), |param| format!("'{param}' cannot be used"));
        let message = format!("{what}: this server keeps no responses; start it with '--responses-store memory'");
        // A field that cannot work is wrong; a path that does not exist is not found.
        let (kind, code) = match param {
            Some(_) => (ErrorKind::Invalid, "unsupported_parameter"),
            None => (ErrorKind::NotFound, "response_not_found"),
        };
        return Error { param: param.map(str::to_owned), code: Some(code), ..Error::new(kind, message) };
    }
    let message = format!("no response or item with the id '{id}' is kept for this API key");
    Error {
        param: param.map(str::to_owned),
        code: Some("response_not_found"),
        ..Error::new(ErrorKind::NotFound, message)
    }
}

fn pairs(query: Option<&str>) -> impl Iterator<Item = (&str, &str)> {
    query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='))
}

/// The items of a kept JSON text.
fn values(json: &[u8]) -> Result<StoredItems, Error> {
    serde_json::from_slice(json).map_err(|error| Error::internal("a kept response could not be read", error))
}

fn output(response: &[u8]) -> Result<StoredItems, Error> {
    let mut response: Value = serde_json::from_slice(response)
        .map_err(|error| Error::internal("a kept response could not be read", error))?;
    match response.get_mut("output").map(Value::take) {
        Some(Value::Array(items)) => Ok(items),
        _ => Ok(Vec::new()),
    }
}
