//! HTTP and gRPC listeners. They bound the number of connections and close them in order when the process ends. They
//! do not know what is served.

mod connection;

use std::error::Error;
use std::future::Future;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::service::Routes;

use crate::args::address::ListenAddr;
use crate::tls::{ServerTls, Socket};
use connection::Connection;
pub use connection::WriteTimeout;

/// Length of the accept queue; the kernel caps it at `net.core.somaxconn`. With tokio's default of 1,024, a burst of
/// thousands of clients loses connections.
const BACKLOG: u32 = 16_384;

/// Listens on the first of the name's addresses that this machine has. `flag` is named in errors.
pub async fn bind(flag: &str, address: &ListenAddr) -> Result<TcpListener, Box<dyn Error>> {
    let listen = |address: SocketAddr| {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // As in TcpListener::bind: a restarted process does not wait until the old connections are gone.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    let failed = |e: io::Error| format!("{flag}: cannot listen on {address}: {e}");
    let addresses = address.resolve().await.map_err(failed)?;
    let mut addresses = addresses.into_iter().peekable();
    while let Some(next) = addresses.next() {
        match listen(next) {
            Ok(listener) => return Ok(listener),
            // A port in use is an error even if it is free on another address: clients would reach two different
            // servers.
            Err(e) if addresses.peek().is_some() && is_of_another_machine(&e) => {}
            Err(e) => return Err(failed(e).into()),
        }
    }
    Err(failed(io::ErrorKind::AddrNotAvailable.into()).into())
}

/// Whether this machine does not have the address, or no address of its family.
fn is_of_another_machine(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(EAFNOSUPPORT)
}

/// The error number of a Linux machine without IPv6.
const EAFNOSUPPORT: i32 = 97;
/// No file descriptor is left, for this process or on this machine.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;
/// Descriptors beside those of requests: listeners, engines, etcd, idle connections.
const OTHER_DESCRIPTORS: u64 = 64;

/// Raises the limit of open files as far as the process may, and warns if it is low for this many requests in flight.
pub fn raise_descriptors(in_flight: u32) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::debug!(%error, "cannot raise the limit of open files");
    }
    // None: there is no limit.
    if let Some(limit) = getrlimit(Resource::Nofile).current
        && limit < u64::from(in_flight) + OTHER_DESCRIPTORS
    {
        tracing::warn!(limit, in_flight, "the limit of open files is below --max-in-flight; raise it (ulimit -n)");
    }
}

/// Maximum number of open HTTP connections.
const HTTP_CONNECTIONS: usize = 16_384;
/// Buffer of an HTTP connection in bytes: for the head of a request, and for output that the client has not read.
const HTTP_BUFFER: usize = 64 << 10;
/// Maximum number of open gRPC connections.
const GRPC_CONNECTIONS: usize = 4_096;
/// Maximum number of open requests on a connection of gRPC, or of HTTP/2.
const HTTP2_STREAMS: u32 = 4_096;
/// Idle time of such a connection after which a keepalive ping is sent.
const HTTP2_KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Timeout for the head of a request. It also closes idle connections.
const HEADER_TIME: Duration = Duration::from_secs(60);
/// Pause between two times at which idle connections are closed.
const IDLE_PAUSE: Duration = Duration::from_secs(1);
/// Pause after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Time that connections have to close after the drain.
pub const CLOSE_TIME: Duration = Duration::from_secs(2);

/// Returns when the value is true.
pub async fn wait_until_true(mut closed: watch::Receiver<bool>) {
    // An error means that the sender was dropped, which also closes.
    let _ = closed.wait_for(|closed| *closed).await;
}

/// HTTP/1, and HTTP/2 as clients begin it that know that the server speaks it (h2c).
pub async fn serve_http(
    app: axum::Router,
    listener: TcpListener,
    tls: Option<ServerTls>,
    timeout: WriteTimeout,
    closed: impl Future<Output = ()>,
) -> Result<(), String> {
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIME).max_buf_size(HTTP_BUFFER);
    let keep_alive = Some(HTTP2_KEEP_ALIVE);
    server.http2().timer(TokioTimer::new()).keep_alive_interval(keep_alive).max_concurrent_streams(HTTP2_STREAMS);
    accept("http", listener, HTTP_CONNECTIONS, tls, timeout, closed, move |socket| {
        // The connection borrows its builder.
        server.serve_connection(socket, TowerToHyperService::new(app.clone())).into_owned()
    })
    .await
}

pub async fn serve_grpc(
    routes: Routes,
    listener: TcpListener,
    tls: Option<ServerTls>,
    timeout: WriteTimeout,
    closed: impl Future<Output = ()>,
) -> Result<(), String> {
    let app = routes.prepare().into_axum_router();
    let mut server = http2::Builder::new(TokioExecutor::new());
    server.timer(TokioTimer::new()).keep_alive_interval(Some(HTTP2_KEEP_ALIVE)).max_concurrent_streams(HTTP2_STREAMS);
    accept("grpc", listener, GRPC_CONNECTIONS, tls, timeout, closed, move |socket| {
        server.serve_connection(socket, TowerToHyperService::new(app.clone()))
    })
    .await
}

/// Accepts connections until `closed`, and returns when they have ended. At most `most` are open at the same time.
async fn accept<C>(
    surface: &'static str,
    listener: TcpListener,
    most: usize,
    tls: Option<ServerTls>,
    timeout: WriteTimeout,
    closed: impl Future<Output = ()>,
    serve: impl Fn(TokioIo<Connection<Socket>>) -> C + Send + Sync + 'static,
) -> Result<(), String>
where
    C: GracefulConnection<Error: std::fmt::Display> + Send + 'static,
{
    let mut open = GracefulShutdown::new();
    // Connections that end when they are idle.
    let mut ending = JoinSet::new();
    let mut asked = Instant::now();
    let mut close_idle = |open: &mut GracefulShutdown, ending: &mut JoinSet<()>| {
        while ending.try_join_next().is_some() {}
        if asked.elapsed() < IDLE_PAUSE {
            return;
        }
        asked = Instant::now();
        tracing::warn!(surface, "too many connections are open; those that are idle are closed");
        ending.spawn(std::mem::take(open).shutdown());
    };
    let serve = Arc::new(serve);
    let slots = Arc::new(Semaphore::new(most));
    let mut closed = pin!(closed);
    loop {
        // While no slot is free, clients wait in the kernel's accept queue.
        let slot = tokio::select! {
            slot = slots.clone().acquire_owned() => slot.map_err(|e| format!("{surface}: {e}"))?,
            () = tokio::time::sleep(IDLE_PAUSE) => {
                close_idle(&mut open, &mut ending);
                continue;
            }
            () = &mut closed => break,
        };
        let socket = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut closed => break,
        };
        let socket = match socket {
            Ok((socket, _)) => socket,
            Err(error) => {
                tracing::warn!(%error, surface, "cannot accept a connection");
                if let Some(EMFILE | ENFILE) = error.raw_os_error() {
                    close_idle(&mut open, &mut ending);
                }
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let (watcher, tls, serve, timeout) = (open.watcher(), tls.clone(), serve.clone(), timeout.clone());
        tokio::spawn(async move {
            match Socket::accepted(socket, tls.as_ref()).await {
                Ok(socket) => {
                    let socket = TokioIo::new(Connection::new(socket, timeout));
                    if let Err(error) = watcher.watch(serve(socket)).await {
                        tracing::debug!(%error, surface, "connection failed");
                    }
                }
                Err(error) => tracing::debug!(%error, surface, "TLS handshake failed"),
            }
            drop(slot);
        });
    }
    open.shutdown().await;
    ending.join_all().await;
    Ok(())
}

/// SIGTERM and SIGINT, and SIGHUP of a process whose terminal is closed. Any other SIGHUP asks to read files again,
/// which happens by itself.
pub struct StopSignals {
    term: Signal,
    int: Signal,
    hup: Signal,
    /// It was started in a terminal.
    interactive: bool,
}

impl StopSignals {
    pub fn new() -> Result<Self, std::io::Error> {
        let [term, int, hup] = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
        Ok(Self { term: term?, int: int?, hup: hup?, interactive: std::io::stdin().is_terminal() })
    }

    pub async fn next(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.term.recv() => return "SIGTERM",
                _ = self.int.recv() => return "SIGINT",
                _ = self.hup.recv() => match self.interactive {
                    true => return "SIGHUP",
                    false => tracing::info!("ignoring SIGHUP: replaced files are read again within a second"),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests;
