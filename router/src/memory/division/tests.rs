use super::*;

#[test]
fn shares_fit_the_memory_and_end_at_the_limits() {
    for mib in [64, 400, 512, 1024, 4096, 8192] {
        let bytes = mib << 20;
        let limits = MemoryLimits::within(bytes);
        let MemoryLimits { bodies, matchers, texts, answers, grammars, prompts, routes, tools, responses, .. } = limits;
        let all = [bodies, matchers, texts, answers, grammars, prompts, routes, 3 * tools, responses];
        assert!(all.iter().sum::<usize>() < bytes / 10 * 9, "{mib} MiB: {limits:?}");
        assert!(limits.body <= bodies / 4 && limits.body > limits.uncounted_body, "{mib} MiB: {limits:?}");
    }
    assert_eq!(MemoryLimits::within(24 << 30), MemoryLimits::default());
    assert_eq!(MemoryLimits::default().body, limits::BODY_BYTES);
    assert_eq!(MemoryLimits::within(1 << 30).body, limits::BODY_BYTES);
    assert_eq!(MemoryLimits::within(480 << 20).body, 20 << 20);
    assert_eq!(MemoryLimits::within(480 << 20).text(), (480 << 20) / 6 / 2 / 48);
}
