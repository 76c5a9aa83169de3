//! Maps gRPC statuses of engines to errors for the client.

use std::error::Error as _;

use crate::error::{Error, ErrorKind};

/// The message of a status and the messages of its sources. `Display` has the sources as Rust debug text.
pub fn status_text(status: &tonic::Status) -> String {
    let sources = std::iter::successors(status.source(), |&error| error.source()).map(ToString::to_string);
    let mut messages: Vec<String> = Vec::new();
    for message in std::iter::once(status.message().to_owned()).chain(sources) {
        // Layers of the transport repeat each other's messages.
        if !message.is_empty() && !messages.contains(&message) {
            messages.push(message);
        }
    }
    match messages.is_empty() {
        true => status.code().to_string(),
        false => messages.join(": "),
    }
}

impl Error {
    /// The client's error for a failed call to an engine.
    pub fn from_engine(status: &tonic::Status) -> Self {
        match status.code() {
            tonic::Code::ResourceExhausted => Error::full(format!("the engine is full: {}", status.message())),
            tonic::Code::InvalidArgument => {
                Error { code: Some("invalid_request"), ..Error::new(ErrorKind::Invalid, status.message()) }
            }
            tonic::Code::DeadlineExceeded => Error::deadline(),
            // FailedPrecondition: the engine does not support this router's protocol version. Aborted: it was lost with
            // the sequence.
            tonic::Code::Unavailable | tonic::Code::Aborted | tonic::Code::FailedPrecondition => {
                Error { cause: Some(status_text(status)), ..Error::unavailable("the engine cannot be reached") }
            }
            // It lost the LoRA adapter since the router heard of it.
            tonic::Code::NotFound => Error::unavailable(status.message()),
            _ => Error::internal("the engine failed on this request", status_text(status)),
        }
    }

    /// The client's error for a failed call that loads or unloads a LoRA adapter.
    pub fn from_loras(status: &tonic::Status) -> Self {
        let invalid = |param: &str| Error::invalid(param, status.message());
        match status.code() {
            tonic::Code::InvalidArgument => invalid("lora_path"),
            tonic::Code::AlreadyExists => Error { code: Some("lora_exists"), ..invalid("lora_name") },
            tonic::Code::NotFound => {
                let error = Error::new(ErrorKind::NotFound, status.message());
                Error { param: Some("lora_name".into()), code: Some("lora_not_found"), ..error }
            }
            tonic::Code::ResourceExhausted => Error { code: Some("lora_slots"), ..invalid("lora_name") },
            tonic::Code::FailedPrecondition => Error { code: Some("lora_off"), ..invalid("lora_name") },
            tonic::Code::Unimplemented => {
                let message = "the engine of this model takes no LoRA adapters from this router";
                Error { code: Some("lora_off"), ..Error::invalid("lora_name", message) }
            }
            _ => Error::from_engine(status),
        }
    }
}

#[cfg(test)]
mod tests;
