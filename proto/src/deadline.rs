//! The time limit of a gRPC call, from its metadata. It has no clock.

use std::time::Duration;

use tonic::Status;
use tonic::metadata::MetadataMap;

/// From the `grpc-timeout` header: up to eight digits and a unit. The transport's own timeout covers only the response
/// head, and in-process calls have no transport.
pub fn timeout(metadata: &MetadataMap) -> Result<Option<Duration>, Status> {
    let Some(value) = metadata.get("grpc-timeout") else { return Ok(None) };
    let parse = || {
        let text = value.to_str().ok()?;
        let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let count: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
        Some(match unit {
            "H" => Duration::from_secs(count * 3600),
            "M" => Duration::from_secs(count * 60),
            "S" => Duration::from_secs(count),
            "m" => Duration::from_millis(count),
            "u" => Duration::from_micros(count),
            "n" => Duration::from_nanos(count),
            _ => return None,
        })
    };
    let invalid = "grpc-timeout: must be up to 8 digits and one of the units H M S m u n";
    parse().map(Some).ok_or_else(|| Status::invalid_argument(invalid))
}

/// The status of a call whose time is over.
pub fn passed() -> Status {
    Status::deadline_exceeded("the call's deadline has passed")
}
