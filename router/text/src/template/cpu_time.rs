//! Bounds the CPU time of a render. It knows no messages.
//!
//! An instruction that copies or searches a text costs one unit of fuel, whatever the length of the text. A template
//! that appends to a text in a loop takes time quadratic in the conversation's length, so fuel alone does not bound it.
//! A client decides only how often loops run and how long texts are, so it is enough to check the time in loops.

use std::time::{Duration, Instant};

use minijinja::{Environment, Error, ErrorKind, State};
use rustix::time::{ClockId, clock_gettime};

/// Name of the function that loops call; it returns true.
pub(super) const CHECK_TIME: &str = "__check_time";

/// The error of a render that exceeded the limit.
#[derive(Debug, thiserror::Error)]
#[error("the CPU time exceeded the limit of {0:?}")]
pub(super) struct CpuTimeExceeded(pub Duration);

/// The time at which the first loop of a render began.
struct RenderStart {
    at: Instant,
    cpu: Duration,
}

pub(super) fn register(env: &mut Environment<'static>, most: Duration) {
    env.add_function(CHECK_TIME, move |state: &mut State| -> Result<bool, Error> {
        let start = state.get_or_insert_extension_with(|| RenderStart { at: Instant::now(), cpu: thread_cpu_time() });
        // The thread's CPU time, unlike the time of day, does not count the time in which other threads run. It is
        // slower to read, and never longer.
        if start.at.elapsed() > most && thread_cpu_time().saturating_sub(start.cpu) > most {
            return Err(Error::from(ErrorKind::InvalidOperation).with_source(CpuTimeExceeded(most)));
        }
        Ok(true)
    });
}

/// CPU time that this thread has used.
pub(super) fn thread_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
