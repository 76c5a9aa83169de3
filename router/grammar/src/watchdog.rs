//! Ends a step of a client's grammar that takes too much processor time.
//!
//! llguidance bounds what a step costs by fuel for the lexer and by the number of the parser's items. The items of an
//! ambiguous grammar (`e: e e | "a"`) are also combined with each other, so its steps take longer with every byte, and
//! only the time shows it.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use std::{cell::OnceCell, fs, io};

use llguidance::CancellationHandle;

/// Interval at which steps are checked. A step shorter than this is never seen.
const TICK: Duration = Duration::from_millis(50);

static STEPS: Mutex<Steps> = Mutex::new(Steps { next: 0, running: Vec::new() });

struct Steps {
    next: u64,
    running: Vec<Step>,
}

/// A step that some thread computes.
struct Step {
    number: u64,
    cancel: CancellationHandle,
    most: Duration,
    /// The file with the thread's processor time. None: the system has none, and elapsed time counts.
    clock: Option<Arc<str>>,
    began: Instant,
    /// Processor time of the thread when the step was first seen.
    seen: Option<Duration>,
}

/// The end of a watched step.
pub struct Watch(u64);

/// Cancels what this thread does with a parser if it takes more than `most`, until the result is dropped.
pub fn watch(cancel: CancellationHandle, most: Duration) -> Watch {
    let mut steps = steps();
    let number = steps.next;
    steps.next += 1;
    let wake = steps.running.is_empty();
    steps.running.push(Step { number, cancel, most, clock: thread_clock(), began: Instant::now(), seen: None });
    drop(steps);
    if wake && let Some(watchdog) = watchdog() {
        watchdog.unpark();
    }
    Watch(number)
}

impl Drop for Watch {
    fn drop(&mut self) {
        steps().running.retain(|step| step.number != self.0);
    }
}

fn steps() -> MutexGuard<'static, Steps> {
    STEPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that checks. None: the system gave none, and steps are not bounded.
fn watchdog() -> Option<&'static Thread> {
    static WATCHDOG: OnceLock<Option<Thread>> = OnceLock::new();
    let started = WATCHDOG.get_or_init(|| {
        let run = || loop {
            if steps().running.is_empty() {
                thread::park();
            }
            #[expect(clippy::disallowed_methods, reason = "it measures time; a step that begins must not wake it")]
            thread::sleep(TICK);
            steps().running.iter_mut().for_each(Step::check);
        };
        let thread = thread::Builder::new().name("grammar-watchdog".into()).spawn(run);
        thread.ok().map(|thread| thread.thread().clone())
    });
    started.as_ref()
}

impl Step {
    fn check(&mut self) {
        let now = self.clock.as_deref().and_then(|clock| processor_time(clock).ok());
        let now = now.unwrap_or_else(|| self.began.elapsed());
        if now.saturating_sub(*self.seen.get_or_insert(now)) > self.most {
            self.cancel.cancel();
        }
    }
}

/// The file with the processor time of this thread (Linux).
fn thread_clock() -> Option<Arc<str>> {
    thread_local! {
        static CLOCK: OnceCell<Option<Arc<str>>> = const { OnceCell::new() };
    }
    let open = || {
        let task = fs::read_link("/proc/thread-self").ok()?;
        let path = format!("/proc/{}/schedstat", task.to_str()?);
        processor_time(&path).ok().map(|_| path.into())
    };
    CLOCK.with(|clock| clock.get_or_init(open).clone())
}

/// The first number of Linux's schedstat: nanoseconds that the thread has run.
fn processor_time(schedstat: &str) -> io::Result<Duration> {
    let text = fs::read_to_string(schedstat)?;
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    nanos.map(Duration::from_nanos).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
