//! Reads request bodies, limited in size, time and memory.

use std::io;

use async_compression::tokio::bufread::{GzipDecoder, ZstdDecoder};
use async_compression::zstd::DParameter;
use axum::{body::Body, extract::Request};
use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};
use tokio_util::io::{ReaderStream, StreamReader};

use crate::{
    error::{Error, ErrorKind},
    limits,
    memory::MemoryCharge,
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
    let coding = coding(&parts.headers)?;
    let content_length =
        parts.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if content_length.is_some_and(|length: u64| length > limit as u64) {
        return Err(Error::body_too_large(content_length, limit));
    }
    let (body, decoder) = match coding {
        Some(coding) => (decoded(body, coding), coding.decoder_bytes()),
        None => (body, 0),
    };
    let body = match timeout_at(deadline, collect(body, limit, decoder, &mut charge)).await {
        Ok(body) => body?,
        Err(_) => return Err(Error::deadline()),
    };
    if body.is_empty() {
        let message = "the body must be a JSON object, got an empty body";
        return Err(Error { code: Some("invalid_json"), ..Error::new(ErrorKind::Invalid, message) });
    }
    Ok((body, charge))
}

/// Reads a body and charges it to the memory budget as it arrives, with `decoder` bytes until it is whole.
pub async fn collect(body: Body, limit: usize, decoder: usize, charge: &mut MemoryCharge) -> Result<Bytes, Error> {
    let until = Instant::now() + limits::BODY_TIME;
    timeout_at(until, collect_frames(body, limit, decoder, charge, until)).await.unwrap_or_else(|_| {
        let message = format!("the body did not arrive within {} seconds", limits::BODY_TIME.as_secs());
        Err(Error { code: Some("body_timeout"), ..Error::new(ErrorKind::BodyTimeout, message) })
    })
}

async fn collect_frames(
    mut body: Body,
    limit: usize,
    decoder: usize,
    charge: &mut MemoryCharge,
    until: Instant,
) -> Result<Bytes, Error> {
    let mut all = BytesMut::new();
    if decoder > 0 {
        charge.resize(decoder, until).await?;
    }
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let message = format!("the body could not be read: {error}");
            Error { code: Some("broken_body"), ..Error::new(ErrorKind::Invalid, message) }
        })?;
        let Ok(data) = frame.into_data() else { continue };
        if all.len() + data.len() > limit {
            return Err(Error::body_too_large(None, limit));
        }
        charge.resize(decoder + all.len() + data.len(), until).await?;
        all.extend_from_slice(&data);
    }
    charge.resize(all.len(), until).await?;
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
    // Web pages of other sites may send text and forms without being asked for permission (CORS).
    let message = format!(
        "the header 'content-type' must be application/json, got {value}; with curl, add -H 'content-type: application/json'"
    );
    Err(Error { code: Some("unsupported_content_type"), ..Error::new(ErrorKind::UnsupportedMediaType, message) })
}

/// How a body is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Gzip,
    Zstd,
}

/// The largest window of a zstd body, as a power of two: RFC 9659 allows no larger one.
const ZSTD_WINDOW_LOG: u32 = 23;

impl Coding {
    /// Memory of a decoder: its window.
    fn decoder_bytes(self) -> usize {
        match self {
            Coding::Gzip => 32 << 10,
            Coding::Zstd => 1 << ZSTD_WINDOW_LOG,
        }
    }
}

fn coding(headers: &HeaderMap) -> Result<Option<Coding>, Error> {
    let Some(value) = headers.get(header::CONTENT_ENCODING) else { return Ok(None) };
    let value = value.to_str().unwrap_or("(not text)");
    match value.trim().to_ascii_lowercase().as_str() {
        "" | "identity" => Ok(None),
        "gzip" | "x-gzip" => Ok(Some(Coding::Gzip)),
        "zstd" => Ok(Some(Coding::Zstd)),
        _ => {
            let message = format!("the header 'content-encoding' must be absent, identity, gzip or zstd, got {value}");
            let refused = Error::new(ErrorKind::UnsupportedMediaType, message);
            Err(Error { code: Some("unsupported_content_encoding"), ..refused })
        }
    }
}

/// The body without its compression, decoded as it arrives: the limits count decoded bytes.
fn decoded(body: Body, coding: Coding) -> Body {
    let reader = StreamReader::new(TryStreamExt::map_err(body.into_data_stream(), io::Error::other));
    match coding {
        Coding::Gzip => {
            let mut decoder = GzipDecoder::new(reader);
            decoder.multiple_members(true);
            Body::from_stream(ReaderStream::new(decoder))
        }
        Coding::Zstd => {
            let window = DParameter::window_log_max(ZSTD_WINDOW_LOG);
            let mut decoder = ZstdDecoder::with_params(reader, &[window]);
            decoder.multiple_members(true);
            Body::from_stream(ReaderStream::new(decoder))
        }
    }
}
