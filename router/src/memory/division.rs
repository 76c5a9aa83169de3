//! How requests share the memory of a process. It does not know what they keep in it.

use crate::limits;

/// Bytes for each purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// One request body.
    pub body: usize,
    /// All bodies while they are read, and their decoded values until they are tokenized.
    pub bodies: usize,
    /// Of each body, what does not count.
    pub uncounted_body: usize,
    /// The grammars' state of all choices.
    pub matchers: usize,
    /// Of each choice, what does not count.
    pub uncounted_matcher: usize,
    /// Tokenizing.
    pub texts: usize,
    /// Large answers that clients have not read.
    pub answers: usize,
    /// Compiled grammars of one model.
    pub grammars: usize,
    /// Tokens of earlier prompts of one model.
    pub prompts: usize,
    /// Which engine has which blocks of one model.
    pub routes: usize,
    /// Tools of earlier requests, in each of three APIs.
    pub tools: usize,
    /// Kept responses.
    pub responses: usize,
}

impl MemoryLimits {
    /// Shares of so many bytes. Together they are less than all of it; none is larger than the limit of its purpose.
    pub fn within(bytes: usize) -> Self {
        let share = |most: usize, part: usize| most.min(bytes / part);
        let bodies = share(limits::BODY_MEMORY_BYTES, 6);
        MemoryLimits {
            body: limits::BODY_BYTES.min(bodies / 4),
            bodies,
            uncounted_body: share(limits::UNCOUNTED_BODY_BYTES, 1 << 16),
            matchers: share(limits::MATCHER_MEMORY_BYTES, 6),
            uncounted_matcher: share(limits::UNCOUNTED_MATCHER_BYTES, 1 << 14),
            texts: share(limits::TOKENIZING_BYTES, 6),
            answers: share(limits::ANSWER_MEMORY_BYTES, 16),
            grammars: share(rein_grammar::MAX_CACHED_BYTES, 16),
            prompts: share(rein_text::limits::PROMPT_CACHE_BYTES, 32),
            routes: share(limits::ROUTE_INDEX_BYTES, 16),
            tools: share(limits::KNOWN_TOOLS_BYTES, 128),
            responses: share(limits::STORED_RESPONSE_BYTES, 16),
        }
    }

    /// The longest text that is tokenized: it may take half of what there is.
    pub fn text(&self) -> usize {
        self.texts / 2 / limits::TOKENIZING_PER_BYTE
    }
}

impl Default for MemoryLimits {
    fn default() -> Self {
        MemoryLimits::within(usize::MAX)
    }
}

#[cfg(test)]
mod tests;
