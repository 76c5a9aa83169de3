//! Maps errors to HTTP and gRPC status codes and to the error bodies of OpenAI and Anthropic.

use std::time::Duration;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::{
    error::{Error, ErrorKind},
    limits,
};

/// Anthropic's status for an overloaded server, which has no name in HTTP.
const OVERLOADED: u16 = 529;
/// The code of Anthropic's API for a conversation that the server would have to keep.
pub const NO_THREADS: &str = "thread_unsupported_request";

/// The HTTP response to a failed request, with OpenAI's body. The error itself is an extension of the response, so that
/// the layer of another API can replace status and body.
pub fn http_response(error: &Error) -> Response {
    log_cause(error);
    let mut response = (http_code(error.kind), Json(body(error))).into_response();
    if error.kind == ErrorKind::Unauthenticated {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(after) = error.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, whole_seconds(after).into());
    }
    response.extensions_mut().insert(error.clone());
    response
}

/// The status of a failed gRPC call. It has the same message as over HTTP; the other fields of the body are trailers.
pub fn grpc_status(error: &Error) -> Status {
    log_cause(error);
    let mut status = Status::new(grpc_code(error.kind), clipped(&error.message));
    let retry_after = error.retry_after.map(|after| whole_seconds(after).to_string());
    let param = error.param.as_deref().map(clipped);
    for (name, value) in [("rein-param", param), ("rein-code", error.code), ("retry-after", retry_after.as_deref())] {
        if let Some(value) = value.and_then(|value| value.parse().ok()) {
            status.metadata_mut().insert(name, value);
        }
    }
    status
}

/// The OpenAI error body.
pub fn body(error: &Error) -> Value {
    json!({"error": {
        "message": clipped(&error.message),
        "type": type_name(error.kind),
        "param": error.param.as_deref().map(clipped),
        "code": error.code,
    }})
}

/// The HTTP status of a failed request to Anthropic's API.
pub fn anthropic_code(error: &Error) -> StatusCode {
    if is_overload(error) {
        return StatusCode::from_u16(OVERLOADED).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    }
    http_code(error.kind)
}

/// Anthropic's error body.
pub fn anthropic_body(error: &Error, request_id: Option<&str>) -> Value {
    let kind = match error.kind {
        _ if is_overload(error) => "overloaded_error",
        ErrorKind::Invalid | ErrorKind::MethodNotAllowed | ErrorKind::UnsupportedMediaType | ErrorKind::BodyTimeout => {
            "invalid_request_error"
        }
        ErrorKind::Unauthenticated => "authentication_error",
        ErrorKind::NotFound => "not_found_error",
        ErrorKind::TooLarge => "request_too_large",
        ErrorKind::Full | ErrorKind::Unavailable => "rate_limit_error",
        ErrorKind::Deadline => "timeout_error",
        ErrorKind::Internal => "api_error",
    };
    let mut inner = json!({"type": kind, "message": clipped(&error.message)});
    if error.code == Some(NO_THREADS) {
        inner["details"] = json!({"error_code": NO_THREADS, "unsupported": []});
    }
    json!({"type": "error", "error": inner, "request_id": request_id})
}

/// Whether the server, and not the limit of an API key, refuses a request for now.
fn is_overload(error: &Error) -> bool {
    match error.kind {
        ErrorKind::Unavailable => true,
        ErrorKind::Full => error.code != Some("rate_limit_exceeded"),
        _ => false,
    }
}

fn log_cause(error: &Error) {
    if let Some(cause) = &error.cause {
        tracing::error!(cause, "{}", error.message);
    }
}

fn http_code(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::Unauthenticated => StatusCode::UNAUTHORIZED,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        ErrorKind::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ErrorKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorKind::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
        ErrorKind::Full => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Deadline => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn grpc_code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::Invalid | ErrorKind::UnsupportedMediaType => Code::InvalidArgument,
        ErrorKind::Unauthenticated => Code::Unauthenticated,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::MethodNotAllowed => Code::Unimplemented,
        ErrorKind::TooLarge | ErrorKind::Full => Code::ResourceExhausted,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::BodyTimeout | ErrorKind::Deadline => Code::DeadlineExceeded,
        ErrorKind::Internal => Code::Internal,
    }
}

/// The `type` of the OpenAI error body.
fn type_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid
        | ErrorKind::Unauthenticated
        | ErrorKind::NotFound
        | ErrorKind::MethodNotAllowed
        | ErrorKind::UnsupportedMediaType
        | ErrorKind::TooLarge
        | ErrorKind::BodyTimeout => "invalid_request_error",
        ErrorKind::Full => "rate_limit_error",
        ErrorKind::Unavailable => "service_unavailable_error",
        ErrorKind::Deadline => "timeout_error",
        ErrorKind::Internal => "server_error",
    }
}

/// Whole seconds, rounded up, at least 1.
fn whole_seconds(time: Duration) -> u64 {
    (time.as_secs() + u64::from(time.subsec_nanos() > 0)).max(1)
}

/// Truncates a text, which may repeat long input of the client, to [`limits::MESSAGE_BYTES`].
fn clipped(text: &str) -> &str {
    let end = (0..=limits::MESSAGE_BYTES).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    if text.len() <= limits::MESSAGE_BYTES { text } else { &text[..end] }
}
