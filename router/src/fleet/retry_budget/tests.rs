use super::*;

#[test]
fn retries_are_a_share_of_sequences_over_a_floor() {
    let (retry_budget, now) = (Arc::new(RetryBudget::new(None)), Instant::now());
    let spent = |at: Instant| (0..10_000).take_while(|_| retry_budget.retry(at)).count();
    assert_eq!(spent(now), RETRIES_AT_ONCE as usize);
    assert_eq!(spent(now), 0);
    // With no requests at all, the floor.
    assert_eq!(spent(now + Duration::from_secs(2)), 2 * RETRIES_PER_SECOND as usize);
    (0..1000).for_each(|_| drop(retry_budget.begin()));
    let earned = spent(now + Duration::from_secs(2));
    assert!((199..=200).contains(&earned), "{earned}");
    // What is not used is not kept for ever.
    assert_eq!(spent(now + Duration::from_secs(1_000_000)), RETRIES_AT_ONCE as usize);
    let mut registry = Registry::default();
    retry_budget.register(&mut registry);
    let text = crate::metrics::text(&registry);
    assert!(text.contains("rein_retry_budget_exhausted_total 5\n"), "{text}");
}

#[test]
fn one_in_so_many_sequences_is_hedged_at_once() {
    let retry_budget = Arc::new(RetryBudget::new(None));
    let _few: Vec<_> = (0..HEDGED_ONE_IN * 2).map(|_| retry_budget.begin()).collect();
    let (first, second) = (retry_budget.hedge(), retry_budget.hedge());
    assert!(first.is_some() && second.is_some() && retry_budget.hedge().is_none());
    drop(first);
    assert!(retry_budget.hedge().is_some());
}
