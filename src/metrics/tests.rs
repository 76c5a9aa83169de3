use crate::metrics_reference;
use crate::tls::Validity;

use rein_router::metrics::text;

use super::*;

#[test]
fn the_reference_lists_the_metrics() {
    let certificate = Certificate::new("tls", "--tls-cert", || Some(Validity { from: 0, until: i64::MAX / 2 }));
    let mut registry = Registry::default();
    register(&mut registry, vec![certificate]);
    metrics_reference::check("All processes", &text(&registry));
}
