use futures::{FutureExt, future::BoxFuture};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;

const LONG: Duration = Duration::from_secs(3600);

fn admitted(admission: &Admission, priority: i64) -> BoxFuture<'static, Result<InFlightPermit, Error>> {
    admission.enter(None, None).unwrap().admit(1, priority, Instant::now() + LONG).boxed()
}

#[tokio::test]
async fn a_full_router_refuses_and_a_draining_router_finishes_its_requests() {
    let admission = Admission::new(2, 0);
    let first = admitted(&admission, 0).await.unwrap();
    let second = admitted(&admission, 0).await.unwrap();
    let full = admission.enter(None, None).err().unwrap();
    assert_eq!((full.kind, full.retry_after.is_some()), (ErrorKind::Full, true));
    drop(first);
    let third = admitted(&admission, 0).await.unwrap();
    let mut drain = Box::pin(admission.drain());
    assert!(futures::poll!(drain.as_mut()).is_pending());
    assert_eq!(admission.enter(None, None).err().unwrap().kind, ErrorKind::Unavailable);
    drop(second);
    assert!(futures::poll!(drain.as_mut()).is_pending());
    drop(third);
    drain.await;
    assert_eq!(admission.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_burst_waits_and_urgent_requests_are_admitted_first() {
    let admission = Admission::new(1, 3);
    let first = admitted(&admission, 0).await.unwrap();
    let [mut calm, mut normal, mut urgent] = [10, 0, -10].map(|priority| admitted(&admission, priority));
    for waiting in [&mut calm, &mut normal, &mut urgent] {
        assert!(futures::poll!(waiting.as_mut()).is_pending());
    }
    assert_eq!(admission.enter(None, None).err().unwrap().code, Some("overloaded"));
    let mut registry = Registry::default();
    admission.register(&mut registry);
    let text = crate::metrics::text(&registry);
    assert!(text.contains("rein_requests_waiting 3") && text.contains("shed_total{reason=\"full\"} 1"), "{text}");
    drop(first);
    assert!(futures::poll!(normal.as_mut()).is_pending());
    let urgent = urgent.await.unwrap();
    // A request that leaves the queue frees its place.
    drop(normal);
    assert!(futures::poll!(calm.as_mut()).is_pending());
    drop(urgent);
    drop(calm.await.unwrap());
    admission.drain().await;
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_are_drained_aborted_or_end_at_their_deadline() {
    let admission = Admission::new(1, 3);
    let first = admitted(&admission, 0).await.unwrap();
    let impatient = admission.enter(None, None).unwrap();
    let error = impatient.admit(1, 0, Instant::now() + Duration::from_secs(5)).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Deadline);
    let mut waiting = admitted(&admission, 0);
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    let mut drain = Box::pin(admission.drain());
    assert!(futures::poll!(drain.as_mut()).is_pending());
    drop(first);
    // It entered before the drain, so it is admitted.
    let served = waiting.await.unwrap();
    assert!(futures::poll!(drain.as_mut()).is_pending());
    drop(served);
    drain.await;
    let admission = Admission::new(1, 3);
    let _first = admitted(&admission, 0).await.unwrap();
    let waiting = admitted(&admission, 0);
    let mut answer = Box::pin(admission.unless_aborted(waiting));
    assert!(futures::poll!(answer.as_mut()).is_pending());
    admission.abort();
    assert_eq!(answer.await.err().unwrap(), Error::shutting_down());
}

#[tokio::test(start_paused = true)]
async fn a_caller_with_few_requests_is_served_before_one_with_many() {
    let admission = Admission::new(1, 2);
    let of = |caller: &str| admission.enter(Some(caller.into()), None);
    let admit = |pending: PendingRequest| pending.admit(1, 0, Instant::now() + LONG).boxed();
    let first = admit(of("many").unwrap()).await.unwrap();
    let [mut second, mut third] = [(); 2].map(|()| admit(of("many").unwrap()));
    assert!(futures::poll!(second.as_mut()).is_pending() && futures::poll!(third.as_mut()).is_pending());
    assert_eq!(of("many").err().unwrap().kind, ErrorKind::Full);
    // The queue is full: a request of another caller takes the last place, and does not wait for the one slot.
    let other = admit(of("few").unwrap()).await.unwrap();
    assert_eq!(third.await.err().unwrap(), evicted());
    drop(first);
    drop(second.await.unwrap());
    drop(other);
    // A body that takes long leaves when another request needs its place.
    let admission = Admission::new(1, 0);
    let mut slow = admission.enter(None, None).unwrap();
    assert!(admission.enter(None, None).is_err());
    tokio::time::advance(limits::PENDING_TIME).await;
    let next = admission.enter(None, None).unwrap();
    assert_eq!(slow.evicted().await, evicted());
    drop(slow);
    drop(next.admit(1, 0, Instant::now() + LONG).await.unwrap());
    permits_are_free(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_would_miss_its_deadline_is_rejected_at_once() {
    let admission = Admission::new(1, 8);
    let first = admitted(&admission, 0).await.unwrap();
    tokio::time::advance(Duration::from_secs(20)).await;
    drop(first);
    let _second = admitted(&admission, 0).await.unwrap();
    let hurried = admission.enter(None, None).unwrap().admit(1, 0, Instant::now() + Duration::from_secs(15)).await;
    let error = hurried.err().unwrap();
    assert_eq!((error.kind, error.code), (ErrorKind::Full, Some("deadline_unreachable")));
    assert_eq!(error.retry_after, Some(Duration::from_secs(5)));
    let mut patient =
        admission.enter(None, None).unwrap().admit(1, 0, Instant::now() + Duration::from_secs(25)).boxed();
    assert!(futures::poll!(patient.as_mut()).is_pending());
}

/// Requests enter, wait, leave at any point and end in any order: no permit is lost or given twice.
#[tokio::test(start_paused = true)]
async fn no_permit_is_lost_in_any_order_of_events() {
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let slots = random.random_range(1..4);
        let admission = Admission::new(slots, 6);
        let callers = [None, Some("a".into()), Some("b".into())];
        let (mut pending, mut waiting, mut permits) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..300 {
            match random.random_range(0..8) {
                0 => pending.extend(admission.enter(callers[random.random_range(0..3)].clone(), None).ok()),
                1 if !pending.is_empty() => {
                    let request: PendingRequest = pending.swap_remove(random.random_range(0..pending.len()));
                    let admitted =
                        request.admit(random.random_range(1..3), random.random_range(-3..3), Instant::now() + LONG);
                    waiting.push(admitted.boxed());
                }
                // Leaves, admitted or not.
                2 if !waiting.is_empty() => drop(waiting.swap_remove(random.random_range(0..waiting.len()))),
                3 if !permits.is_empty() => drop(permits.swap_remove(random.random_range(0..permits.len()))),
                4 if !pending.is_empty() && random.random_bool(0.3) => drop(pending.pop()),
                5 if !permits.is_empty() => {
                    let permit: &InFlightPermit = &permits[random.random_range(0..permits.len())];
                    permit.slots().give_up();
                }
                // Some find no free slot, and wait again later.
                6 if !permits.is_empty() => {
                    let permit: &InFlightPermit = &permits[random.random_range(0..permits.len())];
                    drop(permit.slots().take_back(Instant::now() + LONG).now_or_never());
                }
                _ if !waiting.is_empty() => {
                    let at = random.random_range(0..waiting.len());
                    if let std::task::Poll::Ready(permit) = futures::poll!(waiting[at].as_mut()) {
                        drop(waiting.swap_remove(at));
                        match permit {
                            Ok(permit) => permits.push(permit),
                            Err(error) => assert_eq!(error, evicted(), "seed {seed}"),
                        }
                    }
                }
                _ => {}
            }
            // Each caller may have one slot beyond the limit.
            let held = admission.0.state().queue.held();
            assert!(held <= slots as usize + callers.len(), "seed {seed}");
        }
        drop((pending, waiting, permits));
        assert_eq!((admission.in_flight(), *admission.0.present.borrow()), (0, 0), "seed {seed}");
        assert!(admission.0.state().wakers.is_empty(), "seed {seed}");
        for _ in 0..slots {
            permits_are_free(&admission).await;
        }
    }
}

async fn permits_are_free(admission: &Admission) {
    assert!(admitted(admission, 0).now_or_never().is_some_and(|permit| permit.is_ok()));
}
