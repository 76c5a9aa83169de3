//! The settings of one router process. It does not know requests.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc, time::Duration};

use http::Uri;
use prometheus_client::registry::Registry;

use crate::{
    admission::keys::ApiKeys, fleet::route::RoutePolicy, limits, memory::MemoryLimits,
    response_store::ResponsesStoreMode, seal::Seal,
};

/// The settings of a router.
#[derive(Debug, Clone)]
pub struct RouterConfig {
    /// Requests in flight, at least 1. Further requests wait.
    pub max_in_flight: u32,
    /// Requests that may wait. Further requests get 429.
    pub max_queued: u32,
    /// Origins of web pages that may use the HTTP API (CORS).
    pub cors_origins: Vec<Origin>,
    /// API keys that are accepted. None: no key is required.
    pub keys: Option<ApiKeys>,
    /// Longest duration of a request; also the deadline of a request that sets none.
    pub request_time: Duration,
    /// How long a client may leave its answer unread before the request ends.
    pub client_stall: Duration,
    pub memory: MemoryLimits,
    /// Models whose requests wait while no engine serves them.
    pub expected_models: Vec<String>,
    /// Whether the engines are fixed, and so come back: requests of every model wait for them. The router is not ready
    /// without one, while elsewhere a request may be what starts an engine of an expected model.
    pub fixed_engines: bool,
    /// Further names of models.
    pub aliases: BTreeMap<String, String>,
    /// Requests may load and unload LoRA adapters.
    pub lora_api: bool,
    /// How engines are chosen in a cluster.
    pub policy: RoutePolicy,
    /// How long an engine may send nothing for a new sequence before a second engine gets the sequence, too. None:
    /// sequences are not hedged.
    pub hedge_after: Option<Duration>,
    /// How long an engine holds the KV blocks of a conversation whose tool runs, at first. Zero: not at all.
    pub tool_hold: Duration,
    /// Seals what clients keep between requests. Routers of one cluster share its key.
    pub seal: Seal,
    /// Where responses of `/v1/responses` are kept.
    pub responses_store: ResponsesStoreMode,
    /// Metrics of the process that `/metrics` shows beside the router's own.
    pub process_metrics: ProcessMetrics,
}

type RegisterMetrics = dyn Fn(&mut Registry) + Send + Sync;

/// Registers the metrics of the process that a router runs in.
#[derive(Clone, Default)]
pub struct ProcessMetrics(Option<Arc<RegisterMetrics>>);

impl ProcessMetrics {
    pub fn new(register: impl Fn(&mut Registry) + Send + Sync + 'static) -> Self {
        ProcessMetrics(Some(Arc::new(register)))
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        if let Some(register) = &self.0 {
            register(registry);
        }
    }
}

impl fmt::Debug for ProcessMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProcessMetrics")
    }
}

impl Default for RouterConfig {
    fn default() -> Self {
        RouterConfig {
            max_in_flight: limits::IN_FLIGHT,
            max_queued: limits::QUEUED,
            cors_origins: Vec::new(),
            keys: None,
            request_time: limits::REQUEST_TIME,
            client_stall: limits::CLIENT_STALL,
            memory: MemoryLimits::default(),
            expected_models: Vec::new(),
            fixed_engines: false,
            aliases: BTreeMap::new(),
            lora_api: false,
            policy: RoutePolicy::CacheAware,
            hedge_after: None,
            tool_hold: limits::FIRST_TOOL_HOLD,
            seal: Seal::random(),
            responses_store: ResponsesStoreMode::default(),
            process_metrics: ProcessMetrics::default(),
        }
    }
}

/// An origin of web pages, as browsers send it: `scheme://host`, with the port unless it is the scheme's default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// `*`
    Any,
    Of(String),
}

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Origin::Any);
        }
        let expected =
            || format!("expected an origin such as https://chat.example or http://localhost:3000, or *, got {text:?}");
        let (scheme, host) = text.split_once("://").ok_or_else(expected)?;
        let uri = text.parse::<Uri>().map_err(|_| expected())?;
        let authority = uri.authority().filter(|authority| authority.as_str() == host).ok_or_else(expected)?;
        let named = authority.host();
        let port = host.strip_prefix(named).unwrap_or(host);
        if named.is_empty() || named.contains('*') || !(port.is_empty() || authority.port_u16().is_some()) {
            return Err(expected());
        }
        let lower = text.to_ascii_lowercase();
        // Browsers leave out the port that the scheme implies.
        let implied = match scheme.to_ascii_lowercase().as_str() {
            "http" => ":80",
            "https" => ":443",
            _ => "",
        };
        Ok(Origin::Of(lower.strip_suffix(implied).unwrap_or(&lower).to_owned()))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::Any => "*",
            Origin::Of(origin) => origin,
        })
    }
}

#[cfg(test)]
mod tests;
