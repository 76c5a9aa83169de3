use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;
use crate::error::ErrorKind;

fn caller(name: &str) -> CallerName {
    Some(name.into())
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_what_others_return_and_small_ones_are_free() {
    let budget = MemoryBudget::new(1000, "tests");
    let [mut first, mut second, mut small] = [100; 3].map(|uncounted| budget.open_charge(None, uncounted));
    first.resize(1050, far()).await.unwrap();
    let began = Instant::now();
    let error = second.resize(500, far()).await.unwrap_err();
    assert_eq!((error.kind, began.elapsed()), (ErrorKind::Full, limits::MEMORY_WAIT));
    small.resize(100, far()).await.unwrap();
    first.resize(300, far()).await.unwrap();
    second.resize(500, far()).await.unwrap();
    assert_eq!(budget.free(), 400);
    drop((first, second));
    assert_eq!(budget.free(), 1000);
}

#[test]
fn a_charge_grows_only_into_free_memory_and_returns_what_it_no_longer_needs() {
    let budget = MemoryBudget::new(10, "tests");
    let (mut first, mut second) = (budget.open_charge(None, 1), budget.open_charge(None, 0));
    first.try_resize(1).unwrap();
    assert_eq!(budget.free(), 10);
    first.try_resize(8).unwrap();
    second.try_resize(3).unwrap();
    assert_eq!(second.try_resize(4).unwrap_err().kind, ErrorKind::Full);
    first.try_resize(2).unwrap();
    second.try_resize(9).unwrap();
    assert_eq!(budget.free(), 0);
    drop((first, second));
    assert_eq!(budget.free(), 10);
}

/// A key that takes all it can leaves something for the next one, and that does not wait behind it.
#[tokio::test(start_paused = true)]
async fn a_caller_leaves_something_for_the_next() {
    let budget = MemoryBudget::new(900, "tests");
    let mut many: Vec<MemoryCharge> = (0..90).map(|_| budget.open_charge(caller("many"), 0)).collect();
    let taken = many.iter_mut().filter_map(|charge| charge.try_resize(10).ok()).count();
    assert_eq!((taken, budget.free()), (60, 300));
    let mut more = budget.open_charge(caller("many"), 0);
    let mut waits = more.resize(10, far()).boxed();
    assert!(futures::poll!(waits.as_mut()).is_pending());
    let mut few = budget.open_charge(caller("few"), 0);
    few.resize(150, far()).await.unwrap();
    assert_eq!(budget.open_charge(caller("few"), 0).try_resize(60).unwrap_err().kind, ErrorKind::Full);
    // It waits until its caller has less than its share again.
    many.truncate(30);
    waits.await.unwrap();
    drop((many, few, more));
    assert_eq!(budget.free(), 900);
}

/// Charges grow, wait, shrink and are dropped at any point: no byte is lost or given twice.
#[tokio::test(start_paused = true)]
async fn no_byte_is_lost_in_any_order_of_events() {
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let budget = MemoryBudget::new(100, "tests");
        let callers = [None, caller("a"), caller("b")];
        let (mut idle, mut waiting): (Vec<MemoryCharge>, Vec<BoxFuture<'static, MemoryCharge>>) = Default::default();
        for _ in 0..300 {
            match random.random_range(0..5) {
                0 => idle.push(budget.open_charge(callers[random.random_range(0..3)].clone(), 0)),
                1 if !idle.is_empty() => {
                    let mut charge = idle.swap_remove(random.random_range(0..idle.len()));
                    let bytes = random.random_range(0..60);
                    let resized = async move {
                        let _ = charge.resize(bytes, far()).await;
                        charge
                    };
                    waiting.push(resized.boxed());
                }
                2 if !idle.is_empty() => drop(idle.swap_remove(random.random_range(0..idle.len()))),
                3 if !waiting.is_empty() => drop(waiting.swap_remove(random.random_range(0..waiting.len()))),
                _ if !waiting.is_empty() => {
                    let at = random.random_range(0..waiting.len());
                    if let std::task::Poll::Ready(charge) = futures::poll!(waiting[at].as_mut()) {
                        drop(waiting.swap_remove(at));
                        idle.push(charge);
                    }
                }
                _ => {}
            }
            let held: usize = idle.iter().map(|charge| charge.given.bytes).sum();
            assert!(held <= 100 - budget.free(), "seed {seed}");
        }
        drop((idle, waiting));
        let state = locked(&budget.state);
        assert_eq!((state.free, state.held.len()), (100, 0), "seed {seed}");
    }
}
