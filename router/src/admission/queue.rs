//! Who is served, who waits and who is sent away. No clock and no I/O: a function of what happened, so that a seed
//! replays it.
//!
//! A request *comes* (its body is still to be read), *lines up* once its priority and its deadline are known, is
//! served, and is *done*. `room` are served at once, `places` more may be here besides.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// Priorities beyond these count as these.
pub const PRIORITIES: std::ops::RangeInclusive<i64> = -100..=100;
/// What a point of priority is worth. Waiting counts as much as priority does, so that nobody waits for ever: a request
/// is only overtaken by those that come within the difference of their priorities times this.
pub const PRIORITY_STEP: Duration = Duration::from_secs(1);
/// The last so many requests, about, say how long one takes.
const MEMORY: f64 = 32.0;

/// One that waits. Lower comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// When it lined up and its priority, as one time.
    order: i128,
    number: u64,
}

#[derive(Debug, PartialEq)]
pub enum QueueStep {
    Go,
    Wait(Ticket),
    /// It would be served after its deadline. To come back after this time.
    Late(Duration),
}

#[derive(Debug)]
pub struct WaitQueue {
    room: usize,
    places: usize,
    /// Have come, and not lined up yet.
    coming: usize,
    waiting: BTreeMap<Ticket, ()>,
    served: usize,
    next: u64,
    /// Mean time for which one is served.
    service: Option<Duration>,
    /// Where orders count from.
    start: Instant,
}

impl WaitQueue {
    pub fn new(room: usize, places: usize, start: Instant) -> Self {
        WaitQueue { room, places, coming: 0, waiting: BTreeMap::new(), served: 0, next: 0, service: None, start }
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Mean time for which one is served.
    pub fn service(&self) -> Option<Duration> {
        self.service
    }

    pub fn served(&self) -> usize {
        self.served
    }

    pub fn present(&self) -> usize {
        self.coming + self.waiting.len() + self.served
    }

    /// Err: all is taken. To come back after this time, if that can be told.
    pub fn come(&mut self) -> Result<(), Option<Duration>> {
        if self.present() >= self.room + self.places {
            // Requests whose bodies are still being read enter the queue before a client that retries.
            return Err(self.wait(self.present().saturating_sub(self.room)));
        }
        self.coming += 1;
        Ok(())
    }

    /// One that had come left before it lined up.
    pub fn turn_back(&mut self) {
        self.coming = self.coming.saturating_sub(1);
    }

    pub fn line_up(&mut self, priority: i64, now: Instant, deadline: Instant) -> QueueStep {
        self.coming = self.coming.saturating_sub(1);
        if self.served < self.room {
            self.served += 1;
            return QueueStep::Go;
        }
        let priority = priority.clamp(*PRIORITIES.start(), *PRIORITIES.end());
        let since = now.saturating_duration_since(self.start).as_micros() as i128;
        let order = since + i128::from(priority) * PRIORITY_STEP.as_micros() as i128;
        let ticket = Ticket { order, number: self.next };
        let left = deadline.saturating_duration_since(now);
        // Counted only if it can matter: the line may be long.
        let before = || self.waiting.range(..ticket).count();
        if self.service.is_some()
            && let Some(wait) = self.wait(before())
            && wait >= left
        {
            return QueueStep::Late(wait - left);
        }
        self.next += 1;
        self.waiting.insert(ticket, ());
        QueueStep::Wait(ticket)
    }

    /// One stops waiting. False: it had been called before, and is being served.
    pub fn give_up(&mut self, ticket: Ticket) -> bool {
        self.waiting.remove(&ticket).is_some()
    }

    /// One is done after being served for this long, or was never really served. Who is served now in its place?
    pub fn done(&mut self, served: Option<Duration>) -> Option<Ticket> {
        if let Some(time) = served {
            self.service = Some(match self.service {
                Some(mean) => mean.mul_f64(1.0 - 1.0 / MEMORY) + time.div_f64(MEMORY),
                None => time,
            });
        }
        self.served = self.served.saturating_sub(1);
        let (ticket, ()) = self.waiting.pop_first()?;
        self.served += 1;
        Some(ticket)
    }

    /// How long somebody waits who has so many before them, as far as it is known.
    fn wait(&self, before: usize) -> Option<Duration> {
        Some(self.service?.mul_f64((before + 1) as f64 / self.room.max(1) as f64))
    }
}

#[cfg(test)]
mod tests;
