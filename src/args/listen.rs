//! Addresses to listen on, as people write them.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use super::values;

/// `HOST:PORT`, where the host is a name or an address (IPv6 in brackets), `:PORT` for every IPv4 interface, or `PORT` for
/// 127.0.0.1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddr {
    host: String,
    port: u16,
}

impl ListenAddr {
    /// The same host with a port that the system chooses.
    pub fn any_port(&self) -> Self {
        ListenAddr { host: self.host.clone(), port: 0 }
    }

    /// Where to listen, in the order in which to try: IPv4 first, as most clients of a name try it.
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
        // Digits alone: `+80` is a number for Rust, too.
        let port =
            Some(port).filter(|port| port.bytes().all(|c| c.is_ascii_digit())).and_then(|port| port.parse().ok());
        let named =
            host.parse::<Ipv4Addr>().is_ok() || (values::host(&host).is_ok() && host.parse::<IpAddr>().is_err());
        match port {
            Some(port) if named => Ok(ListenAddr { host, port }),
            _ => Err(expected()),
        }
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ListenAddr { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (text, shown) in [
            ("127.0.0.1:8000", "127.0.0.1:8000"),
            ("0.0.0.0:0", "0.0.0.0:0"),
            ("localhost:8000", "localhost:8000"),
            ("worker-0.workers:80", "worker-0.workers:80"),
            (":8000", "0.0.0.0:8000"),
            ("8000", "127.0.0.1:8000"),
            ("0", "127.0.0.1:0"),
            ("[::1]:8000", "[::1]:8000"),
            ("[::]:8000", "[::]:8000"),
        ] {
            let address: ListenAddr = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(address.to_string(), shown, "{text}");
            assert_eq!(address.to_string().parse(), Ok(address), "{text}");
        }
        for bad in [
            "",
            ":",
            "localhost",
            "localhost:",
            "::1:8000",
            "::1",
            "[::1]",
            "[::1:8000",
            "[localhost]:8000",
            "h:65536",
            "65536",
            "-1",
            "+80",
            "h:+80",
            "h: 80",
            "http://localhost:8000",
            "a b:80",
            "h:80/x",
            "h:http",
            "256.1.1.1:x",
        ] {
            let error = bad.parse::<ListenAddr>().expect_err(bad);
            assert!(error.contains("expected HOST:PORT"), "{bad}: {error}");
        }
    }

    #[tokio::test]
    async fn a_name_is_every_address_that_it_has() {
        let resolve = async |text: &str| text.parse::<ListenAddr>().expect(text).resolve().await;
        let local = resolve("localhost:80").await.expect("every machine has it");
        assert_eq!(local.first(), Some(&SocketAddr::from(([127, 0, 0, 1], 80))));
        assert!(local.iter().all(|address| address.ip().is_loopback() && address.port() == 80), "{local:?}");
        assert_eq!(resolve("[::1]:81").await.expect("an address"), [SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 81))]);
        assert!(resolve("no-such-host.invalid:80").await.is_err());
    }
}
