//! The router's side of a process: its listeners, from the first request to the last.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use prometheus_client::registry::Registry;
use rein_grammar::Enforcement;
use rein_router::admission::keys::ApiKeys;
use rein_router::hot_reload::FileError;
use rein_router::{Policy, ProcessMetrics, Router, RouterConfig, scrape};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::args::{AdmissionArgs, ApiArgs, EnforcementArg, MasksArg};
use crate::listen::{CLOSE_TIME, Stall, StopSignals, bind, serve_grpc, serve_http, turned};
use crate::metrics;
use crate::terminal;
use crate::tls::{self, Certificate, ServerTls};

pub fn policy(args: &ApiArgs) -> Result<Policy, Box<dyn Error>> {
    Ok(Policy {
        format: args.format.as_deref().map(crate::tools::formats::named).transpose()?,
        enforcement: match args.enforcement {
            EnforcementArg::NamesAndArguments => Enforcement::NamesAndArguments,
            EnforcementArg::Names => Enforcement::Names,
            EnforcementArg::Off => Enforcement::Off,
        },
        mask_always: args.masks == MasksArg::Always,
        allow_control_tokens: args.allow_control_tokens,
        allow_dropped_tools: args.allow_dropped_tools,
    })
}

pub fn config(args: &ApiArgs) -> Result<RouterConfig, FileError> {
    let AdmissionArgs { api_keys, max_in_flight, max_queued, client_stall_timeout } = &args.admission;
    Ok(RouterConfig {
        max_in_flight: *max_in_flight,
        max_queued: *max_queued,
        cors_origins: args.cors_origin.clone(),
        client_stall: Duration::from_secs(*client_stall_timeout),
        keys: api_keys.as_ref().map(|path| ApiKeys::open("--api-keys", path.clone())).transpose()?,
        ..RouterConfig::default()
    })
}

/// Watches these certificates, and shows in `/metrics` how long they are valid.
pub fn certificates(certificates: Vec<Certificate>) -> ProcessMetrics {
    // Only workers need to know when the first one expires.
    drop(tls::watch(certificates.clone()));
    let mut registry = Registry::default();
    metrics::certificates(&mut registry, certificates);
    ProcessMetrics::new(move || scrape::text(&registry))
}

/// Bound before anything is loaded: a taken port is told at once.
pub struct Listeners {
    pub http: TcpListener,
    pub grpc: TcpListener,
    http_tls: Option<ServerTls>,
    grpc_tls: Option<ServerTls>,
}

impl Listeners {
    pub async fn bind(args: &ApiArgs) -> Result<Self, Box<dyn Error>> {
        Ok(Listeners {
            http_tls: args.tls.listener(tls::HTTP)?,
            grpc_tls: args.tls.listener(tls::GRPC)?,
            http: bind("--http", &args.http).await?,
            grpc: bind("--grpc", &args.grpc).await?,
        })
    }

    /// What public listeners show; both show the same.
    pub fn certificate(&self) -> Option<Certificate> {
        self.http_tls.as_ref().map(|tls| tls.certificate.clone())
    }

    /// Until a signal to stop. Then `leaving`, which drains the router, has its time, and `cut` runs where that is over.
    pub async fn serve(
        self,
        router: &Router,
        drain: Duration,
        leaving: impl Future<Output = ()>,
        cut: impl Future<Output = ()>,
    ) -> Result<(), Box<dyn Error>> {
        let Listeners { http, grpc, http_tls, grpc_tls } = self;
        let scheme = if http_tls.is_some() { "https" } else { "http" };
        let (http_address, grpc_address) = (http.local_addr()?, grpc.local_addr()?);
        // The listeners close when this turns true, after the drain.
        let (closing, closed) = watch::channel(false);
        let stall = Stall::of(router);
        let http_server =
            tokio::spawn(serve_http(router.http(), http, http_tls, stall.clone(), turned(closed.clone())));
        let grpc_server = tokio::spawn(serve_grpc(router.grpc(), grpc, grpc_tls, stall, turned(closed)));
        // Whoever reads that it listens may stop it at once.
        let mut stop = StopSignals::new()?;
        terminal::out(format_args!("rein: http listening on {scheme}://{http_address}"));
        terminal::out(format_args!("rein: grpc listening on {grpc_address}"));

        let signal = stop.next().await;
        tracing::info!(signal, "draining: open requests finish, new ones are refused");
        let reason = tokio::select! {
            () = leaving => None,
            () = tokio::time::sleep(drain) => Some("the drain time is over"),
            signal = stop.next() => Some(signal),
        };
        if let Some(reason) = reason {
            tracing::warn!(reason, "open requests are ended with an error");
            router.abort();
            cut.await;
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
        terminal::out("rein: stopped");
        Ok(())
    }
}
