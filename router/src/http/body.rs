//! Reads a request body within its limit.

use axum::{body::Body, extract::Request};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use crate::{
    error::{Error, Kind},
    limits,
};

pub async fn read(request: Request, limit: usize) -> Result<Bytes, Error> {
    let (parts, body) = request.into_parts();
    check_type(&parts.headers)?;
    let deadline = Instant::now() + limits::BODY_TIME;
    let announced = parts.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > limit as u64) {
        // A client that waits for leave to send learns the answer first.
        if !parts.headers.contains_key(header::EXPECT) {
            discard(body, deadline).await;
        }
        return Err(Error::body_too_large(announced, limit));
    }
    match timeout_at(deadline, collect(body, limit, deadline)).await {
        Ok(result) => result,
        Err(_) => {
            let message = format!("the body did not arrive within {} seconds", limits::BODY_TIME.as_secs());
            Err(Error { code: Some("body_timeout"), ..Error::new(Kind::BodyTimeout, message) })
        }
    }
}

async fn collect(mut body: Body, limit: usize, deadline: Instant) -> Result<Bytes, Error> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let message = format!("the body could not be read: {error}");
            Error { code: Some("broken_body"), ..Error::new(Kind::Invalid, message) }
        })?;
        let Ok(data) = frame.into_data() else { continue };
        if all.len() + data.len() > limit {
            drop(all);
            discard(body, deadline).await;
            return Err(Error::body_too_large(None, limit));
        }
        all.extend_from_slice(&data);
    }
    if all.is_empty() {
        let message = "the body is empty; a JSON object is expected";
        return Err(Error { code: Some("invalid_json"), ..Error::new(Kind::Invalid, message) });
    }
    Ok(all.freeze())
}

/// Reads on and keeps nothing: a client that is still sending would not see an answer on a closed connection.
async fn discard(mut body: Body, deadline: Instant) {
    let mut left = limits::BODY_DISCARD_BYTES;
    while let Ok(Some(Ok(frame))) = timeout_at(deadline, body.frame()).await {
        left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len() as u64));
        if left == 0 {
            return;
        }
    }
}

/// JSON, or no word about it.
fn check_type(headers: &HeaderMap) -> Result<(), Error> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let value = value.to_str().unwrap_or("(not text)");
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json")) {
        return Ok(());
    }
    let message = format!("the content type must be application/json, got {value}");
    Err(Error { code: Some("unsupported_content_type"), ..Error::new(Kind::UnsupportedMediaType, message) })
}
