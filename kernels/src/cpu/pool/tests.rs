use super::*;

#[test]
fn every_item_runs_once() {
    for threads in [1, 2, 5] {
        let pool = ThreadPool::new(threads);
        for items in [0usize, 1, 2, 7, 1000] {
            for _ in 0..50 {
                let counts: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                pool.run(items, &|i| {
                    counts[i].fetch_add(1, Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Relaxed) == 1));
            }
        }
    }
}

#[test]
fn results_are_in_order() {
    for threads in [1, 3] {
        assert_eq!(ThreadPool::new(threads).map(100, &|i| i * i), (0..100).map(|i| i * i).collect::<Vec<_>>());
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_stays_usable() {
    let pool = ThreadPool::new(3);
    for _ in 0..20 {
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(100, &|i| assert!(i != 57, "item 57"));
        }));
        assert!(result.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(10, &|i| {
            sum.fetch_add(i, Relaxed);
        });
        assert_eq!(sum.load(Relaxed), 45);
    }
}
