//! The threads that hold a router's connections to its workers. Requests never run on them, so a ping is answered
//! however many requests wait for a thread, and only a silent worker counts as lost.

use std::error::Error;
use std::pin::Pin;
use std::time::Duration;

use hyper::rt::Executor;
use rein_router::EngineTransport;
use tokio::runtime::{Builder, Handle, Runtime};
use tonic::transport::Endpoint;

use crate::tls::Peers;

/// Time limit for connecting to a worker.
const CONNECT: Duration = Duration::from_secs(1);
/// Interval of keepalive pings.
const ALIVE: Duration = Duration::from_millis(400);
/// Time without an answer to a ping after which a connection counts as broken.
const SILENT: Duration = Duration::from_millis(800);
/// One such thread per this many cores. It only encodes and decodes HTTP/2 frames.
const CORES: usize = 8;

/// Its connections close when it is dropped.
pub struct WorkerLinks {
    /// None while it is being dropped.
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

impl WorkerLinks {
    pub fn new(peers: Option<Peers>) -> Result<Self, Box<dyn Error>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(cores.div_ceil(CORES)).thread_name("links").enable_all();
        Ok(WorkerLinks { runtime: Some(builder.build()?), peers })
    }

    /// A lazy connection to the gRPC services at an address.
    pub fn dial(&self, address: &str) -> Option<EngineTransport> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.inspect_err(|error| tracing::error!(address, %error, "invalid worker address")).ok()?;
        let endpoint = endpoint
            .executor(Spawn(self.runtime.as_ref()?.handle().clone()))
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(ALIVE)
            .keep_alive_timeout(SILENT)
            .keep_alive_while_idle(true)
            // A worker's messages for sequences that were already cancelled are no protocol errors: with the default
            // limit, the thousandth one would close the connection with all its sequences.
            .http2_max_local_error_reset_streams(None);
        Some(rein_router::transport(match &self.peers {
            Some(peers) => peers.channel(&endpoint),
            None => endpoint.connect_lazy(),
        }))
    }
}

impl Drop for WorkerLinks {
    fn drop(&mut self) {
        // It may be dropped where blocking is not allowed.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
