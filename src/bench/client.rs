//! One request to an OpenAI endpoint, and when its parts came.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;

use super::BenchError;
use super::sse::Events;

/// Answers that are read whole: listings, errors, answers without streaming.
const MAX_BODY_BYTES: usize = 64 << 20;
/// As much of an error's text as is of use in a report.
const MAX_ERROR_CHARS: usize = 300;

#[derive(Debug, Clone)]
pub struct Endpoint {
    address: String,
    host: HeaderValue,
    /// Path of the base URL, without a slash at its end.
    prefix: String,
    authorization: Option<HeaderValue>,
    timeout: Duration,
}

/// Why a request has no answer. The kinds are what the report counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    Connect(String),
    Status(u16, String),
    /// An error event inside a stream.
    InStream(String),
    /// The stream ended before the answer did.
    Broken(String),
    BadResponse(String),
    Timeout,
}

impl Failure {
    pub fn kind(&self) -> String {
        match self {
            Failure::Connect(_) => "connect".into(),
            Failure::Status(code, _) => format!("http_{code}"),
            Failure::InStream(_) => "error_event".into(),
            Failure::Broken(_) => "broken_stream".into(),
            Failure::BadResponse(_) => "bad_response".into(),
            Failure::Timeout => "timeout".into(),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Connect(e) => write!(f, "cannot connect: {e}"),
            Failure::Status(code, body) => write!(f, "HTTP {code}: {body}"),
            Failure::InStream(e) => write!(f, "error in the stream: {e}"),
            Failure::Broken(e) => write!(f, "the stream broke off: {e}"),
            Failure::BadResponse(e) => write!(f, "not an answer of this API: {e}"),
            Failure::Timeout => write!(f, "timed out"),
        }
    }
}

/// One answer. Times count from the moment the request was sent.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// When each chunk with content came. Empty without streaming.
    pub chunks: Vec<Duration>,
    /// When the last token was told: the last content or the finish reason, whichever is later.
    pub last_token: Duration,
    pub total: Duration,
    /// By the endpoint's own count.
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub tool_calls: u64,
}

impl Endpoint {
    pub fn new(url: &str, api_key: Option<&str>, timeout: Duration) -> Result<Self, BenchError> {
        let bad = |why: &str| BenchError::Url(format!("{url}: {why}"));
        let uri: Uri = url.parse().map_err(|e| bad(&format!("{e}; expected something like {}", super::DEFAULT_URL)))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(bad("https is not spoken here; put a TLS proxy in front (socat, stunnel)")),
            _ => return Err(bad("must start with http://")),
        }
        let host = uri.host().ok_or_else(|| bad("has no host"))?;
        let authority = uri.authority().map(|a| a.as_str().to_owned()).unwrap_or_default();
        let authorization = match api_key {
            Some(key) => {
                let mut value = HeaderValue::try_from(format!("Bearer {key}"))
                    .map_err(|_| BenchError::Option("--api-key: has characters that no HTTP header can hold".into()))?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        Ok(Self {
            address: format!("{host}:{}", uri.port_u16().unwrap_or(80)),
            host: HeaderValue::try_from(authority).map_err(|_| bad("has a bad host"))?,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            authorization,
            timeout,
        })
    }

    /// The first model that the endpoint lists.
    pub async fn first_model(&self) -> Result<String, BenchError> {
        #[derive(Deserialize)]
        struct Model {
            id: String,
        }
        #[derive(Deserialize)]
        struct Models {
            data: Vec<Model>,
        }
        let url = || format!("http://{}{}/models", self.address, self.prefix);
        let failed = |e: Failure| BenchError::Models { url: url(), reason: e.to_string() };
        let mut connection = Connection::new(self);
        let body = tokio::time::timeout(self.timeout, connection.get("/models"))
            .await
            .unwrap_or(Err(Failure::Timeout))
            .map_err(failed)?;
        let models: Models = serde_json::from_slice(&body).map_err(|e| failed(Failure::BadResponse(e.to_string())))?;
        let first = models.data.into_iter().next();
        first.map(|m| m.id).ok_or_else(|| failed(Failure::BadResponse("the list is empty".into())))
    }
}

/// A connection that is kept while it works and opened anew when it does not.
#[derive(Debug)]
pub struct Connection<'a> {
    endpoint: &'a Endpoint,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl<'a> Connection<'a> {
    pub fn new(endpoint: &'a Endpoint) -> Self {
        Self { endpoint, sender: None }
    }

    /// Sends one request body and reads the answer.
    pub async fn ask(&mut self, path: &str, body: Bytes, stream: bool) -> Result<Answer, Failure> {
        let timeout = self.endpoint.timeout;
        let result = tokio::time::timeout(timeout, self.ask_patiently(path, body, stream)).await;
        let result = result.unwrap_or(Err(Failure::Timeout));
        if result.is_err() {
            self.sender = None;
        }
        result
    }

    async fn ask_patiently(&mut self, path: &str, body: Bytes, stream: bool) -> Result<Answer, Failure> {
        self.connect().await?;
        let start = Instant::now();
        let response = self.send(Method::POST, path, body).await?;
        if stream { read_stream(response, start).await } else { read_whole(response, start).await }
    }

    async fn get(&mut self, path: &str) -> Result<Bytes, Failure> {
        self.connect().await?;
        collect(self.send(Method::GET, path, Bytes::new()).await?).await
    }

    async fn connect(&mut self) -> Result<(), Failure> {
        if let Some(sender) = &mut self.sender
            && sender.ready().await.is_ok()
        {
            return Ok(());
        }
        let refused = |e: &dyn std::fmt::Display| Failure::Connect(format!("{}: {e}", self.endpoint.address));
        let socket = TcpStream::connect(&self.endpoint.address).await.map_err(|e| refused(&e))?;
        socket.set_nodelay(true).map_err(|e| refused(&e))?;
        let (sender, connection) = handshake(TokioIo::new(socket)).await.map_err(|e| refused(&e))?;
        // Ends with the connection, which ends with the sender; what breaks it, the sender reports.
        tokio::spawn(async move { connection.await.ok() });
        self.sender = Some(sender);
        Ok(())
    }

    async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<http::Response<hyper::body::Incoming>, Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.endpoint.prefix))
            .header(header::HOST, &self.endpoint.host)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, concat!("rein-bench/", env!("CARGO_PKG_VERSION")));
        if let Some(value) = &self.endpoint.authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        let request = request.body(Full::new(body)).map_err(|e| Failure::Connect(e.to_string()))?;
        let Some(sender) = &mut self.sender else { return Err(Failure::Connect("no connection".into())) };
        let response = sender.send_request(request).await.map_err(|e| Failure::Broken(e.to_string()))?;
        let status = response.status().as_u16();
        if status == 200 {
            return Ok(response);
        }
        let body = collect(response).await.unwrap_or_default();
        Err(Failure::Status(status, error_text(&body)))
    }
}

async fn collect(response: http::Response<hyper::body::Incoming>) -> Result<Bytes, Failure> {
    let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await;
    body.map(|b| b.to_bytes()).map_err(|e| Failure::Broken(e.to_string()))
}

/// What an error body says: its message, where it has one.
fn error_text(body: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let message = ["/error/message", "/message", "/detail", "/error"].iter().find_map(|p| value.pointer(p)?.as_str());
    let text = message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    text.trim().chars().take(MAX_ERROR_CHARS).collect()
}

#[derive(Debug, Default, Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
struct Choice {
    delta: Option<Delta>,
    message: Option<Delta>,
    text: Option<String>,
    finish_reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    tool_calls: Option<Vec<ToolCall>>,
}

#[derive(Debug, Deserialize)]
struct ToolCall {
    function: Option<Function>,
}

#[derive(Debug, Deserialize)]
struct Function {
    name: Option<String>,
}

impl Choice {
    fn has_content(&self) -> bool {
        let filled = |s: &Option<String>| s.as_ref().is_some_and(|s| !s.is_empty());
        filled(&self.text)
            || self.delta.as_ref().is_some_and(|d| {
                filled(&d.content)
                    || filled(&d.reasoning_content)
                    || filled(&d.reasoning)
                    || d.tool_calls.as_ref().is_some_and(|c| !c.is_empty())
            })
    }

    /// Calls that start here; later chunks of a call carry no name.
    fn calls(&self) -> u64 {
        let calls = self.delta.as_ref().or(self.message.as_ref()).and_then(|d| d.tool_calls.as_deref());
        let named = |c: &&ToolCall| c.function.as_ref().is_some_and(|f| f.name.as_ref().is_some_and(|n| !n.is_empty()));
        calls.unwrap_or_default().iter().filter(named).count() as u64
    }
}

impl Answer {
    fn take(&mut self, chunk: &Chunk, at: Duration) {
        if chunk.choices.iter().any(Choice::has_content) {
            self.chunks.push(at);
            self.last_token = at;
        }
        if chunk.choices.iter().any(|c| c.finish_reason.is_some()) {
            self.last_token = at;
        }
        self.tool_calls += chunk.choices.iter().map(Choice::calls).sum::<u64>();
        if let Some(usage) = &chunk.usage {
            self.prompt_tokens = usage.prompt_tokens.or(self.prompt_tokens);
            self.completion_tokens = usage.completion_tokens.or(self.completion_tokens);
        }
    }
}

async fn read_whole(response: http::Response<hyper::body::Incoming>, start: Instant) -> Result<Answer, Failure> {
    let body = collect(response).await?;
    let total = start.elapsed();
    let chunk: Chunk = serde_json::from_slice(&body).map_err(|e| Failure::BadResponse(e.to_string()))?;
    if chunk.choices.is_empty() {
        return Err(Failure::BadResponse("no choices".into()));
    }
    let mut answer = Answer { total, ..Answer::default() };
    answer.take(&chunk, total);
    answer.chunks.clear();
    Ok(answer)
}

async fn read_stream(response: http::Response<hyper::body::Incoming>, start: Instant) -> Result<Answer, Failure> {
    let mut body = response.into_body();
    let mut events = Events::default();
    let mut answer = Answer::default();
    let (mut done, mut finished) = (false, false);
    let mut failure = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| Failure::Broken(e.to_string()))?;
        let at = start.elapsed();
        let Ok(data) = frame.into_data() else { continue };
        let pushed = events.push(&data, |data| {
            if data == b"[DONE]" {
                done = true;
                return;
            }
            match serde_json::from_slice::<Chunk>(data) {
                Ok(Chunk { error: Some(_), .. }) => {
                    failure.get_or_insert(Failure::InStream(error_text(data)));
                }
                Ok(chunk) => {
                    finished |= chunk.choices.iter().any(|c| c.finish_reason.is_some());
                    answer.take(&chunk, at);
                }
                Err(e) => {
                    failure.get_or_insert(Failure::BadResponse(e.to_string()));
                }
            }
        });
        if pushed.is_err() {
            return Err(Failure::BadResponse("an event of more than 16 MiB".into()));
        }
    }
    answer.total = start.elapsed();
    match failure {
        Some(failure) => Err(failure),
        // Some endpoints leave out [DONE]; none may leave out why it stopped.
        None if done || finished => Ok(answer),
        None => Err(Failure::Broken("no finish reason".into())),
    }
}
