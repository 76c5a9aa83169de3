use super::*;

fn stats(running: u32, generated_tokens: u64) -> EngineStats {
    EngineStats { running, generated_tokens, ..EngineStats::default() }
}

#[test]
fn reports_come_at_an_interval_and_when_the_group_becomes_busy_or_idle() {
    let began = Instant::now();
    let due = |last: &LoadReport, after, stats| LoadReport::due(Some(last), began + after, 1, &stats);
    let first = LoadReport::due(None, began, 1, &stats(0, 50)).expect("the first report is due");
    assert_eq!(first.load.tokens_per_second, 0);
    assert!(due(&first, LOAD_INTERVAL / 2, stats(0, 50)).is_none());
    let busy = due(&first, LOAD_INTERVAL / 2, stats(1, 50)).expect("it became busy");
    assert!(due(&busy, LOAD_INTERVAL, stats(1, 150)).is_none());
    let later = due(&busy, LOAD_INTERVAL * 3 / 2, stats(1, 250)).expect("the interval is over");
    assert_eq!(later.load.tokens_per_second, 40);
    let idle = due(&later, LOAD_INTERVAL * 2, stats(0, 300)).expect("it became idle");
    assert_eq!(idle.load.tokens_per_second, 20);
}
