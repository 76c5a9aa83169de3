use rein_proto::internal::EngineStats;

use crate::tls::Validity;

use super::*;

#[test]
fn the_operations_page_lists_the_metrics() {
    let times = rein_worker::metrics::StepTimes::default();
    times.observe(Duration::from_millis(3));
    times.observe(Duration::from_secs(100));
    let stats = EngineStats { steps: 2, ..EngineStats::default() };
    let leads = WorkerReport { standing: "leads", epoch: 7, engine: Some((stats, times.seen())), routers: 1 };
    let spare = WorkerReport { standing: "spare", epoch: 0, engine: None, routers: 0 };
    let certificate = Certificate::new("peer", "--peer-cert", || Some(Validity { from: 0, until: i64::MAX / 2 }));
    let text = metrics(&[("w0".into(), true, leads), ("w1".into(), false, spare)], &[certificate]);
    super::super::page::assert_documented("Workers", &text);
    for line in [
        "rein_worker_ready{worker=\"w1\",standing=\"spare\"} 0",
        "rein_worker_steps_total{worker=\"w0\"} 2",
        "rein_worker_step_seconds_bucket{worker=\"w0\",le=\"0.0025\"} 0",
        "rein_worker_step_seconds_bucket{worker=\"w0\",le=\"60\"} 1",
        "rein_worker_step_seconds_bucket{worker=\"w0\",le=\"+Inf\"} 2",
        "rein_worker_step_seconds_sum{worker=\"w0\"} 100.003",
    ] {
        assert!(text.lines().any(|written| written == line), "{line} in {text}");
    }
}
