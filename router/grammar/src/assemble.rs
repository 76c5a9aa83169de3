//! Makes a matcher of a grammar's text. It does not know rules or caches.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

use llguidance::api::{GrammarInit, GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::earley::Grammar;
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::panic_utils::catch_unwind;

use crate::budget::Budget;
use crate::foreign::check_foreign;
use crate::lark::{self, Common, is_costly_grammar};
use crate::limits::{MAX_GRAMMAR_SYMBOLS, MAX_LEXER_FUEL, MAX_STEP_FUEL, MIN_LEXER_FUEL, STEP_FUEL_PER_TOOL};
use crate::matcher::Matcher;
use crate::output::Written;
use crate::rules::RuleError;
use crate::schema;
use crate::vocab::Vocab;

/// The matcher of a written grammar, within the budget.
pub fn parser(vocab: &Arc<Vocab>, written: &Written, budget: &mut Budget) -> Result<Matcher, NoMatcher> {
    let fuel = budget.left().clamp(MIN_LEXER_FUEL, MAX_LEXER_FUEL);
    let factory = vocab.factory();
    let step_lexer_fuel = MAX_STEP_FUEL + STEP_FUEL_PER_TOOL * written.callable as u64;
    let limits = ParserLimits { initial_lexer_fuel: fuel, step_lexer_fuel, ..factory.limits().clone() };
    let read = if written.foreign.is_empty() { read(&written.lark) } else { None };
    let (grammar, lexer) = match read {
        Some(read) => read,
        None => {
            written.foreign.iter().try_for_each(|(_, lark)| check_foreign(lark)).map_err(NoMatcher::Grammar)?;
            let init = GrammarInit::Serialized(by_text(written));
            let env = factory.tok_env().clone();
            catch_unwind(AssertUnwindSafe(|| init.to_internal(Some(env), limits.clone())))?
        }
    };
    let (cost, symbols) = (lexer.cost(), grammar.num_symbols());
    let most = limits.initial_lexer_fuel;
    if cost > most || symbols > MAX_GRAMMAR_SYMBOLS {
        return Err(NoMatcher::Size(format!(
            "its grammar has {symbols} symbols and a lexer of {cost} steps; the limits are {MAX_GRAMMAR_SYMBOLS} and {most}"
        )));
    }
    budget.spend_fuel(cost + symbols as u64)?;
    let text = || written.foreign.iter().map(|(_, lark)| lark.as_str()).collect::<Vec<_>>().join("\n");
    if !written.foreign.is_empty() && is_costly_grammar(lexer.regex_builder.clone().into_exprset(), &text()) {
        return Err(NoMatcher::Grammar(TOO_AMBIGUOUS.into()));
    }
    let mut parser = vocab.parser(GrammarInit::Internal(grammar, lexer), limits)?;
    if !written.foreign.is_empty() {
        parser.enable_cancellation();
    }
    budget.spend_fuel(parser.parser.lexer_stats().total_fuel_spent as u64)?;
    // A client's own grammar may name any token.
    Ok(Matcher::new(parser, vocab.clone(), written.foreign.is_empty()))
}

/// Why there is no parser.
pub enum NoMatcher {
    Rule(RuleError),
    /// llguidance's message, or a fault found in the grammar.
    Grammar(String),
    /// The grammar is too large.
    Size(String),
}

impl From<RuleError> for NoMatcher {
    fn from(error: RuleError) -> Self {
        Self::Rule(error)
    }
}

impl From<anyhow::Error> for NoMatcher {
    fn from(error: anyhow::Error) -> Self {
        Self::Grammar(error.to_string().lines().next().unwrap_or_default().to_owned())
    }
}

const TOO_AMBIGUOUS: &str =
    "its conjunctions (&) cannot be compiled at a bounded cost: their parts can be read in too many ways";

/// For llguidance's own parser.
fn by_text(written: &Written) -> TopLevelGrammar {
    let main = GrammarWithLexer::from_lark(written.lark.clone());
    let foreign = written.foreign.iter().map(|(name, lark)| GrammarWithLexer {
        name: Some(name.clone()),
        lark_grammar: Some(lark.clone()),
        ..GrammarWithLexer::default()
    });
    TopLevelGrammar { grammars: std::iter::once(main).chain(foreign).collect(), max_tokens: None }
}

/// [`lark::read`], with the expressions that most grammars have.
pub fn read(text: &str) -> Option<(Grammar, LexerSpec)> {
    static COMMON: OnceLock<Option<Common>> = OnceLock::new();
    lark::read(text, COMMON.get_or_init(|| Common::new(&common_regexes())).as_ref()?)
}

pub fn common_regexes() -> Vec<String> {
    [lark::common::regexes(), schema::common_regexes()].concat()
}
