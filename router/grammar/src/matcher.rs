//! The state of one request's grammar. It does not know requests or engines.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::derivre::NextByte;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};

use crate::limits::{
    MAX_FORCED_TOKENS, MAX_MATCHER_BYTES, MAX_STEP_TIME, MAX_TRIAL_TIME, TOKENS_PER_MEASUREMENT, TOKENS_PER_STEP,
};
use crate::mask::{ids, set};
use crate::trial;
use crate::vocab::Vocab;
use crate::watchdog::watch;

/// An error that ends one request. Other requests are not affected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MatcherError {
    #[error("the output exceeds the grammar's limits: {0}")]
    Limit(String),
    #[error("the grammar has a dead end: nothing can follow the generated text")]
    DeadEnd,
    #[error("the grammar failed: {0}")]
    Internal(String),
    #[error("the grammar rejected {0} draws in a row at one position: none of its continuations can be drawn")]
    NoProgress(u32),
}

/// Approximate memory of an item of the parser.
const ITEM_BYTES: usize = 16;

/// Decides token by token what may come next. Clones are independent.
pub struct Matcher {
    parser: TokenParser,
    vocab: Arc<Vocab>,
    /// After its beginning the grammar names only added tokens: others are matched by their bytes.
    bytewise: bool,
    /// Tokens since the parser last got fuel.
    unfueled: u32,
    /// Items that the parser added for tokens. It keeps those of all accepted text.
    items: usize,
    /// Approximate memory when it was last measured, and the tokens since.
    bytes: usize,
    unmeasured: u32,
    /// A stop token was accepted.
    ended: bool,
    /// The error that ended the request; the parser is not used after it.
    failed: Option<MatcherError>,
}

impl Clone for Matcher {
    fn clone(&self) -> Self {
        // With shared lexer states, one request's failure could end another.
        let Self { parser, vocab, failed, .. } = self;
        let (parser, vocab, failed) = (parser.deep_clone(), vocab.clone(), failed.clone());
        Self { parser, vocab, failed, ..*self }
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").field("stopped", &self.is_stopped()).finish_non_exhaustive()
    }
}

impl Matcher {
    pub(crate) fn new(parser: TokenParser, vocab: Arc<Vocab>, bytewise: bool) -> Self {
        let (unfueled, items, bytes, unmeasured) = (TOKENS_PER_STEP, 0, 0, 0);
        Self { parser, vocab, bytewise, unfueled, items, bytes, unmeasured, ended: false, failed: None }
    }

    /// Accepts the token if the grammar allows it; otherwise the state stays the same. A stop token that the grammar
    /// names ends the output, whatever the grammar allows after it.
    pub fn accept(&mut self, id: u32) -> Result<bool, MatcherError> {
        if self.ended || id as usize >= self.vocab.size() {
            return Ok(false);
        }
        let stop = self.vocab.is_stop(id);
        if self.at_end() {
            self.ended = stop;
            return Ok(stop);
        }
        let bytewise = self.bytewise && !stop;
        let vocab = self.vocab.clone();
        self.unfueled += 1;
        let refuel = self.unfueled > TOKENS_PER_STEP;
        self.unmeasured += 1;
        if self.unmeasured > TOKENS_PER_MEASUREMENT && self.measure() > MAX_MATCHER_BYTES {
            let limit = format!("its state takes more than {} MiB", MAX_MATCHER_BYTES >> 20);
            return Err(self.failed.insert(MatcherError::Limit(limit)).clone());
        }
        let items = self.parser.parser.stats().all_items;
        let taken = self.ask(|parser| {
            if refuel {
                fuel(parser, &vocab);
            }
            let bytes = vocab.trie().token(id);
            // Checking whether the grammar names this very token would cost as much as matching all its bytes.
            let fits = match bytewise && is_text(bytes) && parser.parser.currently_forced_bytes().is_empty() {
                true => fits(parser, bytes),
                false => parser.validate_token(id)?,
            };
            #[cfg(test)]
            assert_eq!(fits, parser.validate_token(id)?, "{}", vocab.trie().token_dbg(id));
            if !fits {
                // A lexer without fuel takes nothing, which is no refusal.
                if let Some(error) = parser.parser.get_error() {
                    anyhow::bail!("{}", error.message());
                }
                return Ok(false);
            }
            let back = parser.consume_token(id)?;
            anyhow::ensure!(back == 0, "the grammar withdrew accepted bytes");
            // A parser that can continue has not stopped. The check is skipped then, because it costs more than
            // consuming the token.
            if stop || !parser.parser.can_advance() {
                parser.check_stop()?;
            }
            Ok(true)
        })?;
        if taken {
            self.items += self.parser.parser.stats().all_items - items;
        }
        if refuel {
            self.unfueled = 0;
        }
        if stop && !taken && self.names(id)? {
            self.ended = true;
            return Ok(true);
        }
        // A token of the grammar may be a stop token elsewhere.
        self.ended = taken && stop && self.parser.stop_reason() == StopReason::EndOfSentence;
        Ok(taken)
    }

    /// Whether the grammar names this stop token here. The parser treats a stop token only as the end of the output;
    /// its mask also has the stop tokens that the grammar names.
    fn names(&mut self, stop: u32) -> Result<bool, MatcherError> {
        Ok(self.mask()?.get(stop as usize / 8).is_some_and(|byte| byte >> (stop % 8) & 1 == 1))
    }

    pub(crate) fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    /// Accepts tokens that are not output: the input that the grammar reads first.
    pub(crate) fn begin(&mut self, ids: &[u32]) -> Result<(), MatcherError> {
        self.ask(|parser| {
            for id in ids {
                parser.consume_token(*id)?;
            }
            parser.check_stop()?;
            Ok(())
        })
    }

    /// Tries the grammar: accepts this many tokens of those that its masks allow, or as many as there are.
    pub(crate) fn walk(&mut self, tokens: usize) -> Result<(), MatcherError> {
        /// Prime, so that the choice differs from token to token.
        const STRIDE: usize = 7919;
        let _watched = self.parser.cancellation_handle().map(|cancel| watch(cancel, MAX_TRIAL_TIME));
        for step in 1..=tokens {
            if self.is_stopped() {
                break;
            }
            let mask = self.mask()?;
            let allowed = ids(&mask).filter(|id| !self.vocab.is_stop(*id));
            // Control tokens would leave the client's grammar.
            let (text, control): (Vec<u32>, Vec<u32>) = allowed.partition(|id| is_text(self.vocab.trie().token(*id)));
            let chosen = if text.is_empty() { control } else { text };
            let Some(id) = chosen.get(step * STRIDE % chosen.len().max(1)) else { break };
            if !self.accept(*id)? {
                return Err(MatcherError::Internal(format!("token {id} was in the mask and then rejected")));
            }
        }
        Ok(())
    }

    /// The tokens that may come next, one bit per id, lowest bit first: `ceil(size / 8)` bytes.
    pub fn mask(&mut self) -> Result<Vec<u8>, MatcherError> {
        let bytes = self.vocab.size().div_ceil(8);
        let mut mask = vec![0_u8; bytes];
        if self.ended {
            return Ok(mask);
        }
        if self.at_end() {
            set(&mut mask, self.vocab.stops());
            return Ok(mask);
        }
        if let Some(id) = self.forced_special() {
            set(&mut mask, &[id]);
            return Ok(mask);
        }
        let allowed = self.ask(TokenParser::compute_mask)?;
        let words = allowed.as_slice().iter().flat_map(|w| w.to_le_bytes());
        mask.iter_mut().zip(words).for_each(|(to, from)| *to = from);
        let used = self.vocab.size() % 8;
        if let Some(last) = mask.last_mut().filter(|_| used != 0) {
            *last &= (1 << used) - 1;
        }
        Ok(mask)
    }

    /// The tokens of a refused draw's beginning that may stand here, if it begins with punctuation of JSON: a model
    /// that draws `","` ends its string, whatever may come then.
    pub fn kept(&self, refused: u32) -> Result<Vec<u32>, MatcherError> {
        let text = self.vocab.text(refused).unwrap_or_default();
        let punctuation = text.bytes().take_while(|byte| b"\"}],:".contains(byte)).count();
        for end in (1..text.len().min(punctuation + 1)).rev() {
            let ids = self.vocab.encode(&text[..end]);
            let mut matcher = self.clone();
            let mut fits = self.vocab.trie().decode_raw(&ids) == text.as_bytes()[..end];
            for id in &ids {
                fits = fits && matcher.accept(*id)?;
            }
            if fits {
                return Ok(ids);
            }
        }
        Ok(Vec::new())
    }

    /// Removes the tokens from a mask that are not on the shortest way to the end of a JSON answer. `last`: the token
    /// before.
    pub fn lead_to_end(&self, last: Option<u32>, mask: &mut [u8]) {
        /// Most first bytes among which the way to the end decides. Where there are more, a string goes on.
        const MOST_WAYS: usize = 16;
        if !self.vocab.lead_to_end(last, mask) {
            return;
        }
        // Of tokens that begin alike, the longest stands for all: they are beginnings of the same names and values.
        let mut ways: BTreeMap<u8, (usize, Vec<u32>, u32)> = BTreeMap::new();
        for id in ids(mask) {
            let token = self.vocab.trie().token(id);
            let Some(first) = token.first().copied().filter(|_| is_text(token)) else { return };
            let (longest, all, chosen) = ways.entry(first).or_default();
            if token.len() > *longest {
                (*longest, *chosen) = (token.len(), id);
            }
            all.push(id);
            if ways.len() > MOST_WAYS {
                return;
            }
        }
        if ways.len() < 2 {
            return;
        }
        let ends: Vec<(Option<usize>, Vec<u32>)> =
            ways.into_values().map(|(_, all, chosen)| (self.distance(chosen), all)).collect();
        let Some(nearest) = ends.iter().filter_map(|(distance, _)| *distance).min() else { return };
        let near = |distance: Option<usize>| distance.is_some_and(|distance| distance <= nearest);
        mask.fill(0);
        ends.iter().filter(|(distance, _)| near(*distance)).for_each(|(_, all)| set(mask, all));
    }

    /// Tokens from this one, in a string, to the end of the object or list around it, on one way that the ranks of
    /// tokens lead. None: it is long.
    fn distance(&self, first: u32) -> Option<usize> {
        const LONGEST: usize = 48;
        let mut matcher = self.clone();
        let (mut id, mut in_string, mut depth) = (first, true, 0);
        for length in 1..=LONGEST {
            if !matcher.accept(id).ok()? {
                return None;
            }
            for byte in matcher.vocab.trie().token(id) {
                match byte {
                    b'"' => in_string = !in_string,
                    b'{' | b'[' if !in_string => depth += 1,
                    b'}' | b']' if !in_string => depth -= 1,
                    _ => {}
                }
            }
            if depth < 0 || matcher.is_stopped() {
                return Some(length);
            }
            let mut mask = matcher.mask().ok()?;
            matcher.vocab.lead_to_end(Some(id), &mut mask);
            id = ids(&mask).next()?;
        }
        None
    }

    /// Tokens that must come next, as the tokenizer itself would write them; often none. They must still be accepted.
    pub fn forced(&mut self) -> Vec<u32> {
        if self.ended || !self.vocab.canonical() || self.at_end() || self.has_choice() {
            return Vec::new();
        }
        let bytes = self.forced_bytes();
        if bytes.is_empty() {
            return Vec::new();
        }
        let mut ids = self.ask_or(Vec::new(), |parser| parser.compute_ff_tokens());
        // Nothing follows a stop token, whatever the grammar allows.
        let stop = ids.iter().position(|id| self.vocab.is_stop(*id)).map_or(usize::MAX, |at| at + 1);
        ids.truncate(MAX_FORCED_TOKENS.min(stop));
        // A tokenizer may add to a text, for example a leading blank.
        if bytes.starts_with(&self.vocab.trie().decode_raw(&ids)) { ids } else { Vec::new() }
    }

    /// Whether the lexer alone can tell that more than one byte may follow. That holds nearly everywhere in text and
    /// strings, at a fraction of the parser's cost.
    fn has_choice(&mut self) -> bool {
        self.ask_or(false, |parser| {
            if !parser.parser.currently_forced_bytes().is_empty() {
                return false;
            }
            parser.parser.with_recognizer(|lexer| {
                let state = lexer.lexer_state();
                let NextByte::SomeBytes2(bytes) = lexer.lexer_mut().next_byte(state) else { return false };
                lexer.trie_started("choice");
                let choice = bytes.iter().all(|byte| lexer.byte_allowed(*byte));
                lexer.trie_finished();
                choice
            })
        })
    }

    /// Why nothing can be generated under the grammar: see [`trial::emptiness`].
    pub(crate) fn emptiness(&mut self, client_rules: bool, client_expressions: bool) -> Option<String> {
        self.ask(|parser| Ok(trial::emptiness(parser, client_rules, client_expressions)))
            .unwrap_or_else(|error| Some(error.to_string()))
    }

    /// Approximate memory, as it was some tokens ago. It grows with the accepted text.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Updates [`Matcher::bytes`].
    pub(crate) fn measure(&mut self) -> usize {
        let stats = self.parser.parser.lexer_stats();
        self.unmeasured = 0;
        // Each state has a set of lexemes, which the parser's own figure omits.
        self.bytes = stats.num_bytes + stats.num_states * stats.num_regexps.div_ceil(8) + self.items * ITEM_BYTES;
        self.bytes
    }

    /// Whether the turn may end here.
    pub fn may_stop(&mut self) -> bool {
        self.ended || self.at_end() || self.ask_or(false, |parser| parser.is_accepting())
    }

    /// Only a stop token can follow, or one was accepted.
    pub fn is_stopped(&self) -> bool {
        self.ended || self.at_end()
    }

    fn at_end(&self) -> bool {
        matches!(self.parser.stop_reason(), StopReason::NoExtension | StopReason::NoExtensionBias)
    }

    fn forced_bytes(&mut self) -> Vec<u8> {
        self.ask_or(Vec::new(), |parser| parser.force_bytes())
    }

    /// The special token that already forced bytes stand for; it is one id whatever its bytes look like.
    fn forced_special(&mut self) -> Option<u32> {
        let bytes = self.forced_bytes();
        let rest = bytes.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER, b'['])?;
        let digits = rest.split(|b| *b == b']').next()?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// The error of a parser that fails is kept: the next token that is asked about gets it.
    fn ask_or<T>(&mut self, failed: T, work: impl FnOnce(&mut TokenParser) -> T) -> T {
        self.ask(|parser| Ok(work(parser))).unwrap_or(failed)
    }

    /// A parser that fails or panics is not used again.
    fn ask<T>(&mut self, work: impl FnOnce(&mut TokenParser) -> anyhow::Result<T>) -> Result<T, MatcherError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let cancel = self.parser.cancellation_handle();
        let watched = cancel.clone().map(|cancel| watch(cancel, MAX_STEP_TIME));
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut self.parser)));
        drop(watched);
        if cancel.is_some_and(|cancel| cancel.is_cancelled()) {
            let limit = "one of its steps takes too much processor time".to_owned();
            return Err(self.failed.insert(MatcherError::Limit(limit)).clone());
        }
        done.map_err(|error| {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default().to_owned();
            let limit = match self.parser.stop_reason() {
                StopReason::NoExtension | StopReason::NoExtensionBias => {
                    self.failed = Some(MatcherError::DeadEnd);
                    return MatcherError::DeadEnd;
                }
                StopReason::LexerTooComplex | StopReason::ParserTooComplex => true,
                _ => ["Too many items", "too complex", "lexer error"].iter().any(|words| line.contains(words)),
            };
            let error = if limit { MatcherError::Limit(line) } else { MatcherError::Internal(line) };
            self.failed = Some(error.clone());
            error
        })
    }
}

#[cfg(test)]
impl Matcher {
    /// Checks both shortcuts against the parser: no end where it finds one, no choice where it forces a byte.
    pub(crate) fn check(&mut self) {
        let stopped = self.is_stopped();
        self.ask(TokenParser::check_stop).expect("no error");
        assert_eq!(stopped, self.is_stopped(), "the matcher has stopped, which no method had reported");
        let choice = self.has_choice();
        assert!(
            stopped || !choice || self.forced_bytes().is_empty(),
            "one continuation is forced, but the matcher reports a choice"
        );
    }
}

/// Neither an added token, nor one that the parser could mistake for one.
fn is_text(bytes: &[u8]) -> bool {
    !bytes.is_empty() && !bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER)
}

fn fits(parser: &mut TokenParser, bytes: &[u8]) -> bool {
    parser.parser.with_recognizer(|lexer| {
        lexer.trie_started("fits");
        let fits = bytes.iter().all(|byte| lexer.try_push_byte(*byte));
        lexer.trie_finished();
        fits
    })
}

/// Gives the lexer the fuel of one step, which the parser only does before each mask. Otherwise tokens accepted without
/// a mask would first cost any amount, and later fail for lack of fuel.
fn fuel(parser: &mut TokenParser, vocab: &Vocab) {
    struct Nothing<'v>(&'v TokTrie);

    impl BiasComputer for Nothing<'_> {
        fn compute_bias(&self, _: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
            self.0.alloc_token_set()
        }

        fn trie(&self) -> &TokTrie {
            self.0
        }
    }

    // A mask of what follows some bytes is not cached.
    parser.parser.compute_bias(&Nothing(vocab.trie()), &[0]);
}
