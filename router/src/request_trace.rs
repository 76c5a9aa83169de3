//! Traces a request: one span from its arrival to its last event, with a child span for each stage. Nothing here runs
//! per token.

use rein_proto::{
    trace_context::{self, AttributeValue},
    v1,
};
use tracing::{Span, field::Empty, info_span};
use uuid::Uuid;

use crate::limits;

/// The HTTP header or gRPC metadata with the client's own id of a request.
pub const REQUEST_ID: &str = "x-request-id";

/// The `gen_ai` attributes are those of OpenTelemetry's semantic conventions 1.42, for the dashboards that know them.
const PROVIDER: &str = "rein";

/// `gen_ai.operation.name` of an endpoint that computes something.
fn operation(endpoint: &str) -> Option<&'static str> {
    match endpoint {
        "chat" | "messages" | "responses" => Some("chat"),
        "completions" => Some("text_completion"),
        "embeddings" => Some("embeddings"),
        _ => None,
    }
}

/// The id and the span of one request.
#[derive(Debug, Clone)]
pub struct Trace {
    /// The id of the response, which is also in every log line of the request.
    pub id: String,
    pub span: Span,
}

impl Trace {
    /// `prefix` is that of its id. `header` returns the value of an HTTP header or of gRPC metadata by name.
    pub fn new<'a>(
        surface: &'static str,
        endpoint: &'static str,
        prefix: &str,
        header: &'a dyn Fn(&str) -> Option<&'a str>,
    ) -> Self {
        let id = format!("{prefix}{}", Uuid::new_v4().simple());
        let span = info_span!(
            "request",
            otel.kind = "server",
            otel.status_code = Empty,
            request_id = id,
            trace_id = Empty,
            surface,
            endpoint,
            client_request_id = Empty,
            model = Empty,
            stream = Empty,
            status = Empty,
            finish_reason = Empty,
            prompt_tokens = Empty,
            cached_tokens = Empty,
            completion_tokens = Empty,
        );
        trace_context::adopt(&span, header);
        if let Some(own) = header(REQUEST_ID).filter(|own| is_request_id(own)) {
            span.record("client_request_id", own);
        }
        let trace = Trace { id, span };
        if let Some(operation) = operation(endpoint) {
            trace.text("gen_ai.operation.name", operation);
            trace.text("gen_ai.provider.name", PROVIDER);
            trace.text("gen_ai.response.id", &trace.id);
        }
        trace
    }

    pub fn record_request(&self, model: &str, stream: bool) {
        self.span.record("model", model);
        self.span.record("stream", stream);
        self.text("gen_ai.request.model", model);
        self.text("gen_ai.response.model", model);
        self.set("gen_ai.request.stream", AttributeValue::Flag(stream));
    }

    /// What the request asks of the generation, as far as it says it.
    pub fn record_generation(&self, sampling: &v1::Sampling, limits: &v1::Limits, choices: Option<u32>) {
        let integers = [
            ("gen_ai.request.max_tokens", limits.max_tokens.map(i64::from)),
            ("gen_ai.request.seed", sampling.seed.and_then(|seed| i64::try_from(seed).ok())),
            ("gen_ai.request.choice.count", choices.filter(|n| *n != 1).map(i64::from)),
        ];
        for (name, value) in integers {
            value.into_iter().for_each(|value| self.set(name, AttributeValue::Integer(value)));
        }
        let numbers = [
            ("gen_ai.request.temperature", sampling.temperature.map(f64::from)),
            ("gen_ai.request.top_p", sampling.top_p.map(f64::from)),
            ("gen_ai.request.top_k", sampling.top_k.map(f64::from)),
            ("gen_ai.request.presence_penalty", sampling.presence_penalty.map(f64::from)),
            ("gen_ai.request.frequency_penalty", sampling.frequency_penalty.map(f64::from)),
        ];
        for (name, value) in numbers {
            value.into_iter().for_each(|value| self.set(name, AttributeValue::Number(value)));
        }
    }

    fn set(&self, name: &'static str, value: AttributeValue) {
        trace_context::set(&self.span, name, value);
    }

    fn text(&self, name: &'static str, text: &str) {
        self.set(name, AttributeValue::Text(text.to_owned()));
    }

    /// Records the answer's first status: an HTTP status or a gRPC code.
    pub fn record_status(&self, status: u16, failed: bool) {
        self.span.record("status", status);
        if failed {
            self.record_failure();
            self.text("error.type", &status.to_string());
        }
    }

    pub fn record_failure(&self) {
        self.span.record("otel.status_code", "ERROR");
    }

    /// The span of a sequence until an engine has accepted it.
    pub fn queue_span(&self) -> Span {
        within(&self.span, info_span!(parent: &self.span, "queue", engine = Empty))
    }

    pub fn record_end(&self, usage: &v1::Usage, finish_reason: Option<v1::FinishReason>) {
        let span = &self.span;
        span.record("prompt_tokens", usage.prompt_tokens);
        span.record("cached_tokens", usage.cached_tokens);
        span.record("completion_tokens", usage.completion_tokens);
        span.record("finish_reason", finish_reason.map_or("none", finish));
        for (name, tokens) in [
            ("gen_ai.usage.input_tokens", usage.prompt_tokens),
            ("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens),
            ("gen_ai.usage.output_tokens", usage.completion_tokens),
        ] {
            self.set(name, AttributeValue::Integer(tokens.into()));
        }
        if let Some(reason) = finish_reason {
            self.set("gen_ai.response.finish_reasons", AttributeValue::Texts(vec![finish(reason).to_owned()]));
        }
    }
}

/// The span of a sequence that lost its engine, until another engine has accepted it.
pub fn resume_span(request: &Span, reason: &str, accepted: usize) -> Span {
    within(request, info_span!(parent: request, "resume", reason, accepted, engine = Empty))
}

/// The stage's span, or the request's where the filter disables stages, so that log lines always have a span.
fn within(request: &Span, stage: Span) -> Span {
    if stage.is_disabled() { request.clone() } else { stage }
}

fn finish(reason: v1::FinishReason) -> &'static str {
    match reason {
        v1::FinishReason::Stop => "stop",
        v1::FinishReason::Length => "length",
        v1::FinishReason::ToolCalls => "tool_calls",
        v1::FinishReason::Unspecified => "none",
    }
}

/// Whether a client's request id is neither empty nor too long.
pub fn is_request_id(id: &str) -> bool {
    (1..=limits::REQUEST_ID_BYTES).contains(&id.len())
}
