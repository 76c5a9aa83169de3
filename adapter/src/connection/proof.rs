//! Connections whose other end proves what it is before they are used. An address may lead to another engine at any
//! time: one that was started in its place, or another one behind the same service.

use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::{BoxFuture, join};
use http::{HeaderValue, Method, StatusCode, Uri, Version, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower::Service;

use super::{EngineRequests, Unanswered, with_sources};
use crate::limits;

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// Questions that an engine must answer as expected, in this order.
pub type Proof = Arc<[ProofStep]>;

/// Err: why another engine gave this answer.
type Check = dyn Fn(StatusCode, &[u8]) -> Result<(), String> + Send + Sync;

/// One question.
pub struct ProofStep {
    pub method: Method,
    pub path: &'static str,
    pub body: Bytes,
    pub check: Box<Check>,
}

impl std::fmt::Debug for ProofStep {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ProofStep").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Opens connections. Without a proof, as they are.
#[derive(Debug, Clone)]
pub struct ProvingConnector {
    connector: HttpsConnector<HttpConnector>,
    requests: EngineRequests,
    proof: Arc<OnceLock<Proof>>,
}

impl ProvingConnector {
    pub fn new(
        connector: HttpsConnector<HttpConnector>,
        requests: EngineRequests,
        proof: Arc<OnceLock<Proof>>,
    ) -> Self {
        ProvingConnector { connector, requests, proof }
    }

    async fn connect(&mut self, uri: Uri) -> Result<Stream, Unanswered> {
        let unanswered = |error: Box<dyn std::error::Error + Send + Sync>| Unanswered(with_sources(&*error));
        std::future::poll_fn(|context| self.connector.poll_ready(context)).await.map_err(unanswered)?;
        self.connector.call(uri).await.map_err(unanswered)
    }

    async fn connect_proven(mut self, uri: Uri) -> Result<Stream, Unanswered> {
        let mut stream = self.connect(uri.clone()).await?;
        let Some(proof) = self.proof.get().cloned() else { return Ok(stream) };
        let mut steps = &proof[..];
        let asked = async {
            loop {
                let (left, open) = self.ask(stream, steps).await?;
                (steps, stream) = match open {
                    Some(stream) => return Ok(stream),
                    // The engine closes the connection after an answer.
                    None => (left, self.connect(uri.clone()).await?),
                };
                if steps.is_empty() {
                    return Ok(stream);
                }
            }
        };
        let late = || Unanswered(format!("no proof within {} s of what it is", limits::CALL_TIME.as_secs()));
        timeout(limits::CALL_TIME, asked).await.unwrap_or_else(|_| Err(late()))
    }

    /// Asks on this connection. Returns the steps that are left and the connection, or None if the engine closed it.
    async fn ask<'a>(
        &self,
        stream: Stream,
        steps: &'a [ProofStep],
    ) -> Result<(&'a [ProofStep], Option<Stream>), Unanswered> {
        let failed = |error: hyper::Error| Unanswered(with_sources(&error));
        let (mut sender, connection) = http1::handshake::<_, Full<Bytes>>(stream).await.map_err(failed)?;
        let questions = async move {
            let mut left = steps;
            while let [step, rest @ ..] = left {
                let request = self.requests.request(step.method.clone(), step.path, step.body.clone())?;
                sender.ready().await.map_err(failed)?;
                let response = sender.send_request(origin_form(request)?).await.map_err(failed)?;
                let (status, closes) = (response.status(), closes(&response));
                let body = Limited::new(response.into_body(), limits::ANSWER_BYTES).collect().await;
                let body = body.map_err(|error| Unanswered(error.to_string()))?.to_bytes();
                (step.check)(status, &body).map_err(Unanswered)?;
                left = rest;
                if closes {
                    return Ok((left, false));
                }
            }
            Ok((left, true))
        };
        // The connection ends when the questions have dropped its sender.
        let (asked, parts) = join(questions, connection.without_shutdown()).await;
        let (left, open) = asked?;
        let stream = parts.ok().filter(|parts| open && parts.read_buf.is_empty()).map(|parts| parts.io);
        Ok((left, stream))
    }
}

/// The request as it is written on a connection to its host.
fn origin_form<B>(mut request: http::Request<B>) -> Result<http::Request<B>, Unanswered> {
    let unanswered = |error: &dyn std::fmt::Display| Unanswered(error.to_string());
    let host = request.uri().authority().map_or("", |authority| authority.as_str());
    let host = HeaderValue::from_str(host).map_err(|error| unanswered(&error))?;
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse::<Uri>().map_err(|error| unanswered(&error))?;
    request.headers_mut().insert(header::HOST, host);
    Ok(request)
}

/// Whether the connection ends with this answer.
fn closes<B>(response: &http::Response<B>) -> bool {
    let said = |what: &str| {
        let values = response.headers().get_all(header::CONNECTION).iter();
        values.filter_map(|value| value.to_str().ok()).any(|value| value.to_ascii_lowercase().contains(what))
    };
    said("close") || response.version() == Version::HTTP_10 && !said("keep-alive")
}

impl Service<Uri> for ProvingConnector {
    type Response = Stream;
    type Error = Unanswered;
    type Future = BoxFuture<'static, Result<Stream, Unanswered>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Unanswered>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect_proven(uri))
    }
}
