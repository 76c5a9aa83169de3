//! `rein serve`: router, engine and ranks in one process. The router calls the worker's gRPC service as a tower service,
//! without a socket, so that the wire path is the only path.

#[cfg(test)]
mod failover_tests;

use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown};
use hyper_util::service::TowerToHyperService;
use rein_grammar::Enforcement;
use rein_router::textmodel::{Overrides, TextModel};
use rein_router::{ModelEntry, Policy, Router, RouterConfig};
use rein_worker::executor::Executor;
use rein_worker::sim::{Sim, SimOptions};
use rein_worker::{EngineOptions, EngineService};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tonic::service::Routes;

use crate::args::{EnforcementArg, EngineKind, MasksArg, ServeArgs};
use crate::load;
use crate::tls::{self, ServerTls, Socket};

pub fn run(args: ServeArgs) -> Result<(), Box<dyn Error>> {
    if args.engine == EngineKind::Sim && !args.model.is_default() {
        return Err("--engine sim loads no weights: --tp, --dtype, --quantize and --threads do not go with it".into());
    }
    let policy = policy(&args)?;
    let text = TextModel::load(
        &args.model.model,
        &Overrides {
            name: args.served_name.clone(),
            template: args.chat_template.clone(),
            max_context: args.max_context.map(|n| n as usize),
            ..Overrides::from_env()?
        },
    )?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        // Bound before the weights are loaded: a taken port is told at once.
        let config = args.edge.config()?;
        let tls = Surfaces { http: args.tls.listener(tls::HTTP)?, grpc: args.tls.listener(tls::GRPC)? };
        let http = bind("--http", args.http).await?;
        let grpc = bind("--grpc", args.grpc).await?;
        let executor = executor(&args, &text)?;
        let engine = rein_worker::start(executor, engine_options(&args));
        let router = Router::new(
            RouterConfig { allow_control_tokens: args.allow_control_tokens, ..config },
            vec![ModelEntry { text, engine: rein_router::transport(engine.clone().into_server()), policy }],
        )?;
        serve(&args, router, engine, tls, http, grpc).await
    })
}

fn executor(args: &ServeArgs, text: &TextModel) -> Result<Box<dyn Executor>, Box<dyn Error>> {
    Ok(match args.engine {
        EngineKind::Cpu => Box::new(load::group(args)?),
        EngineKind::Sim => Box::new(Sim::new(SimOptions {
            model: text.name.clone(),
            vocab_size: text.vocab_size,
            max_context: text.max_context,
            blocks: args.sim.sim_blocks as usize,
            block_size: args.block_size.into(),
            step_base_us: args.sim.sim_step_us,
            per_prefill_token_us: args.sim.sim_prefill_us,
            per_decode_row_us: args.sim.sim_decode_us,
            seed: args.sim.sim_seed,
        })),
    })
}

fn policy(args: &ServeArgs) -> Result<Policy, Box<dyn Error>> {
    Ok(Policy {
        format: args.format.as_deref().map(crate::formats::named).transpose()?,
        enforcement: match args.enforcement {
            EnforcementArg::NamesAndArguments => Enforcement::NamesAndArguments,
            EnforcementArg::Names => Enforcement::Names,
            EnforcementArg::Off => Enforcement::Off,
        },
        mask_always: args.masks == MasksArg::Always,
    })
}

fn engine_options(args: &ServeArgs) -> EngineOptions {
    EngineOptions {
        max_sequences: args.max_sequences as usize,
        max_queue: args.max_queue as usize,
        step_tokens: args.token_budget as usize,
        prefix_cache: !args.no_prefix_cache,
        ..EngineOptions::default()
    }
}

async fn bind(flag: &str, address: SocketAddr) -> Result<TcpListener, Box<dyn Error>> {
    TcpListener::bind(address).await.map_err(|e| format!("{flag}: cannot listen on {address}: {e}").into())
}

/// TLS of the public listeners, if any.
struct Surfaces {
    http: Option<ServerTls>,
    grpc: Option<ServerTls>,
}

async fn serve(
    args: &ServeArgs,
    router: Router,
    engine: EngineService,
    tls: Surfaces,
    http: TcpListener,
    grpc: TcpListener,
) -> Result<(), Box<dyn Error>> {
    let (http_address, grpc_address) = (http.local_addr()?, grpc.local_addr()?);
    let scheme = if tls.http.is_some() { "https" } else { "http" };
    // The listeners close when this turns true, after the drain.
    let (closing, closed) = watch::channel(false);
    let http_server = tokio::spawn(serve_http(router.http(), http, tls.http, turned(closed.clone())));
    let grpc_server = tokio::spawn(serve_grpc(router.grpc(), grpc, tls.grpc, turned(closed)));
    println!("rein: http listening on {scheme}://{http_address}");
    println!("rein: grpc listening on {grpc_address}");

    let mut stop = StopSignals::new()?;
    let signal = stop.next().await;
    tracing::info!(signal, "draining: open requests finish, new ones are refused");
    let drained = async {
        router.drain().await;
        engine.drain().await;
    };
    let cut = tokio::select! {
        () = drained => None,
        () = tokio::time::sleep(Duration::from_secs(args.drain_seconds)) => Some("the drain time is over"),
        signal = stop.next() => Some(signal),
    };
    if let Some(reason) = cut {
        tracing::warn!(reason, "open requests are ended with an error");
        router.abort();
        // It answers after the step that is running.
        if tokio::time::timeout(CLOSE_TIME, engine.abort()).await.is_err() {
            tracing::warn!("the engine is still in a step");
        }
    }
    closing.send_replace(true);
    let stopped = tokio::time::timeout(CLOSE_TIME, async { (http_server.await, grpc_server.await) });
    match stopped.await {
        Ok((http, grpc)) => {
            http??;
            grpc??;
        }
        Err(_) => tracing::warn!("connections still open are cut"),
    }
    println!("rein: stopped");
    Ok(())
}

/// HTTP connections open at once.
const HTTP_CONNECTIONS: usize = 16_384;
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
const CLOSE_TIME: Duration = Duration::from_secs(2);

async fn turned(mut closed: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is the end as well.
    let _ = closed.wait_for(|closed| *closed).await;
}

async fn serve_http(
    app: axum::Router,
    listener: TcpListener,
    tls: Option<ServerTls>,
    closed: impl Future<Output = ()>,
) -> Result<(), String> {
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADER_TIME);
    accept("http", listener, HTTP_CONNECTIONS, tls, closed, move |socket| {
        server.serve_connection(socket, TowerToHyperService::new(app.clone()))
    })
    .await
}

async fn serve_grpc(
    routes: Routes,
    listener: TcpListener,
    tls: Option<ServerTls>,
    closed: impl Future<Output = ()>,
) -> Result<(), String> {
    let app = routes.prepare().into_axum_router();
    let mut server = http2::Builder::new(TokioExecutor::new());
    server.timer(TokioTimer::new()).keep_alive_interval(Some(GRPC_KEEP_ALIVE)).max_concurrent_streams(GRPC_STREAMS);
    accept("grpc", listener, GRPC_CONNECTIONS, tls, closed, move |socket| {
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
    closed: impl Future<Output = ()>,
    serve: impl Fn(TokioIo<Socket>) -> C + Send + Sync + 'static,
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
        let (watcher, tls, serve) = (open.watcher(), tls.clone(), serve.clone());
        tokio::spawn(async move {
            match Socket::accepted(socket, tls.as_ref()).await {
                Ok(socket) => {
                    if let Err(error) = watcher.watch(serve(TokioIo::new(socket))).await {
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

struct StopSignals {
    term: Signal,
    int: Signal,
}

impl StopSignals {
    fn new() -> Result<Self, std::io::Error> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! { _ = self.term.recv() => "SIGTERM", _ = self.int.recv() => "SIGINT" }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn a_connection_over_the_limit_waits_for_another_to_end() -> Result<(), Box<dyn Error>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (closing, closed) = watch::channel(false);
        let app = axum::Router::new().route("/", axum::routing::get(async || "here"));
        let server = tokio::spawn(accept("http", listener, 1, None, turned(closed), move |socket| {
            http1::Builder::new().serve_connection(socket, TowerToHyperService::new(app.clone()))
        }));
        let ask = async |socket: &mut TcpStream| {
            socket.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await?;
            let mut answer = [0; 12];
            socket.read_exact(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        let mut first = TcpStream::connect(address).await?;
        assert_eq!(&ask(&mut first).await?, b"HTTP/1.1 200");
        let mut second = TcpStream::connect(address).await?;
        let waiting = tokio::time::timeout(Duration::from_millis(200), ask(&mut second)).await;
        assert!(waiting.is_err(), "the second was served beside the first");
        drop(first);
        let mut answer = [0; 12];
        second.read_exact(&mut answer).await?;
        assert_eq!(&answer, b"HTTP/1.1 200");
        drop(second);
        closing.send_replace(true);
        Ok(server.await??)
    }
}
