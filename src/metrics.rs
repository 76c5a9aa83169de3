//! The metrics of every process. This module does not know what the process does.

#[cfg(test)]
mod tests;

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use rein_router::metrics::on_scrape;

use crate::tls::Certificate;

/// Registers the metrics of the process and of the certificates that it shows.
pub fn register(registry: &mut Registry, certificates: Vec<Certificate>) {
    let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("rein_build", "Always 1; the version is a label", build);
    let help = "When the process began to serve, in seconds since 1970; a jump is a restart";
    registry.register("process_start_time_seconds", help, ConstGauge::new(began()));
    on_scrape(registry, move |samples| {
        let left = certificates.iter().filter_map(|one| Some(([("usage", one.usage)], one.seconds_left()?)));
        let help = "Seconds until a certificate of this process expires; negative if it has expired. \
            `usage`: `peer` (`--peer-cert`), `tls` (`--tls-cert`) or `etcd` (`--etcd-cert`)";
        samples.gauge("rein_certificate_expiry_seconds", help, left)
    });
}

/// The time of the first call, in seconds since 1970.
fn began() -> u64 {
    static BEGAN: OnceLock<u64> = OnceLock::new();
    *BEGAN.get_or_init(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()))
}
