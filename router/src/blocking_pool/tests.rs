use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use tokio::time::Instant;

use super::*;
use crate::error::ErrorKind;

fn workers(threads: usize) -> BlockingPool {
    BlockingPool {
        all: FairSemaphore::new(threads),
        large: FairSemaphore::new(threads / 2),
        small: limits::LARGE_WORK_BYTES,
    }
}

fn within(time: Duration) -> Requester {
    Requester { caller: None, deadline: Instant::now() + time }
}

fn soon() -> Requester {
    within(Duration::from_secs(20))
}

#[tokio::test]
async fn small_work_does_not_wait_behind_large_work() {
    let workers = Arc::new(workers(2));
    let (end, ended) = mpsc::sync_channel::<()>(0);
    let large = |work: Box<dyn FnOnce() -> Result<bool, Error> + Send>| {
        let workers = workers.clone();
        tokio::spawn(async move { workers.run(limits::LARGE_WORK_BYTES + 1, &soon(), work).await })
    };
    // The thread blocks until the test drops `end`.
    let first = large(Box::new(move || Ok(ended.recv().is_ok())));
    let second = large(Box::new(|| Ok(true)));
    while workers.all.free() == 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(workers.run(1, &soon(), || Ok(7)).await.unwrap(), 7);
    assert!(!first.is_finished() && !second.is_finished());
    drop(end);
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_deadline_ends_the_wait_for_a_thread_and_for_the_work() {
    let workers = workers(2);
    let (end, ended) = mpsc::sync_channel::<()>(0);
    let late = || within(Duration::from_millis(20));
    let at_work = workers.run(usize::MAX, &late(), move || Ok(ended.recv().is_ok())).await;
    assert_eq!(at_work.unwrap_err().kind, ErrorKind::Deadline);
    let in_line = workers.run(usize::MAX, &late(), || Ok(())).await;
    assert_eq!(in_line.unwrap_err().kind, ErrorKind::Deadline);
    drop(end);
    workers.run(usize::MAX, &soon(), || Ok(())).await.unwrap();
    let panicked = workers.run(1, &soon(), || -> Result<(), Error> { panic!("oh") }).await;
    assert_eq!(panicked.unwrap_err().kind, ErrorKind::Internal);
}
