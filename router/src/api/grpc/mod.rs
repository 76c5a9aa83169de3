//! `rein.v1.Inference` over gRPC: decodes requests, and encodes events and errors. It must not know engines.

mod message_memory;
pub(crate) mod request;

use std::{pin::Pin, sync::Arc, time::Duration};

use crate::{
    admission::{InFlightPermit, keys::ApiCaller},
    api::{
        authenticate,
        headers::{IGNORED_FIELDS, RELAXED, SESSION, listed, told},
        incoming::IncomingRequest,
        status::grpc_status,
        unread::{self, AnswerHold},
    },
    error::{Error, ErrorKind},
    fair::Requester,
    limits,
    memory::MemoryCharge,
    request::{
        chat, completion,
        delivery::ClientWatch,
        embed::{self, Embeddings},
        generate::RequestContext,
        model::ServedModel,
    },
    request_trace::Trace,
    state::RouterState,
};
use axum::{
    body::Body,
    middleware::{from_fn_with_state, map_response},
};
use futures::{FutureExt, Stream, StreamExt, stream};
use http_body_util::{BodyStream, StreamBody};
use message_memory::MessageCharge;
use rein_proto::{
    DESCRIPTORS, internal,
    v1::{
        self,
        inference_server::{Inference, InferenceServer, SERVICE_NAME},
    },
};
use tokio::time::timeout;
use tonic::{Code, Request, Response, Status, metadata::MetadataMap, service::Routes};
use tonic_health::{
    ServingStatus,
    pb::{
        HealthCheckRequest, HealthCheckResponse, health_check_response,
        health_server::{Health, HealthServer},
    },
    server::{HealthReporter, HealthService},
};
use tracing::Instrument;

pub fn routes(state: Arc<RouterState>, health: HealthReporter) -> Result<Routes, tonic_reflection::server::Error> {
    // The reporter's lock is free here, so this does not wait.
    let _ = health.set_service_status(SERVICE_NAME, ServingStatus::Serving).now_or_never();
    let (limit, stall) = (state.config.memory.body, state.config.client_stall);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name(SERVICE_NAME)
            .with_service_name("grpc.health.v1.Health")
    };
    let health = Readiness { state: state.clone(), service: HealthService::from_health_reporter(health) };
    let authentication = from_fn_with_state(state.clone(), authenticate::grpc);
    let memory = from_fn_with_state(state.clone(), message_memory::charge_message);
    let routes = Routes::new(InferenceServer::new(Service { state }).max_decoding_message_size(limit))
        .add_service(HealthServer::new(health))
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    Ok(routes
        .into_axum_router()
        .layer(map_response(move |response| map_decode_errors(response, limit)))
        .layer(map_response(watch_body))
        .layer(map_response(move |response| hold_unread(response, stall)))
        .layer(memory)
        .layer(authentication)
        .into())
}

/// How the protobuf library's message begins if the bytes do not decode, or if a string in them is not UTF-8.
const NOT_DECODED: &str = "failed to decode Protobuf message";

/// The transport refuses a message over the limit with OUT_OF_RANGE, and one that does not decode with INTERNAL.
/// This replaces both by the errors that HTTP returns.
async fn map_decode_errors(response: http::Response<Body>, limit: usize) -> http::Response<Body> {
    match Status::from_header_map(response.headers()) {
        Some(refused) if refused.code() == Code::OutOfRange => {
            grpc_status(&Error::body_too_large(None, limit)).into_http()
        }
        Some(refused) if refused.code() == Code::Internal && refused.message().starts_with(NOT_DECODED) => {
            let error = Error { code: Some("invalid_protobuf"), ..Error::new(ErrorKind::Invalid, refused.message()) };
            grpc_status(&error).into_http()
        }
        _ => response,
    }
}

/// Watches the client at the response body: the library takes events from the stream before the client reads them.
async fn watch_body(mut response: http::Response<Body>) -> http::Response<Body> {
    match response.extensions_mut().remove::<Option<ClientWatch>>().flatten() {
        Some(watch) => response.map(|body| Body::new(StreamBody::new(watch.wrap(BodyStream::new(body))))),
        None => response,
    }
}

/// Keeps the slot of a single answer until the client has read it.
async fn hold_unread(mut response: http::Response<Body>, stall: Duration) -> http::Response<Body> {
    match response.extensions_mut().remove::<AnswerHold>() {
        Some(kept) => unread::hold(response, kept, stall),
        None => response,
    }
}

struct Service {
    state: Arc<RouterState>,
}

/// The standard health service, which also asks the engines.
struct Readiness {
    state: Arc<RouterState>,
    service: HealthService,
}

#[tonic::async_trait]
impl Health for Readiness {
    type WatchStream = Events<HealthCheckResponse>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let answer = self.service.check(request).await?.into_inner();
        Ok(Response::new(with_readiness(&self.state, answer).await))
    }

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let service = self.service.watch(request).await?.into_inner();
        let watched = HealthWatch { state: self.state.clone(), service, service_status: None, last_sent: None };
        Ok(Response::new(stream::unfold(watched, HealthWatch::next).boxed()))
    }
}

/// The service's status; NOT_SERVING if no engine answers.
async fn with_readiness(state: &RouterState, mut answer: HealthCheckResponse) -> HealthCheckResponse {
    use health_check_response::ServingStatus::{NotServing, Serving};
    if answer.status() == Serving && state.ready().await.is_err() {
        answer.set_status(NotServing);
    }
    answer
}

/// One client's `Watch` call of the health service.
struct HealthWatch {
    state: Arc<RouterState>,
    service: <HealthService as Health>::WatchStream,
    /// The service's last status.
    service_status: Option<HealthCheckResponse>,
    /// The last status that was sent to the client.
    last_sent: Option<i32>,
}

impl HealthWatch {
    /// The next status that differs from the last one sent.
    async fn next(mut self) -> Option<(Result<HealthCheckResponse, Status>, Self)> {
        loop {
            match timeout(limits::HEALTH_TIME, self.service.next()).await {
                Ok(Some(Ok(service_status))) => self.service_status = Some(service_status),
                Ok(Some(Err(error))) => return Some((Err(error), self)),
                Ok(None) => return None,
                // The service's status is unchanged; ask the engines again.
                Err(_) => {}
            }
            let Some(service_status) = self.service_status else { continue };
            let now = with_readiness(&self.state, service_status).await;
            if self.last_sent.replace(now.status) != Some(now.status) {
                return Some((Ok(now), self));
            }
        }
    }
}

/// What the metadata reports about the request.
#[derive(Default)]
struct Labels {
    /// Schema parts that the grammar does not enforce.
    relaxed: Vec<String>,
    /// Fields that were ignored.
    ignored: Vec<String>,
}

type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Inference for Service {
    type ChatStream = Events<v1::ChatEvent>;
    type CompleteStream = Events<v1::CompleteEvent>;

    async fn chat(&self, request: Request<v1::ChatRequest>) -> Result<Response<Self::ChatStream>, Status> {
        let trace = new_trace("chat", "chatcmpl-", request.metadata());
        let answer = async {
            let incoming = self.incoming(&request).await?;
            let (mut job, charge) = self.read(request, &incoming.requester(), request::chat).await?;
            let choices = job.generation.choices() as usize;
            let (context, model) =
                incoming.admit_generation(&trace, job.model.as_deref(), &job.generation, choices).await?;
            let context = RequestContext { memory_charge: charge, ..context };
            trace.record_request(model.name(), true);
            let ignored = job.settle(model.text.template.as_ref());
            let (events, relaxed) = chat::generate(context, model, job).await?;
            let span = trace.span.clone();
            let status = move |event: Result<_, Error>| event.map_err(|error| span.in_scope(|| grpc_status(&error)));
            Ok((events.watch(), events.map(status).boxed(), Labels { relaxed, ignored }))
        };
        let answer = self.state.admission.unless_aborted(answer).instrument(trace.span.clone()).await;
        trace.span.in_scope(|| self.with_labels(&trace, "chat", answer))
    }

    async fn complete(&self, request: Request<v1::CompleteRequest>) -> Result<Response<Self::CompleteStream>, Status> {
        let trace = new_trace("complete", "cmpl-", request.metadata());
        let answer = async {
            let incoming = self.incoming(&request).await?;
            let (job, charge) =
                self.read(request, &incoming.requester(), |_, message| request::complete(message)).await?;
            let (context, model) =
                incoming.admit_generation(&trace, job.model.as_deref(), &job.generation, job.choices()).await?;
            let context = RequestContext { memory_charge: charge, ..context };
            trace.record_request(model.name(), true);
            let (events, relaxed) = completion::generate(context, model, job).await?;
            let span = trace.span.clone();
            let status = move |event: Result<_, Error>| event.map_err(|error| span.in_scope(|| grpc_status(&error)));
            Ok((
                events.watch(),
                completion::events(events).map(status).boxed(),
                Labels { relaxed, ignored: Vec::new() },
            ))
        };
        let answer = self.state.admission.unless_aborted(answer).instrument(trace.span.clone()).await;
        trace.span.in_scope(|| self.with_labels(&trace, "complete", answer))
    }

    async fn embed(&self, request: Request<v1::EmbedRequest>) -> Result<Response<v1::EmbedResponse>, Status> {
        let trace = new_trace("embed", "embd-", request.metadata());
        let answer = async {
            let incoming = self.incoming(&request).await?;
            let (job, memory_charge) =
                self.read(request, &incoming.requester(), |_, message| request::embed(message)).await?;
            let (model, session) = (job.model.as_deref(), job.session.as_deref());
            let slots = embed::slots(&job, incoming.caller());
            let (context, model) = incoming.admit_sequences(&trace, model, job.priority, session, slots).await?;
            let mut context = RequestContext { memory_charge, ..context };
            trace.record_request(model.name(), false);
            let charge = self.state.memory.open_charge(context.requester().caller);
            let Embeddings { vectors, usage, .. } = embed::run(&mut context, model.clone(), job, charge).await?;
            let embeddings = vectors.into_iter().map(|values| v1::Embedding { values }).collect();
            Ok((
                v1::EmbedResponse { model: model.name().into(), embeddings, usage: Some(usage) },
                AnswerHold::new(Some(context.permit), None),
            ))
        };
        let answer = self.state.admission.unless_aborted(answer).instrument(trace.span.clone()).await;
        trace.span.in_scope(|| self.finish_held(&trace, "embed", answer))
    }

    async fn tokenize(&self, request: Request<v1::TokenizeRequest>) -> Result<Response<v1::TokenizeResponse>, Status> {
        let trace = new_trace("tokenize", "req-", request.metadata());
        let answer = async {
            let (requester, permit, model) = self.admit(&request, &request.get_ref().model).await?;
            let charged = request.extensions().get::<MessageCharge>().cloned();
            let bytes = limits::IDS_PER_BYTE * charged.as_ref().map_or(0, |charged| charged.bytes);
            let charge = self.state.memory.charge_answer(bytes, &requester).await?;
            let v1::TokenizeRequest { input, add_special_tokens, .. } = request.into_inner();
            let ids = match input {
                Some(v1::tokenize_request::Input::Text(text)) => {
                    model.encode(text, add_special_tokens.unwrap_or(true), "text", &requester).await?
                }
                Some(v1::tokenize_request::Input::Chat(chat)) => {
                    let bytes = charged.as_ref().map_or(0, |charged| charged.bytes);
                    let read = move || request::chat(bytes, chat);
                    let job = self.state.memory.parse(bytes, &requester, read).await?;
                    chat::render(&model, job, &requester).await?.ids
                }
                None => return Err(Error::missing("input", "either 'text' or 'chat'")),
            };
            let (count, max_context) = (ids.len(), model.bounds().await?.context);
            let write = move |model: &ServedModel| {
                let tokens = ids.iter().map(|&id| model.token_bytes(id)).collect();
                Ok(v1::TokenizeResponse { ids, tokens, max_context })
            };
            Ok((model.run_text_work(count, &requester, write).await?, AnswerHold::new(Some(permit), Some(charge))))
        };
        let answer = self.state.admission.unless_aborted(answer).instrument(trace.span.clone()).await;
        trace.span.in_scope(|| self.finish_held(&trace, "tokenize", answer))
    }

    async fn detokenize(
        &self,
        request: Request<v1::DetokenizeRequest>,
    ) -> Result<Response<v1::DetokenizeResponse>, Status> {
        let trace = new_trace("detokenize", "req-", request.metadata());
        let answer = async {
            let (requester, permit, model) = self.admit(&request, &request.get_ref().model).await?;
            let _charged = request.extensions().get::<MessageCharge>().cloned();
            let v1::DetokenizeRequest { ids, .. } = request.into_inner();
            let bytes = size_of_val(ids.as_slice());
            let charge = self.state.memory.charge_answer(limits::IDS_PER_BYTE * bytes, &requester).await?;
            let read = move |model: &ServedModel| Ok(v1::DetokenizeResponse { text: model.detokenize(&ids)? });
            Ok((model.run_text_work(bytes, &requester, read).await?, AnswerHold::new(Some(permit), Some(charge))))
        };
        let answer = self.state.admission.unless_aborted(answer).instrument(trace.span.clone()).await;
        trace.span.in_scope(|| self.finish_held(&trace, "detokenize", answer))
    }

    async fn render(&self, request: Request<v1::ChatRequest>) -> Result<Response<v1::RenderResponse>, Status> {
        let trace = new_trace("render", "req-", request.metadata());
        let answer = async {
            let (requester, permit, model) = self.admit(&request, &request.get_ref().model).await?;
            let (job, _charge) = self.read(request, &requester, request::chat).await?;
            let rendered = chat::render(&model, job, &requester).await?;
            Ok((
                v1::RenderResponse { prompt: rendered.prompt, token_ids: rendered.ids },
                AnswerHold::new(Some(permit), None),
            ))
        };
        let answer = self.state.admission.unless_aborted(answer).instrument(trace.span.clone()).await;
        trace.span.in_scope(|| self.finish_held(&trace, "render", answer))
    }

    async fn list_models(
        &self,
        request: Request<v1::ListModelsRequest>,
    ) -> Result<Response<v1::ListModelsResponse>, Status> {
        let mut models = Vec::new();
        let names = self.state.names_for(request.extensions().get::<ApiCaller>());
        for name in names.clone() {
            models.push(match self.state.named(&name) {
                Some(model) => v1::Model {
                    id: name,
                    // 0 while the engine does not answer.
                    max_context: model.bounds().await.map_or(0, |bounds| bounds.context),
                    created: model.created,
                    format: model.format.name.into(),
                    parent: model.lora.as_ref().map(|_| model.base_name().to_owned()).unwrap_or_default(),
                },
                // It has had no engine yet.
                None => v1::Model { id: name, ..v1::Model::default() },
            });
        }
        for (alias, name) in self.state.aliases(&names) {
            let model = models.iter().find(|model| model.id == name).cloned();
            models.extend(model.map(|model| v1::Model { id: alias.to_owned(), ..model }));
        }
        self.finish(None, "list_models", Ok(v1::ListModelsResponse { models }))
    }

    async fn load_lora(&self, request: Request<v1::LoadLoraRequest>) -> Result<Response<v1::LoadLoraResponse>, Status> {
        let answer = async {
            let incoming = self.incoming(&request).await?;
            let v1::LoadLoraRequest { name, path, model, replace } = request.into_inner();
            let request = internal::LoadLoraRequest { name, path, replace };
            let lora = self.state.load_lora(request, Some(&model), incoming.caller()).await.map_err(in_grpc)?;
            Ok(v1::LoadLoraResponse { rank: lora.rank })
        };
        let answer = self.state.admission.unless_aborted(answer).await;
        self.finish(None, "load_lora", answer)
    }

    async fn unload_lora(
        &self,
        request: Request<v1::UnloadLoraRequest>,
    ) -> Result<Response<v1::UnloadLoraResponse>, Status> {
        let answer = async {
            let incoming = self.incoming(&request).await?;
            let v1::UnloadLoraRequest { name } = request.into_inner();
            self.state.unload_lora(&name, incoming.caller()).await.map_err(in_grpc)?;
            Ok(v1::UnloadLoraResponse {})
        };
        let answer = self.state.admission.unless_aborted(answer).await;
        self.finish(None, "unload_lora", answer)
    }
}

/// The fields of HTTP's bodies have other names here.
fn in_grpc(mut error: Error) -> Error {
    if let Some(field) = error.param.as_deref().and_then(|param| param.strip_prefix("lora_")) {
        error.message = error.message.replace(&format!("'lora_{field}'"), &format!("'{field}'"));
        error.param = Some(field.to_owned());
    }
    error
}

impl Service {
    fn incoming<T>(&self, request: &Request<T>) -> impl Future<Output = Result<IncomingRequest, Error>> + use<T> {
        let (state, caller) = (self.state.clone(), request.extensions().get::<ApiCaller>().cloned());
        let timeout = request.metadata().get("grpc-timeout");
        let wanted = timeout.and_then(|timeout| parse_timeout(timeout.to_str().ok()?));
        let session = request.metadata().get(SESSION).and_then(|name| name.to_str().ok()).map(str::to_owned);
        async move { IncomingRequest::new(&state, caller.as_ref(), wanted, session.as_deref()).await }
    }

    /// Decodes the message with `read`. Also returns the memory that is charged for it.
    async fn read<M: Send + 'static, J: Send + 'static>(
        &self,
        request: Request<M>,
        requester: &Requester,
        read: fn(usize, M) -> Result<J, Error>,
    ) -> Result<(J, Option<Arc<MemoryCharge>>), Error> {
        let charged = request.extensions().get::<MessageCharge>().cloned();
        let (bytes, charge) = charged.map_or((0, None), |charged| (charged.bytes, Some(charged.charge)));
        let message = request.into_inner();
        Ok((self.state.memory.parse(bytes, requester, move || read(bytes, message)).await?, charge))
    }

    /// Waits for an in-flight slot. Also returns whose request it is, and its model.
    async fn admit<T>(
        &self,
        request: &Request<T>,
        model: &str,
    ) -> Result<(Requester, InFlightPermit, Arc<ServedModel>), Error> {
        let incoming = self.incoming(request).await?;
        let requester = incoming.requester();
        let (permit, model) = incoming.admit(Some(model)).await?;
        Ok((requester, permit, model))
    }

    /// The response of a stream, with a watched client and with the labels in its metadata.
    fn with_labels<T>(
        &self,
        trace: &Trace,
        endpoint: &'static str,
        answer: Result<(ClientWatch, T, Labels), Error>,
    ) -> Result<Response<T>, Status> {
        let (answer, watch, labels) = match answer {
            Ok((watch, events, labels)) => (Ok(events), Some(watch), labels),
            Err(error) => (Err(error), None, Labels::default()),
        };
        let mut response = self.finish(Some(trace), endpoint, answer)?;
        response.extensions_mut().insert(watch);
        for (name, value) in [(RELAXED, told(&labels.relaxed)), (IGNORED_FIELDS, listed(&labels.ignored))] {
            // A value that a header cannot hold is left out.
            if let (false, Ok(value)) = (value.is_empty(), value.parse()) {
                response.metadata_mut().insert(name, value);
            }
        }
        Ok(response)
    }

    /// The response of a single answer, with its slot.
    fn finish_held<T>(
        &self,
        trace: &Trace,
        endpoint: &'static str,
        answer: Result<(T, AnswerHold), Error>,
    ) -> Result<Response<T>, Status> {
        let (answer, kept) = match answer {
            Ok((answer, kept)) => (Ok(answer), Some(kept)),
            Err(error) => (Err(error), None),
        };
        let mut response = self.finish(Some(trace), endpoint, answer)?;
        if let Some(kept) = kept {
            response.extensions_mut().insert(kept);
        }
        Ok(response)
    }

    fn finish<T>(
        &self,
        trace: Option<&Trace>,
        endpoint: &'static str,
        answer: Result<T, Error>,
    ) -> Result<Response<T>, Status> {
        let answer = answer.map(Response::new).map_err(|error| grpc_status(&error));
        let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
        self.state.surfaces.request("grpc", endpoint, code as i32 as u16);
        if let Some(trace) = trace {
            trace.record_status(
                code as i32 as u16,
                matches!(code, Code::Internal | Code::Unavailable | Code::DeadlineExceeded),
            );
        }
        answer
    }
}

fn new_trace(endpoint: &'static str, prefix: &str, metadata: &MetadataMap) -> Trace {
    Trace::new("grpc", endpoint, prefix, &|name| metadata.get(name)?.to_str().ok())
}

/// Parses the header `grpc-timeout`: up to eight digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
