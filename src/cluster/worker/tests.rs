use rein_proto::internal::EngineStats;

use crate::metrics_reference;

use rein_router::metrics::text;

use super::*;

#[test]
fn the_reference_lists_the_metrics() {
    let times = rein_worker::metrics::step_times();
    times.observe(0.003);
    times.observe(100.0);
    let stats = EngineStats { steps: 2, ..EngineStats::default() };
    let leads = WorkerReport { standing: "leads", epoch: 7, engine: Some((stats, times)), routers: 1 };
    let spare = WorkerReport { standing: "spare", epoch: 0, engine: None, routers: 0 };
    let read = move || {
        [("w0", true, leads.clone()), ("w1", false, spare.clone())]
            .map(|(id, ready, report)| ReportedWorker { id: id.into(), ready, report })
            .into()
    };
    let text = text(&metrics(read, Vec::new()));
    metrics_reference::check("Workers", &text);
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

#[test]
fn the_banner_says_where_gpus_are_and_what_nccl_reads() {
    let variables = [("NCCL_DEBUG", "WARN"), ("PATH", "/bin"), ("NCCL_ALGO", "Ring")];
    let variables = || variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter();
    let mut locality = Locality { host: "h".into(), nvlink: Some("h".into()), adapters: vec!["mlx5_0".into()] };
    assert_eq!(
        gpus("cuda:0,cuda:1", "plain", &locality, variables()),
        "rein: GPUs cuda:0,cuda:1: kernels plain; NVLink domain h; adapters beside them: mlx5_0; \
         NCCL_ALGO=Ring NCCL_DEBUG=WARN"
    );
    (locality.nvlink, locality.adapters) = (None, Vec::new());
    let line = gpus("cuda:0", "fast", &locality, std::iter::empty());
    assert_eq!(line, "rein: GPUs cuda:0: kernels fast; no NVLink; no RDMA adapter beside them; no NCCL variables");
}
