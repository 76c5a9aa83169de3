//! A client for OpenAI and Anthropic endpoints, over HTTP or gRPC, with or without TLS. It reuses its connection and
//! classifies failed requests. It does not know what a response means: callers parse it.

mod grpc;
mod messages;
mod received;
mod responses;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
pub use rein_adapter::dialect::error_text;
use rein_adapter::sse::SseEvents;
use serde::Deserialize;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use received::{Counting, ReceivedBytes};

const DEFAULT_URL: &str = "http://127.0.0.1:8000/v1";
const GRPC_URL: &str = "http://127.0.0.1:50051";
/// Maximum size of a response that is read as a whole: model lists, errors, unstreamed answers.
const MAX_BODY_BYTES: usize = 64 << 20;
/// Maximum length of an error message in a report.
const MAX_ERROR_CHARS: usize = 300;
/// Maximum size of an event of a stream.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// The protocol of an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ApiDialect {
    /// OpenAI's API over HTTP
    #[default]
    Openai,
    /// The gRPC service `rein.v1.Inference`; answers are always streamed
    Grpc,
    /// Anthropic's Messages API over HTTP
    Messages,
    /// OpenAI's Responses API over HTTP
    Responses,
}

impl ApiDialect {
    pub fn default_url(self) -> &'static str {
        match self {
            ApiDialect::Openai | ApiDialect::Messages | ApiDialect::Responses => DEFAULT_URL,
            ApiDialect::Grpc => GRPC_URL,
        }
    }
}

/// A response whose head has arrived, and whose body has not been read.
pub enum ApiResponse {
    Http(http::Response<Incoming>),
    /// An answer of the Messages API.
    Messages(http::Response<Incoming>),
    /// An answer of the Responses API.
    Responses(http::Response<Incoming>),
    Grpc(grpc::GrpcEventStream),
}

impl ApiResponse {
    /// A header of an HTTP response.
    pub fn header(&self, name: &str) -> Option<&str> {
        match self {
            ApiResponse::Http(response) | ApiResponse::Messages(response) | ApiResponse::Responses(response) => {
                response.headers().get(name)?.to_str().ok()
            }
            ApiResponse::Grpc(_) => None,
        }
    }
}

/// A connection, plain or TLS.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

#[derive(Debug, Error)]
pub enum ClientError {
    #[error("--base-url: {0}")]
    Url(String),
    #[error("--api-key: contains characters that are not allowed in an HTTP header")]
    ApiKey,
    #[error("--header: {0}")]
    Header(String),
    #[error("--ca-file: {0}")]
    CaFile(String),
    #[error("cannot list the models at {url}: {reason}{advice}")]
    Models { url: String, reason: String, advice: &'static str },
}

#[derive(Debug, Clone)]
pub struct Endpoint {
    address: String,
    host: HeaderValue,
    /// Path of the base URL, without a trailing slash.
    prefix: String,
    headers: HeaderMap,
    timeout: Duration,
    tls: Option<Tls>,
    dialect: ApiDialect,
}

#[derive(Debug, Clone)]
struct Tls {
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
}

/// Why a request failed. Reports count failures by kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    Connect(String),
    /// The connection closed before a response arrived.
    NoResponse(String),
    Status {
        code: u16,
        text: String,
        /// The value of the header Retry-After.
        retry_after: Option<Duration>,
    },
    /// An error event inside a stream.
    InStream(String),
    /// The stream ended before the answer was complete.
    Broken(String),
    BadResponse(String),
    /// The request cannot be expressed in the dialect, which the text begins with.
    BadRequest(String),
    Timeout,
}

impl Failure {
    pub fn kind(&self) -> String {
        match self {
            Failure::Connect(_) => "connect".into(),
            Failure::NoResponse(_) => "no_response".into(),
            Failure::Status { code, .. } => format!("http_{code}"),
            Failure::InStream(_) => "error_event".into(),
            Failure::Broken(_) => "broken_stream".into(),
            Failure::BadResponse(_) => "bad_response".into(),
            Failure::BadRequest(_) => "bad_request".into(),
            Failure::Timeout => "timeout".into(),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Connect(e) => write!(f, "cannot connect: {e}"),
            Failure::NoResponse(e) => write!(f, "the connection closed before a response arrived: {e}"),
            Failure::Status { code, text, .. } => write!(f, "HTTP {code}: {text}"),
            Failure::InStream(e) => write!(f, "error in the stream: {e}"),
            Failure::Broken(e) => write!(f, "the stream ended early: {e}"),
            Failure::BadResponse(e) => write!(f, "not a valid response: {e}"),
            Failure::BadRequest(e) => write!(f, "the request cannot be sent over {e}"),
            Failure::Timeout => write!(f, "timed out"),
        }
    }
}

/// The URL of the API: with `/v1`, which people leave out.
pub fn with_version(url: &str) -> String {
    let url = url.trim_end_matches('/');
    let has_path = url.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
    if has_path || url.starts_with("grpc") { url.to_owned() } else { format!("{url}/v1") }
}

impl Endpoint {
    /// `ca_file`: certificates to trust in addition to the public authorities.
    pub fn new(
        url: &str,
        api_key: Option<&str>,
        ca_file: Option<&Path>,
        timeout: Duration,
    ) -> Result<Self, ClientError> {
        if url.contains('@') {
            // The message does not quote the URL, because it may contain a password.
            return Err(ClientError::Url("must not contain a user name or password; use --api-key or --header".into()));
        }
        let bad = |why: &str| ClientError::Url(format!("{url}: {why}"));
        let uri: Uri = url.parse().map_err(|e| bad(&format!("{e}; expected a URL such as {DEFAULT_URL}")))?;
        let (secure, dialect) = match uri.scheme_str() {
            Some("http") => (false, ApiDialect::Openai),
            Some("https") => (true, ApiDialect::Openai),
            Some("grpc") => (false, ApiDialect::Grpc),
            Some("grpcs") => (true, ApiDialect::Grpc),
            _ => return Err(bad("must start with http:// or https://, or with grpc:// or grpcs:// for gRPC")),
        };
        let host = uri.host().ok_or_else(|| bad("has no host"))?;
        let authority = uri.authority().map(|a| a.as_str().to_owned()).unwrap_or_default();
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(concat!("rein/", env!("CARGO_PKG_VERSION"))));
        if let Some(key) = api_key {
            let mut value = HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| ClientError::ApiKey)?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        let tls = if secure {
            let name = host.trim_start_matches('[').trim_end_matches(']');
            let server = match name.parse::<IpAddr>() {
                Ok(ip) => ServerName::IpAddress(ip.into()),
                Err(_) => ServerName::try_from(name.to_owned()).map_err(|_| bad("the host is not valid"))?,
            };
            Some(Tls { config: rein_adapter::client_config(ca_file).map_err(ClientError::CaFile)?, server })
        } else {
            None
        };
        Ok(Self {
            address: format!("{host}:{}", uri.port_u16().unwrap_or(if secure { 443 } else { 80 })),
            host: HeaderValue::try_from(authority).map_err(|_| bad("the host is not valid"))?,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            headers,
            timeout,
            tls,
            dialect,
        })
    }

    /// Sets the dialect. URLs that start with grpc:// or grpcs:// allow only gRPC.
    pub fn with_dialect(mut self, dialect: ApiDialect) -> Result<Self, ClientError> {
        if dialect != ApiDialect::Grpc && self.dialect == ApiDialect::Grpc {
            return Err(ClientError::Url("grpc:// and grpcs:// need --dialect grpc".into()));
        }
        if dialect == ApiDialect::Grpc && !self.prefix.is_empty() {
            let message =
                format!("a gRPC endpoint has no path, got {}; expected a URL such as {GRPC_URL}", self.prefix);
            return Err(ClientError::Url(message));
        }
        if dialect == ApiDialect::Messages {
            self.headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
        }
        self.dialect = dialect;
        Ok(self)
    }

    /// Adds a header, `name: value`, to every request.
    pub fn header(&mut self, text: &str) -> Result<(), ClientError> {
        // Errors quote only the name, because the value may be secret.
        let (name, value) = text.split_once(':').ok_or_else(|| ClientError::Header("expected `name: value`".into()))?;
        let bad = |what: &str| ClientError::Header(format!("{}: {what}", name.trim()));
        let key = HeaderName::try_from(name.trim()).map_err(|_| bad("not a valid header name"))?;
        let mut value = HeaderValue::try_from(value.trim()).map_err(|_| bad("the value is not valid in a header"))?;
        value.set_sensitive(true);
        self.headers.insert(key, value);
        Ok(())
    }

    async fn open(&self) -> Result<Open, Failure> {
        let refused = |e: &dyn std::fmt::Display| Failure::Connect(format!("{}: {e}", self.address));
        let socket = self.socket().await.map_err(|e| refused(&e))?;
        open(socket).await.map_err(|e| refused(&e))
    }

    async fn socket(&self) -> std::io::Result<Box<dyn Io>> {
        let socket = TcpStream::connect(&self.address).await?;
        socket.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(Box::new(socket)) };
        let mut config = tls.config.clone();
        if self.dialect == ApiDialect::Grpc {
            Arc::make_mut(&mut config).alpn_protocols = vec![b"h2".to_vec()];
        }
        Ok(Box::new(TlsConnector::from(config).connect(tls.server.clone(), socket).await?))
    }

    /// The first model in the endpoint's list.
    pub async fn first_model(&self) -> Result<String, ClientError> {
        #[derive(Deserialize)]
        struct Model {
            id: String,
        }
        #[derive(Deserialize)]
        struct Models {
            data: Vec<Model>,
        }
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let url = || format!("{scheme}://{}{}/models", self.address, self.prefix);
        let failed = |e: Failure| {
            let advice = match e.kind().as_str() {
                "http_401" => "; set --api-key, or OPENAI_API_KEY",
                "connect" => "",
                _ => "; set --model",
            };
            ClientError::Models { url: url(), reason: e.to_string(), advice }
        };
        if self.dialect == ApiDialect::Grpc {
            let first =
                tokio::time::timeout(self.timeout, grpc::first_model(self)).await.unwrap_or(Err(Failure::Timeout));
            return first.map_err(failed);
        }
        let mut connection = ReusedConnection::new(self);
        let body = tokio::time::timeout(self.timeout, connection.get("/models"))
            .await
            .unwrap_or(Err(Failure::Timeout))
            .map_err(failed)?;
        let models: Models = serde_json::from_slice(&body).map_err(|e| failed(Failure::BadResponse(e.to_string())))?;
        let first = models.data.into_iter().next();
        first.map(|m| m.id).ok_or_else(|| failed(Failure::BadResponse("the list of models is empty".into())))
    }
}

/// A connection that is reused for several requests, and reopened when it is closed.
#[derive(Debug)]
pub struct ReusedConnection<'a> {
    endpoint: &'a Endpoint,
    open: Option<Open>,
    /// The client of the gRPC dialect, which manages its own connection.
    client: Option<grpc::InferenceChannel>,
}

#[derive(Debug)]
struct Open {
    sender: SendRequest<Full<Bytes>>,
    /// Bytes received from the server.
    received: ReceivedBytes,
    /// Whether a request was answered on this connection.
    used: bool,
}

impl<'a> ReusedConnection<'a> {
    pub fn new(endpoint: &'a Endpoint) -> Self {
        Self { endpoint, open: None, client: None }
    }

    /// Sends a request and passes the response to `read`, with the time at which the request was sent.
    pub async fn ask<T>(
        &mut self,
        path: &str,
        body: Bytes,
        read: impl AsyncFnOnce(ApiResponse, Instant) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let timeout = self.endpoint.timeout;
        let exchange = async {
            let (response, start) = match self.endpoint.dialect {
                ApiDialect::Openai => {
                    let (response, start) = self.request(Method::POST, path, body).await?;
                    (ApiResponse::Http(response), start)
                }
                ApiDialect::Messages => {
                    let body = messages::request(&body);
                    let body = body.map_err(|why| Failure::BadRequest(format!("the Messages API: {why}")))?;
                    let (response, start) = self.request(Method::POST, messages::PATH, body.into()).await?;
                    (ApiResponse::Messages(response), start)
                }
                ApiDialect::Responses => {
                    let body = responses::request(&body);
                    let body = body.map_err(|why| Failure::BadRequest(format!("the Responses API: {why}")))?;
                    let (response, start) = self.request(Method::POST, responses::PATH, body.into()).await?;
                    (ApiResponse::Responses(response), start)
                }
                ApiDialect::Grpc => self.call(&body).await?,
            };
            read(response, start).await
        };
        let result = tokio::time::timeout(timeout, exchange).await.unwrap_or(Err(Failure::Timeout));
        if result.is_err() {
            self.open = None;
        }
        result
    }

    pub async fn get(&mut self, path: &str) -> Result<Bytes, Failure> {
        collect_body(self.request(Method::GET, path, Bytes::new()).await?.0).await
    }

    async fn call(&mut self, body: &[u8]) -> Result<(ApiResponse, Instant), Failure> {
        let client = match &mut self.client {
            Some(client) => client,
            None => self.client.insert(grpc::client(self.endpoint)?),
        };
        let request = grpc::request(self.endpoint, body)?;
        let start = Instant::now();
        let events = client.chat(request).await.map_err(|status| grpc::failure(&status))?;
        Ok((ApiResponse::Grpc(events.into_inner()), start))
    }

    /// Returns the response, and the time at which the request was sent. A server may close an idle connection at the
    /// moment when a request is sent on it. A request that fails on a reused connection without having received a byte
    /// is therefore sent once more, on a new connection.
    async fn request(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(http::Response<Incoming>, Instant), Failure> {
        loop {
            let open = self.connect().await?;
            let (used, received) = (open.used, open.received.bytes());
            let start = Instant::now();
            let result = self.send(method.clone(), path, body.clone()).await;
            match (&result, &mut self.open) {
                (Err(Failure::NoResponse(_)), Some(open)) if used && open.received.bytes() == received => {
                    self.open = None
                }
                (_, Some(open)) => {
                    open.used = true;
                    return Ok((result?, start));
                }
                (_, None) => return Ok((result?, start)),
            }
        }
    }

    async fn connect(&mut self) -> Result<&mut Open, Failure> {
        let usable = match &mut self.open {
            Some(open) => open.sender.ready().await.is_ok(),
            None => false,
        };
        if !usable {
            self.open = None;
        }
        match self.open {
            Some(ref mut open) => Ok(open),
            None => Ok(self.open.insert(self.endpoint.open().await?)),
        }
    }

    async fn send(&mut self, method: Method, path: &str, body: Bytes) -> Result<http::Response<Incoming>, Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.endpoint.prefix))
            .header(header::HOST, &self.endpoint.host)
            .body(Full::new(body))
            .map_err(|e| Failure::Connect(e.to_string()))?;
        request.headers_mut().extend(self.endpoint.headers.clone());
        let Some(open) = &mut self.open else { return Err(Failure::Connect("no connection".into())) };
        let response = open.sender.send_request(request).await.map_err(|e| Failure::NoResponse(e.to_string()))?;
        let code = response.status().as_u16();
        if code == 200 {
            return Ok(response);
        }
        let retry_after = response.headers().get(header::RETRY_AFTER).and_then(|v| retry_after(v.to_str().ok()?));
        let text = match collect_body(response).await {
            Ok(body) => error_text(&body),
            Err(why) => format!("(its error cannot be read: {why})"),
        };
        Err(Failure::Status { code, text, retry_after })
    }
}

async fn open<S>(socket: S) -> Result<Open, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let received = ReceivedBytes::default();
    let (sender, connection) = handshake(TokioIo::new(Counting::new(socket, received.clone()))).await?;
    // The task ends when the sender is dropped. The sender reports errors of the connection.
    tokio::spawn(async move { connection.await.ok() });
    Ok(Open { sender, received, used: false })
}

/// Parses Retry-After: a number of seconds or a date.
fn retry_after(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let until = chrono::DateTime::parse_from_rfc2822(text.trim()).ok()?;
    Some((until.to_utc() - chrono::Utc::now()).to_std().unwrap_or(Duration::ZERO))
}

/// Reads the whole body of an unstreamed response.
pub async fn collect(response: ApiResponse) -> Result<Bytes, Failure> {
    match response {
        ApiResponse::Http(response) => collect_body(response).await,
        ApiResponse::Messages(response) => {
            let body = collect_body(response).await?;
            Ok(messages::answer(&body).map_or(body, Bytes::from))
        }
        ApiResponse::Responses(response) => {
            let body = collect_body(response).await?;
            Ok(responses::answer(&body).map_or(body, Bytes::from))
        }
        ApiResponse::Grpc(_) => Err(Failure::BadResponse("gRPC responses are always streamed".into())),
    }
}

async fn collect_body(response: http::Response<Incoming>) -> Result<Bytes, Failure> {
    let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await;
    body.map(|b| b.to_bytes()).map_err(|e| Failure::Broken(e.to_string()))
}

/// Reads a stream to its end. Calls `event` with the data of each event before `[DONE]`, and its time since `start`.
/// Returns whether `[DONE]`, or the last event of the dialect, arrived.
pub async fn read_events(
    response: ApiResponse,
    start: Instant,
    mut event: impl FnMut(&[u8], Duration),
) -> Result<bool, Failure> {
    let (response, mut translator) = match response {
        ApiResponse::Http(response) => (response, None),
        ApiResponse::Messages(response) => (response, Some(Translator::Messages(Default::default()))),
        ApiResponse::Responses(response) => (response, Some(Translator::Responses(Default::default()))),
        ApiResponse::Grpc(events) => return grpc::read_events(events, start, event).await,
    };
    let mut body = response.into_body();
    let mut events = SseEvents::new(MAX_EVENT_BYTES);
    let mut done = false;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| Failure::Broken(e.to_string()))?;
        let at = start.elapsed();
        let Ok(data) = frame.into_data() else { continue };
        let pushed = events.push(&data, |data| match (&mut translator, data == b"[DONE]") {
            (Some(translator), _) => translator.chunk(data).iter().for_each(|chunk| event(chunk, at)),
            (None, true) => done = true,
            (None, false) => event(data, at),
        });
        if pushed.is_err() {
            return Err(Failure::BadResponse("an event is larger than 16 MiB".into()));
        }
    }
    Ok(done || translator.is_some_and(|translator| translator.is_done()))
}

/// Turns the events of another API into chunks of chat completions.
enum Translator {
    Messages(messages::EventTranslator),
    Responses(responses::ResponseTranslator),
}

impl Translator {
    fn chunk(&mut self, data: &[u8]) -> Option<Vec<u8>> {
        match self {
            Translator::Messages(translator) => translator.chunk(data),
            Translator::Responses(translator) => translator.chunk(data),
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Translator::Messages(translator) => translator.done,
            Translator::Responses(translator) => translator.done,
        }
    }
}
