//! Reads request bodies, limited in size, time and memory.

use axum::{body::Body, extract::Request};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use crate::{
    error::{Error, ErrorKind},
    limits,
    request::memory::MemoryCharge,
};

/// Reads the whole body and charges it to the memory budget. The rest of a refused body is left to the connection.
pub async fn read(
    request: Request,
    limit: usize,
    mut charge: MemoryCharge,
    deadline: Instant,
) -> Result<(Bytes, MemoryCharge), Error> {
    let (parts, body) = request.into_parts();
    check_type(&parts.headers)?;
    check_encoding(&parts.headers)?;
    let content_length =
        parts.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if content_length.is_some_and(|length: u64| length > limit as u64) {
        return Err(Error::body_too_large(content_length, limit));
    }
    let body = match timeout_at(deadline, collect(body, limit, &mut charge)).await {
        Ok(body) => body?,
        Err(_) => return Err(Error::deadline()),
    };
    if body.is_empty() {
        let message = "the body must be a JSON object, got an empty body";
        return Err(Error { code: Some("invalid_json"), ..Error::new(ErrorKind::Invalid, message) });
    }
    Ok((body, charge))
}

/// Reads a body and charges it to the memory budget as it arrives.
pub async fn collect(body: Body, limit: usize, charge: &mut MemoryCharge) -> Result<Bytes, Error> {
    let until = Instant::now() + limits::BODY_TIME;
    timeout_at(until, collect_frames(body, limit, charge, until)).await.unwrap_or_else(|_| {
        let message = format!("the body did not arrive within {} seconds", limits::BODY_TIME.as_secs());
        Err(Error { code: Some("body_timeout"), ..Error::new(ErrorKind::BodyTimeout, message) })
    })
}

async fn collect_frames(
    mut body: Body,
    limit: usize,
    charge: &mut MemoryCharge,
    until: Instant,
) -> Result<Bytes, Error> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let message = format!("the body could not be read: {error}");
            Error { code: Some("broken_body"), ..Error::new(ErrorKind::Invalid, message) }
        })?;
        let Ok(data) = frame.into_data() else { continue };
        if all.len() + data.len() > limit {
            return Err(Error::body_too_large(None, limit));
        }
        charge.resize(all.len() + data.len(), until).await?;
        all.extend_from_slice(&data);
    }
    Ok(all.freeze())
}

/// The content type must be JSON or absent.
fn check_type(headers: &HeaderMap) -> Result<(), Error> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let value = value.to_str().unwrap_or("(not text)");
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json")) {
        return Ok(());
    }
    let message = format!("the header 'content-type' must be application/json, got {value}");
    Err(Error { code: Some("unsupported_content_type"), ..Error::new(ErrorKind::UnsupportedMediaType, message) })
}

/// The body must not be compressed: its size is limited as it arrives.
fn check_encoding(headers: &HeaderMap) -> Result<(), Error> {
    let Some(value) = headers.get(header::CONTENT_ENCODING) else { return Ok(()) };
    let value = value.to_str().unwrap_or("(not text)");
    if value.trim().is_empty() || value.trim().eq_ignore_ascii_case("identity") {
        return Ok(());
    }
    let message = format!("the header 'content-encoding' must be absent or identity, got {value}");
    Err(Error { code: Some("unsupported_content_encoding"), ..Error::new(ErrorKind::UnsupportedMediaType, message) })
}
