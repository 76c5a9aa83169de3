use std::time::Duration;

use rein_proto::internal::EngineStats;

use super::*;
use crate::{request::metrics::RequestMetrics, surface_metrics::SurfaceMetrics};

#[test]
fn every_sample_has_a_type_and_buckets_are_cumulative() {
    let (surfaces, metrics) = (SurfaceMetrics::default(), RequestMetrics::default());
    let mut registry = Registry::default();
    surfaces.register(&mut registry);
    metrics.register(&mut registry);
    surfaces.request("http", "chat", 200);
    surfaces.request("http", "chat", 200);
    metrics.outcomes.add_model("a", "hermes");
    metrics.first_token.observe(Duration::from_millis(3));
    metrics.first_token.observe(Duration::from_secs(100));
    let stats = Some(EngineStats { running: 3, ..EngineStats::default() });
    let report = EngineReport { model: "a\"b".into(), group: "0".into(), epoch: 7, max_sequences: Some(8), stats };
    let standings = [("serving", 1), ("draining", 0), ("unlisted", 0)];
    let pool = PoolReport { model: "a".into(), standings, kinds: 2 };
    on_scrape(&mut registry, move |samples| write(samples, std::slice::from_ref(&pool), std::slice::from_ref(&report)));
    let text = text(&registry);
    assert!(text.contains("rein_engine_epoch{model=\"a\\\"b\",engine=\"0\"} 7"));
    assert!(text.contains("rein_engines{model=\"a\",standing=\"draining\"} 0"));
    assert!(text.contains("rein_malformed_total{model=\"a\",format=\"hermes\"} 0"));
    assert!(text.contains("rein_finished_total{model=\"a\",reason=\"length\"} 0"));
    assert!(text.contains("rein_engine_kinds{model=\"a\"} 2"));
    assert!(text.contains("rein_requests_total{surface=\"http\",endpoint=\"chat\",status=\"200\"} 2"));
    assert!(text.contains("rein_time_to_first_token_seconds_bucket{le=\"0.0025\"} 0"));
    assert!(text.contains("rein_time_to_first_token_seconds_bucket{le=\"0.005\"} 1"));
    assert!(text.contains("rein_time_to_first_token_seconds_bucket{le=\"+Inf\"} 2"));
    assert!(text.contains("rein_engine_running_sequences{model=\"a\\\"b\",engine=\"0\"} 3"));
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(text.contains(&format!("# TYPE {base} ")), "{line}");
    }
}
