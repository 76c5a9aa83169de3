//! Charges the memory of all requests to two budgets: their bodies while they are read, and then their decoded values
//! until they are tokenized; the state of their grammars while they generate; and their answers until they are read.

mod budget;
mod division;

use crate::{
    blocking_pool::BlockingPool,
    error::Error,
    fair::{CallerName, Requester},
    limits,
};
pub use budget::{MemoryBudget, MemoryCharge};
pub use division::MemoryLimits;

pub struct RequestMemory {
    /// Bodies, and their values until they are tokenized.
    bodies: MemoryBudget,
    uncounted_body: usize,
    /// The grammars' state.
    pub matchers: MatcherMemory,
    /// Large answers until their clients have read them.
    pub answers: MemoryBudget,
    parsers: BlockingPool,
}

/// The budget of the grammars' state.
#[derive(Clone)]
pub struct MatcherMemory {
    pub budget: MemoryBudget,
    /// Bytes of each choice that do not count.
    pub uncounted: usize,
}

impl RequestMemory {
    pub fn new(limits: &MemoryLimits) -> Self {
        let MemoryLimits { bodies, uncounted_body, matchers, uncounted_matcher, answers, .. } = *limits;
        let matchers = MemoryBudget::new(matchers, "grammars");
        RequestMemory {
            bodies: MemoryBudget::new(bodies, "large requests"),
            uncounted_body,
            matchers: MatcherMemory { budget: matchers, uncounted: uncounted_matcher },
            answers: MemoryBudget::new(answers, "large answers"),
            parsers: BlockingPool::default(),
        }
    }

    /// The charge of a body: small requests never wait for large ones.
    pub fn open_charge(&self, caller: CallerName) -> MemoryCharge {
        self.bodies.open_charge(caller, self.uncounted_body)
    }

    /// The charge of an answer of about this many bytes, until its client has read it. Small ones do not count.
    pub async fn charge_answer(&self, bytes: usize, requester: &Requester) -> Result<MemoryCharge, Error> {
        let mut charge = self.answers.open_charge(requester.caller.clone(), limits::UNCOUNTED_ANSWER_BYTES);
        // One that is larger than a caller's share would wait in vain.
        charge.resize(bytes.min(self.answers.most(&requester.caller)), requester.deadline).await?;
        Ok(charge)
    }

    /// Decodes a body of this many bytes: inline if it is small, else off the async threads.
    pub async fn parse<T: Send + 'static>(
        &self,
        bytes: usize,
        requester: &Requester,
        read: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        match bytes <= limits::INLINE_TEXT_BYTES {
            true => read(),
            false => self.parsers.run(bytes, requester, read).await,
        }
    }
}
