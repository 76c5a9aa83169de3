//! One request to an engine and its answer, read into frames. It does not know the sequence.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use crate::clock::TokenClock;
use crate::connection::{EngineHttp, NoAnswer, Unanswered, collect, retry_after};
use crate::dialect::{DrawFrame, DrawReader, EngineDialect, Said, error_text};
use crate::draw::DrawEnd;
use crate::identity::{Identity, Unproven};
use crate::limits;
use crate::sse::SseEvents;

/// Time in which the rest of an answer must arrive after its last token, so that its connection can be used again.
const REST_TIME: Duration = Duration::from_secs(1);

/// How an engine refused a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineRefusal {
    /// The engine never had the request.
    NotConnected(String),
    /// It may have had the request.
    Cut(String),
    Status {
        code: u16,
        text: String,
        retry_after: Option<Duration>,
    },
}

impl EngineRefusal {
    /// What it means in the middle of a sequence.
    pub fn into_end(self) -> DrawEnd {
        match self {
            EngineRefusal::NotConnected(why) | EngineRefusal::Cut(why) => DrawEnd::Lost(why),
            EngineRefusal::Status { code: 400 | 413 | 422, text, .. } => {
                DrawEnd::Failed(format!("the engine rejected the request: {text}"))
            }
            EngineRefusal::Status { code, text, .. } => DrawEnd::Lost(format!("the engine answered {code}: {text}")),
        }
    }

    /// What it means for a new sequence.
    pub fn into_status(self) -> tonic::Status {
        match self {
            EngineRefusal::NotConnected(why) => tonic::Status::unavailable(why),
            EngineRefusal::Cut(why) => tonic::Status::aborted(why),
            EngineRefusal::Status { code, text, retry_after } => {
                let message = format!("the engine answered {code}: {text}");
                match code {
                    400 | 413 | 422 => tonic::Status::invalid_argument(message),
                    401 | 403 | 404 | 405 => tonic::Status::failed_precondition(message),
                    429 => tonic::Status::resource_exhausted(message),
                    // A full engine says when to come back; one that stops does not.
                    503 if retry_after.is_some() => tonic::Status::resource_exhausted(message),
                    503 => tonic::Status::unavailable(message),
                    _ => tonic::Status::internal(message),
                }
            }
        }
    }
}

#[derive(Debug, PartialEq)]
pub enum ExchangeEvent {
    /// The head of the answer has arrived.
    Accepted,
    Refused(EngineRefusal),
    Frame(DrawFrame),
}

/// A request that is to be sent.
pub struct Exchange {
    pub http: Arc<EngineHttp>,
    pub dialect: EngineDialect,
    pub identity: Arc<Identity>,
    pub clock: Arc<TokenClock>,
    pub body: Bytes,
    /// Tokens of its prompt.
    pub prompt: usize,
    pub streams: bool,
    /// Send it again while the engine is full, a few times.
    pub waits: bool,
}

impl Exchange {
    /// Sends the request and the events of its answer. The last frame has an end, unless the receiver is gone.
    pub async fn run(self, events: mpsc::Sender<ExchangeEvent>) {
        let response = match self.answer().await {
            Ok(response) => response,
            Err(refusal) => {
                // Without a receiver, nobody waits for the reason.
                let _ = events.send(ExchangeEvent::Refused(refusal)).await;
                return;
            }
        };
        if events.send(ExchangeEvent::Accepted).await.is_err() {
            return;
        }
        let end = match self.streams {
            true => self.stream(response, &events).await,
            false => self.document(response, &events).await,
        };
        if let Some(end) = end {
            let frame = DrawFrame { end: Some(end), ..DrawFrame::default() };
            let _ = events.send(ExchangeEvent::Frame(frame)).await;
        }
    }

    async fn answer(&self) -> Result<Response<Incoming>, EngineRefusal> {
        let mut tries = 0;
        loop {
            let sent = self.http.post(self.dialect.path(), self.body.clone());
            let sent = self.clock.within(Instant::now(), Some(self.prompt), sent).await.map_err(EngineRefusal::Cut)?;
            let response = sent.map_err(|error| match error {
                NoAnswer::NotConnected(why) => EngineRefusal::NotConnected(why.0),
                NoAnswer::Cut(why) => EngineRefusal::Cut(why.0),
            })?;
            let status = response.status();
            if status == StatusCode::OK {
                return Ok(response);
            }
            let retry_after = retry_after(&response);
            tries += 1;
            if status == StatusCode::TOO_MANY_REQUESTS && self.waits && tries <= limits::FULL_RETRIES {
                drop(response);
                let (least, most) = limits::FULL_WAIT;
                sleep(retry_after.unwrap_or(least).clamp(least, most)).await;
                continue;
            }
            let text = match collect(response, limits::ERROR_BYTES).await {
                Ok(body) => error_text(&body),
                Err(Unanswered(why)) => format!("(its error cannot be read: {why})"),
            };
            return Err(EngineRefusal::Status { code: status.as_u16(), text, retry_after });
        }
    }

    /// Reads an answer that is one JSON document. Returns the end, if no frame had one.
    async fn document(&self, response: Response<Incoming>, events: &mpsc::Sender<ExchangeEvent>) -> Option<DrawEnd> {
        let body = self.clock.within(Instant::now(), None, collect(response, limits::ANSWER_BYTES)).await;
        let body = match body {
            Err(late) => return Some(DrawEnd::Lost(late)),
            Ok(Ok(body)) => body,
            Ok(Err(error)) if error.0.contains("more than") => return Some(DrawEnd::Failed(error.0)),
            Ok(Err(error)) => return Some(DrawEnd::Lost(format!("the engine's answer was cut: {error}"))),
        };
        let frame = match self.dialect.reader().read(&body) {
            Ok(frame) => frame,
            Err(error) => return Some(DrawEnd::Failed(error)),
        };
        if let Some(end) = self.hear(frame.said.as_ref()).await {
            return Some(end);
        }
        self.clock.tick();
        let ended = frame.end.is_some();
        let _ = events.send(ExchangeEvent::Frame(frame)).await;
        (!ended).then(|| DrawEnd::Lost("the engine's answer has no finish reason".into()))
    }

    /// Some: another engine has answered.
    async fn hear(&self, said: Option<&Said>) -> Option<DrawEnd> {
        match self.identity.hear(said?).await {
            Ok(()) => None,
            Err(Unproven::Silent(why) | Unproven::Other(why)) => {
                Some(DrawEnd::Lost(format!("another engine seems to answer: {why}")))
            }
        }
    }

    /// Reads a stream of events.
    async fn stream(&self, response: Response<Incoming>, events: &mpsc::Sender<ExchangeEvent>) -> Option<DrawEnd> {
        let mut body = response.into_body();
        let (mut parser, mut reader) = (SseEvents::new(limits::EVENT_BYTES), self.dialect.reader());
        let (mut idle, mut last, mut prompt) = (Idle::default(), Instant::now(), Some(self.prompt));
        loop {
            let data = match self.clock.within(last, prompt, body.frame()).await {
                Err(late) => return Some(DrawEnd::Lost(late)),
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => data,
                    Err(_trailers) => continue,
                },
                Ok(Some(Err(error))) => return Some(DrawEnd::Lost(format!("the engine's stream was cut: {error}"))),
                Ok(None) => return Some(DrawEnd::Lost("the engine's stream ended without a finish reason".into())),
            };
            idle.bytes += data.len();
            let frames = match read(&mut parser, &mut reader, &data) {
                Ok(frames) => frames,
                Err(error) => return Some(DrawEnd::Failed(error)),
            };
            for frame in frames {
                idle.events = if frame.drawn.is_empty() { idle.events + 1 } else { 0 };
                idle.bytes = if frame.drawn.is_empty() { idle.bytes } else { 0 };
                if !frame.drawn.is_empty() {
                    self.clock.tick();
                    (last, prompt) = (Instant::now(), None);
                }
                if let Some(end) = self.hear(frame.said.as_ref()).await {
                    return Some(end);
                }
                let ended = frame.end.is_some();
                if events.send(ExchangeEvent::Frame(frame)).await.is_err() {
                    return None;
                }
                if ended {
                    // Only for the connection; the sequence has all it needs.
                    let _ = timeout(REST_TIME, self.rest(&mut body, &mut parser, &mut reader, events)).await;
                    return None;
                }
            }
            if idle.events > limits::IDLE_EVENTS || idle.bytes > limits::EVENT_BYTES {
                let Idle { events, bytes } = idle;
                return Some(DrawEnd::Failed(format!(
                    "the engine sent {events} events in {bytes} bytes without a token"
                )));
            }
        }
    }

    /// Reads what follows the last token: it may say how much of the prompt was cached.
    async fn rest(
        &self,
        body: &mut Incoming,
        parser: &mut SseEvents,
        reader: &mut DrawReader,
        events: &mpsc::Sender<ExchangeEvent>,
    ) {
        let mut left = limits::ERROR_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else { continue };
            let Some(after) = left.checked_sub(data.len()) else { return };
            left = after;
            let Ok(frames) = read(parser, reader, &data) else { return };
            for frame in frames {
                if let Some(said) = &frame.said {
                    self.identity.hear_late(said);
                }
                if frame.cached_tokens.is_some() {
                    let frame = DrawFrame { cached_tokens: frame.cached_tokens, ..DrawFrame::default() };
                    // A sequence that has gone on does not count it.
                    let _ = events.try_send(ExchangeEvent::Frame(frame));
                }
            }
        }
    }
}

/// What arrived since the last token.
#[derive(Default)]
struct Idle {
    events: u32,
    bytes: usize,
}

fn read(parser: &mut SseEvents, reader: &mut DrawReader, data: &[u8]) -> Result<Vec<DrawFrame>, String> {
    let (mut frames, mut failed) = (Vec::new(), None);
    let parsed = parser.push(data, |event| {
        if failed.is_none() {
            match reader.read(event) {
                Ok(frame) => frames.push(frame),
                Err(error) => failed = Some(error),
            }
        }
    });
    if parsed.is_err() {
        return Err(format!("an event of the engine's stream has more than {} bytes", limits::EVENT_BYTES));
    }
    failed.map_or(Ok(frames), Err)
}
