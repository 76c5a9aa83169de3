#[test]
fn bandwidth_is_plausible() {
    let found = super::memory_bandwidth(2, 0.0);
    assert!(found > 0.05 && found < 1e5, "{found} GB/s");
}
