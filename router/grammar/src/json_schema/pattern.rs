//! Matches regular expressions in bounded time, with an engine that shares no code with the grammar's. It does not know
//! the schemas that they are from.

use std::cell::Cell;

use jsonschema::{Keyword, ValidationError, Validator};
use regex_automata::hybrid::dfa::DFA;
use regex_automata::nfa::thompson::{NFA, pikevm::PikeVM};
use regex_automata::{Anchored, Input};
use serde_json::{Value, json};

use super::regex_size::compiled_bytes;
use crate::limits::{MAX_JUDGED_REGEX_BYTES, MAX_JUDGED_REGEX_WORK};

thread_local! {
    /// What is left of [`MAX_JUDGED_REGEX_WORK`] in the validation that this thread runs. None: it was exceeded.
    static BUDGET: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Runs one validation. None: its patterns need more than [`MAX_JUDGED_REGEX_WORK`], so the result is unknown.
pub fn within_budget<T>(validate: impl FnOnce() -> T) -> Option<T> {
    BUDGET.set(Some(MAX_JUDGED_REGEX_WORK));
    let result = validate();
    BUDGET.get().map(|_| result)
}

/// Takes the work of matching a text state by state from the budget. False: it is exceeded.
fn pay(pattern_bytes: usize, text: &str) -> bool {
    let left = BUDGET.get().and_then(|left| left.checked_sub(pattern_bytes.saturating_mul(text.len())));
    BUDGET.set(left);
    left.is_some()
}

/// A regular expression without lookaround and back references. None: the engine cannot read it, or it takes more than
/// [`MAX_JUDGED_REGEX_BYTES`].
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
        let limited = NFA::config().nfa_size_limit(Some(MAX_JUDGED_REGEX_BYTES));
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
            None => !pay(self.bytes(), text) || state_by_state.is_match(&mut state_by_state.create_cache(), input),
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
                validator: jsonschema::draft202012::new(&json!({ "pattern": text }))
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
            Engine::Library { bytes, validator } => !pay(*bytes, text) || validator.is_valid(&text.into()),
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
