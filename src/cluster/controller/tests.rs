use rein_router::metrics::text;

use super::*;

#[test]
fn the_reference_lists_the_metrics() {
    let text = text(&metrics(&Arc::default(), Vec::new()));
    crate::metrics_reference::check("Controllers", &text);
}
