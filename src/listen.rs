//! Listeners of a process: connections are bounded, and open ones end before it does.

mod connection;

use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tonic::service::Routes;

use crate::args::listen::ListenAddr;
use crate::tls::{ServerTls, Socket};
use connection::Connection;
pub use connection::Stall;

/// Connections that may wait to be accepted, as far as the kernel allows (`net.core.somaxconn`): with tokio's 1,024 clients that
/// come by the thousand are dropped, and in the end reset.
const BACKLOG: u32 = 16_384;

/// Listens on the first address of the name that is one of this machine's.
pub async fn bind(flag: &str, address: &ListenAddr) -> Result<TcpListener, Box<dyn Error>> {
    let listen = |address: SocketAddr| {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // As TcpListener::bind does: who is started again need not wait for the old connections' end.
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
            // A port that is taken is an error also where another address has it free: clients would meet two servers.
            Err(e) if addresses.peek().is_some() && elsewhere(&e) => {}
            Err(e) => return Err(failed(e).into()),
        }
    }
    Err(failed(io::ErrorKind::AddrNotAvailable.into()).into())
}

/// Whether this machine does not have the address, or not its family.
fn elsewhere(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(EAFNOSUPPORT)
}

/// The error of a machine without IPv6 (Linux).
const EAFNOSUPPORT: i32 = 97;

/// HTTP connections open at once.
const HTTP_CONNECTIONS: usize = 16_384;
/// Bytes of an answer that wait for the client, and of a request's head, on each of them.
const HTTP_BUFFER: usize = 64 << 10;
/// gRPC connections open at once ...
const GRPC_CONNECTIONS: usize = 4_096;
/// ... and requests open at once on one of them.
const GRPC_STREAMS: u32 = 4_096;
/// Silence on a gRPC connection after which the client is asked whether it is still there.
const GRPC_KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Time in which a request's head has to arrive; idle connections are closed after it.
const HEADER_TIME: Duration = Duration::from_secs(60);
/// Pause after a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How long idle connections get to close after the drain.
pub const CLOSE_TIME: Duration = Duration::from_secs(2);

pub async fn turned(mut closed: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is the end as well.
    let _ = closed.wait_for(|closed| *closed).await;
}

pub async fn serve_http(
    app: axum::Router,
    listener: TcpListener,
    tls: Option<ServerTls>,
    stall: Stall,
    closed: impl Future<Output = ()>,
) -> Result<(), String> {
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADER_TIME).max_buf_size(HTTP_BUFFER);
    accept("http", listener, HTTP_CONNECTIONS, tls, stall, closed, move |socket| {
        server.serve_connection(socket, TowerToHyperService::new(app.clone()))
    })
    .await
}

pub async fn serve_grpc(
    routes: Routes,
    listener: TcpListener,
    tls: Option<ServerTls>,
    stall: Stall,
    closed: impl Future<Output = ()>,
) -> Result<(), String> {
    let app = routes.prepare().into_axum_router();
    let mut server = http2::Builder::new(TokioExecutor::new());
    server.timer(TokioTimer::new()).keep_alive_interval(Some(GRPC_KEEP_ALIVE)).max_concurrent_streams(GRPC_STREAMS);
    accept("grpc", listener, GRPC_CONNECTIONS, tls, stall, closed, move |socket| {
        server.serve_connection(socket, TowerToHyperService::new(app.clone()))
    })
    .await
}

/// Takes connections until `closed`, and returns when they have ended. At most `most` are open at once.
async fn accept<C>(
    surface: &'static str,
    listener: TcpListener,
    most: usize,
    tls: Option<ServerTls>,
    stall: Stall,
    closed: impl Future<Output = ()>,
    serve: impl Fn(TokioIo<Connection<Socket>>) -> C + Send + Sync + 'static,
) -> Result<(), String>
where
    C: GracefulConnection<Error = hyper::Error> + Send + 'static,
{
    let open = GracefulShutdown::new();
    let serve = Arc::new(serve);
    let slots = Arc::new(Semaphore::new(most));
    let mut closed = pin!(closed);
    loop {
        // More clients wait in the kernel's backlog.
        let slot = tokio::select! {
            slot = slots.clone().acquire_owned() => slot.map_err(|e| format!("{surface}: {e}"))?,
            () = &mut closed => break,
        };
        let socket = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut closed => break,
        };
        let socket = match socket {
            Ok((socket, _)) => socket,
            Err(error) => {
                // Out of descriptors, say: others have to close first.
                tracing::warn!(%error, surface, "accept");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY");
        }
        let (watcher, tls, serve, stall) = (open.watcher(), tls.clone(), serve.clone(), stall.clone());
        tokio::spawn(async move {
            match Socket::accepted(socket, tls.as_ref()).await {
                Ok(socket) => {
                    let socket = TokioIo::new(Connection::new(socket, stall));
                    if let Err(error) = watcher.watch(serve(socket)).await {
                        tracing::debug!(%error, surface, "connection");
                    }
                }
                Err(error) => tracing::debug!(%error, surface, "TLS handshake"),
            }
            drop(slot);
        });
    }
    open.shutdown().await;
    Ok(())
}

pub struct StopSignals {
    term: Signal,
    int: Signal,
}

impl StopSignals {
    pub fn new() -> Result<Self, std::io::Error> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    pub async fn next(&mut self) -> &'static str {
        tokio::select! { _ = self.term.recv() => "SIGTERM", _ = self.int.recv() => "SIGINT" }
    }
}

#[cfg(test)]
mod tests;
