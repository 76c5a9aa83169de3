//! Checks whether a new parser can generate anything, before a request relies on it.

use llguidance::TokenParser;
use llguidance::earley::lexerspec::LexemeClass;
use llguidance::earley::{CGrammar, CSymIdx};

/// Why nothing can ever be generated under the grammar. None: something can.
///
/// `client_rules`: clients wrote rules, which may need themselves; so check even if every expression matches something.
/// `client_expressions`: clients wrote expressions.
pub(crate) fn emptiness(parser: &mut TokenParser, client_rules: bool, client_expressions: bool) -> Option<String> {
    if client_expressions && ends_at_once(parser) {
        return Some("one of its regular expressions matches only the empty string, alone or at its end".into());
    }
    let matching = parser.parser.with_recognizer(|lexer| {
        // The lexer omits expressions that match nothing.
        let all = lexer.lexer().lexer_spec().all_lexemes();
        let state = lexer.lexer_mut().start_state(&all);
        let matching = lexer.lexer().possible_lexemes(state).clone();
        // Our own grammars skip nothing.
        let skip = lexer.lexer().lexer_spec().skip_id(LexemeClass::ROOT);
        (all.iter().all(|lexeme| lexeme == skip || matching.contains(lexeme)), matching)
    });
    let (all, matching) = matching;
    if all && !client_rules {
        return None;
    }
    let grammar = parser.parser.grammar();
    let dead = !productive(grammar, |symbol| {
        let data = grammar.sym_data(symbol);
        data.lexeme.is_some_and(|lexeme| matching.contains(lexeme))
    });
    dead.then(|| {
        "nothing can be generated under it: every way through it ends at a rule or an expression that matches nothing"
            .into()
    })
}

/// Whether an expression ends before its first byte. The lexer has no state for what follows it.
fn ends_at_once(parser: &mut TokenParser) -> bool {
    parser.parser.with_recognizer(|lexer| {
        let all = lexer.lexer().lexer_spec().all_lexemes();
        all.iter().any(|lexeme| {
            let mut alone = lexer.lexer().lexer_spec().alloc_lexeme_set();
            alone.add(lexeme);
            lexer.lexer_mut().start_state(&alone).has_lowest_match()
        })
    })
}

/// Whether the start symbol derives anything. Conditions of parametric rules count as fulfilled.
fn productive(grammar: &CGrammar, terminal: impl Fn(CSymIdx) -> bool) -> bool {
    // Symbols by index: whether they derive anything, and the rules that wait for them.
    let mut known: Vec<Option<bool>> = Vec::new();
    let mut waiting: Vec<Vec<usize>> = Vec::new();
    // Rules: their symbol, and how many of their symbols are not known to derive anything.
    let mut rules: Vec<(usize, usize)> = Vec::new();
    let mut unseen = vec![grammar.start()];
    let mut ready: Vec<usize> = Vec::new();
    while let Some(symbol) = unseen.pop() {
        let at = symbol.as_index();
        if known.len() <= at {
            known.resize(at + 1, None);
            waiting.resize(at + 1, Vec::new());
        }
        if known[at].is_some() {
            continue;
        }
        let data = grammar.sym_data(symbol);
        let at_once = data.is_nullable || !data.cond_nullable.is_empty() || terminal(symbol);
        known[at] = Some(at_once);
        if at_once {
            ready.push(at);
        }
        for rule in grammar.rules_of(symbol) {
            let (parts, ..) = grammar.rule_rhs(*rule);
            for part in parts {
                let at = part.as_index();
                if waiting.len() <= at {
                    known.resize(at + 1, None);
                    waiting.resize(at + 1, Vec::new());
                }
                waiting[at].push(rules.len());
                unseen.push(*part);
            }
            rules.push((at, parts.len()));
        }
    }
    while let Some(symbol) = ready.pop() {
        for rule in std::mem::take(&mut waiting[symbol]) {
            let (of, missing) = &mut rules[rule];
            *missing -= 1;
            if *missing == 0 && known[*of] != Some(true) {
                known[*of] = Some(true);
                ready.push(*of);
            }
        }
    }
    known[grammar.start().as_index()] == Some(true)
}
