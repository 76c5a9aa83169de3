//! The HTTP page of a process without clients: /metrics, /health and /ready, plain and without keys. It does not know
//! what is measured.

use std::error::Error;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, extract::State};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::args::listen::ListenAddr;
use crate::listen::{CLOSE_TIME, Stall, bind, serve_http, turned};
use crate::say;
use crate::tls::Certificate;

/// The page's contents, computed at each request.
pub struct StatusPage {
    pub metrics: Box<dyn Fn() -> String + Send + Sync>,
    /// Whether the process is ready, and why.
    pub ready: Box<dyn Fn() -> Result<&'static str, &'static str> + Send + Sync>,
}

/// The socket, bound before the process reports that it is ready, so that a taken port is reported at once.
pub struct MetricsSocket(Option<TcpListener>);

impl MetricsSocket {
    pub async fn new(address: Option<&ListenAddr>) -> Result<Self, Box<dyn Error>> {
        began();
        match address {
            Some(address) => Ok(MetricsSocket(Some(bind("--http", address).await?))),
            None => Ok(MetricsSocket(None)),
        }
    }

    pub fn open(self, page: StatusPage) -> Result<Option<Listening>, Box<dyn Error>> {
        let Some(socket) = self.0 else { return Ok(None) };
        say::out(format_args!("rein: http listening on http://{}", socket.local_addr()?));
        let (closing, closed) = watch::channel(false);
        let server = tokio::spawn(serve_http(routes(page), socket, None, Stall::default(), turned(closed)));
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
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], (page.metrics)()).into_response()
}

/// The time of the first call, in seconds since 1970.
fn began() -> u64 {
    static BEGAN: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *BEGAN.get_or_init(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

/// The Prometheus text format. Label values are names in the cluster, which need no escapes.
#[derive(Default)]
pub struct Text(pub String);

pub struct Family<'a> {
    out: &'a mut String,
    name: String,
}

impl Text {
    /// The metrics that every process has.
    pub fn of_process() -> Self {
        let mut text = Text(String::new());
        let help = "Always 1; the version is a label.";
        text.family("rein_build_info", "gauge", help).sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
        let help = "Start time of this process, in seconds since 1970.";
        text.family("process_start_time_seconds", "gauge", help).sample(&[], began());
        text
    }

    pub fn certificates(&mut self, certificates: &[Certificate]) {
        let left = |certificate: &Certificate| Some((certificate.usage, certificate.seconds_left()?));
        let left: Vec<_> = certificates.iter().filter_map(left).collect();
        if left.is_empty() {
            return;
        }
        let help = "Seconds until a certificate of this process expires; negative if it has expired.";
        let mut family = self.family("rein_certificate_expiry_seconds", "gauge", help);
        left.iter().for_each(|(usage, seconds)| family.sample(&[("usage", usage)], seconds));
    }

    pub fn family(&mut self, name: &str, kind: &str, help: &str) -> Family<'_> {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { out: &mut self.0, name: name.to_owned() }
    }
}

impl Family<'_> {
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.out, "{}{labels} {value}", self.name);
    }

    /// A histogram of one worker; `buckets` are counts per bucket, not cumulative.
    pub fn histogram(&mut self, worker: &str, ends: &[f64], buckets: &[u64], count: u64, time: Duration) {
        let name = &self.name;
        let mut below = 0;
        for (end, bucket) in ends.iter().zip(buckets) {
            below += bucket;
            let _ = writeln!(self.out, "{name}_bucket{{worker=\"{worker}\",le=\"{end}\"}} {below}");
        }
        let _ = writeln!(self.out, "{name}_bucket{{worker=\"{worker}\",le=\"+Inf\"}} {count}");
        let _ = writeln!(self.out, "{name}_sum{{worker=\"{worker}\"}} {}", time.as_secs_f64());
        let _ = writeln!(self.out, "{name}_count{{worker=\"{worker}\"}} {count}");
    }
}

/// Checks that a section of docs/operations.md lists exactly these metrics, with their types and labels.
#[cfg(test)]
pub fn assert_documented(section: &str, written: &str) {
    let page = include_str!("../../docs/operations.md");
    let (_, section) = page.split_once(&format!("\n### {section}\n")).expect("the section");
    let section = section.split("\n#").next().unwrap_or_default();
    let ticked = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let documented = section.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        Some((ticked(cells.get(1)?).first()?.clone(), cells[2].to_owned(), ticked(cells[3])))
    });
    let declared = written.lines().filter_map(|line| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        let of_it = |line: &&str| {
            let rest = line.strip_prefix(name).map(|rest| rest.strip_prefix("_count").unwrap_or(rest));
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
        };
        let sample = written.lines().find(of_it).unwrap_or_else(|| panic!("{name} has no sample"));
        let labels = sample.split_once('{').map_or("", |(_, rest)| rest.split('}').next().unwrap_or_default());
        let labels = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0.to_owned())).collect();
        Some((name.to_owned(), kind.to_owned(), labels))
    });
    // Metrics of every process are listed once, for routers.
    let own = |(name, ..): &(String, String, Vec<String>)| name.starts_with("rein_") && name != "rein_build_info";
    let (mut documented, mut declared) = (documented.collect::<Vec<_>>(), declared.filter(own).collect::<Vec<_>>());
    documented.sort();
    declared.sort();
    assert_eq!(documented, declared);
}
