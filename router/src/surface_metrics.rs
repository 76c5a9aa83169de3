//! What the API's surfaces count: requests by endpoint and status, and the process around them.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
};

use crate::{metrics::write_counters, request::model::now};

pub struct SurfaceMetrics {
    /// Seconds since 1970.
    began: u64,
    /// By surface, endpoint and status.
    requests: Mutex<BTreeMap<(&'static str, &'static str, u16), u64>>,
    pub connections_cut: Arc<AtomicU64>,
}

impl Default for SurfaceMetrics {
    fn default() -> Self {
        SurfaceMetrics { began: now(), requests: Mutex::default(), connections_cut: Arc::default() }
    }
}

impl SurfaceMetrics {
    pub fn request(&self, surface: &'static str, endpoint: &'static str, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((surface, endpoint, status)).or_default() += 1;
    }

    pub fn write(&self, out: &mut String) {
        self.write_process(out);
        let _ = writeln!(
            out,
            "# HELP rein_requests_total Requests by surface, endpoint and status.\n# TYPE rein_requests_total counter"
        );
        for ((surface, endpoint, status), count) in &*self.requests.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = writeln!(
                out,
                "rein_requests_total{{surface=\"{surface}\",endpoint=\"{endpoint}\",status=\"{status}\"}} {count}"
            );
        }
        let help = "Connections that were cut because the client did not read.";
        write_counters(out, [("rein_stalled_connections_total", help, &*self.connections_cut)]);
    }

    fn write_process(&self, out: &mut String) {
        let version = env!("CARGO_PKG_VERSION");
        let _ = writeln!(
            out,
            "# HELP rein_build_info Always 1; the version is a label.\n# TYPE rein_build_info gauge\n\
             rein_build_info{{version=\"{version}\"}} 1"
        );
        let name = "process_start_time_seconds";
        let help = "When this process began to serve, in seconds since 1970.";
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {}", self.began);
    }
}
