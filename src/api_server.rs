//! The public side of a process that has a router: its HTTP and gRPC listeners, from the first request to the end of
//! the drain. It does not know where the engines are.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use rein_grammar::{Enforcement, JsonStyle, PropertyOrder};
use rein_router::admission::keys::ApiKeys;
use rein_router::{MemoryLimits, ModelPolicy, ProcessMetrics, ResponsesStoreMode, Router, RouterConfig};
use rein_text::template::Sources;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::args::{AdmissionArgs, ApiArgs, BlanksArg, EnforcementArg, MasksArg, OrderArg, ToolCallArgs};
use crate::banner::{self, Banner};
use crate::listen::{
    CLOSE_TIME, StopSignals, WriteTimeout, bind, raise_descriptors, serve_grpc, serve_http, wait_until_true,
};
use crate::metrics;
use crate::terminal;
use crate::tls::{self, Certificate, ServerTls};

/// Time in which the router answers the requests of a lost engine.
const LOST_TIME: Duration = Duration::from_secs(2);

/// Reads --chat-template as well, so that an error names the option.
pub fn policy(args: &ToolCallArgs) -> Result<ModelPolicy, Box<dyn Error>> {
    if let Some(path) = &args.chat_template {
        Sources::from_file(path).map_err(|error| format!("--chat-template: {error}"))?;
    }
    Ok(ModelPolicy {
        format: args.format.as_deref().map(crate::tools::formats::named).transpose()?,
        enforcement: match args.enforcement {
            EnforcementArg::NamesAndArguments => Enforcement::NamesAndArguments,
            EnforcementArg::Names => Enforcement::Names,
            EnforcementArg::Off => Enforcement::Off,
        },
        json: JsonStyle { answers: order(args.answer_order), arguments: order(args.argument_order) },
        few_blanks: args.answer_blanks == BlanksArg::Few,
        mask_always: args.masks == MasksArg::Always,
        allow_control_tokens: args.allow_control_tokens,
        allow_dropped_tools: args.allow_dropped_tools,
        max_tools: Some(args.max_tools as usize),
    })
}

fn order(asked: OrderArg) -> PropertyOrder {
    match asked {
        OrderArg::Schema => PropertyOrder::Schema,
        OrderArg::Any => PropertyOrder::Any,
    }
}

/// `store` is where responses are kept if the options do not say.
pub fn config(args: &ApiArgs, store: ResponsesStoreMode) -> Result<RouterConfig, Box<dyn Error>> {
    let responses_store = args.responses.responses_store.clone().unwrap_or(store);
    responses_store.check().map_err(|error| format!("--responses-store: {responses_store}: {error}"))?;
    let AdmissionArgs { api_keys, max_in_flight, max_queued, client_stall_timeout, tool_hold, .. } = &args.admission;
    Ok(RouterConfig {
        max_in_flight: *max_in_flight,
        max_queued: *max_queued,
        cors_origins: args.network.cors_origin.clone(),
        client_stall: Duration::from_secs(*client_stall_timeout),
        tool_hold: Duration::from_secs(*tool_hold),
        keys: api_keys.as_ref().map(|path| ApiKeys::open("--api-keys", path.clone())).transpose()?,
        responses_store,
        aliases: args.alias.iter().cloned().collect(),
        lora_api: args.lora_api,
        ..RouterConfig::default()
    })
}

/// The limits of what requests keep in memory, where this many bytes of what is free are taken already. They are
/// smaller than usual on a small machine and in a container with a limit.
pub fn memory(args: &AdmissionArgs, taken: usize) -> MemoryLimits {
    let free = match args.request_memory {
        Some(mib) => (mib as usize) << 20,
        None => rein_kernels::cpu::free_memory().saturating_sub(taken),
    };
    let limits = MemoryLimits::within(free);
    // Only the largest texts notice the difference above this.
    if limits.bodies < MemoryLimits::default().bodies {
        let mib = |bytes: usize| bytes >> 20;
        let MemoryLimits { body, bodies, matchers, grammars, responses, .. } = limits;
        tracing::info!(
            free_mib = mib(free),
            body_mib = mib(body),
            bodies_mib = mib(bodies),
            grammar_state_mib = mib(matchers),
            grammars_mib = mib(grammars),
            responses_mib = mib(responses),
            "requests share less memory than usual"
        );
    }
    limits
}

/// Watches these certificates and registers the metrics of their validity.
pub fn process_metrics(certificates: Vec<Certificate>) -> ProcessMetrics {
    // Only workers need to know when the first one expires.
    drop(tls::watch(certificates.clone()));
    ProcessMetrics::new(move |registry| metrics::register(registry, certificates.clone()))
}

/// Binds the listeners before anything is loaded, so that a port in use is reported at once.
pub struct Listeners {
    pub http: TcpListener,
    pub grpc: TcpListener,
    http_tls: Option<ServerTls>,
    grpc_tls: Option<ServerTls>,
}

impl Listeners {
    pub async fn bind(args: &ApiArgs) -> Result<Self, Box<dyn Error>> {
        raise_descriptors(args.admission.max_in_flight);
        let listeners = Listeners {
            http_tls: args.tls.listener(tls::HTTP)?,
            grpc_tls: args.tls.listener(tls::GRPC)?,
            http: bind("--http", &args.network.http).await?,
            grpc: bind("--grpc", &args.network.grpc).await?,
        };
        let has_keys = args.admission.api_keys.is_some();
        banner::warn_if_open("--http", listeners.http.local_addr()?, has_keys);
        banner::warn_if_open("--grpc", listeners.grpc.local_addr()?, has_keys);
        Ok(listeners)
    }

    /// The certificate of the public listeners, HTTP and gRPC.
    pub fn certificate(&self) -> Option<Certificate> {
        self.http_tls.as_ref().map(|tls| tls.certificate.clone())
    }

    /// Serves until a signal to stop. Then `leaving`, which drains the router, may take the time `drain`; `cut` runs if
    /// that is not enough. It ends with an error when `lost` says why nothing can be served any more.
    pub async fn serve(
        self,
        router: &Router,
        banner: Banner,
        drain: Duration,
        leaving: impl Future<Output = ()>,
        cut: impl Future<Output = ()>,
        lost: impl Future<Output = String>,
    ) -> Result<(), Box<dyn Error>> {
        let Listeners { http, grpc, http_tls, grpc_tls } = self;
        let scheme = if http_tls.is_some() { "https" } else { "http" };
        let (http_address, grpc_address) = (http.local_addr()?, grpc.local_addr()?);
        // The listeners close when this turns true, after the drain.
        let (closing, closed) = watch::channel(false);
        let timeout = WriteTimeout::of(router);
        let http_server =
            tokio::spawn(serve_http(router.http(), http, http_tls, timeout.clone(), wait_until_true(closed.clone())));
        let grpc_server = tokio::spawn(serve_grpc(router.grpc(), grpc, grpc_tls, timeout, wait_until_true(closed)));
        // Installed before the lines below are printed: a process that reads them may send a signal at once.
        let mut stop = StopSignals::new()?;
        terminal::out(format_args!("rein: http listening on {scheme}://{http_address}"));
        terminal::out(format_args!("rein: grpc listening on {grpc_address}"));
        terminal::out(banner.urls(scheme, http_address, grpc_address));

        let (failure, drain) = tokio::select! {
            signal = stop.next() => {
                tracing::info!(signal, "draining: open requests finish, new requests are rejected");
                (None, drain)
            }
            reason = lost => {
                tracing::error!(reason, "the engine is lost: requests end with an error, and this process ends");
                (Some(format!("the engine is lost and this process must be restarted: {reason}")), LOST_TIME.min(drain))
            }
        };
        let reason = tokio::select! {
            () = leaving => None,
            () = tokio::time::sleep(drain) => Some("the drain time is over"),
            signal = stop.next() => Some(signal),
        };
        if let Some(reason) = reason {
            tracing::warn!(reason, "open requests end with an error");
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
            Err(_) => tracing::warn!("closing connections that are still open"),
        }
        if let Some(failure) = failure {
            return Err(failure.into());
        }
        terminal::out("rein: stopped");
        Ok(())
    }
}
