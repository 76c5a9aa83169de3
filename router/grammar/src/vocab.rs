//! A model's vocabulary for the grammar. It does not tokenize.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use llguidance::api::{GrammarInit, ParserLimits};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use llguidance::{Logger, ParserFactory, TokenParser};

use crate::finish::Ranks;
use crate::limits::{MAX_GRAMMAR_SYMBOLS, MAX_LEXER_STATES, MAX_ROW_ITEMS};

/// Encodes plain text: it never produces a control token.
pub type Encoder = Box<dyn Fn(&str) -> Vec<u32> + Send + Sync>;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VocabError {
    #[error("a vocabulary must have at least one token")]
    Empty,
    #[error("stop token {id} is not in the vocabulary of {size} tokens")]
    Stop { id: u32, size: usize },
    #[error("the model has no stop token; a turn needs at least one to end")]
    NoStop,
    #[error("the vocabulary cannot be indexed: {0}")]
    Index(String),
}

/// Built once per model.
pub struct Vocab {
    factory: ParserFactory,
    capabilities: InferenceCapabilities,
    special: HashMap<Box<str>, u32>,
    stops: Vec<u32>,
    size: usize,
    encoder: Option<Arc<Encoder>>,
    ranks: OnceLock<Ranks>,
}

impl std::fmt::Debug for Vocab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocab").field("size", &self.size).field("stops", &self.stops).finish_non_exhaustive()
    }
}

impl Vocab {
    /// `tokens` in the order of their ids: the bytes (for an added token its text; for an unused id none), and whether
    /// it is a control token, which never counts as text: see [`Format::is_control`](crate::Format::is_control). Other
    /// added tokens are text.
    ///
    /// Without an `encoder`, no token is ever forced.
    pub fn new(
        tokens: impl Iterator<Item = (Vec<u8>, bool)>,
        stop_ids: &[u32],
        encoder: Option<Encoder>,
    ) -> Result<Self, VocabError> {
        let mut words = Vec::new();
        let mut special = HashMap::new();
        for (id, (mut bytes, control)) in tokens.enumerate() {
            if control {
                special.insert(String::from_utf8_lossy(&bytes).into(), id as u32);
            }
            // Bytes that begin like a special token would be mistaken for one; no text begins like that.
            if control || bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
                bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
            }
            words.push(bytes);
        }
        let size = words.len();
        if size == 0 {
            return Err(VocabError::Empty);
        }
        if stop_ids.is_empty() {
            return Err(VocabError::NoStop);
        }
        if let Some(id) = stop_ids.iter().find(|id| **id as usize >= size) {
            return Err(VocabError::Stop { id: *id, size });
        }
        Self::build(words, special, stop_ids, encoder.map(Arc::new), Vec::new())
    }

    /// The same with these control tokens as text: it makes no difference whether their letters or they are written.
    /// None: there are none of them.
    pub(crate) fn with_text(&self, is_text: impl Fn(&str) -> bool) -> Option<Self> {
        let mut special = self.special.clone();
        let texts = special.extract_if(|text, id| !self.stops.contains(id) && is_text(text)).collect::<Vec<_>>();
        if texts.is_empty() {
            return None;
        }
        let mut words: Vec<Vec<u8>> = (0..self.size as u32).map(|id| self.trie().token(id).to_vec()).collect();
        for (_, id) in &texts {
            words[*id as usize].remove(0);
        }
        Self::build(words, special, &self.stops, self.encoder.clone(), texts).ok()
    }

    /// `texts`: tokens that the encoder does not produce although they are text.
    fn build(
        words: Vec<Vec<u8>>,
        special: HashMap<Box<str>, u32>,
        stop_ids: &[u32],
        encoder: Option<Arc<Encoder>>,
        mut texts: Vec<(Box<str>, u32)>,
    ) -> Result<Self, VocabError> {
        let size = words.len();
        let first = *stop_ids.first().ok_or(VocabError::NoStop)?;
        texts.sort_unstable_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        // The trie must know that special tokens exist.
        let info = TokRxInfo::new(size as u32, first);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(stop_ids);
        let env: TokEnv = Arc::new(Env { trie, encoder: encoder.clone(), texts });
        let index = |e: &dyn std::fmt::Display| VocabError::Index(e.to_string());
        let capabilities = InferenceCapabilities {
            ff_tokens: env.tokenize_is_canonical(),
            conditional_ff_tokens: false,
            backtrack: false,
            fork: false,
        };
        let mut factory = ParserFactory::new(&env, capabilities.clone(), &SlicedBiasComputer::json_slices())
            .map_err(|e| index(&e))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        limits.precompute_large_lexemes = false;
        limits.max_grammar_size = MAX_GRAMMAR_SYMBOLS;
        limits.max_lexer_states = MAX_LEXER_STATES;
        limits.max_items_in_row = MAX_ROW_ITEMS;
        Ok(Self { factory, capabilities, special, stops: stop_ids.to_vec(), size, encoder, ranks: OnceLock::new() })
    }

    /// Number of ids.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The id of a control token.
    pub fn special_id(&self, text: &str) -> Option<u32> {
        self.special.get(text).copied()
    }

    pub fn is_special(&self, id: u32) -> bool {
        self.special.values().any(|&special| special == id)
    }

    /// Whether the token ends a turn.
    pub fn is_stop(&self, id: u32) -> bool {
        self.stops.contains(&id)
    }

    /// Ten tokens without a special meaning, with which a grammar reads a number.
    pub(crate) fn digits(&self) -> Vec<u32> {
        (0..self.size as u32).filter(|id| !self.is_stop(*id)).take(10).collect()
    }

    /// The text of a token that is not a control token.
    pub(crate) fn text(&self, id: u32) -> Option<String> {
        let bytes = self.trie().token(id);
        let text = !bytes.is_empty() && !bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER);
        std::str::from_utf8(bytes).ok().filter(|_| text).map(str::to_owned)
    }

    /// Text as tokens, as the tokenizer writes it if there is one.
    pub(crate) fn encode(&self, text: &str) -> Vec<u32> {
        self.factory.tok_env().tokenize_bytes(text.as_bytes())
    }

    /// As in [`Ranks::narrow`]. `last`: the token before.
    pub(crate) fn lead_to_end(&self, last: Option<u32>, mask: &mut [u8]) -> bool {
        let ranks = self.ranks.get_or_init(|| Ranks::new((0..self.size as u32).map(|id| self.text(id))));
        let opened = last.and_then(|id| self.text(id)).is_some_and(|text| text.ends_with('"'));
        ranks.narrow(&self.stops, opened, mask)
    }

    pub(crate) fn stops(&self) -> &[u32] {
        &self.stops
    }

    pub(crate) fn factory(&self) -> &ParserFactory {
        &self.factory
    }

    /// A parser that is ready for output.
    pub(crate) fn parser(&self, grammar: GrammarInit, limits: ParserLimits) -> anyhow::Result<TokenParser> {
        let capabilities = self.capabilities.clone();
        let parser = self.factory.create_parser_from_init_ext(grammar, Logger::new(0, 0), capabilities, limits);
        parser.map(|mut parser| {
            parser.start_without_prompt();
            parser
        })
    }

    pub(crate) fn trie(&self) -> &TokTrie {
        self.factory.tok_env().tok_trie()
    }

    pub(crate) fn canonical(&self) -> bool {
        self.factory.tok_env().tokenize_is_canonical()
    }
}

struct Env {
    trie: TokTrie,
    encoder: Option<Arc<Encoder>>,
    /// Tokens that the encoder does not produce although they are text, the longest first.
    texts: Vec<(Box<str>, u32)>,
}

impl Env {
    /// Text as the tokenizer writes it, and these tokens for their letters.
    fn encode(&self, encode: &Encoder, text: &str) -> Vec<u32> {
        let found = self.texts.iter().filter_map(|(letters, id)| Some((text.find(&**letters)?, letters, *id)));
        match found.min_by_key(|(at, ..)| *at) {
            None if text.is_empty() && !self.texts.is_empty() => Vec::new(),
            None => encode(text),
            Some((at, letters, id)) => {
                let mut ids = if at > 0 { encode(&text[..at]) } else { Vec::new() };
                ids.push(id);
                ids.extend(self.encode(encode, &text[at + letters.len()..]));
                ids
            }
        }
    }
}

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        match (&self.encoder, std::str::from_utf8(bytes)) {
            (Some(encode), Ok(text)) => self.encode(encode, text),
            _ => self.trie.greedy_tokenize(bytes),
        }
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.encoder.is_some()
    }
}
