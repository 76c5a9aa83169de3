//! A thread that ends what a device waits for when its group ends. It does not know how ranks are linked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::collective::AbortWatch;
use crate::error::{KernelError, Result};

/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(5);

/// Stops when dropped.
pub(super) struct Watchdog {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Calls `look` again and again, and `end` once with the reason when the group has ended.
    pub fn start(
        watch: AbortWatch,
        mut look: impl FnMut() + Send + 'static,
        end: impl FnOnce(&str) + Send + 'static,
    ) -> Result<Watchdog> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || {
            while !stopped.load(Ordering::Acquire) {
                look();
                if let Some(reason) = watch.reason() {
                    return end(&reason);
                }
                std::thread::park_timeout(INTERVAL);
            }
        };
        let thread = std::thread::Builder::new().name("rank watchdog".into()).spawn(run);
        let thread = thread.map_err(|error| KernelError::Device(format!("cannot start a thread: {error}")))?;
        Ok(Watchdog { stop, thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic has been printed.
            let _ = thread.join();
        }
    }
}
