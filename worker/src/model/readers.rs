//! Reads items on several threads and hands them over in order. It does not know what they are.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;

use crossbeam_channel::bounded;

/// Threads of a rank that read experts. From the page cache one reads some GB/s, hashes included.
const READERS: usize = 8;

/// Of each of so many ranks, of which some may be on other machines: at most one for each core.
pub fn readers(ranks: usize) -> usize {
    (available_parallelism().map_or(1, NonZero::get) / ranks.max(1)).clamp(1, READERS)
}

/// Gives `take` what `read` makes of each item, in the order of the items. Each reader holds one result until it is
/// taken, so that memory is bounded. After `stop` some are missing at the end.
pub fn in_order<I: Copy + Sync, T: Send, R>(
    items: &[I],
    readers: usize,
    stop: &AtomicBool,
    read: impl Fn(I) -> T + Sync,
    take: impl FnOnce(&mut dyn Iterator<Item = T>) -> R,
) -> R {
    std::thread::scope(|scope| {
        let reader = |first: usize| {
            let ((send, receive), read) = (bounded(0), &read);
            scope.spawn(move || {
                for &item in items.iter().skip(first).step_by(readers) {
                    if stop.load(Ordering::Relaxed) || send.send(read(item)).is_err() {
                        return;
                    }
                }
            });
            receive
        };
        let queues: Vec<_> = (0..readers.min(items.len())).map(reader).collect();
        let taken = take(&mut (0..items.len()).map_while(|i| queues[i % readers].recv().ok()));
        // If not all were taken, readers that wait to send go on and end.
        drop(queues);
        taken
    })
}

#[cfg(test)]
mod tests;
