//! The wait queue: decides which requests are in flight, wait or are refused. It has no clock and no I/O, so that tests
//! replay it from a seed.
//!
//! A request is *pending* while its body is read. It enters the queue once its priority and its deadline are known: it
//! *waits* or is *in flight* until it ends. At most `slots` requests are in flight, and at most `queue` more are
//! present.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// Priorities are clamped to this range.
pub const PRIORITIES: std::ops::RangeInclusive<i64> = -100..=100;
/// Head start of a request over one whose priority is higher by 1. It prevents starvation: a request can only be
/// overtaken by requests that arrive within this time times the difference of their priorities.
pub const PRIORITY_STEP: Duration = Duration::from_secs(1);
/// The mean time in flight is over about this many of the last requests.
const MEAN_OVER: f64 = 32.0;

/// A waiting request. Lower tickets are admitted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// Time of arrival plus priority times `PRIORITY_STEP`, in microseconds.
    order: i128,
    number: u64,
}

#[derive(Debug, PartialEq)]
pub enum EnqueueOutcome {
    Admitted,
    Waiting(Ticket),
    /// It would wait until after its deadline. It may succeed when retried after this time.
    TooLate(Duration),
}

#[derive(Debug)]
pub struct WaitQueue {
    slots: usize,
    queue: usize,
    /// Requests whose bodies are being read.
    pending: usize,
    waiting: BTreeMap<Ticket, ()>,
    in_flight: usize,
    next_number: u64,
    /// Mean time that a request is in flight.
    mean_time: Option<Duration>,
    /// The origin of [`Ticket::order`].
    start: Instant,
}

impl WaitQueue {
    pub fn new(slots: usize, queue: usize, start: Instant) -> Self {
        WaitQueue {
            slots,
            queue,
            pending: 0,
            waiting: BTreeMap::new(),
            in_flight: 0,
            next_number: 0,
            mean_time: None,
            start,
        }
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Mean time that a request is in flight.
    pub fn mean_time_in_flight(&self) -> Option<Duration> {
        self.mean_time
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub fn present(&self) -> usize {
        self.pending + self.waiting.len() + self.in_flight
    }

    /// Registers a pending request. Err: the queue is full; the estimated wait, if it is known.
    pub fn enter(&mut self) -> Result<(), Option<Duration>> {
        if self.present() >= self.slots + self.queue {
            // Requests whose bodies are still being read enter the queue before a client that retries.
            return Err(self.estimated_wait(self.present().saturating_sub(self.slots)));
        }
        self.pending += 1;
        Ok(())
    }

    /// A pending request left.
    pub fn leave_pending(&mut self) {
        self.pending = self.pending.saturating_sub(1);
    }

    /// Moves a pending request to the queue.
    pub fn enqueue(&mut self, priority: i64, now: Instant, deadline: Instant) -> EnqueueOutcome {
        self.pending = self.pending.saturating_sub(1);
        if self.in_flight < self.slots {
            self.in_flight += 1;
            return EnqueueOutcome::Admitted;
        }
        let priority = priority.clamp(*PRIORITIES.start(), *PRIORITIES.end());
        let since = now.saturating_duration_since(self.start).as_micros() as i128;
        let order = since + i128::from(priority) * PRIORITY_STEP.as_micros() as i128;
        let ticket = Ticket { order, number: self.next_number };
        let left = deadline.saturating_duration_since(now);
        // The count is linear in the queue's length, so it is computed only if it is used.
        let before = || self.waiting.range(..ticket).count();
        if self.mean_time.is_some()
            && let Some(wait) = self.estimated_wait(before())
            && wait >= left
        {
            return EnqueueOutcome::TooLate(wait - left);
        }
        self.next_number += 1;
        self.waiting.insert(ticket, ());
        EnqueueOutcome::Waiting(ticket)
    }

    /// A request stops waiting. False: it does not wait, because it was admitted before.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        self.waiting.remove(&ticket).is_some()
    }

    /// A request in flight ended. `time_in_flight` is None if it was never woken. Returns the request
    /// that is admitted in its place.
    pub fn finish(&mut self, time_in_flight: Option<Duration>) -> Option<Ticket> {
        if let Some(time) = time_in_flight {
            self.mean_time = Some(match self.mean_time {
                Some(mean) => mean.mul_f64(1.0 - 1.0 / MEAN_OVER) + time.div_f64(MEAN_OVER),
                None => time,
            });
        }
        self.in_flight = self.in_flight.saturating_sub(1);
        let (ticket, ()) = self.waiting.pop_first()?;
        self.in_flight += 1;
        Some(ticket)
    }

    /// Estimated wait of a request behind `before` others. None: no request has ended yet.
    fn estimated_wait(&self, before: usize) -> Option<Duration> {
        Some(self.mean_time?.mul_f64((before + 1) as f64 / self.slots.max(1) as f64))
    }
}

#[cfg(test)]
mod tests;
