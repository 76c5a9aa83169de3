//! Matches regular expressions in bounded time, with an engine that shares no code with the grammar's. It does not know
//! the schemas that they are from.

use std::cell::Cell;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{Draft, Keyword, PatternOptions, ValidationError, Validator};
use regex_automata::hybrid::dfa::DFA;
use regex_automata::nfa::thompson::{NFA, pikevm::PikeVM};
use regex_automata::{Anchored, Input};
use serde_json::{Value, json};

use super::case_folding::folded_characters;
use super::regex_size::compiled_bytes;
use crate::limits::{MAX_BACKTRACKS, MAX_REGEX_FOLDS, MAX_VALIDATED_REGEX_BYTES};

/// A step back of the backtracking engine takes about 50 ns.
const WORK_PER_BACKTRACK: usize = 512;

thread_local! {
    /// The work that is left to the validation that this thread runs. None: it needs more.
    static BUDGET: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Runs one validation. None: its patterns need more than this work, so the result is unknown. The unit is that of
/// [`MAX_VALIDATED_REGEX_WORK`](crate::limits::MAX_VALIDATED_REGEX_WORK).
pub fn within_budget<T>(work: usize, validate: impl FnOnce() -> T) -> Option<T> {
    BUDGET.set(Some(work));
    let result = validate();
    BUDGET.get().map(|_| result)
}

/// Takes work from the budget. False: it is exceeded.
fn pay(work: usize) -> bool {
    let left = BUDGET.get().and_then(|left| left.checked_sub(work));
    BUDGET.set(left);
    left.is_some()
}

/// A regular expression without lookaround and back references. None: the engine cannot read it, or it takes more than
/// [`MAX_VALIDATED_REGEX_BYTES`].
#[derive(Debug)]
pub struct PlainPattern(Option<Box<Engines>>);

#[derive(Debug)]
struct Engines {
    /// None: the expression has assertions that an automaton cannot check.
    automaton: Option<DFA>,
    state_by_state: PikeVM,
    anchored: Anchored,
}

impl PlainPattern {
    /// An expression that a whole text matches.
    pub fn whole(regex: &str) -> Self {
        Self::new(&format!(r"\A(?:{regex})\z"), Anchored::Yes)
    }

    /// An expression that matches somewhere in a text.
    fn anywhere(regex: &str) -> Self {
        Self::new(regex, Anchored::No)
    }

    fn new(regex: &str, anchored: Anchored) -> Self {
        if folded_characters(regex, false) > MAX_REGEX_FOLDS {
            return Self(None);
        }
        let limited = NFA::config().nfa_size_limit(Some(MAX_VALIDATED_REGEX_BYTES));
        // The automaton gives up, instead of building a state for each byte at a cost of its size.
        let bounded = DFA::config()
            .skip_cache_capacity_check(true)
            .minimum_cache_clear_count(Some(2))
            .minimum_bytes_per_state(Some(10));
        let engines = NFA::compiler().configure(limited).build(regex).ok().and_then(|nfa| {
            let automaton = DFA::builder().configure(bounded).build_from_nfa(nfa.clone()).ok();
            Some(Box::new(Engines { automaton, state_by_state: PikeVM::new_from_nfa(nfa).ok()?, anchored }))
        });
        Self(engines)
    }

    pub fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |engines| engines.state_by_state.get_nfa().memory_usage())
    }

    /// True also if the budget does not suffice to know.
    pub fn matches(&self, text: &str) -> bool {
        let Some(Engines { automaton, state_by_state, anchored }) = self.0.as_deref() else { return true };
        let input = Input::new(text).anchored(*anchored).earliest(true);
        let found = automaton.as_ref().and_then(|dfa| dfa.try_search_fwd(&mut dfa.create_cache(), &input).ok());
        match found {
            Some(end) => end.is_some(),
            None => {
                !pay(self.bytes().saturating_mul(text.len()))
                    || state_by_state.is_match(&mut state_by_state.create_cache(), input)
            }
        }
    }
}

/// A pattern of a schema, in the syntax of ECMA-262.
pub struct SchemaPattern {
    text: String,
    engine: Engine,
}

enum Engine {
    Plain(PlainPattern),
    /// With lookaround or back references, which only the validator's own engine has.
    Library {
        bytes: usize,
        validator: Box<Validator>,
    },
}

impl SchemaPattern {
    /// # Errors
    /// Why it cannot be compiled.
    pub fn new(text: &str) -> Result<Self, String> {
        let plain = jsonschema_regex::to_rust_regex(text).ok().map(|regex| PlainPattern::anywhere(&regex));
        let engine = match plain {
            Some(plain) if plain.0.is_some() => Engine::Plain(plain),
            _ => Engine::Library {
                bytes: usize::try_from(compiled_bytes(text)).unwrap_or(usize::MAX),
                validator: jsonschema::options()
                    .with_draft(Draft::Draft202012)
                    .with_pattern_options(PatternOptions::fancy_regex().backtrack_limit(MAX_BACKTRACKS))
                    .build(&json!({ "pattern": text }))
                    .map(Box::new)
                    .map_err(|error| error.to_string())?,
            },
        };
        Ok(Self { text: text.to_owned(), engine })
    }

    /// The factory of the keyword `pattern`.
    pub fn keyword(pattern: &Value) -> Result<Box<dyn for<'i> Keyword<'i>>, ValidationError<'_>> {
        let compiled = match pattern.as_str() {
            Some(text) => Self::new(text),
            None => Err(format!("{pattern} is not of type \"string\"")),
        };
        compiled.map(|pattern| -> Box<dyn for<'i> Keyword<'i>> { Box::new(pattern) }).map_err(ValidationError::custom)
    }

    /// Whether it matches somewhere in the text. True also if the budget does not suffice to know.
    pub fn matches(&self, text: &str) -> bool {
        match &self.engine {
            Engine::Plain(pattern) => pattern.matches(text),
            Engine::Library { bytes, validator } => {
                // One pass over the text, and the most that it backtracks.
                let work = bytes.saturating_mul(text.len()).saturating_add(MAX_BACKTRACKS * WORK_PER_BACKTRACK);
                if !pay(work) {
                    return true;
                }
                let text = text.into();
                let limited = |error: &ValidationError<'_>| {
                    matches!(error.kind(), ValidationErrorKind::BacktrackLimitExceeded { .. })
                };
                match validator.validate(&text) {
                    Ok(()) => true,
                    // More than this budget: the result is unknown.
                    Err(error) if limited(&error) => !pay(usize::MAX),
                    Err(_) => false,
                }
            }
        }
    }
}

impl<'i> Keyword<'i> for SchemaPattern {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        match self.is_valid(instance) {
            true => Ok(()),
            false => Err(ValidationError::custom(format!("{instance} does not match \"{}\"", self.text))),
        }
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        instance.as_str().is_none_or(|text| self.matches(text))
    }
}
