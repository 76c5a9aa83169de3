use std::sync::atomic::AtomicUsize;

use super::*;

const ITEMS: usize = 40;

/// Takes longer for some items than for others.
fn slow(item: usize) -> usize {
    (0..item * 7 % 11 * 50).for_each(|_| std::thread::yield_now());
    item
}

#[test]
fn items_come_in_order_and_few_are_in_memory() {
    let items: Vec<usize> = (0..ITEMS).collect();
    for readers in [1, 3, 8, 100] {
        let (made, taken, most) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let read = |item| {
            let item = slow(item);
            let made = made.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(made - taken.load(Ordering::SeqCst), Ordering::SeqCst);
            item
        };
        let all: Vec<usize> = in_order(&items, readers, &AtomicBool::new(false), read, |items| {
            assert_eq!(items.size_hint().1, Some(ITEMS));
            items
                .inspect(|_| {
                    taken.fetch_add(1, Ordering::SeqCst);
                })
                .collect()
        });
        assert_eq!(all, items);
        // One was handed over and may not be counted yet.
        assert!(most.into_inner() <= readers + 1, "{readers} readers");
    }
    let none: Vec<usize> = in_order(&[], 4, &AtomicBool::new(false), slow, |items| items.collect());
    assert!(none.is_empty());
}

#[test]
fn the_first_error_in_order_ends_it_whoever_found_one_before() {
    let items: Vec<usize> = (0..ITEMS).collect();
    let fails = |item| if item >= 13 { Err(item) } else { Ok(slow(item)) };
    let error = in_order(&items, 8, &AtomicBool::new(false), fails, |items| items.collect::<Result<Vec<_>, _>>());
    assert_eq!(error, Err(13));
}

#[test]
fn a_stop_ends_it_with_what_was_read() {
    let (items, stop) = ((0..ITEMS).collect::<Vec<usize>>(), AtomicBool::new(false));
    let taken: Vec<usize> = in_order(&items, 4, &stop, slow, |items| {
        items.inspect(|&item| stop.store(item == 9, Ordering::Relaxed)).take_while(|&item| item < 20).collect()
    });
    assert_eq!(taken, items[..taken.len()]);
    stop.store(true, Ordering::Relaxed);
    assert_eq!(in_order(&items, 4, &stop, slow, |items| items.count()), 0);
}
