//! Errors of requests, in terms that HTTP and gRPC share. Only `api` maps a kind to a status code.

use std::{fmt, time::Duration};

use rein_text::InvalidRequest;

use crate::limits;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is wrong. Sending it again does not help.
    Invalid,
    /// The API key is missing or wrong.
    Unauthenticated,
    /// The model, route or method does not exist.
    NotFound,
    MethodNotAllowed,
    UnsupportedMediaType,
    /// The body is over its limit.
    TooLarge,
    /// The body did not arrive in time.
    BodyTimeout,
    /// A queue is full; the same request may succeed later.
    Full,
    /// The router is starting or draining, or no engine is reachable.
    Unavailable,
    /// The request's deadline passed.
    Deadline,
    /// A defect or an engine's failure. The client gets the message; only the log has the cause.
    Internal,
}

/// An error for the client, with a cause for the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    pub kind: ErrorKind,
    pub message: String,
    /// The path of the wrong field, such as `messages[0].role`.
    pub param: Option<String>,
    pub code: Option<&'static str>,
    pub retry_after: Option<Duration>,
    /// Never shown to the client.
    pub cause: Option<String>,
}

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), param: None, code: None, retry_after: None, cause: None }
    }

    /// A field of the request is wrong. `param` is its path; `message` says what would be right.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        InvalidRequest::invalid(param, message).into()
    }

    pub fn wrong_type(param: &str, expected: &str, got: &serde_json::Value) -> Self {
        InvalidRequest::wrong_type(param, expected, got).into()
    }

    pub fn missing(param: &str, what: &str) -> Self {
        InvalidRequest::missing(param, what).into()
    }

    /// A field that would change the result, but is not implemented.
    pub fn unsupported(param: impl Into<String>, why: &str) -> Self {
        InvalidRequest::unsupported(param, why).into()
    }

    pub fn body_too_large(announced: Option<u64>, limit: usize) -> Self {
        let got = announced.map_or_else(|| "more".to_owned(), |bytes| bytes.to_string());
        let message = format!("the body must have at most {limit} bytes, got {got}");
        Error { code: Some("body_too_large"), ..Error::new(ErrorKind::TooLarge, message) }
    }

    pub fn model_not_found(model: &str, served: &[&str]) -> Self {
        let message = match served {
            // The key may use other models alone, and they are not served.
            [] => format!("the model '{model}' does not exist for this API key"),
            served => format!("the model '{model}' does not exist; this server has: {}", served.join(", ")),
        };
        Error { param: Some("model".into()), code: Some("model_not_found"), ..Error::new(ErrorKind::NotFound, message) }
    }

    pub fn full(message: impl Into<String>) -> Self {
        Error {
            retry_after: Some(limits::RETRY_AFTER),
            code: Some("overloaded"),
            ..Error::new(ErrorKind::Full, message)
        }
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Error {
            retry_after: Some(limits::RETRY_AFTER),
            code: Some("unavailable"),
            ..Error::new(ErrorKind::Unavailable, message)
        }
    }

    /// Engines that had the request were lost, and no other engine took it over.
    pub fn capacity_lost(cause: impl fmt::Display) -> Self {
        let message = "the cluster lost the engines that computed this request, and no other engine took it over; try again later";
        Error { code: Some("capacity_lost"), cause: Some(cause.to_string()), ..Error::unavailable(message) }
    }

    pub fn shutting_down() -> Self {
        Error::unavailable("the server is shutting down")
    }

    pub fn deadline() -> Self {
        Error {
            code: Some("deadline_exceeded"),
            ..Error::new(ErrorKind::Deadline, "the request's deadline passed before it was finished")
        }
    }

    /// The client has read nothing of its answer for `time`.
    pub fn client_stalled(time: Duration) -> Self {
        let message = format!("the client has read nothing of its answer for {} seconds", time.as_secs_f64());
        Error { code: Some("client_stalled"), ..Error::new(ErrorKind::Deadline, message) }
    }

    pub fn internal(message: impl Into<String>, cause: impl fmt::Display) -> Self {
        Error {
            code: Some("internal_error"),
            cause: Some(cause.to_string()),
            ..Error::new(ErrorKind::Internal, message)
        }
    }

    /// What happened, for the log: the cause, or the message if there is no other cause.
    pub fn reason(&self) -> &str {
        self.cause.as_deref().unwrap_or(&self.message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.cause {
            Some(cause) => write!(f, " ({cause})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl From<InvalidRequest> for Error {
    fn from(invalid: InvalidRequest) -> Self {
        let InvalidRequest { param, code, message } = invalid;
        Error { param, code, ..Error::new(ErrorKind::Invalid, message) }
    }
}
