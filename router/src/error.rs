//! What can go wrong, in terms that every surface shares. Only `http` and `grpc` turn a kind into a status code.

use std::{fmt, time::Duration};

use crate::{guide::GuideError, limits};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The request is wrong and stays wrong when sent again.
    Invalid,
    /// Without a key, or with a wrong one.
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
    /// Starting, draining, or no engine is reachable.
    Unavailable,
    /// The request's deadline passed.
    Deadline,
    /// Our fault. The message is for the client, the cause for the log.
    Internal,
}

/// An error as the client sees it, and for internal ones the cause as the log sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    pub kind: Kind,
    pub message: String,
    /// The request field that is wrong, as a path: `messages[0].role`.
    pub param: Option<String>,
    pub code: Option<&'static str>,
    pub retry_after: Option<Duration>,
    /// Never shown to the client.
    pub cause: Option<String>,
}

impl Error {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), param: None, code: None, retry_after: None, cause: None }
    }

    /// A field of the request is wrong: its path, and what would be right.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Error { param: Some(param.into()), code: Some("invalid_value"), ..Error::new(Kind::Invalid, message) }
    }

    pub fn wrong_type(param: &str, expected: &str, got: &serde_json::Value) -> Self {
        use serde_json::Value::*;
        let got = match got {
            Null => "null",
            Bool(_) => "a boolean",
            Number(_) => "a number",
            String(_) => "a string",
            Array(_) => "an array",
            Object(_) => "an object",
        };
        let message = format!("'{param}' must be {expected}, got {got}");
        Error { code: Some("invalid_type"), ..Error::invalid(param, message) }
    }

    pub fn missing(param: &str, what: &str) -> Self {
        Error {
            code: Some("missing_required_parameter"),
            ..Error::invalid(param, format!("'{param}' is required: {what}"))
        }
    }

    /// A field that would change the result, and that this server does not implement.
    pub fn unsupported(param: impl Into<String>, why: &str) -> Self {
        let param = param.into();
        let message = format!("'{param}' is not supported: {why}");
        Error { code: Some("unsupported_parameter"), ..Error::invalid(param, message) }
    }

    pub fn body_too_large(announced: Option<u64>, limit: usize) -> Self {
        let size = announced.map_or_else(|| "larger".to_owned(), |bytes| format!("{bytes} bytes"));
        let message = format!("the body may have at most {limit} bytes; this one is {size}");
        Error { code: Some("body_too_large"), ..Error::new(Kind::TooLarge, message) }
    }

    pub fn model_not_found(model: &str, served: &[&str]) -> Self {
        let message = format!("the model '{model}' does not exist; this server has: {}", served.join(", "));
        Error { param: Some("model".into()), code: Some("model_not_found"), ..Error::new(Kind::NotFound, message) }
    }

    pub fn full(message: impl Into<String>) -> Self {
        Error { retry_after: Some(limits::RETRY_AFTER), code: Some("overloaded"), ..Error::new(Kind::Full, message) }
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Error {
            retry_after: Some(limits::RETRY_AFTER),
            code: Some("unavailable"),
            ..Error::new(Kind::Unavailable, message)
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
            ..Error::new(Kind::Deadline, "the request's deadline passed before it was finished")
        }
    }

    /// The client did not read its answer for this long.
    pub fn client_stalled(time: Duration) -> Self {
        let message = format!("the client has read nothing of its answer for {} seconds", time.as_secs_f64());
        Error { code: Some("client_stalled"), ..Error::new(Kind::Deadline, message) }
    }

    pub fn internal(message: impl Into<String>, cause: impl fmt::Display) -> Self {
        Error { code: Some("internal_error"), cause: Some(cause.to_string()), ..Error::new(Kind::Internal, message) }
    }

    /// The name the OpenAI body gives to this kind.
    pub fn type_name(&self) -> &'static str {
        match self.kind {
            Kind::Invalid
            | Kind::Unauthenticated
            | Kind::NotFound
            | Kind::MethodNotAllowed
            | Kind::UnsupportedMediaType
            | Kind::TooLarge
            | Kind::BodyTimeout => "invalid_request_error",
            Kind::Full => "rate_limit_error",
            Kind::Unavailable => "service_unavailable_error",
            Kind::Deadline => "timeout_error",
            Kind::Internal => "server_error",
        }
    }

    /// The message as clients see it: it may repeat what they sent, which may be long.
    pub fn told(&self) -> &str {
        clipped(&self.message)
    }

    /// The same of the field.
    pub fn told_param(&self) -> Option<&str> {
        self.param.as_deref().map(clipped)
    }

    /// The OpenAI error body.
    pub fn body(&self) -> serde_json::Value {
        serde_json::json!({"error": {
            "message": self.told(),
            "type": self.type_name(),
            "param": self.told_param(),
            "code": self.code,
        }})
    }

    /// The request's own grammar ended it; no other request is affected.
    pub fn from_matcher(error: rein_grammar::MatcherError) -> Self {
        use rein_grammar::MatcherError::{DeadEnd, Internal, Limit, NoProgress};
        // What the client constrains the answer by exceeds a limit or contradicts itself.
        let code = match error {
            Limit(_) => "grammar_limit_exceeded",
            DeadEnd => "grammar_dead_end",
            Internal(_) | NoProgress(_) => {
                let failed = Error::internal("the grammar of this request failed", error);
                return Error { code: Some("grammar_failed"), ..failed };
            }
        };
        Error { code: Some(code), ..Error::new(Kind::Invalid, error.to_string()) }
    }

    pub fn from_guide(error: GuideError) -> Self {
        match error {
            GuideError::Matcher(error) => Error::from_matcher(error),
            GuideError::NothingLeft => {
                Error { code: Some("nothing_left"), ..Error::invalid("allowed_token_ids", error.to_string()) }
            }
        }
    }

    /// What a failed call to an engine means to the client.
    pub fn from_engine(status: &tonic::Status) -> Self {
        match status.code() {
            tonic::Code::ResourceExhausted => Error::full(format!("the engine is full: {}", status.message())),
            tonic::Code::InvalidArgument => {
                Error { code: Some("invalid_request"), ..Error::new(Kind::Invalid, status.message()) }
            }
            tonic::Code::DeadlineExceeded => Error::deadline(),
            // The second: an engine of another release.
            tonic::Code::Unavailable | tonic::Code::FailedPrecondition => {
                Error { cause: Some(status.to_string()), ..Error::unavailable("the engine cannot be reached") }
            }
            _ => Error::internal("the engine failed on this request", status),
        }
    }
}

fn clipped(text: &str) -> &str {
    let end = (0..=limits::MESSAGE_BYTES).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    if text.len() <= limits::MESSAGE_BYTES { text } else { &text[..end] }
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
