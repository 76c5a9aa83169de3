use super::*;

#[test]
fn the_reference_lists_the_metrics() {
    let text = scrape::text(&metrics(&Arc::default()));
    crate::metrics_reference::check("Controllers", &text);
}
