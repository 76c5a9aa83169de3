//! What an engine's status means to the client.

use crate::error::{Error, Kind};

impl Error {
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
