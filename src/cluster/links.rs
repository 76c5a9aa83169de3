//! The threads that keep a router's connections to its workers. Requests never run there: however many of them wait for a
//! thread of theirs, the answer to a ping is read when it comes, and a worker counts as gone only when it is silent.

use std::error::Error;
use std::pin::Pin;
use std::time::Duration;

use hyper::rt::Executor;
use rein_router::EngineTransport;
use tokio::runtime::{Builder, Handle, Runtime};
use tonic::transport::Endpoint;

use crate::tls::Peers;

/// Longest wait for a connection to a worker.
const CONNECT: Duration = Duration::from_secs(1);
/// A worker's connection is asked for a sign of life so often ...
const ALIVE: Duration = Duration::from_millis(400);
/// ... and is broken when none has come for so long after that.
const SILENT: Duration = Duration::from_millis(800);
/// One such thread for so many cores. It frames and unframes messages and does nothing else with them.
const CORES: usize = 8;

/// Its connections end with it.
pub struct Links {
    /// None: it is being dropped.
    runtime: Option<Runtime>,
    peers: Option<Peers>,
}

#[derive(Clone)]
struct Spawn(Handle);

impl Executor<Pin<Box<dyn Future<Output = ()> + Send>>> for Spawn {
    fn execute(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn(task);
    }
}

impl Links {
    pub fn new(peers: Option<Peers>) -> Result<Self, Box<dyn Error>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(cores.div_ceil(CORES)).thread_name("links").enable_all();
        Ok(Links { runtime: Some(builder.build()?), peers })
    }

    /// Reaches the gRPC services at an address, as soon as somebody calls.
    pub fn dial(&self, address: &str) -> Option<EngineTransport> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.inspect_err(|error| tracing::error!(address, %error, "no address")).ok()?;
        let endpoint = endpoint
            .executor(Spawn(self.runtime.as_ref()?.handle().clone()))
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(ALIVE)
            .keep_alive_timeout(SILENT)
            .keep_alive_while_idle(true)
            // What a worker still says of a sequence that was given up is no offence, however often it happens: without
            // this the thousandth time would end the connection with all its sequences.
            .http2_max_local_error_reset_streams(None);
        Some(rein_router::transport(match &self.peers {
            Some(peers) => peers.channel(&endpoint),
            None => endpoint.connect_lazy(),
        }))
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        // It may be dropped where nothing may block.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
