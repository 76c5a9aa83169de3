//! More sequences at once than slots.

use super::*;

#[tokio::test]
async fn a_burst_fills_slots_and_queue_before_it_is_rejected() {
    let options =
        EngineOptions { max_sequences: 6, max_queue: 2, park_grace: Duration::MAX, ..EngineOptions::default() };
    let service = engine(options);
    // All at once: the engine handles them between two steps, before any of them has a slot.
    let burst = (0..12).map(|_| open(&service, Start { hold: true, ..request(&[10]) }));
    let (taken, refused): (Vec<_>, Vec<_>) =
        futures::future::join_all(burst).await.into_iter().partition(Result::is_ok);
    assert_eq!((taken.len(), refused.len()), (8, 4));
    assert!(refused.into_iter().all(|one| one.err().expect("refused").code() == Code::ResourceExhausted));
    drop(taken);
    while open(&service, request(&[])).await.is_err() {}
}
