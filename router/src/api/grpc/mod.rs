//! `rein.v1.Inference` over gRPC: requests in, the same typed events out, status codes.

pub(crate) mod request;
mod weigh;

use std::{pin::Pin, sync::Arc, time::Duration};

use crate::{
    admission::{InFlightPermit, keys::ApiCaller},
    api::{
        authenticate,
        headers::{IGNORED_FIELDS, RELAXED, SESSION, listed},
        incoming::IncomingRequest,
        status::grpc_status,
    },
    error::{Error, Kind},
    limits,
    request::{chat, completion, delivery::Watch, generate::RequestContext, memory::MemoryCharge, model::ServedModel},
    state::RouterState,
    trace::Trace,
};
use axum::{
    body::Body,
    middleware::{from_fn_with_state, map_response},
};
use futures::{FutureExt, Stream, StreamExt, stream};
use http_body_util::{BodyStream, StreamBody};
use rein_proto::{
    DESCRIPTORS,
    v1::{
        self,
        inference_server::{Inference, InferenceServer, SERVICE_NAME},
    },
};
use tokio::time::{Instant, timeout};
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
use weigh::Charged;

pub fn routes(state: Arc<RouterState>, health: HealthReporter) -> Result<Routes, tonic_reflection::server::Error> {
    // Nobody else holds the reporter's lock yet, so this does not wait.
    let _ = health.set_service_status(SERVICE_NAME, ServingStatus::Serving).now_or_never();
    let limit = state.config.body_bytes;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name(SERVICE_NAME)
            .with_service_name("grpc.health.v1.Health")
    };
    let health = Readiness { state: state.clone(), service: HealthService::from_health_reporter(health) };
    let gate = from_fn_with_state(state.clone(), authenticate::grpc);
    let memory = from_fn_with_state(state.clone(), weigh::memory);
    let routes = Routes::new(InferenceServer::new(Service { state }).max_decoding_message_size(limit))
        .add_service(HealthServer::new(health))
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    Ok(routes
        .into_axum_router()
        .layer(map_response(move |response| unreadable(response, limit)))
        .layer(map_response(watched))
        .layer(memory)
        .layer(gate)
        .into())
}

/// How the protobuf library begins what it says of bytes that are no such message, or hold a text that is not UTF-8.
const NOT_DECODED: &str = "failed to decode Protobuf message";

/// The transport refuses a message over the limit as OUT_OF_RANGE, and one that it cannot read as INTERNAL, in its own
/// words; this says it as HTTP does.
async fn unreadable(response: http::Response<Body>, limit: usize) -> http::Response<Body> {
    match Status::from_header_map(response.headers()) {
        Some(refused) if refused.code() == Code::OutOfRange => {
            grpc_status(&Error::body_too_large(None, limit)).into_http()
        }
        Some(refused) if refused.code() == Code::Internal && refused.message().starts_with(NOT_DECODED) => {
            let error = Error { code: Some("invalid_protobuf"), ..Error::new(Kind::Invalid, refused.message()) };
            grpc_status(&error).into_http()
        }
        _ => response,
    }
}

/// What is sent of a stream's body is what its client reads; the library takes events from the stream ahead of that.
async fn watched(mut response: http::Response<Body>) -> http::Response<Body> {
    match response.extensions_mut().remove::<Option<Watch>>().flatten() {
        Some(watch) => response.map(|body| Body::new(StreamBody::new(watch.over(BodyStream::new(body))))),
        None => response,
    }
}

struct Service {
    state: Arc<RouterState>,
}

/// The usual health service, which asks the engines too.
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
        let watched = Watched { state: self.state.clone(), service, said: None, told: None };
        Ok(Response::new(stream::unfold(watched, Watched::next).boxed()))
    }
}

/// What the service says, unless no engine answers.
async fn with_readiness(state: &RouterState, mut answer: HealthCheckResponse) -> HealthCheckResponse {
    use health_check_response::ServingStatus::{NotServing, Serving};
    if answer.status() == Serving && state.ready().await.is_err() {
        answer.set_status(NotServing);
    }
    answer
}

/// One client's `Watch`.
struct Watched {
    state: Arc<RouterState>,
    service: <HealthService as Health>::WatchStream,
    /// The service's last word.
    said: Option<HealthCheckResponse>,
    /// What the client heard last.
    told: Option<i32>,
}

impl Watched {
    /// The next status that is another than the last.
    async fn next(mut self) -> Option<(Result<HealthCheckResponse, Status>, Self)> {
        loop {
            match timeout(limits::HEALTH_TIME, self.service.next()).await {
                Ok(Some(Ok(said))) => self.said = Some(said),
                Ok(Some(Err(error))) => return Some((Err(error), self)),
                Ok(None) => return None,
                // Nothing new from the service; the engines are asked again.
                Err(_) => {}
            }
            let Some(said) = self.said else { continue };
            let now = with_readiness(&self.state, said).await;
            if self.told.replace(now.status) != Some(now.status) {
                return Some((Ok(now), self));
            }
        }
    }
}

#[derive(Default)]
struct Labels {
    /// Where the grammar is laxer than a schema.
    relaxed: Vec<String>,
    /// Fields that nothing reads.
    ignored: Vec<String>,
}

type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Inference for Service {
    type ChatStream = Events<v1::ChatEvent>;
    type CompleteStream = Events<v1::CompleteEvent>;

    async fn chat(&self, request: Request<v1::ChatRequest>) -> Result<Response<Self::ChatStream>, Status> {
        let trace = traced("chat", "chatcmpl", request.metadata());
        let answer = async {
            let arrival = self.arrival(&request)?;
            let (job, held) = self.read(request, arrival.deadline(), request::chat).await?;
            let call = RequestContext { held, ..arrival.call(&trace, &job.generation).await? };
            let model = self.state.model(job.model.as_deref())?.clone();
            trace.asks(model.name(), true);
            let ignored = job.unread(model.text.template.as_ref());
            let (events, relaxed) = chat::generate(call, model, job).await?;
            let span = trace.span.clone();
            let status = move |event: Result<_, Error>| event.map_err(|error| span.in_scope(|| grpc_status(&error)));
            Ok((events.watch(), events.map(status).boxed(), Labels { relaxed, ignored }))
        };
        let answer = self.state.admission.unless_aborted(answer).instrument(trace.span.clone()).await;
        trace.span.in_scope(|| self.labelled(&trace, "chat", answer))
    }

    async fn complete(&self, request: Request<v1::CompleteRequest>) -> Result<Response<Self::CompleteStream>, Status> {
        let trace = traced("complete", "cmpl", request.metadata());
        let answer = async {
            let arrival = self.arrival(&request)?;
            let (job, held) = self.read(request, arrival.deadline(), |_, message| request::complete(message)).await?;
            let call = RequestContext { held, ..arrival.call(&trace, &job.generation).await? };
            let model = self.state.model(job.model.as_deref())?.clone();
            trace.asks(model.name(), true);
            let (events, relaxed) = completion::generate(call, model, job).await?;
            let span = trace.span.clone();
            let status = move |event: Result<_, Error>| event.map_err(|error| span.in_scope(|| grpc_status(&error)));
            Ok((
                events.watch(),
                completion::events(events).map(status).boxed(),
                Labels { relaxed, ignored: Vec::new() },
            ))
        };
        let answer = self.state.admission.unless_aborted(answer).instrument(trace.span.clone()).await;
        trace.span.in_scope(|| self.labelled(&trace, "complete", answer))
    }

    async fn tokenize(&self, request: Request<v1::TokenizeRequest>) -> Result<Response<v1::TokenizeResponse>, Status> {
        let trace = traced("tokenize", "req", request.metadata());
        let answer = async {
            let (deadline, _permit) = self.admitted(&request).await?;
            let charged = request.extensions().get::<Charged>().cloned();
            let v1::TokenizeRequest { model, input, add_special_tokens } = request.into_inner();
            let model = self.state.model_or_only(Some(&model))?;
            let ids = match input {
                Some(v1::tokenize_request::Input::Text(text)) => {
                    model.encode(text, add_special_tokens.unwrap_or(true), "text", deadline, None).await?
                }
                Some(v1::tokenize_request::Input::Chat(chat)) => {
                    let bytes = charged.as_ref().map_or(0, |charged| charged.bytes);
                    let read = move || request::chat(bytes, chat);
                    let job = self.state.memory.parse(bytes, deadline, read).await?;
                    chat::render(&model, job, deadline).await?.ids
                }
                None => return Err(Error::missing("input", "either 'text' or 'chat'")),
            };
            let (count, max_context) = (ids.len(), model.bounds().await?.context);
            let write = move |model: &ServedModel| {
                let tokens = ids.iter().map(|&id| model.token_bytes(id)).collect();
                Ok(v1::TokenizeResponse { ids, tokens, max_context })
            };
            model.prepare(count, deadline, write).await
        };
        let answer = self.state.admission.unless_aborted(answer).instrument(trace.span.clone()).await;
        trace.span.in_scope(|| self.finish(Some(&trace), "tokenize", answer))
    }

    async fn detokenize(
        &self,
        request: Request<v1::DetokenizeRequest>,
    ) -> Result<Response<v1::DetokenizeResponse>, Status> {
        let trace = traced("detokenize", "req", request.metadata());
        let answer = async {
            let (deadline, _permit) = self.admitted(&request).await?;
            let _charged = request.extensions().get::<Charged>().cloned();
            let v1::DetokenizeRequest { model, ids } = request.into_inner();
            let model = self.state.model_or_only(Some(&model))?;
            let bytes = size_of_val(ids.as_slice());
            let read = move |model: &ServedModel| Ok(v1::DetokenizeResponse { text: model.detokenize(&ids)? });
            model.prepare(bytes, deadline, read).await
        };
        let answer = self.state.admission.unless_aborted(answer).instrument(trace.span.clone()).await;
        trace.span.in_scope(|| self.finish(Some(&trace), "detokenize", answer))
    }

    async fn render(&self, request: Request<v1::ChatRequest>) -> Result<Response<v1::RenderResponse>, Status> {
        let trace = traced("render", "req", request.metadata());
        let answer = async {
            let (deadline, _permit) = self.admitted(&request).await?;
            let (job, _held) = self.read(request, deadline, request::chat).await?;
            let model = self.state.model_or_only(job.model.as_deref())?;
            let rendered = chat::render(&model, job, deadline).await?;
            Ok(v1::RenderResponse { prompt: rendered.prompt, token_ids: rendered.ids })
        };
        let answer = self.state.admission.unless_aborted(answer).instrument(trace.span.clone()).await;
        trace.span.in_scope(|| self.finish(Some(&trace), "render", answer))
    }

    async fn list_models(&self, _: Request<v1::ListModelsRequest>) -> Result<Response<v1::ListModelsResponse>, Status> {
        let mut models = Vec::new();
        for model in self.state.models().iter() {
            models.push(v1::Model {
                id: model.name().into(),
                // Unknown while the engine does not answer.
                max_context: model.bounds().await.map_or(0, |bounds| bounds.context),
                created: model.created,
                format: model.format.name.into(),
            });
        }
        self.finish(None, "list_models", Ok(v1::ListModelsResponse { models }))
    }
}

impl Service {
    fn arrival<T>(&self, request: &Request<T>) -> Result<IncomingRequest, Error> {
        let timeout = request.metadata().get("grpc-timeout");
        let wanted = timeout.and_then(|timeout| parse_timeout(timeout.to_str().ok()?));
        let session = request.metadata().get(SESSION).and_then(|name| name.to_str().ok());
        IncomingRequest::new(&self.state, request.extensions().get::<ApiCaller>(), wanted, session)
    }

    /// What `read` makes of the message, and what that holds of the budget.
    async fn read<M: Send + 'static, J: Send + 'static>(
        &self,
        request: Request<M>,
        deadline: Instant,
        read: fn(usize, M) -> Result<J, Error>,
    ) -> Result<(J, Option<Arc<MemoryCharge>>), Error> {
        let charged = request.extensions().get::<Charged>().cloned();
        let (bytes, held) = charged.map_or((0, None), |charged| (charged.bytes, Some(charged.held)));
        let message = request.into_inner();
        Ok((self.state.memory.parse(bytes, deadline, move || read(bytes, message)).await?, held))
    }

    /// The deadline of a request, when its turn has come.
    async fn admitted<T>(&self, request: &Request<T>) -> Result<(Instant, InFlightPermit), Error> {
        let arrival = self.arrival(request)?;
        Ok((arrival.deadline(), arrival.permit().await?))
    }

    /// A stream whose reader is watched, and in the metadata what of the request has no effect.
    fn labelled<T>(
        &self,
        trace: &Trace,
        endpoint: &'static str,
        answer: Result<(Watch, T, Labels), Error>,
    ) -> Result<Response<T>, Status> {
        let (answer, watch, labels) = match answer {
            Ok((watch, events, labels)) => (Ok(events), Some(watch), labels),
            Err(error) => (Err(error), None, Labels::default()),
        };
        let mut response = self.finish(Some(trace), endpoint, answer)?;
        response.extensions_mut().insert(watch);
        for (name, value) in [(RELAXED, labels.relaxed.join("; ")), (IGNORED_FIELDS, listed(&labels.ignored))] {
            // What no header can hold is told by the surface that can.
            if let (false, Ok(value)) = (value.is_empty(), value.parse()) {
                response.metadata_mut().insert(name, value);
            }
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
            trace.answered(
                code as i32 as u16,
                matches!(code, Code::Internal | Code::Unavailable | Code::DeadlineExceeded),
            );
        }
        answer
    }
}

fn traced(endpoint: &'static str, prefix: &str, metadata: &MetadataMap) -> Trace {
    Trace::new("grpc", endpoint, prefix, &|name| metadata.get(name)?.to_str().ok())
}

/// The header `grpc-timeout`: up to eight digits and a unit.
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
