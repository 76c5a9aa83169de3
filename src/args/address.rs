//! Addresses to listen on, as given on the command line.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use crate::option_values;

/// `HOST:PORT`, where the host is a name or an IP address (IPv6 in brackets), `:PORT` for all IPv4 interfaces, or
/// `PORT` for 127.0.0.1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddr {
    host: String,
    port: u16,
}

impl ListenAddr {
    /// The same host with a port that the system chooses.
    pub fn any_port(&self) -> Self {
        self.with_port(0)
    }

    pub fn with_port(&self, port: u16) -> Self {
        ListenAddr { host: self.host.clone(), port }
    }

    pub fn with_host(&self, host: String) -> Self {
        ListenAddr { host, port: self.port }
    }

    /// The socket addresses to try, in order. IPv4 comes first, because most clients try it first.
    pub async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let mut addresses: Vec<SocketAddr> = tokio::net::lookup_host((self.host.as_str(), self.port)).await?.collect();
        addresses.sort_by_key(SocketAddr::is_ipv6);
        addresses.dedup();
        match addresses.is_empty() {
            true => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
            false => Ok(addresses),
        }
    }
}

impl From<SocketAddr> for ListenAddr {
    fn from(address: SocketAddr) -> Self {
        ListenAddr { host: address.ip().to_string(), port: address.port() }
    }
}

impl FromStr for ListenAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "expected HOST:PORT (such as 127.0.0.1:8000, localhost:8000 or [::1]:8000), :PORT or PORT, got {text:?}"
            )
        };
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(address.into());
        }
        let (host, port) = match text.rsplit_once(':') {
            None => (Ipv4Addr::LOCALHOST.to_string(), text),
            Some(("", port)) => (Ipv4Addr::UNSPECIFIED.to_string(), port),
            Some((host, port)) => (host.to_owned(), port),
        };
        let named =
            host.parse::<Ipv4Addr>().is_ok() || (option_values::host(&host).is_ok() && host.parse::<IpAddr>().is_err());
        let bracketed = format!("{host}:0").parse::<SocketAddr>().is_ok();
        // Rust would also parse `+80`.
        let digits = !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit());
        match port.parse() {
            Ok(port) if named && digits => Ok(ListenAddr { host, port }),
            Err(_) if digits && (named || bracketed) => {
                Err(format!("the port must be between 0 and {}, got {port}", u16::MAX))
            }
            _ => Err(expected()),
        }
    }
}

/// The host of a [`ListenAddr`] alone: a name or an IP address, without a port.
pub fn listen_host(text: &str) -> Result<String, String> {
    match text.parse::<IpAddr>().is_ok() || option_values::host(text).is_ok() {
        true => Ok(text.to_owned()),
        false => Err("expected a host name or an IP address without a port, such as 0.0.0.0, localhost or ::1".into()),
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ListenAddr { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests;
