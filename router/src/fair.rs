//! Permits that callers take in turn, so that one caller's many requests do not delay those of others. It does not
//! know what the permits are for.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use crate::error::Error;

/// The name of a request's API key. None: it has none.
pub type CallerName = Option<Arc<str>>;

/// The request that work is done for: whose it is, and until when it may wait.
#[derive(Debug, Clone)]
pub struct Requester {
    pub caller: CallerName,
    pub deadline: Instant,
}

/// A semaphore whose waiters are served caller by caller, and in order for each caller.
#[derive(Clone)]
pub struct FairSemaphore(Arc<Mutex<Waiters>>);

struct Waiters {
    free: usize,
    /// The callers that wait, in the order of their turns.
    turns: VecDeque<CallerName>,
    waiting: HashMap<CallerName, VecDeque<oneshot::Sender<FairPermit>>>,
}

/// One permit. It is given to the next waiter when dropped.
pub struct FairPermit(Option<FairSemaphore>);

impl FairSemaphore {
    pub fn new(permits: usize) -> Self {
        FairSemaphore(Arc::new(Mutex::new(Waiters { free: permits, turns: VecDeque::new(), waiting: HashMap::new() })))
    }

    /// Waits for a permit until the deadline. Cancel-safe.
    pub async fn acquire(&self, requester: &Requester) -> Result<FairPermit, Error> {
        let given = {
            let mut waiters = self.waiters();
            if waiters.free > 0 {
                waiters.free -= 1;
                return Ok(FairPermit(Some(self.clone())));
            }
            let (give, given) = oneshot::channel();
            waiters.push(&requester.caller, give);
            given
        };
        match timeout_at(requester.deadline, given).await {
            Ok(permit) => permit.map_err(|lost| Error::internal("a permit was lost", lost)),
            Err(_) => Err(Error::deadline()),
        }
    }

    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.waiters().free
    }

    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiters {
    fn push(&mut self, caller: &CallerName, give: oneshot::Sender<FairPermit>) {
        let of_caller = self.waiting.entry(caller.clone()).or_default();
        if of_caller.is_empty() {
            self.turns.push_back(caller.clone());
        }
        // Removes waiters that left before the queue grows: otherwise each client that gives up would make it longer.
        if of_caller.len() == of_caller.capacity() {
            of_caller.retain(|give| !give.is_closed());
        }
        of_caller.push_back(give);
    }

    fn pop(&mut self) -> Option<oneshot::Sender<FairPermit>> {
        let caller = self.turns.pop_front()?;
        let of_caller = self.waiting.get_mut(&caller)?;
        let next = of_caller.pop_front();
        match of_caller.is_empty() {
            true => drop(self.waiting.remove(&caller)),
            false => self.turns.push_back(caller),
        }
        next
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        let Some(semaphore) = self.0.take() else { return };
        let mut waiters = semaphore.waiters();
        while let Some(next) = waiters.pop() {
            match next.send(FairPermit(Some(semaphore.clone()))) {
                Ok(()) => return,
                // That waiter has left.
                Err(mut permit) => permit.0 = None,
            }
        }
        waiters.free += 1;
    }
}

#[cfg(test)]
mod tests;
