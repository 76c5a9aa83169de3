//! Maps gRPC statuses of engines to errors for the client.

use crate::error::{Error, ErrorKind};

impl Error {
    /// The client's error for a failed call to an engine.
    pub fn from_engine(status: &tonic::Status) -> Self {
        match status.code() {
            tonic::Code::ResourceExhausted => Error::full(format!("the engine is full: {}", status.message())),
            tonic::Code::InvalidArgument => {
                Error { code: Some("invalid_request"), ..Error::new(ErrorKind::Invalid, status.message()) }
            }
            tonic::Code::DeadlineExceeded => Error::deadline(),
            // FailedPrecondition: the engine does not support this router's protocol version.
            tonic::Code::Unavailable | tonic::Code::FailedPrecondition => {
                Error { cause: Some(status.to_string()), ..Error::unavailable("the engine cannot be reached") }
            }
            _ => Error::internal("the engine failed on this request", status),
        }
    }
}
