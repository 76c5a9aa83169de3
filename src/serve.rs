//! `rein serve`: router, engine and ranks in one process. The router calls the worker's gRPC service as a tower service,
//! without a socket, so that the wire path is the only path.

use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use rein_router::textmodel::{Overrides, TextModel};
use rein_router::{ModelEntry, Router, RouterConfig};
use rein_worker::executor::Executor;
use rein_worker::sim::{Sim, SimOptions};
use rein_worker::{EngineOptions, EngineService};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;

use crate::args::{EngineKind, ServeArgs};
use crate::load;

pub fn run(args: ServeArgs) -> Result<(), Box<dyn Error>> {
    let text = TextModel::load(
        &args.model.model,
        &Overrides {
            name: args.served_name.clone(),
            template: args.chat_template.clone(),
            max_context: args.model.max_context.map(|n| n as usize),
            ..Overrides::from_env()?
        },
    )?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        // Bound before the weights are loaded: a taken port is told at once.
        let http = bind("--http", args.http).await?;
        let grpc = bind("--grpc", args.grpc).await?;
        let executor = executor(&args, &text)?;
        let engine = rein_worker::start(executor, engine_options(&args));
        let router = Router::new(
            RouterConfig::default(),
            vec![ModelEntry { text, engine: rein_router::transport(engine.clone().into_server()) }],
        )?;
        serve(&args, router, engine, http, grpc).await
    })
}

fn executor(args: &ServeArgs, text: &TextModel) -> Result<Box<dyn Executor>, Box<dyn Error>> {
    Ok(match args.engine {
        EngineKind::Cpu => Box::new(load::group(&args.model, &load::options(&args.model))?),
        EngineKind::Sim => Box::new(Sim::new(SimOptions {
            model: text.name.clone(),
            vocab_size: text.vocab_size,
            max_context: text.max_context,
            blocks: args.sim.sim_blocks as usize,
            block_size: args.model.block_size.into(),
            step_base_us: args.sim.sim_step_us,
            per_prefill_token_us: args.sim.sim_prefill_us,
            per_decode_row_us: args.sim.sim_decode_us,
            seed: args.sim.sim_seed,
        })),
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

async fn serve(
    args: &ServeArgs,
    router: Router,
    engine: EngineService,
    http: TcpListener,
    grpc: TcpListener,
) -> Result<(), Box<dyn Error>> {
    let (http_address, grpc_address) = (http.local_addr()?, grpc.local_addr()?);
    // The listeners close when this turns true, after the drain.
    let (closing, closed) = watch::channel(false);
    let http_server = tokio::spawn(serve_http(router.http(), http, turned(closed.clone())));
    let grpc_server = tokio::spawn(serve_grpc(router.grpc(), grpc, turned(closed)));
    println!("rein: http listening on http://{http_address}");
    println!("rein: grpc listening on {grpc_address}");

    let signal = stop_signal().await?;
    tracing::info!(signal, "draining: open requests finish, new ones are refused");
    let drained = tokio::time::timeout(Duration::from_secs(args.drain_seconds), async {
        router.drain().await;
        engine.drain().await;
    });
    if drained.await.is_err() {
        tracing::warn!(seconds = args.drain_seconds, "requests still open after the drain time are cut");
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

/// How long idle connections get to close after the drain.
const CLOSE_TIME: Duration = Duration::from_secs(2);

async fn turned(mut closed: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is the end as well.
    let _ = closed.wait_for(|closed| *closed).await;
}

async fn serve_http(
    app: axum::Router,
    listener: TcpListener,
    closed: impl Future<Output = ()> + Send + 'static,
) -> Result<(), String> {
    use axum::serve::ListenerExt;
    let listener = listener.tap_io(|socket| {
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY");
        }
    });
    axum::serve(listener, app).with_graceful_shutdown(closed).await.map_err(|e| format!("http: {e}"))
}

async fn serve_grpc(
    routes: tonic::service::Routes,
    listener: TcpListener,
    closed: impl Future<Output = ()> + Send + 'static,
) -> Result<(), String> {
    use tokio_stream::StreamExt;
    // tonic's builder flag does not reach accepted sockets of a given listener.
    let incoming = TcpListenerStream::new(listener).map(|socket| {
        let socket = socket?;
        socket.set_nodelay(true)?;
        Ok::<_, std::io::Error>(socket)
    });
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, closed)
        .await
        .map_err(|e| format!("grpc: {e}"))
}

async fn stop_signal() -> Result<&'static str, std::io::Error> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    Ok(tokio::select! { _ = term.recv() => "SIGTERM", _ = int.recv() => "SIGINT" })
}
