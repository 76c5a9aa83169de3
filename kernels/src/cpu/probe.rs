//! Measures the memory bandwidth of the machine.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::memory::Mapping;
use super::pool::{SharedPtr, ThreadPool};
use super::simd::{Isa, Simd, simd_fn};

/// Larger than last-level caches.
const BUFFER: usize = 512 << 20;
const ITEM: usize = 1 << 20;

#[inline(always)]
unsafe fn read_generic<S: Simd>(words: &[f32]) -> f32 {
    // SAFETY: a chunk has 128 numbers.
    unsafe {
        let mut sums = [S::splat(0.0); 8];
        for chunk in words.chunks_exact(128) {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = S::add(*sum, S::load(chunk.as_ptr().add(16 * i)));
            }
        }
        let mut total = 0.0;
        for sum in sums {
            total += S::sum(sum);
        }
        total
    }
}

simd_fn!(fn read(words: &[f32]) -> f32 = read_generic);

/// Best GB/s (10^9 bytes) over repeated reads of a large buffer by `threads` threads, for about `seconds`; 0 if the
/// buffer cannot be allocated.
pub fn memory_bandwidth(threads: usize, seconds: f64) -> f64 {
    let Ok(buffer) = Mapping::new(BUFFER) else { return 0.0 };
    let (pool, isa) = (ThreadPool::new(threads.max(1)), Isa::detect());
    let base = SharedPtr(buffer.ptr());
    let items = BUFFER / ITEM;
    // SAFETY: each item has its own ITEM bytes of the buffer. They are written once, so that real pages are read.
    pool.run(items, &|i| unsafe { base.get().add(i * ITEM).write_bytes(0, ITEM) });
    let pass = || {
        let start = Instant::now();
        pool.run(items, &|i| {
            // SAFETY: these ITEM bytes are inside the buffer, aligned and initialized above, and no thread writes them
            // now. The CPU supports `isa`, which was detected.
            unsafe {
                let words = std::slice::from_raw_parts(base.get().add(i * ITEM).cast::<f32>(), ITEM / 4);
                black_box(read(isa, words));
            }
        });
        BUFFER as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    let end = Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 3600.0));
    let mut best = pass();
    while Instant::now() < end {
        best = best.max(pass());
    }
    best
}
