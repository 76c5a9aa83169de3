//! Records the grammar's decision about each token, for requests with `return_decisions`.

use super::Refusal;
use crate::limits;

/// How a generated token came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenOrigin {
    /// Drawn without a mask and accepted.
    Drawn,
    /// Drawn under a mask.
    Masked,
    /// Not drawn: the grammar left no other token.
    Forced,
}

/// A generated token, and the tokens that were drawn in its place and refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenDecision {
    pub id: u32,
    pub origin: TokenOrigin,
    pub refused: Vec<Refusal>,
}

/// The decisions since they were last taken. At most [`limits::MAX_REPORTED_DECISIONS`] are recorded in all.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    recorded: usize,
    new: Vec<TokenDecision>,
    /// Tokens refused since the last accepted token.
    refused: Vec<Refusal>,
    /// The engine draws the next token under a mask.
    masked: bool,
}

impl Decisions {
    pub(super) fn steered(&mut self, masked: bool) {
        self.masked = masked;
    }

    pub(super) fn refused(&mut self, refusal: Refusal) {
        self.masked = false;
        self.refused.push(refusal);
    }

    pub(super) fn drawn(&mut self, id: u32) {
        let masked = std::mem::take(&mut self.masked);
        self.record(id, if masked { TokenOrigin::Masked } else { TokenOrigin::Drawn });
    }

    pub(super) fn forced(&mut self, id: u32) {
        self.record(id, TokenOrigin::Forced);
    }

    fn record(&mut self, id: u32, origin: TokenOrigin) {
        let refused = std::mem::take(&mut self.refused);
        if self.recorded < limits::MAX_REPORTED_DECISIONS {
            self.recorded += 1;
            self.new.push(TokenDecision { id, origin, refused });
        }
    }

    pub(super) fn take(&mut self) -> Vec<TokenDecision> {
        std::mem::take(&mut self.new)
    }
}
