use super::*;

#[test]
fn a_line_every_few_seconds_and_one_at_the_end() {
    let began = Instant::now();
    let mut log = LoadLog::start_at(began);
    let total = 4 << 30;
    let mut lines = Vec::new();
    for second in 0..=16 {
        lines.extend(log.line(began + Duration::from_secs(second), second << 28, total));
    }
    lines.extend(log.line(began + Duration::from_secs(17), total, total));
    assert_eq!(
        lines,
        [
            "loading weights: 1.2 GiB of 4.0 GiB (31 %), 256.0 MiB/s",
            "loading weights: 2.5 GiB of 4.0 GiB (62 %), 256.0 MiB/s",
            "loading weights: 3.8 GiB of 4.0 GiB (93 %), 256.0 MiB/s",
            "weights loaded: 4.0 GiB in 16.0 s",
        ]
    );
}

#[test]
fn nothing_to_load_is_not_logged() {
    let began = Instant::now();
    assert_eq!(LoadLog::start_at(began).line(began + LOG_INTERVAL, 0, 0), None);
}
