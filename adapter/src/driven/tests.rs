use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use futures::FutureExt;
use futures::future::pending;

use super::*;

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn it_runs_when_it_is_asked_and_wakes_nobody_for_items() {
    let (to, items) = mpsc::channel(4);
    let (before, after) = (Arc::new(AtomicUsize::new(0)), Arc::new(Woken::default()));
    let ran = before.clone();
    let run = async move {
        ran.fetch_add(1, Ordering::SeqCst);
        for item in 0..3 {
            assert!(to.send(item).await.is_ok());
        }
    };
    let mut driven = Driven::new(run, items);
    assert_eq!(before.load(Ordering::SeqCst), 0);
    let waker = after.clone().into();
    let mut context = Context::from_waker(&waker);
    for item in [Some(0), Some(1), Some(2), None, None] {
        assert_eq!(driven.poll_next(&mut context), Poll::Ready(item));
    }
    assert_eq!((before.load(Ordering::SeqCst), after.0.load(Ordering::SeqCst)), (1, 0));
    assert!(driven.into_rest().is_none());
}

#[test]
fn a_full_queue_stops_it_until_an_item_is_taken() {
    let (to, items) = mpsc::channel(1);
    let run = async move {
        for item in 0..3 {
            assert!(to.send(item).await.is_ok());
        }
        pending::<()>().await;
    };
    let mut driven = Driven::new(run, items);
    let mut context = Context::from_waker(std::task::Waker::noop());
    for item in 0..3 {
        assert_eq!(driven.poll_next(&mut context), Poll::Ready(Some(item)));
    }
    assert_eq!(driven.poll_next(&mut context), Poll::Pending);
    assert!(driven.into_rest().is_some_and(|rest| rest.now_or_never().is_none()));
}
