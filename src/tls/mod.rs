//! TLS for the public listeners, and mutual TLS between the processes of a cluster. It does not know what is served.
//!
//! Certificates and keys are PEM files. They are reloaded when they change: open connections continue, new connections
//! use the new files, and no process restarts.

mod expiry;
mod listen;
mod peer;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rein_router::hot_reload::{FileError, FileProblem, HotReloaded, WatchedFile};
use thiserror::Error;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

pub use expiry::{Certificate, Validity, watch};
pub use listen::{ServerTls, Socket};
pub use peer::Peers;

/// Timeout for a TLS handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
pub const HTTP: &[u8] = b"http/1.1";
pub const GRPC: &[u8] = b"h2";

/// TLS of the public listeners.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsArgs {
    /// Certificate chain (PEM) of the HTTP and gRPC listeners [default: no TLS]
    #[arg(long, env = "REIN_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Private key (PEM) of --tls-cert
    #[arg(long, env = "REIN_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
}

/// Mutual TLS between the processes of a cluster: all three files, or none.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Mutual TLS between processes")]
pub struct PeerArgs {
    /// CA certificates (PEM) that sign the certificates of the cluster's processes [default: no TLS]
    #[arg(long, env = "REIN_PEER_CA", value_name = "FILE")]
    pub peer_ca: Option<PathBuf>,
    /// Certificate chain (PEM) of this process, used as server and as client
    #[arg(long, env = "REIN_PEER_CERT", value_name = "FILE")]
    pub peer_cert: Option<PathBuf>,
    /// Private key (PEM) of --peer-cert
    #[arg(long, env = "REIN_PEER_KEY", value_name = "FILE")]
    pub peer_key: Option<PathBuf>,
    /// DNS name that every certificate of this cluster contains as a subject alternative name
    #[arg(long, env = "REIN_PEER_NAME", default_value = "rein-peer", value_name = "NAME", requires = "peer_ca")]
    pub peer_name: String,
}

#[derive(Debug, Error)]
pub enum TlsError {
    #[error("{given} needs {missing}")]
    Incomplete { given: &'static str, missing: &'static str },
    #[error("--peer-name: '{0}' is not a DNS name; expected a name such as rein-peer")]
    PeerName(String),
    #[error(transparent)]
    File(#[from] FileError),
}

impl TlsArgs {
    /// TLS for a listener of this protocol (ALPN); None if these options do not enable it.
    pub fn listener(&self, protocol: &'static [u8]) -> Result<Option<ServerTls>, TlsError> {
        let options = [("--tls-cert", &self.tls_cert), ("--tls-key", &self.tls_key)];
        let Some(sources) = all_or_none(options)? else { return Ok(None) };
        let shown = Arc::new(HotReloaded::open(sources.into(), move |files| public(files, protocol, UnixTime::now()))?);
        let valid = shown.clone();
        let certificate = Certificate::new("tls", "--tls-cert", move || valid.get().validity);
        Ok(Some(ServerTls::new(move || shown.get().config.clone(), certificate)))
    }
}

impl Certificate {
    /// Of a file that somebody else reads.
    pub fn of_file(usage: &'static str, flag: &'static str, path: PathBuf) -> Result<Self, FileError> {
        let read = |files: &[Vec<u8>]| certificates(files, 0);
        let shown = HotReloaded::open(vec![WatchedFile { flag, path }], read)?;
        Ok(Certificate::new(usage, flag, move || Validity::of(&shown.get())))
    }
}

/// The configuration of a public listener, and how long its certificate is valid.
struct Public {
    config: Arc<ServerConfig>,
    validity: Option<Validity>,
}

fn public(files: &[Vec<u8>], protocol: &[u8], now: UnixTime) -> Result<Public, FileProblem> {
    let (chain, key) = (certificates(files, 0)?, private_key(files, 1)?);
    let validity = Validity::of(&chain);
    // Only the first: clients may trust an issuer by another path than the chain that is sent.
    if let Some(why) = Validity::of(&chain[..1]).and_then(|own| own.why_not(now)) {
        return Err(FileProblem::new(0, why));
    }
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| FileProblem::new(0, error))?.with_no_client_auth();
    let mut config = builder.with_single_cert(chain, key).map_err(|error| FileProblem::new(1, error))?;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(Public { config: Arc::new(config), validity })
}

/// The files of options that must be given together.
fn all_or_none<const N: usize>(
    options: [(&'static str, &Option<PathBuf>); N],
) -> Result<Option<[WatchedFile; N]>, TlsError> {
    let given = options.iter().find(|(_, path)| path.is_some());
    let missing = options.iter().find(|(_, path)| path.is_none());
    match (given, missing) {
        (None, _) => Ok(None),
        (Some(given), Some(missing)) => Err(TlsError::Incomplete { given: given.0, missing: missing.0 }),
        (Some(_), None) => {
            Ok(Some(options.map(|(flag, path)| WatchedFile { flag, path: path.clone().unwrap_or_default() })))
        }
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(files: &[Vec<u8>], file: usize) -> Result<Vec<CertificateDer<'static>>, FileProblem> {
    let certificates = CertificateDer::pem_slice_iter(&files[file]).collect::<Result<Vec<_>, _>>();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err(FileProblem::new(file, "holds no certificate (PEM)")),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(FileProblem::new(file, format!("is not PEM: {error}"))),
    }
}

fn private_key(files: &[Vec<u8>], file: usize) -> Result<PrivateKeyDer<'static>, FileProblem> {
    // The error is dropped, because it may quote the file.
    PrivateKeyDer::from_pem_slice(&files[file]).map_err(|_| FileProblem::new(file, "holds no private key (PEM)"))
}

fn authorities(files: &[Vec<u8>], file: usize) -> Result<RootCertStore, FileProblem> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(files, file)? {
        roots.add(certificate).map_err(|error| FileProblem::new(file, error))?;
    }
    Ok(roots)
}
