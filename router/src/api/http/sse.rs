//! Writes a generation's events as server-sent events.

use std::convert::Infallible;

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream};
use http::header;
use rein_proto::v1;
use tokio::time::{Instant, timeout_at};
use tracing::Span;

use crate::{api::status::body, error::Error, limits, request::delivery::ChatEvents};

/// Sent first, when the request is admitted, so that clients and proxies see that the stream has begun.
const ADMITTED: &[u8] = b": admitted\n\n";
/// Sent if nothing else was sent for [`limits::SSE_SILENCE`].
const WAITING: &[u8] = b": waiting\n\n";
/// Bytes after which a chunk is sent even if more events are ready.
const WRITE_BYTES: usize = 16 << 10;

/// Encodes one event as a payload. None: the event is not sent.
trait Encode: FnMut(v1::ChatEvent) -> Option<Vec<u8>> + Send + 'static {}
impl<F: FnMut(v1::ChatEvent) -> Option<Vec<u8>> + Send + 'static> Encode for F {}

#[allow(private_bounds)]
pub fn response<E: Encode>(span: Span, events: ChatEvents, encode: E) -> Response {
    let watch = events.watch();
    let writer = Writer { span, events, encode, begun: false, ended: false };
    let chunks = stream::unfold(writer, async |mut writer| {
        let chunk = writer.chunk().await?;
        Some((Ok::<_, Infallible>(chunk), writer))
    });
    let headers = [
        (header::CONTENT_TYPE.as_str(), "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL.as_str(), "no-cache"),
        // Tells proxies not to buffer the stream.
        ("x-accel-buffering", "no"),
    ];
    (headers, Body::from_stream(watch.wrap(chunks.boxed()))).into_response()
}

struct Writer<E> {
    /// The request's span, which ends when everything is written.
    span: Span,
    events: ChatEvents,
    encode: E,
    begun: bool,
    ended: bool,
}

impl<E: Encode> Writer<E> {
    /// The payloads that are ready, at least one payload or comment. None after the end of the stream.
    async fn chunk(&mut self) -> Option<Bytes> {
        let mut out = Vec::new();
        if !std::mem::replace(&mut self.begun, true) {
            out.extend_from_slice(ADMITTED);
        }
        let silence = Instant::now() + limits::SSE_SILENCE;
        while out.is_empty() {
            if self.ended {
                return None;
            }
            // Events that are not sent do not extend the deadline.
            match timeout_at(silence, self.events.next()).await {
                Ok(item) => self.write(item, &mut out),
                Err(_) => out.extend_from_slice(WAITING),
            }
        }
        while !self.ended && out.len() < WRITE_BYTES {
            let Some(item) = self.events.next().now_or_never() else { break };
            self.write(item, &mut out);
        }
        Some(out.into())
    }

    fn write(&mut self, item: Option<Result<v1::ChatEvent, Error>>, out: &mut Vec<u8>) {
        match item {
            Some(Ok(event)) => {
                if let Some(payload) = (self.encode)(event) {
                    write_data(&payload, out);
                }
            }
            Some(Err(error)) => {
                if let Some(cause) = &error.cause {
                    tracing::error!(parent: &self.span, cause, "{}", error.message);
                }
                out.extend_from_slice(b"event: error\n");
                write_data(body(&error).to_string().as_bytes(), out);
                self.ended = true;
            }
            None => {
                write_data(b"[DONE]", out);
                self.ended = true;
            }
        }
    }
}

fn write_data(payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\n\n");
}
