use super::*;

fn all(_: SeqId) -> bool {
    true
}

/// Gives a slot to the next sequence.
fn run(waiting: &mut Waiting, caller: impl Fn(SeqId) -> CallerHash) -> SeqId {
    let id = waiting.next(all).expect("one waits");
    waiting.run(caller(id), id);
    id
}

#[test]
fn one_callers_sequences_run_in_order_of_arrival() {
    let mut waiting = Waiting::default();
    (0..5).for_each(|id| waiting.enter(7, id));
    assert_eq!((0..3).map(|_| run(&mut waiting, |_| 7)).collect::<Vec<_>>(), [0, 1, 2]);
    waiting.preempt(7, 1);
    assert_eq!((waiting.next(all), waiting.next(|id| id > 3), waiting.len()), (Some(1), Some(4), 3));
    assert!(waiting.contains(7, 1) && waiting.contains(7, 3) && !waiting.contains(7, 2));
}

#[test]
fn a_caller_with_few_sequences_does_not_wait_behind_many() {
    let caller = |id: SeqId| u64::from(id >= 100);
    let mut waiting = Waiting::default();
    (0..100).for_each(|id| waiting.enter(0, id));
    assert_eq!((0..4).map(|_| run(&mut waiting, caller)).collect::<Vec<_>>(), [0, 1, 2, 3]);
    (100..110).for_each(|id| waiting.enter(1, id));
    // It gets the next slots, until both hold as many.
    waiting.end(0);
    assert_eq!(run(&mut waiting, caller), 100);
    waiting.end(0);
    assert_eq!(run(&mut waiting, caller), 101);
    let next: Vec<CallerHash> = (0..4)
        .map(|turn| {
            waiting.end(turn % 2);
            caller(run(&mut waiting, caller))
        })
        .collect();
    assert_eq!(next, [0, 1, 0, 1]);
}

#[test]
fn callers_take_turns_on_a_single_slot() {
    let caller = |id: SeqId| u64::from(id >= 100);
    let mut waiting = Waiting::default();
    (0..10).chain(100..110).for_each(|id| waiting.enter(caller(id), id));
    let mut order = Vec::new();
    for _ in 0..6 {
        let id = run(&mut waiting, caller);
        order.push(caller(id));
        waiting.end(caller(id));
    }
    assert_eq!(order, [0, 1, 0, 1, 0, 1]);
}

#[test]
fn callers_without_sequences_are_forgotten() {
    let mut waiting = Waiting::default();
    (0..3).for_each(|id| waiting.enter(id, id));
    run(&mut waiting, |id| id);
    waiting.leave(1, 1);
    waiting.preempt(0, 0);
    waiting.leave(0, 0);
    waiting.leave(2, 2);
    assert_eq!((waiting.len(), waiting.callers.len(), waiting.next(all)), (0, 0, None));
}
