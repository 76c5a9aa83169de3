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

use crate::{
    api::{
        frames::{EncodeFrames, write_data, write_event},
        status::body,
    },
    error::Error,
    limits,
    request::delivery::ChatEvents,
};

/// Sent first, when the request is admitted, so that clients and proxies see that the stream has begun.
const ADMITTED: &[u8] = b": admitted\n\n";
/// Bytes after which a chunk is sent even if more events are ready.
const WRITE_BYTES: usize = 16 << 10;

/// OpenAI's chunks: one unnamed frame for each event that `encode` has a payload for, then `[DONE]`.
struct ChunkFrames<E>(E);

impl<E: FnMut(v1::ChatEvent) -> Option<Vec<u8>> + Send + 'static> EncodeFrames for ChunkFrames<E> {
    fn event(&mut self, event: v1::ChatEvent, out: &mut Vec<u8>) {
        if let Some(payload) = (self.0)(event) {
            write_data(&payload, out);
        }
    }

    fn error(&mut self, error: &Error, out: &mut Vec<u8>) {
        write_event("error", body(error).to_string().as_bytes(), out);
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        write_data(b"[DONE]", out);
    }
}

/// The stream of an API with chunks.
pub fn chunks(
    span: Span,
    events: ChatEvents,
    encode: impl FnMut(v1::ChatEvent) -> Option<Vec<u8>> + Send + 'static,
) -> Response {
    response(span, events, ChunkFrames(encode))
}

pub fn response(span: Span, events: ChatEvents, frames: impl EncodeFrames) -> Response {
    let watch = events.watch();
    let writer = Writer { span, events, frames, begun: false, ended: false };
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

struct Writer<F> {
    /// The request's span, which ends when everything is written.
    span: Span,
    events: ChatEvents,
    frames: F,
    begun: bool,
    ended: bool,
}

impl<F: EncodeFrames> Writer<F> {
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
                Err(_) => self.frames.silence(&mut out),
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
            Some(Ok(event)) => self.frames.event(event, out),
            Some(Err(error)) => {
                if let Some(cause) = &error.cause {
                    tracing::error!(parent: &self.span, cause, "{}", error.message);
                }
                self.frames.error(&error, out);
                self.ended = true;
            }
            None => {
                self.frames.end(out);
                self.ended = true;
            }
        }
    }
}
