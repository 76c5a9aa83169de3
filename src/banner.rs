//! What `rein serve` and `rein router` print on standard output once they accept requests.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Width of the column of labels.
const LABELS: usize = 11;

/// Rows of a label and a value under a title.
pub struct Banner {
    title: String,
    rows: Vec<(&'static str, String)>,
}

impl Banner {
    pub fn new(subject: &str) -> Self {
        Banner { title: format!("rein {} {subject}", env!("CARGO_PKG_VERSION")), rows: Vec::new() }
    }

    pub fn row(mut self, label: &'static str, value: impl fmt::Display) -> Self {
        self.rows.push((label, value.to_string()));
        self
    }

    /// The URLs under which a browser on this machine reaches the listeners.
    pub fn urls(self, scheme: &str, http: SocketAddr, grpc: SocketAddr) -> Self {
        let base = format!("{scheme}://{}", reachable(http));
        self.row("API", format!("{base}/v1"))
            .row("playground", format!("{base}/"))
            .row("metrics", format!("{base}/metrics"))
            .row("gRPC", reachable(grpc))
    }
}

impl fmt::Display for Banner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{}", self.title)?;
        for (label, value) in &self.rows {
            write!(f, "\n  {label:LABELS$} {value}")?;
        }
        writeln!(f)
    }
}

/// The loopback address for a listener on all interfaces.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// Warns about listeners that other machines can reach without an API key.
pub fn warn_if_open(flag: &str, address: SocketAddr, has_keys: bool) {
    if !address.ip().is_loopback() && !has_keys {
        tracing::warn!(
            "{flag}: {address} accepts requests from other machines without an API key; set --api-keys, or listen on 127.0.0.1"
        );
    }
}

#[cfg(test)]
mod tests;
