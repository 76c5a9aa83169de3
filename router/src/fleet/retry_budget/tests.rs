use super::*;

#[test]
fn retries_are_bounded_by_sequences_and_time() {
    let (retry_budget, now) = (Arc::new(RetryBudget::new(None)), Instant::now());
    let spent = |at: Instant| (0..10_000).take_while(|_| retry_budget.try_retry(at)).count();
    assert_eq!(spent(now), RETRIES_AT_ONCE as usize);
    assert_eq!(spent(now), 0);
    // Without sequences, only time adds to the budget.
    assert_eq!(spent(now + Duration::from_secs(2)), 2 * RETRIES_PER_SECOND as usize);
    (0..1000).for_each(|_| drop(retry_budget.count_sequence()));
    let earned = spent(now + Duration::from_secs(2));
    assert!((199..=200).contains(&earned), "{earned}");
    // The budget has a limit.
    assert_eq!(spent(now + Duration::from_secs(1_000_000)), RETRIES_AT_ONCE as usize);
    let mut registry = Registry::default();
    retry_budget.register(&mut registry);
    let text = crate::metrics::text(&registry);
    assert!(text.contains("rein_retry_budget_exhausted_total 5\n"), "{text}");
}

#[test]
fn hedged_sequences_are_a_bounded_share() {
    let retry_budget = Arc::new(RetryBudget::new(None));
    let _few: Vec<_> = (0..HEDGED_ONE_IN * 2).map(|_| retry_budget.count_sequence()).collect();
    let (first, second) = (retry_budget.try_hedge(), retry_budget.try_hedge());
    assert!(first.is_some() && second.is_some() && retry_budget.try_hedge().is_none());
    drop(first);
    assert!(retry_budget.try_hedge().is_some());
}
