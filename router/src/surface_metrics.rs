//! Metrics of HTTP and gRPC: requests by endpoint and status, and closed connections.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    surface: &'static str,
    endpoint: &'static str,
    status: u32,
}

#[derive(Default)]
pub struct SurfaceMetrics {
    requests: Family<RequestLabels, Counter>,
    pub connections_cut: Counter,
}

impl SurfaceMetrics {
    pub fn request(&self, surface: &'static str, endpoint: &'static str, status: u16) {
        self.requests.get_or_create(&RequestLabels { surface, endpoint, status: status.into() }).inc();
    }

    pub fn register(&self, registry: &mut Registry) {
        let help = "Requests by the status of their answer; `status` is the HTTP status or the gRPC code. Errors later in \
            a stream do not count here";
        registry.register("rein_requests", help, self.requests.clone());
        let help = "Connections closed because a write made no progress for `--client-stall-timeout` and 5 s";
        registry.register("rein_stalled_connections", help, self.connections_cut.clone());
    }
}
