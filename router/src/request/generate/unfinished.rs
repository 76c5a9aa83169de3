//! Counts how the choices of a request end, each exactly once.

use std::sync::Arc;

use rein_proto::v1::FinishReason;

use crate::{
    error::Error,
    request::{
        metrics::RequestMetrics,
        outcomes::{CANCELLED, ERROR, finish_reason},
    },
};

/// The choices of one request that have not ended. Each choice is counted exactly once: those that are left on drop
/// ended with the request.
pub struct UnfinishedChoices {
    metrics: Arc<RequestMetrics>,
    model: String,
    remaining: u32,
    /// Why the request ended before its choices.
    reason: &'static str,
}

impl UnfinishedChoices {
    pub fn new(metrics: Arc<RequestMetrics>, model: &str, choices: u32) -> Self {
        UnfinishedChoices { metrics, model: model.to_owned(), remaining: choices, reason: CANCELLED }
    }

    /// One choice finished.
    pub fn finished(&mut self, reason: FinishReason) {
        self.remaining = self.remaining.saturating_sub(1);
        self.metrics.outcomes.count_finished(&self.model, finish_reason(reason), 1);
    }

    /// This error ends the request and all its choices.
    pub fn failed(&mut self, error: &Error) {
        self.reason = error.code.unwrap_or(ERROR);
    }
}

impl Drop for UnfinishedChoices {
    fn drop(&mut self) {
        if self.remaining > 0 {
            self.metrics.outcomes.count_finished(&self.model, self.reason, self.remaining.into());
        }
    }
}
