//! HTTP to a hub: redirects, proxies of the environment, and which failures are worth another attempt.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::TryFutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio_rustls::rustls::ClientConfig;
use tower::Service;

use crate::limits::{
    CONNECT_TIMEOUT, FIRST_WAIT, MAX_ERROR_BYTES, MAX_LISTING_BYTES, MAX_REDIRECTS, MAX_WAIT, READ_TIMEOUT,
};

const USER_AGENT: &str = concat!("rein/", env!("CARGO_PKG_VERSION"));

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Clone)]
pub struct HubClient {
    client: Client<HttpsConnector<Connect>, Empty<Bytes>>,
    authorization: Option<HeaderValue>,
}

/// Why a request failed.
#[derive(Debug)]
pub enum HubFailure {
    /// The next attempt may succeed, after this time if the server gave one.
    Passing {
        what: String,
        status: Option<StatusCode>,
        wait: Option<Duration>,
    },
    Refused {
        status: StatusCode,
        message: String,
    },
    /// No answer of a hub.
    Answer(String),
}

impl HubFailure {
    pub fn passing(what: impl Into<String>) -> Self {
        HubFailure::Passing { what: what.into(), status: None, wait: None }
    }
}

impl HubClient {
    pub fn new(tls: &ClientConfig, authorization: Option<HeaderValue>) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connect = Connect { http, proxies: Arc::new(Matcher::from_env()) };
        let https = HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http();
        let client = Client::builder(TokioExecutor::new()).build(https.enable_http1().wrap_connector(connect));
        HubClient { client, authorization }
    }

    /// The whole body of an answer.
    pub async fn get(&self, url: &str) -> Result<Bytes, HubFailure> {
        let response = self.follow(Method::GET, url, HeaderMap::new()).await?;
        collect(response.into_body(), MAX_LISTING_BYTES).await
    }

    /// The head of the answer to a GET from a position of a file on.
    pub async fn open(&self, url: &str, start: u64) -> Result<Response<Incoming>, HubFailure> {
        let mut headers = HeaderMap::new();
        if start > 0 {
            headers.insert(header::RANGE, header_value(&format!("bytes={start}-"))?);
        }
        self.follow(Method::GET, url, headers).await
    }

    /// The headers that the hub itself sends for a file, before it redirects to where the file lies.
    pub async fn head(&self, url: &str) -> Result<HeaderMap, HubFailure> {
        let (url, headers) = (parse(url)?, HeaderMap::new());
        let response = self.send(Method::HEAD, &url, &headers, true).await?;
        match response.status() {
            status if status.is_success() || status.is_redirection() => Ok(response.headers().clone()),
            _ => Err(refused(response).await),
        }
    }

    async fn follow(&self, method: Method, url: &str, headers: HeaderMap) -> Result<Response<Incoming>, HubFailure> {
        let first = parse(url)?;
        let mut url = first.clone();
        for _ in 0..=MAX_REDIRECTS {
            // The token is for the hub, not for the servers that it redirects to.
            let trusted = url.authority() == first.authority() && url.scheme() == first.scheme();
            let response = self.send(method.clone(), &url, &headers, trusted).await?;
            if !response.status().is_redirection() {
                return match response.status().is_success() {
                    true => Ok(response),
                    false => Err(refused(response).await),
                };
            }
            let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            url = location.and_then(|location| join(&url, location)).ok_or_else(|| {
                HubFailure::Answer(format!("a redirect ({}) without a valid location", response.status()))
            })?;
            if first.scheme_str() == Some("https") && url.scheme_str() != Some("https") {
                return Err(HubFailure::Answer("a redirect from https to an unencrypted address".into()));
            }
        }
        Err(HubFailure::Answer(format!("more than {MAX_REDIRECTS} redirects")))
    }

    async fn send(
        &self,
        method: Method,
        url: &Uri,
        headers: &HeaderMap,
        trusted: bool,
    ) -> Result<Response<Incoming>, HubFailure> {
        let mut request = Request::builder().method(method).uri(url).header(header::USER_AGENT, USER_AGENT);
        if let Some(token) = self.authorization.as_ref().filter(|_| trusted) {
            request = request.header(header::AUTHORIZATION, token);
        }
        let mut request = request.body(Empty::new()).map_err(|error| HubFailure::Answer(error.to_string()))?;
        request.headers_mut().extend(headers.clone());
        match tokio::time::timeout(READ_TIMEOUT, self.client.request(request)).await {
            Err(_) => Err(HubFailure::passing(format!("no answer within {READ_TIMEOUT:?}"))),
            Ok(Err(error)) => Err(HubFailure::passing(innermost(&error))),
            Ok(Ok(response)) => Ok(response),
        }
    }
}

/// The wait before attempt `failed + 1`.
pub fn backoff(failed: u32, asked: Option<Duration>) -> Duration {
    asked.unwrap_or(FIRST_WAIT * 2u32.saturating_pow(failed - 1)).min(MAX_WAIT)
}

async fn refused(response: Response<Incoming>) -> HubFailure {
    let status = response.status();
    let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let wait = text("retry-after").and_then(|seconds| seconds.trim().parse().ok()).map(Duration::from_secs);
    let message = text("x-error-message");
    let passes = status.is_server_error()
        || matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT | StatusCode::RANGE_NOT_SATISFIABLE
        );
    let message = match message {
        Some(message) => message,
        None => collect(response.into_body(), MAX_ERROR_BYTES).await.map_or_else(|_| String::new(), |b| error_text(&b)),
    };
    match passes {
        false => HubFailure::Refused { status, message },
        true => {
            let said = if message.is_empty() { String::new() } else { format!(": {message}") };
            HubFailure::Passing { what: format!("the server answers {status}{said}"), status: Some(status), wait }
        }
    }
}

/// What an error body in JSON says.
fn error_text(body: &[u8]) -> String {
    match serde_json::from_slice::<serde_json::Value>(body) {
        Ok(body) => body["error"].as_str().unwrap_or_default().chars().take(300).collect(),
        // A page of HTML says nothing on one line.
        Err(_) => String::new(),
    }
}

pub async fn collect(body: Incoming, limit: usize) -> Result<Bytes, HubFailure> {
    let whole = tokio::time::timeout(READ_TIMEOUT, Limited::new(body, limit).collect()).await;
    match whole {
        Err(_) => Err(HubFailure::passing(format!("the answer is not whole within {READ_TIMEOUT:?}"))),
        Ok(Err(error)) => Err(HubFailure::passing(innermost(&*error))),
        Ok(Ok(body)) => Ok(body.to_bytes()),
    }
}

/// The cause at the end of an error's chain: "Connection refused (os error 111)" rather than "client error (Connect)".
pub fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.last().map(ToString::to_string).unwrap_or_default()
}

fn header_value(text: &str) -> Result<HeaderValue, HubFailure> {
    HeaderValue::from_str(text).map_err(|error| HubFailure::Answer(error.to_string()))
}

fn parse(url: &str) -> Result<Uri, HubFailure> {
    url.parse().map_err(|error| HubFailure::Answer(format!("{url}: {error}")))
}

/// A redirect's location, which may be relative to the host or to the path of `base`.
fn join(base: &Uri, location: &str) -> Option<Uri> {
    let uri: Uri = match location.contains("://") {
        true => location.parse().ok()?,
        false => {
            let path = match location.strip_prefix("//") {
                Some(rest) => return format!("{}://{rest}", base.scheme_str()?).parse().ok(),
                None if location.starts_with('/') => location.to_owned(),
                None => format!("{}/{location}", base.path().rsplit_once('/')?.0),
            };
            Uri::builder()
                .scheme(base.scheme_str()?)
                .authority(base.authority()?.clone())
                .path_and_query(path)
                .build()
                .ok()?
        }
    };
    (matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()).then_some(uri)
}

/// Connects directly, or through the proxy that HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY give for a host.
#[derive(Debug, Clone)]
struct Connect {
    http: HttpConnector,
    proxies: Arc<Matcher>,
}

impl Service<Uri> for Connect {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.http.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Some(proxy) = self.proxies.intercept(&uri) else { return Box::pin(self.http.call(uri).err_into()) };
        if proxy.uri().scheme_str() != Some("http") {
            let what = format!("the proxy {} of the environment is not one at http://", proxy.uri());
            return Box::pin(std::future::ready(Err(what.into())));
        }
        let mut tunnel = Tunnel::new(proxy.uri().clone(), self.http.clone());
        if let Some(value) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(value.clone());
        }
        let shown = proxy.uri().to_string();
        let tunnelled: BoxFuture<'static, _> = Box::pin(tunnel.call(uri));
        Box::pin(tunnelled.map_err(move |error| format!("the proxy {shown}: {error}").into()))
    }
}
