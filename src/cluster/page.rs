//! The admin HTTP server of workers and controllers: /metrics, /health and /ready, without TLS and API keys. It does
//! not know what is measured.

use std::error::Error;
use std::sync::Arc;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, extract::State};
use prometheus_client::registry::Registry;
use rein_router::metrics::{CONTENT_TYPE, text};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::args::address::ListenAddr;
use crate::listen::{CLOSE_TIME, WriteTimeout, bind, serve_http, wait_until_true};
use crate::terminal;

/// The contents, computed at each request.
pub struct StatusPage {
    pub metrics: Registry,
    /// Whether the process is ready, and why.
    pub ready: Box<dyn Fn() -> Result<&'static str, &'static str> + Send + Sync>,
}

/// The socket. It is bound before the process reports that it is ready, so that a port in use is reported at once.
pub struct MetricsSocket(Option<TcpListener>);

impl MetricsSocket {
    pub async fn new(address: Option<&ListenAddr>) -> Result<Self, Box<dyn Error>> {
        match address {
            Some(address) => Ok(MetricsSocket(Some(bind("--http", address).await?))),
            None => Ok(MetricsSocket(None)),
        }
    }

    pub fn open(self, page: StatusPage) -> Result<Option<Listening>, Box<dyn Error>> {
        let Some(socket) = self.0 else { return Ok(None) };
        terminal::out(format_args!("rein: http listening on http://{}", socket.local_addr()?));
        let (closing, closed) = watch::channel(false);
        let server =
            tokio::spawn(serve_http(routes(page), socket, None, WriteTimeout::default(), wait_until_true(closed)));
        Ok(Some(Listening { closing, server }))
    }
}

pub struct Listening {
    closing: watch::Sender<bool>,
    server: JoinHandle<Result<(), String>>,
}

impl Listening {
    pub async fn close(self) {
        self.closing.send_replace(true);
        // Open connections are closed when the process ends.
        let _ = timeout(CLOSE_TIME, self.server).await;
    }
}

fn routes(page: StatusPage) -> axum::Router {
    axum::Router::new()
        .route("/health", get(async || Json(json!({"status": "ok"}))))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(page))
}

async fn ready(State(page): State<Arc<StatusPage>>) -> Response {
    match (page.ready)() {
        Ok(why) => Json(json!({"status": "ready", "why": why})).into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "not ready", "why": why}))).into_response(),
    }
}

async fn metrics(State(page): State<Arc<StatusPage>>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text(&page.metrics)).into_response()
}
