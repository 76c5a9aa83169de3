//! A fixed set of threads that run the items of one job at a time. The caller participates; a worker that wakes too
//! late finds the job closed and is not waited for.

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

/// Spin-loop turns before an idle worker parks (tens of microseconds).
const SPINS: u32 = 4_000;

/// state = epoch << 17 | open << 16 | workers inside the job.
const OPEN: u64 = 1 << 16;
const INSIDE: u64 = OPEN - 1;
const EPOCH: u64 = OPEN << 1;

type Item<'a> = &'a (dyn Fn(usize) + Sync);

struct Shared {
    state: AtomicU64,
    next: AtomicUsize,
    /// The job as (data, vtable) words and its item count, written only while no worker can be inside.
    job: [AtomicUsize; 2],
    items: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    parked: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

/// For one user at a time: not `Sync`.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    one_user: PhantomData<Cell<()>>,
}

impl ThreadPool {
    /// `threads` participants, including the calling thread.
    pub fn new(threads: usize) -> ThreadPool {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: [AtomicUsize::new(0), AtomicUsize::new(0)],
            items: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        });
        // If the system refuses a thread, the pool is smaller.
        let workers = (1..threads)
            .map_while(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new().name(format!("rein-cpu-{i}")).spawn(move || shared.work()).ok()
            })
            .collect();
        ThreadPool { shared, workers, one_user: PhantomData }
    }

    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `item` once for each of 0..items, in any order and on any participant. Returns when all calls have
    /// returned.
    pub fn run(&self, items: usize, item: Item) {
        if self.workers.is_empty() || items <= 1 {
            (0..items).for_each(item);
            return;
        }
        let shared = &*self.shared;
        // SAFETY: a wide reference is two words. The words are turned back into a reference only by workers counted
        // inside the open job, and this function does not return, nor unwind, before it has closed the job and seen
        // the last of them leave; so the lifetime that is cut off here is not outlived.
        let words = unsafe { std::mem::transmute::<Item, [usize; 2]>(item) };
        shared.job[0].store(words[0], Relaxed);
        shared.job[1].store(words[1], Relaxed);
        shared.items.store(items, Relaxed);
        shared.next.store(0, Relaxed);
        let epoch = (shared.state.load(Relaxed) / EPOCH).wrapping_add(1);
        // SeqCst pairs with `park`: either the worker sees the open job, or this thread sees it parked.
        shared.state.store(epoch.wrapping_mul(EPOCH) | OPEN, SeqCst);
        if shared.parked.load(SeqCst) > 0 {
            let _guard = shared.guard();
            shared.wake.notify_all();
        }
        let own = catch_unwind(AssertUnwindSafe(|| shared.take_items(item)));
        shared.state.fetch_and(!OPEN, AcqRel);
        let mut turns = 0u32;
        while shared.state.load(Acquire) & INSIDE != 0 {
            turns += 1;
            if turns.is_multiple_of(1024) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        let worker_panicked = shared.panicked.swap(false, Relaxed);
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        assert!(!worker_panicked, "a worker thread panicked");
    }
}

impl ThreadPool {
    /// The results of `item` for each of 0..items, in order.
    pub fn map<T: Send + Sync>(&self, items: usize, item: &(dyn Fn(usize) -> T + Sync)) -> Vec<T> {
        let results: Vec<OnceLock<T>> = (0..items).map(|_| OnceLock::new()).collect();
        self.run(items, &|i| {
            results[i].get_or_init(|| item(i));
        });
        // `run` has called every item, or panicked.
        results.into_iter().filter_map(OnceLock::into_inner).collect()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        {
            let _guard = self.shared.guard();
            self.shared.stop.store(true, SeqCst);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn guard(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_items(&self, item: Item) {
        let items = self.items.load(Relaxed);
        loop {
            let i = self.next.fetch_add(1, Relaxed);
            if i >= items {
                return;
            }
            item(i);
        }
    }

    fn work(&self) {
        let mut seen = 0;
        while !self.stop.load(Relaxed) {
            let mut state = self.state.load(Acquire);
            let mut turns = 0;
            while state & OPEN == 0 || state / EPOCH == seen {
                turns += 1;
                if turns > SPINS {
                    self.park(seen);
                    turns = 0;
                    if self.stop.load(Relaxed) {
                        return;
                    }
                }
                std::hint::spin_loop();
                state = self.state.load(Acquire);
            }
            // Counts this worker in, unless the job was closed meanwhile.
            if self.state.compare_exchange(state, state + 1, AcqRel, Relaxed).is_err() {
                continue;
            }
            seen = state / EPOCH;
            let words = [self.job[0].load(Relaxed), self.job[1].load(Relaxed)];
            // SAFETY: counted inside the open job of this epoch, so `run` has not returned: the words are the
            // reference it was given, and stay valid until the count is taken back below.
            let item = unsafe { std::mem::transmute::<[usize; 2], Item>(words) };
            if catch_unwind(AssertUnwindSafe(|| self.take_items(item))).is_err() {
                self.panicked.store(true, Relaxed);
                self.next.store(usize::MAX / 2, Relaxed);
            }
            self.state.fetch_sub(1, Release);
        }
    }

    fn park(&self, seen: u64) {
        let mut guard = self.guard();
        self.parked.fetch_add(1, SeqCst);
        loop {
            let state = self.state.load(SeqCst);
            if self.stop.load(SeqCst) || (state & OPEN != 0 && state / EPOCH != seen) {
                break;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.parked.fetch_sub(1, SeqCst);
    }
}

/// A pointer shared by the items of a job; they write disjoint parts.
pub struct SharedPtr<T>(pub *mut T);

impl<T> Clone for SharedPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for SharedPtr<T> {}

// SAFETY: the pointer itself is plain data; each use states why its writes are disjoint.
unsafe impl<T> Send for SharedPtr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for SharedPtr<T> {}

impl<T> SharedPtr<T> {
    /// A method, so that closures capture the wrapper and not the bare pointer.
    pub fn get(self) -> *mut T {
        self.0
    }
}

#[cfg(test)]
mod tests;
