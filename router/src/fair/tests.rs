use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;

fn requester(caller: &str) -> Requester {
    Requester { caller: Some(caller.into()), deadline: Instant::now() + Duration::from_secs(3600) }
}

fn waiting(semaphore: &FairSemaphore, caller: &str) -> BoxFuture<'static, Result<FairPermit, Error>> {
    let (semaphore, requester) = (semaphore.clone(), requester(caller));
    async move { semaphore.acquire(&requester).await }.boxed()
}

#[tokio::test]
async fn callers_take_turns() {
    let semaphore = FairSemaphore::new(1);
    let held = semaphore.acquire(&requester("many")).await.unwrap();
    let mut all: Vec<_> = ["many", "many", "many", "few", "other"].map(|caller| waiting(&semaphore, caller)).into();
    for permit in &mut all {
        assert!(futures::poll!(permit).is_pending());
    }
    let mut order = Vec::new();
    let mut held = Some(held);
    while order.len() < all.len() {
        drop(held.take());
        for (i, permit) in all.iter_mut().enumerate() {
            if !order.contains(&i)
                && let Some(permit) = permit.now_or_never()
            {
                assert!(held.replace(permit.unwrap()).is_none(), "two permits");
                order.push(i);
            }
        }
    }
    assert_eq!(order, [0, 3, 4, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_leaves_or_is_late_takes_no_permit() {
    let semaphore = FairSemaphore::new(1);
    let held = semaphore.acquire(&requester("a")).await.unwrap();
    let late = Requester { deadline: Instant::now() + Duration::from_secs(1), ..requester("a") };
    assert_eq!(semaphore.acquire(&late).await.err().unwrap(), Error::deadline());
    let (mut leaves, mut woken) = (waiting(&semaphore, "a"), waiting(&semaphore, "b"));
    assert!(futures::poll!(&mut leaves).is_pending() && futures::poll!(&mut woken).is_pending());
    drop(leaves);
    drop(held);
    // It has been given the permit, and leaves before it takes it.
    drop(woken);
    assert_eq!(semaphore.free(), 1);
}

#[tokio::test]
async fn waiters_that_left_are_forgotten() {
    let semaphore = FairSemaphore::new(1);
    let _held = semaphore.acquire(&requester("a")).await.unwrap();
    let mut patient = waiting(&semaphore, "a");
    assert!(futures::poll!(&mut patient).is_pending());
    for _ in 0..10_000 {
        assert!(futures::poll!(&mut waiting(&semaphore, "a")).is_pending());
    }
    let known = semaphore.waiters().waiting.values().map(VecDeque::len).sum::<usize>();
    assert!(known <= 16, "{known}");
}

#[tokio::test(start_paused = true)]
async fn no_permit_is_lost_in_any_order_of_events() {
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let permits = random.random_range(1..4);
        let semaphore = FairSemaphore::new(permits);
        let (mut waiters, mut held) = (Vec::new(), Vec::new());
        for _ in 0..300 {
            match random.random_range(0..4) {
                0 => waiters.push(waiting(&semaphore, ["a", "b", "c"][random.random_range(0..3)])),
                1 if !waiters.is_empty() => drop(waiters.swap_remove(random.random_range(0..waiters.len()))),
                2 if !held.is_empty() => drop(held.swap_remove(random.random_range(0..held.len()))),
                _ if !waiters.is_empty() => {
                    let at = random.random_range(0..waiters.len());
                    if let Some(permit) = (&mut waiters[at]).now_or_never() {
                        drop(waiters.swap_remove(at));
                        held.push(permit.unwrap());
                    }
                }
                _ => {}
            }
            assert!(held.len() <= permits, "seed {seed}");
        }
        drop((waiters, held));
        assert_eq!(semaphore.free(), permits, "seed {seed}");
        assert!(semaphore.waiters().waiting.is_empty(), "seed {seed}");
    }
}
