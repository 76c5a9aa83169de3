//! Limits the work of compiling one grammar. Work is counted in steps rather than time, so that a schema gets the same
//! result on any machine. This module has no clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::limits::{MAX_COMPILE_WORK, MAX_FIRST_WORK};
use crate::rules::RuleError;

/// Cancels a compilation whose caller has gone. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The budget of one compilation. A step is a schema node that is copied or compared, or a unit of llguidance's fuel:
/// about a tenth of a microsecond.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    spent: u64,
    /// The part of it that was reserved for llguidance and that llguidance has not used yet.
    reserved: u64,
    /// Stops at the end of the budget. Otherwise the remaining schemas are relaxed.
    gives_up: bool,
    cancel: Cancel,
}

impl Budget {
    /// For a first attempt, which ends with [`RuleError::Unfinished`] if it needs more than ordinary schemas do.
    pub fn first_attempt(cancel: Cancel) -> Self {
        Self { limit: MAX_FIRST_WORK, spent: 0, reserved: 0, gives_up: true, cancel }
    }

    /// The whole budget of a request.
    pub fn whole(cancel: Cancel) -> Self {
        Self { limit: MAX_COMPILE_WORK, spent: 0, reserved: 0, gives_up: false, cancel }
    }

    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// Whether another attempt with the whole budget follows.
    pub(crate) fn gives_up(&self) -> bool {
        self.gives_up
    }

    pub(crate) fn left(&self) -> u64 {
        self.limit.saturating_sub(self.spent)
    }

    /// Fails if the compilation must end at once; otherwise see [`Self::left`].
    pub(crate) fn spend(&mut self, steps: u64) -> Result<(), RuleError> {
        self.spent = self.spent.saturating_add(steps);
        self.go_on()
    }

    /// Spends the steps that llguidance will take to compile a part, so that a part that costs too much is relaxed.
    pub(crate) fn reserve(&mut self, steps: u64) -> Result<(), RuleError> {
        self.reserved += steps;
        self.spend(steps)
    }

    /// Spends llguidance's steps, without those that were reserved.
    pub(crate) fn spend_fuel(&mut self, steps: u64) -> Result<(), RuleError> {
        let known = self.reserved.min(steps);
        self.reserved -= known;
        self.spend(steps - known)
    }

    pub(crate) fn go_on(&self) -> Result<(), RuleError> {
        match self.cancel.is_cancelled() || (self.gives_up && self.left() == 0) {
            true => Err(RuleError::Unfinished),
            false => Ok(()),
        }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::whole(Cancel::default())
    }
}
