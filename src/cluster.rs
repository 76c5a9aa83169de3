//! The commands of a cluster. They differ from `rein serve` only in transport and store.

mod adapter;
mod controller;
mod drain;
mod engines;
mod front;
mod links;
mod page;
mod router;
mod seal;
mod status;
mod worker;

pub use adapter::run as adapter;
pub use controller::run as controller;
pub use drain::run as drain;
pub use router::run as router;
pub use status::run as status;
pub use worker::run as worker;

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use rein_control_plane::limits::STORE_SILENCE;
use rein_control_plane::records::{Release, is_valid_name};
use rein_control_plane::{Etcd, EtcdError, EtcdOptions, EtcdTls, Keys, Store, StoreError};
use rein_proto::protocol;
use tokio::task::JoinSet;

use crate::args::ClusterArgs;
use crate::tls::Certificate;

const NAME: &str = "must be 1 to 63 letters, digits, '-', '_' or '.', starting with a letter or digit";

fn keys(args: &ClusterArgs) -> Result<Keys, Box<dyn Error>> {
    let cluster = &args.cluster;
    Keys::new(cluster).ok_or_else(|| format!("--cluster: {NAME}, got {cluster:?}").into())
}

fn store(args: &ClusterArgs) -> Result<Arc<dyn Store>, Box<dyn Error>> {
    let password = match (&args.etcd_password_file, &args.etcd_user) {
        (Some(file), _) => {
            let text = std::fs::read_to_string(file);
            let text = text.map_err(|e| format!("--etcd-password-file: {}: {e}", file.display()))?;
            Some(text.trim_end_matches(['\r', '\n']).to_owned())
        }
        (None, Some(_)) => Some(
            std::env::var("REIN_ETCD_PASSWORD")
                .map_err(|_| "--etcd-user: set the password in REIN_ETCD_PASSWORD or with --etcd-password-file")?,
        ),
        (None, None) => None,
    };
    let options = EtcdOptions {
        endpoints: args.etcd.clone(),
        user: args.etcd_user.clone().zip(password),
        tls: EtcdTls {
            ca: args.etcd_ca.clone(),
            identity: args.etcd_cert.clone().zip(args.etcd_key.clone()),
            name: args.etcd_name.clone(),
        },
    };
    let plain = args.etcd.iter().find(|endpoint| endpoint.starts_with("http://"));
    if let (Some(endpoint), true) = (plain, args.etcd_ca.is_some() || args.etcd_cert.is_some()) {
        return Err(format!("--etcd: {endpoint} must begin with https:// when --etcd-ca or --etcd-cert is set").into());
    }
    let files = [("--etcd-ca", &args.etcd_ca), ("--etcd-cert", &args.etcd_cert), ("--etcd-key", &args.etcd_key)];
    let flag_of = |path: &Path| files.iter().find(|(_, file)| file.as_deref() == Some(path)).map_or("--etcd", |f| f.0);
    let etcd = Etcd::new(options).map_err(|error| match &error {
        EtcdError::Read { path, source } => format!("{}: cannot read {}: {source}", flag_of(path), path.display()),
        EtcdError::NoEndpoint => "--etcd: no endpoint given".to_owned(),
    })?;
    Ok(Arc::new(etcd))
}

/// The client certificate for etcd, to tell when it expires.
fn etcd_certificate(args: &ClusterArgs) -> Result<Option<Certificate>, Box<dyn Error>> {
    Ok(args.etcd_cert.as_ref().map(|path| Certificate::of_file("etcd", "--etcd-cert", path.clone())).transpose()?)
}

/// The error of a command that runs once and cannot use the store. A store that cannot be reached is one plain line;
/// the transport's error chain goes to the log. A refused certificate is named with that chain: etcd is there.
fn store_error(args: &ClusterArgs, error: StoreError) -> String {
    match error {
        StoreError::Unavailable(reason) => {
            tracing::debug!(reason, "etcd cannot be reached");
            let endpoints = args.etcd.join(", ");
            if reason.to_lowercase().contains("certificate") {
                let advice = "check --etcd-ca, --etcd-cert and --etcd-name";
                return format!("--etcd: a certificate was refused at {endpoints}; {advice} ({reason})");
            }
            let secure = args.etcd_ca.is_some() || args.etcd.iter().any(|endpoint| endpoint.starts_with("https://"));
            let advice = match secure {
                false => "start etcd, or set --etcd to its endpoints (REIN_LOG=debug shows the cause)",
                // With TLS 1.3, a server that refuses the client's certificate only closes the connection.
                true => {
                    "start etcd, or set --etcd to its endpoints; or it wants another certificate: check --etcd-cert \
                     and --etcd-key (REIN_LOG=debug shows the cause)"
                }
            };
            format!("--etcd: cannot reach etcd at {endpoints}; {advice}")
        }
        error => format!("--etcd: {error}"),
    }
}

/// Asks the store once, before a process says that it runs. Err: it refuses, which no wait mends. A store that cannot
/// be reached may come later.
async fn check_access(args: &ClusterArgs, store: &dyn Store, keys: &Keys) -> Result<(), Box<dyn Error>> {
    match store.read(&keys.controller()).await {
        Err(error @ StoreError::Refused(_)) => Err(store_error(args, error).into()),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// etcd closes connections that carry only keepalive pings. A process that only watches must therefore read something
/// from time to time, until the result is dropped.
fn keep_alive(store: Arc<dyn Store>, key: String) -> JoinSet<()> {
    let mut reading = JoinSet::new();
    reading.spawn(async move {
        loop {
            tokio::time::sleep(STORE_SILENCE / 2).await;
            // The caller's watch reports errors.
            let _ = store.read(&key).await;
        }
    });
    reading
}

/// The release of this process. Its start time is the time of the first call.
fn release() -> Release {
    static STARTED: OnceLock<u64> = OnceLock::new();
    let started = *STARTED.get_or_init(seconds_since_1970);
    Release { protocol: protocol::NUMBER, version: protocol::VERSION.into(), started }
}

fn seconds_since_1970() -> u64 {
    milliseconds_since_1970() / 1000
}

fn milliseconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64)
}

/// The given id, or one made of the host name and `what`.
fn id(given: &Option<String>, what: impl std::fmt::Display) -> Result<String, Box<dyn Error>> {
    let host = crate::telemetry::host_name();
    let host: String =
        host.iter().flat_map(|host| host.chars()).filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(40).collect();
    let host = if host.is_empty() { "host" } else { &host };
    let id = given.clone().unwrap_or_else(|| format!("{host}-{what}"));
    match is_valid_name(&id) {
        true => Ok(id),
        false => Err(format!("--id: {NAME}, got {id:?}").into()),
    }
}

/// Warns about a port without mutual TLS.
fn warn_if_open(flag: &str, address: SocketAddr, who: &str) {
    if !address.ip().is_loopback() {
        let advice = "bind it to a private address, or set --peer-ca, --peer-cert and --peer-key";
        tracing::warn!("{flag}: {address} is unencrypted and unauthenticated: {who}; {advice}");
    }
}

/// The address at which other processes reach this one.
fn advertised(advertise: &Option<String>, address: SocketAddr) -> Result<String, Box<dyn Error>> {
    let host = match advertise {
        Some(host) => host.clone(),
        None if address.ip().is_unspecified() => {
            return Err(
                "--advertise: required when listening on all interfaces; give this machine's host name or address"
                    .into(),
            );
        }
        None => address.ip().to_string(),
    };
    let port = address.port();
    Ok(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}
