//! Options of the commands that run or inspect a cluster.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, builder::NonEmptyStringValueParser};
use rein_adapter::{EngineDialect, EngineUrl, InvalidUrl};
use rein_router::RoutePolicy;

use super::address::ListenAddr;
use super::{ApiArgs, EngineArgs, TelemetryArgs, WeightArgs};
use crate::option_values;
use crate::tls::PeerArgs;

/// The cluster, and the etcd that stores its state.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Comma-separated etcd endpoints, HOST:PORT or https://HOST:PORT
    #[arg(long, env = "REIN_ETCD", default_value = "127.0.0.1:2379", value_delimiter = ',', value_name = "ENDPOINTS", value_parser = option_values::etcd)]
    pub etcd: Vec<String>,
    /// Name of the cluster: letters, digits, `-`, `_` and `.`; starts with a letter or a digit
    #[arg(long, env = "REIN_CLUSTER", default_value = "default", value_name = "NAME")]
    pub cluster: String,
    /// CA certificate (PEM) of etcd; turns TLS on
    #[arg(long, env = "REIN_ETCD_CA", value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,
    /// Client certificate (PEM) for etcd
    #[arg(long, env = "REIN_ETCD_CERT", value_name = "FILE", requires = "etcd_key")]
    pub etcd_cert: Option<PathBuf>,
    /// Private key (PEM) of the client certificate
    #[arg(long, env = "REIN_ETCD_KEY", value_name = "FILE", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
    /// Server name in etcd's certificate, if it differs from the endpoint's host
    #[arg(long, env = "REIN_ETCD_NAME", value_name = "NAME", requires = "etcd_ca")]
    pub etcd_name: Option<String>,
    /// etcd user; the password comes from --etcd-password-file or REIN_ETCD_PASSWORD
    #[arg(long, env = "REIN_ETCD_USER", value_name = "USER")]
    pub etcd_user: Option<String>,
    /// File with the etcd user's password
    #[arg(long, env = "REIN_ETCD_PASSWORD_FILE", value_name = "FILE", requires = "etcd_user")]
    pub etcd_password_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct RouterArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Name of this router in the cluster [default: host name and port]
    #[arg(long, env = "REIN_ID", value_name = "NAME", help_heading = "Cluster")]
    pub id: Option<String>,
    #[command(flatten)]
    pub peer: PeerArgs,
    #[command(flatten)]
    pub front: FrontArgs,
    #[command(flatten)]
    pub api: ApiArgs,
    /// How a sequence's worker group is chosen: cache-aware, least-load, power-of-two, round-robin or random
    #[arg(long, env = "REIN_POLICY", default_value = "cache-aware", value_name = "POLICY", help_heading = "Routing")]
    pub policy: RoutePolicy,
    /// Milliseconds without a first token after which a sequence is also sent to a second group; the faster one serves
    /// it [default: never]
    #[arg(long, env = "REIN_HEDGE_AFTER", value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=3_600_000), help_heading = "Routing")]
    pub hedge_after: Option<u64>,
    /// Comma-separated names of models whose requests wait while no engine serves them, such as models that an
    /// autoscaler starts from zero [default: such requests are refused]
    #[arg(long, env = "REIN_EXPECT", value_delimiter = ',', value_name = "NAMES", value_parser = NonEmptyStringValueParser::new(), help_heading = "Routing")]
    pub expect: Vec<String>,
    /// Comma-separated directories with the text files (config.json, tokenizer, template) of models, or their names on
    /// the Hub; each is used for the model of this name [default: fetched from the workers]
    #[arg(long, env = "REIN_MODEL", value_delimiter = ',', value_name = "DIRS", help_heading = "Routing")]
    pub model: Vec<PathBuf>,
}

/// An engine that is already there: `vllm=URL`, or `vllm=URL#events=PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineAddress {
    pub dialect: EngineDialect,
    pub url: EngineUrl,
    /// Where it publishes its block events, HOST:PORT.
    pub events: Option<String>,
}

impl FromStr for EngineAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let example = "expected KIND=URL such as vllm=http://10.0.0.5:8000";
        let (kind, url) = text.split_once('=').ok_or_else(|| format!("{example}, got {text:?}"))?;
        let (url, fragment) = url.split_once('#').map_or((url, None), |(url, fragment)| (url, Some(fragment)));
        let url: EngineUrl = url.parse().map_err(|error: InvalidUrl| error.to_string())?;
        let dialect: EngineDialect = kind.parse()?;
        let events = match fragment {
            None => None,
            Some(fragment) => {
                let port = fragment.strip_prefix("events=").and_then(|port| port.parse::<u16>().ok());
                let port = port.filter(|port| *port > 0).ok_or_else(|| {
                    format!("expected #events=PORT with the port of the engine's block events, got #{fragment}")
                })?;
                if !dialect.publishes_blocks() {
                    return Err(format!("{} publishes no block events, got #{fragment}", dialect.name()));
                }
                Some(format!("{}:{port}", url.host()))
            }
        };
        Ok(EngineAddress { dialect, url, events })
    }
}

/// Engines that are already there, in place of a cluster.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Engines without a cluster")]
pub struct FrontArgs {
    /// Comma-separated engines that serve the model of --model, each KIND=URL with a kind of vllm, sglang or
    /// llama-server, and #events=PORT if it publishes block events there; may be repeated; no etcd is used.
    /// REIN_ENGINE_KEY has the engines' API key [default: the worker groups of the cluster]
    #[arg(long, env = "REIN_ENGINES", value_delimiter = ',', value_name = "ENGINES", requires = "model", conflicts_with_all = ["etcd", "cluster"])]
    pub engine: Vec<EngineAddress>,
    /// Name of the model in the API, with --engine; also several, separated by commas [default: the engine's own name
    /// of its model]
    #[arg(long, env = "REIN_SERVED_NAME", value_delimiter = ',', value_name = "NAMES", requires = "engine", value_parser = NonEmptyStringValueParser::new())]
    pub served_name: Vec<String>,
    #[command(flatten)]
    pub client: EngineClientArgs,
}

/// How engines are reached, and how long they may take.
#[derive(Debug, Clone, Args)]
pub struct EngineClientArgs {
    /// File with certificates (PEM) to trust for engines at https:// in addition to the public authorities
    #[arg(long, env = "REIN_ENGINE_CA", value_name = "FILE", requires = "engine")]
    pub engine_ca: Option<PathBuf>,
    /// Seconds without a token, or without the head of an answer, after which a stream of an engine counts as hung and
    /// its sequence resumes on another engine. Before its first token, a sequence with a long prompt or in the queue of
    /// a full engine has longer
    #[arg(long, env = "REIN_TOKEN_DEADLINE", default_value = "60", value_name = "S", value_parser = option_values::deadline)]
    pub token_deadline: f64,
}

#[derive(Debug, Clone, Args)]
pub struct AdapterArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Name of this adapter in the cluster [default: host name and port]
    #[arg(long, env = "REIN_ID", value_name = "NAME", help_heading = "Cluster")]
    pub id: Option<String>,
    #[command(flatten)]
    pub peer: PeerArgs,
    #[command(flatten)]
    pub fronted: FrontedEngineArgs,
    #[command(flatten)]
    pub network: AdapterNetworkArgs,
}

/// The engine, and the text files of its model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Engine")]
pub struct FrontedEngineArgs {
    /// The engine, KIND=URL with a kind of vllm, sglang or llama-server, and #events=PORT if it publishes block events
    /// there; REIN_ENGINE_KEY has its API key
    #[arg(long, env = "REIN_ENGINES", value_name = "ENGINE")]
    pub engine: EngineAddress,
    #[command(flatten)]
    pub client: EngineClientArgs,
    /// Directory with the text files (config.json, tokenizer, template) of the engine's model, or ORG/NAME@REVISION of
    /// the Hub; weights are not read
    #[arg(long, env = "REIN_MODEL", value_name = "DIR|ORG/NAME")]
    pub model: PathBuf,
    /// Name of the model in the API [default: the engine's own name of its model]
    #[arg(long, env = "REIN_SERVED_NAME", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub served_name: Option<String>,
    /// Tokens of prompt and answer together, which the engine must support [default: what the engine and the model's
    /// files allow]
    #[arg(long, env = "REIN_MAX_CONTEXT", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_context: Option<u32>,
}

/// An adapter's listeners.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Network")]
pub struct AdapterNetworkArgs {
    /// Address of the gRPC services for routers; port 0 picks a free port
    #[arg(long, env = "REIN_LISTEN", default_value = "127.0.0.1:0", value_name = "ADDR")]
    pub listen: ListenAddr,
    /// Host name or IP address under which routers reach this process [default: the host of --listen]
    #[arg(long, env = "REIN_ADVERTISE", value_name = "HOST", value_parser = option_values::host)]
    pub advertise: Option<String>,
    /// Address of the admin HTTP server (/metrics, /health, /ready), unencrypted and unauthenticated; port 0 picks a
    /// free port [default: none]
    #[arg(long, env = "REIN_HTTP", value_name = "ADDR")]
    pub http: Option<ListenAddr>,
    /// Seconds that open sequences may take to finish after SIGTERM
    #[arg(long, env = "REIN_DRAIN_SECONDS", default_value_t = 30, value_name = "S", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub drain_seconds: u64,
}

#[derive(Debug, Clone, Args)]
pub struct WorkerArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Name of this worker in the cluster [default: host name and port]
    #[arg(long, env = "REIN_ID", value_name = "NAME", help_heading = "Cluster")]
    pub id: Option<String>,
    #[command(flatten)]
    pub peer: PeerArgs,
    #[command(flatten)]
    pub weights: WeightArgs,
    #[command(flatten)]
    pub group: WorkerGroupArgs,
    #[command(flatten)]
    pub network: WorkerNetworkArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

/// The group that a worker joins, and what it contributes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Worker group")]
pub struct WorkerGroupArgs {
    /// Ranks per group. Workers of the same model form groups as they join; those left over are spares
    #[arg(long, env = "REIN_GROUP_SIZE", default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub group_size: u16,
    /// Where this worker runs: a rack, an NVLink domain, a set of pods. Groups form within one domain; spares of other
    /// domains only replace lost workers [default: the one of all workers without a domain]
    #[arg(long, env = "REIN_DOMAIN", value_name = "NAME", value_parser = option_values::name)]
    pub domain: Option<String>,
    /// Redundant experts: copies of busy experts that each rank has room for, per layer
    #[arg(long, env = "REIN_REDUNDANT_EXPERTS", default_value_t = 0, value_name = "N")]
    pub redundant_experts: u16,
    /// Workers in this process, each with its own name and port; for load tests with --engine sim
    #[arg(long, env = "REIN_REPLICAS", default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub replicas: u16,
}

/// A worker's listeners.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Network")]
pub struct WorkerNetworkArgs {
    /// Address of the gRPC services for routers; port 0 picks a free port
    #[arg(long, env = "REIN_LISTEN", default_value = "127.0.0.1:0", value_name = "ADDR")]
    pub listen: ListenAddr,
    /// Address to which ranks of other workers connect; port 0 picks a free port [default: the host of --listen, port
    /// 0]
    #[arg(long, env = "REIN_MESH", value_name = "ADDR")]
    pub mesh: Option<ListenAddr>,
    /// Host name or IP address under which routers and other workers reach this process [default: the host of --listen]
    #[arg(long, env = "REIN_ADVERTISE", value_name = "HOST", value_parser = option_values::host)]
    pub advertise: Option<String>,
    /// Address of the admin HTTP server (/metrics, /health, /ready), unencrypted and unauthenticated; port 0 picks a
    /// free port [default: none]
    #[arg(long, env = "REIN_HTTP", value_name = "ADDR")]
    pub http: Option<ListenAddr>,
}

#[derive(Debug, Clone, Args)]
pub struct ControllerArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Name of this controller in the cluster [default: host name and process id]
    #[arg(long, env = "REIN_ID", value_name = "NAME", help_heading = "Cluster")]
    pub id: Option<String>,
    /// Workers per model to keep as spares for lost ones instead of forming one more group
    #[arg(long, env = "REIN_SPARES", default_value_t = 0, value_name = "N", help_heading = "Placement")]
    pub spares: usize,
    /// Minimum seconds between two expert layouts of a group; 0 disables rebalancing
    #[arg(
        long,
        env = "REIN_REBALANCE_EVERY",
        default_value_t = 60,
        value_name = "SECONDS",
        help_heading = "Placement"
    )]
    pub rebalance_every: u64,
    /// Rebalance a layer's experts when its busiest rank has more than this many times the mean load
    #[arg(long, env = "REIN_REBALANCE_ABOVE", default_value = "1.1", value_name = "FACTOR", value_parser = option_values::factor, help_heading = "Placement")]
    pub rebalance_above: f64,
    /// Address of the admin HTTP server (/metrics, /health, /ready), unencrypted and unauthenticated; port 0 picks a
    /// free port [default: none]
    #[arg(long, env = "REIN_HTTP", value_name = "ADDR", help_heading = "Network")]
    pub http: Option<ListenAddr>,
}

#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Show the status again at every change
    #[arg(long)]
    pub watch: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

#[derive(Debug, Clone, Args)]
pub struct DrainArgs {
    /// Name of the worker in `rein status`
    #[arg(value_name = "WORKER")]
    pub worker: String,
    /// Return at once instead of when the worker has left
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

#[cfg(test)]
mod tests;
