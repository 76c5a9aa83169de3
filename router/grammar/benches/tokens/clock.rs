//! The processor time of a thread.

/// Nanoseconds that this thread has computed, as against waited.
pub fn computed() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux's schedstat");
    text.split(' ').next().and_then(|first| first.parse().ok()).expect("nanoseconds")
}
