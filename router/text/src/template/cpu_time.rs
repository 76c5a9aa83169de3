//! Bounds the CPU time of a render. It knows no messages.
//!
//! An instruction that copies or searches a text costs one unit of fuel, whatever the length of the text. A template
//! that appends to a text in a loop takes time quadratic in the length of the conversation, so fuel alone does not
//! bound it. A client decides only how long texts are, and how often loops and filters over lists repeat. So they check
//! the time.

use std::time::{Duration, Instant};

use minijinja::{Environment, Error, ErrorKind, State, Value};
use rustix::time::{ClockId, clock_gettime};

/// Name of the function that loops call; it returns true.
pub(super) const CHECK_TIME: &str = "__check_time";

/// The error of a render that exceeded the limit.
#[derive(Debug, thiserror::Error)]
#[error("the CPU time exceeded the limit of {0:?}")]
pub(super) struct CpuTimeExceeded(pub Duration);

/// Measures a render from its first check.
#[derive(Clone, Copy)]
pub(super) struct CpuTimer {
    began: Instant,
    cpu: Duration,
    most: Duration,
}

impl CpuTimer {
    /// The timer of a render that may take `most`.
    pub fn of(state: &mut State, most: Duration) -> Self {
        let start = || CpuTimer { began: Instant::now(), cpu: thread_cpu_time(), most };
        *state.get_or_insert_extension_with(start)
    }

    fn check(&self) -> Result<(), Error> {
        // The thread's CPU time, unlike the elapsed time, does not count the time in which other threads run. It is
        // slower to read, and never longer.
        if self.began.elapsed() > self.most && thread_cpu_time().saturating_sub(self.cpu) > self.most {
            return Err(Error::from(ErrorKind::InvalidOperation).with_source(CpuTimeExceeded(self.most)));
        }
        Ok(())
    }

    /// A sequence of these items. Iterating over it checks the time; the error takes the place of an item.
    pub fn checking(self, items: Vec<Value>) -> Value {
        let checked = move |item: &Value| self.check().map_or_else(Value::from, |()| item.clone());
        Value::make_object_iterable(items, move |items| Box::new(items.iter().map(checked)))
    }
}

pub(super) fn register(env: &mut Environment<'static>, most: Duration) {
    env.add_function(CHECK_TIME, move |state: &mut State| CpuTimer::of(state, most).check().map(|()| true));
}

/// CPU time that this thread has used.
pub(super) fn thread_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a thread's time is not negative")
}
