//! Connections to one engine. It does not know what is asked.

mod proof;

use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;
use tokio_rustls::rustls::ClientConfig;

use crate::limits;
use proof::ProvingConnector;
pub use proof::{Proof, ProofStep};

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unanswered(pub String);

/// A request without an answer.
#[derive(Debug)]
pub enum NoAnswer {
    /// There was no connection, so the engine never had the request.
    NotConnected(Unanswered),
    Cut(Unanswered),
}

impl NoAnswer {
    fn into_unanswered(self) -> Unanswered {
        match self {
            NoAnswer::NotConnected(why) | NoAnswer::Cut(why) => why,
        }
    }
}

/// An invalid address of an engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{url}: {problem}")]
pub struct InvalidUrl {
    pub url: String,
    pub problem: String,
}

/// An engine's address: `http://` or `https://`, a host, and perhaps a port and a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineUrl {
    /// Without a slash at the end.
    base: String,
    host: String,
}

impl EngineUrl {
    /// The host; an IPv6 address is in brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn as_str(&self) -> &str {
        &self.base
    }
}

impl FromStr for EngineUrl {
    type Err = InvalidUrl;

    fn from_str(url: &str) -> Result<Self, InvalidUrl> {
        let invalid = |problem: &str| InvalidUrl { url: url.to_owned(), problem: problem.to_owned() };
        if url.contains('@') {
            let problem = "must not contain a user name or password; set REIN_ENGINE_KEY".to_owned();
            return Err(InvalidUrl { url: "the engine's URL".to_owned(), problem });
        }
        let uri: Uri = url.parse().map_err(|_| invalid("expected a URL such as http://10.0.0.5:8000"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(invalid("expected a URL such as http://10.0.0.5:8000"));
        }
        let host = uri.host().filter(|host| !host.is_empty() && uri.query().is_none());
        let host =
            host.ok_or_else(|| invalid("expected a host and no query, such as http://10.0.0.5:8000"))?.to_owned();
        Ok(EngineUrl { base: url.trim_end_matches('/').to_owned(), host })
    }
}

/// A client of one engine, which reuses its connections.
#[derive(Debug, Clone)]
pub struct EngineHttp {
    client: Client<ProvingConnector, Full<Bytes>>,
    requests: EngineRequests,
    proof: Arc<OnceLock<Proof>>,
}

/// Writes requests to one engine.
#[derive(Debug, Clone)]
struct EngineRequests {
    url: EngineUrl,
    key: Option<HeaderValue>,
}

impl EngineRequests {
    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, Unanswered> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url.base))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, concat!("rein/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(body))
            .map_err(|error| Unanswered(format!("{}{path}: {error}", self.url.base)))?;
        if let Some(key) = &self.key {
            request.headers_mut().insert(header::AUTHORIZATION, key.clone());
        }
        Ok(request)
    }
}

impl EngineHttp {
    /// `key`: an API key, sent as a bearer token. `tls`: for an engine at `https://`.
    pub fn new(url: EngineUrl, key: Option<&str>, tls: Arc<ClientConfig>) -> Result<Self, InvalidUrl> {
        let key = key.map(|key| {
            HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| InvalidUrl {
                url: url.base.clone(),
                problem: "REIN_ENGINE_KEY has characters that are not allowed in a header".to_owned(),
            })
        });
        let mut key = key.transpose()?;
        if let Some(key) = &mut key {
            key.set_sensitive(true);
        }
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(limits::CONNECT_TIME));
        connector.enforce_http(false);
        let tls = ClientConfig::clone(&tls);
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(connector);
        let (proof, requests) = (Arc::new(OnceLock::new()), EngineRequests { url, key });
        let connector = ProvingConnector::new(connector, requests.clone(), proof.clone());
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(limits::IDLE_TIME)
            .pool_max_idle_per_host(limits::IDLE_CONNECTIONS)
            .build(connector);
        Ok(EngineHttp { client, requests, proof })
    }

    pub fn url(&self) -> &str {
        &self.requests.url.base
    }

    /// From now on, every new connection is used only after the engine at its other end has given this proof.
    pub fn prove_connections(&self, proof: Proof) {
        // An engine joins once.
        let _ = self.proof.set(proof);
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>, NoAnswer> {
        let request = self.requests.request(method, path, body).map_err(NoAnswer::NotConnected)?;
        self.client.request(request).await.map_err(|error| {
            let why = Unanswered(format!("{}{path}: {}", self.url(), with_sources(&error)));
            if error.is_connect() { NoAnswer::NotConnected(why) } else { NoAnswer::Cut(why) }
        })
    }

    /// Sends a request and returns the answer when its head has arrived. A server may close an idle connection at the
    /// moment when a request is sent on it, so a request without any answer is sent once more. An engine that the first
    /// one may have ended counts as cut, even if it cannot be reached any more.
    pub async fn post(&self, path: &str, body: Bytes) -> Result<Response<Incoming>, NoAnswer> {
        match self.send(Method::POST, path, body.clone()).await {
            Ok(response) => Ok(response),
            Err(NoAnswer::NotConnected(_)) => self.send(Method::POST, path, body).await,
            Err(NoAnswer::Cut(_)) => {
                let cut = |error: NoAnswer| NoAnswer::Cut(error.into_unanswered());
                self.send(Method::POST, path, body).await.map_err(cut)
            }
        }
    }

    /// The whole answer, within the time of a call.
    pub async fn call(&self, method: Method, path: &str, body: Bytes) -> Result<(StatusCode, Bytes), Unanswered> {
        let call = async {
            let response = self.send(method, path, body).await.map_err(NoAnswer::into_unanswered)?;
            let status = response.status();
            Ok((status, collect(response, limits::ANSWER_BYTES).await?))
        };
        let late = || Unanswered(format!("{}{path}: no answer within {} s", self.url(), limits::CALL_TIME.as_secs()));
        timeout(limits::CALL_TIME, call).await.unwrap_or_else(|_| Err(late()))
    }

    pub async fn get(&self, path: &str) -> Result<(StatusCode, Bytes), Unanswered> {
        self.call(Method::GET, path, Bytes::new()).await
    }
}

/// An error with its causes.
fn with_sources(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |source| source.source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}

/// The whole body, if it has at most this many bytes.
pub async fn collect(response: Response<Incoming>, most: usize) -> Result<Bytes, Unanswered> {
    let body = Limited::new(response.into_body(), most).collect().await;
    body.map(|body| body.to_bytes()).map_err(|error| {
        let large = error.is::<http_body_util::LengthLimitError>();
        Unanswered(if large { format!("the answer has more than {most} bytes") } else { error.to_string() })
    })
}

/// The wait that a response asks for, in seconds.
pub fn retry_after(response: &Response<Incoming>) -> Option<Duration> {
    let value = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse::<u64>().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests;
