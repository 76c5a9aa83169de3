//! Parses the Lark text of [`Writer`](super::Writer) directly into llguidance's grammar. llguidance's own parser
//! supports all of Lark, builds a lexer for each grammar and takes more than half of a compilation. It handles what
//! this parser does not know (`%json`, grammars of clients).

use std::collections::HashMap;

use llguidance::derivre::{ExprRef, RegexAst, RegexBuilder};
use llguidance::earley::lexerspec::{LexemeClass, LexemeIdx, LexerSpec};
use llguidance::earley::{BitIdx, Grammar, ParamCond, ParamExpr, ParamRef, ParamValue, SymIdx, SymbolProps};

use super::common::Common;

/// The grammar. None if the text has constructs that are unknown here, or that llguidance rejects.
pub(crate) fn read(lark: &str, common: &Common) -> Option<(Grammar, LexerSpec)> {
    let rules = lark.strip_prefix(super::HEADER)?;
    let mut reader = Reader::new(rules.lines().map(definition).collect::<Option<_>>()?, common);
    reader.all()?;
    Some((reader.grammar, reader.spec))
}

/// The body of a terminal that refers to no other.
pub(super) struct Conjunction {
    pub builder: RegexBuilder,
    /// Each with its largest repetition count.
    pub conjuncts: Vec<(ExprRef, u64)>,
    pub whole: ExprRef,
}

pub(super) fn conjunction(body: &str) -> Option<Conjunction> {
    let common = Common::new(&[])?;
    let mut reader = Reader::new(HashMap::new(), &common);
    let mut text = Text(body);
    let mut conjuncts = Vec::new();
    loop {
        let before = text.0;
        let one = reader.row(&mut text)?;
        conjuncts.push((one, largest_count(&before[..before.len() - text.0.len()])));
        if !text.takes("&") {
            break;
        }
    }
    let all = conjuncts.iter().map(|(one, _)| *one).collect();
    let whole = text.peek().is_none().then(|| reader.combine(all, RegexAst::And))??;
    Some(Conjunction { builder: reader.spec.regex_builder, conjuncts, whole })
}

/// The largest number in braces.
pub(super) fn largest_count(text: &str) -> u64 {
    let within = text.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(inner, _)| inner);
    let numbers = within.flat_map(|inner| inner.split(',')).filter_map(|number| number.trim().parse().ok());
    numbers.max().unwrap_or(1).max(1)
}

#[derive(Clone, Copy)]
struct Definition<'a> {
    parametric: bool,
    lazy: bool,
    body: &'a str,
}

fn definition(line: &str) -> Option<(&str, Definition<'_>)> {
    let (name, rest) = line.split_at(line.find(|c: char| !c.is_ascii_alphanumeric())?);
    let (parametric, rest) = rest.strip_prefix("::_").map_or((false, rest), |rest| (true, rest));
    let (lazy, rest) = rest.strip_prefix("[lazy]").map_or((false, rest), |rest| (true, rest));
    let body = rest.strip_prefix(':').filter(|_| !name.is_empty())?;
    Some((name, Definition { parametric, lazy, body }))
}

/// A symbol with its parameter.
type Element = (SymIdx, ParamExpr);

struct Reader<'a> {
    common: &'a Common,
    definitions: HashMap<&'a str, Definition<'a>>,
    grammar: Grammar,
    spec: LexerSpec,
    class: LexemeClass,
    rules: HashMap<&'a str, SymIdx>,
    terminals: HashMap<&'a str, ExprRef>,
    /// Symbols of lexemes.
    symbols: HashMap<LexemeIdx, SymIdx>,
    unread: Vec<(SymIdx, &'a str)>,
}

impl<'a> Reader<'a> {
    fn new(definitions: HashMap<&'a str, Definition<'a>>, common: &'a Common) -> Self {
        Reader {
            common,
            definitions,
            grammar: Grammar::new(None),
            spec: common.spec.clone(),
            class: common.class,
            rules: HashMap::new(),
            terminals: HashMap::new(),
            symbols: HashMap::new(),
            unread: Vec::new(),
        }
    }

    fn all(&mut self) -> Option<()> {
        // The output starts with the first symbol.
        let start = self.rule("start")?;
        self.grammar.sym_props_mut(start).is_start = true;
        while let Some((symbol, body)) = self.unread.pop() {
            let mut text = Text(body);
            for (condition, elements) in self.alternatives(&mut text)? {
                self.grammar.add_rule_ext(symbol, condition, elements).ok()?;
            }
            text.peek().is_none().then_some(())?;
        }
        Some(())
    }

    fn symbol(&mut self, name: &str, parametric: bool) -> SymIdx {
        let props = SymbolProps { grammar_id: self.class, parametric, ..SymbolProps::default() };
        self.grammar.fresh_symbol_ext(name, props)
    }

    fn rule(&mut self, name: &'a str) -> Option<SymIdx> {
        if let Some(known) = self.rules.get(name) {
            return Some(*known);
        }
        let Definition { parametric, lazy, body } = *self.definitions.get(name)?;
        let symbol = if lazy {
            let regex = self.terminal(body)?;
            // A lazy lexeme ends at the first match of its stop expression, which is empty here.
            let end = self.spec.regex_builder.mk_regex("").ok()?;
            let (body, end) = (RegexAst::ExprRef(regex), RegexAst::ExprRef(end));
            let lexeme = self.spec.add_rx_and_stop(name.to_owned(), body, end, true, usize::MAX, true).ok()?;
            self.lexeme(lexeme)?
        } else {
            let symbol = self.symbol(name, parametric);
            self.unread.push((symbol, body));
            symbol
        };
        self.rules.insert(name, symbol);
        Some(symbol)
    }

    fn lexeme(&mut self, lexeme: LexemeIdx) -> Option<SymIdx> {
        if let Some(known) = self.symbols.get(&lexeme) {
            return Some(*known);
        }
        let symbol = self.symbol("", false);
        self.grammar.make_terminal(symbol, lexeme, &self.spec).ok()?;
        self.symbols.insert(lexeme, symbol);
        Some(symbol)
    }

    /// A lexeme that continues as long as it matches.
    fn greedy(&mut self, regex: ExprRef) -> Option<SymIdx> {
        let regex = RegexAst::ExprRef(regex);
        let lexeme = self.spec.add_greedy_lexeme(String::new(), regex, false, None, usize::MAX).ok()?;
        self.lexeme(lexeme)
    }

    // ---- rules ----

    fn alternatives(&mut self, text: &mut Text<'a>) -> Option<Vec<(ParamCond, Vec<Element>)>> {
        let mut all = Vec::new();
        loop {
            let elements = self.sequence(text)?;
            let condition = if text.takes("%if") { condition(text)? } else { ParamCond::True };
            all.push((condition, elements));
            if !text.takes("|") {
                return Some(all);
            }
        }
    }

    fn sequence(&mut self, text: &mut Text<'a>) -> Option<Vec<Element>> {
        let mut elements = Vec::new();
        while let Some(next) = text.peek() {
            let element = match next {
                '%' if text.takes("%json") => return None,
                '|' | ')' | '%' => break,
                '"' => {
                    let literal = text.string()?;
                    if literal.is_empty() {
                        continue;
                    }
                    let regex = self.spec.regex_builder.mk(&RegexAst::Literal(literal)).ok()?;
                    (self.greedy(regex)?, ParamExpr::Null)
                }
                '/' => {
                    let regex = self.regex(text.regex()?)?;
                    (self.greedy(regex)?, ParamExpr::Null)
                }
                '<' => (self.tokens(text.between("<[", "]>")?)?, ParamExpr::Null),
                '(' => self.group(text)?,
                c if c.is_ascii_uppercase() => {
                    let regex = self.named_terminal(text.word())?;
                    (self.greedy(regex)?, ParamExpr::Null)
                }
                c if c.is_ascii_lowercase() => {
                    let symbol = self.rule(text.word())?;
                    (symbol, if text.takes("::") { expression(text)? } else { ParamExpr::Null })
                }
                _ => return None,
            };
            elements.push(self.repeated(element, text)?);
        }
        Some(elements)
    }

    fn group(&mut self, text: &mut Text<'a>) -> Option<Element> {
        text.takes("(").then_some(())?;
        let alternatives = self.alternatives(text)?;
        text.takes(")").then_some(())?;
        let parametric = alternatives.iter().any(|(_, elements)| elements.iter().any(|(_, p)| p.needs_param()));
        let symbol = self.symbol("", parametric);
        for (condition, elements) in alternatives {
            self.grammar.add_rule_ext(symbol, condition, elements).ok()?;
        }
        Some((symbol, if parametric { ParamExpr::SelfRef } else { ParamExpr::Null }))
    }

    /// With a following `?`, `*` or `+`.
    fn repeated(&mut self, element: Element, text: &mut Text<'a>) -> Option<Element> {
        let operator = text.peek().filter(|c| matches!(c, '?' | '*' | '+'));
        let Some(operator) = operator.filter(|_| !text.0.starts_with(' ')) else { return Some(element) };
        text.0 = &text.0[1..];
        let parametric = element.1.needs_param();
        let symbol = self.symbol("", parametric);
        let own = (symbol, if parametric { ParamExpr::SelfRef } else { ParamExpr::Null });
        let ways = match operator {
            '?' => [vec![], vec![element]],
            '*' => [vec![], vec![own.clone(), element]],
            _ => [vec![element.clone()], vec![own.clone(), element]],
        };
        for way in ways {
            self.grammar.add_rule_ext(symbol, ParamCond::True, way).ok()?;
        }
        Some(own)
    }

    fn tokens(&mut self, ranges: &str) -> Option<SymIdx> {
        let range = |range: &str| {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            Some(from.parse().ok()?..=to.parse().ok()?)
        };
        let all = ranges.split(',').map(range).collect::<Option<_>>()?;
        let lexeme = self.spec.add_special_token(format!("<[{ranges}]>"), all).ok()?;
        self.lexeme(lexeme)
    }

    // ---- terminals ----

    fn named_terminal(&mut self, name: &'a str) -> Option<ExprRef> {
        if let Some(known) = self.terminals.get(name) {
            return Some(*known);
        }
        let regex = self.terminal(self.definitions.get(name)?.body)?;
        self.terminals.insert(name, regex);
        Some(regex)
    }

    fn terminal(&mut self, body: &'a str) -> Option<ExprRef> {
        let mut text = Text(body);
        let regex = self.either(&mut text)?;
        text.peek().is_none().then_some(regex)
    }

    fn either(&mut self, text: &mut Text<'a>) -> Option<ExprRef> {
        let mut all = vec![self.both(text)?];
        while text.takes("|") {
            all.push(self.both(text)?);
        }
        self.combine(all, RegexAst::Or)
    }

    fn both(&mut self, text: &mut Text<'a>) -> Option<ExprRef> {
        let mut all = vec![self.row(text)?];
        while text.takes("&") {
            all.push(self.row(text)?);
        }
        self.combine(all, RegexAst::And)
    }

    fn row(&mut self, text: &mut Text<'a>) -> Option<ExprRef> {
        let mut all = Vec::new();
        while text.peek().is_some_and(|c| !matches!(c, '|' | '&' | ')')) {
            all.push(self.atom(text)?);
        }
        self.combine(all, RegexAst::Concat)
    }

    fn atom(&mut self, text: &mut Text<'a>) -> Option<ExprRef> {
        let atom = match text.peek()? {
            '~' => {
                text.takes("~");
                let inner = self.atom(text)?;
                self.spec.regex_builder.mk(&RegexAst::Not(Box::new(RegexAst::ExprRef(inner)))).ok()?
            }
            '"' => self.spec.regex_builder.mk(&RegexAst::Literal(text.string()?)).ok()?,
            '/' => self.regex(text.regex()?)?,
            '(' => {
                text.takes("(");
                let inner = self.either(text)?;
                text.takes(")").then_some(inner)?
            }
            c if c.is_ascii_uppercase() => self.named_terminal(text.word())?,
            _ => return None,
        };
        // The writer never repeats terminals.
        (!text.0.starts_with(['?', '*', '+', '{', '~'])).then_some(atom)
    }

    fn regex(&mut self, regex: &str) -> Option<ExprRef> {
        self.common.known(regex).or_else(|| self.spec.regex_builder.mk_regex(regex).ok())
    }

    fn combine(&mut self, all: Vec<ExprRef>, with: fn(Vec<RegexAst>) -> RegexAst) -> Option<ExprRef> {
        match all.as_slice() {
            [one] => Some(*one),
            _ => self.spec.regex_builder.mk(&with(all.into_iter().map(RegexAst::ExprRef).collect())).ok(),
        }
    }
}

/// The rest of a body.
struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    /// The next non-blank character.
    fn peek(&self) -> Option<char> {
        self.0.trim_start_matches(' ').chars().next()
    }

    fn takes(&mut self, sign: &str) -> bool {
        let rest = self.0.trim_start_matches(' ').strip_prefix(sign);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn run(&mut self, of: fn(char) -> bool) -> &'a str {
        let text = self.0.trim_start_matches(' ');
        let (run, rest) = text.split_at(text.find(|c| !of(c)).unwrap_or(text.len()));
        self.0 = rest;
        run
    }

    /// A rule, a terminal or a number.
    fn word(&mut self) -> &'a str {
        self.run(|c| c.is_ascii_alphanumeric())
    }

    /// The name of a function.
    fn name(&mut self) -> &'a str {
        self.run(|c| c.is_ascii_lowercase() || c == '_')
    }

    fn between(&mut self, open: &str, close: &str) -> Option<&'a str> {
        let (inner, rest) = self.0.trim_start_matches(' ').strip_prefix(open)?.split_once(close)?;
        self.0 = rest;
        Some(inner)
    }

    /// Up to the delimiter with which it begins, both included. A backslash escapes the next character.
    fn quoted(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start_matches(' ');
        let delimiter = *text.as_bytes().first()?;
        let mut at = 1;
        loop {
            match *text.as_bytes().get(at)? {
                b'\\' => at += 2,
                b if b == delimiter => break,
                _ => at += 1,
            }
        }
        let (quoted, rest) = text.split_at(at + 1);
        self.0 = rest;
        Some(quoted)
    }

    fn string(&mut self) -> Option<String> {
        let literal = serde_json::from_str(self.quoted()?).ok()?;
        // With a flag it would be another literal.
        (!self.0.starts_with(|c: char| c.is_ascii_alphanumeric())).then_some(literal)
    }

    fn regex(&mut self) -> Option<&'a str> {
        let quoted = self.quoted()?;
        (!self.0.starts_with(|c: char| c.is_ascii_alphanumeric())).then_some(&quoted[1..quoted.len() - 1])
    }

    fn number(&mut self) -> Option<u64> {
        let word = self.word();
        match word.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => word.parse().ok(),
        }
    }

    fn bit(&mut self) -> Option<BitIdx> {
        self.number().and_then(|bit| bit.try_into().ok()).filter(|bit| *bit <= BITS)
    }

    /// `_` or `[from:to]`.
    fn bits(&mut self) -> Option<ParamRef> {
        if self.takes("_") {
            return Some(ParamRef::full());
        }
        self.takes("[").then_some(())?;
        let from = self.bit()?;
        self.takes(":").then_some(())?;
        let to = self.bit().filter(|to| from < *to)?;
        self.takes("]").then(|| ParamRef::new(from, to))
    }
}

/// Bits of a parameter.
const BITS: BitIdx = 64;

/// How the parameter changes on the way to another rule.
fn expression(text: &mut Text<'_>) -> Option<ParamExpr> {
    if text.takes("_") {
        return Some(ParamExpr::SelfRef);
    }
    if text.0.starts_with(|c: char| c.is_ascii_digit()) {
        return text.number().map(|number| ParamExpr::Const(ParamValue(number)));
    }
    let name = text.name();
    text.takes("(").then_some(())?;
    let expression = match name {
        "incr" => ParamExpr::Incr(text.bits()?),
        "set_bit" => ParamExpr::BitOr(ParamValue(1 << text.bit().filter(|bit| *bit < BITS)?)),
        "bit_or" => ParamExpr::BitOr(ParamValue(text.number()?)),
        "bit_and" => ParamExpr::BitAnd(ParamValue(text.number()?)),
        _ => return None,
    };
    text.takes(")").then_some(expression)
}

fn condition(text: &mut Text<'_>) -> Option<ParamCond> {
    let name = text.name();
    text.takes("(").then_some(())?;
    let condition = match name {
        "and" => {
            let first = condition(text)?;
            text.takes(",").then_some(())?;
            ParamCond::And(Box::new(first), Box::new(condition(text)?))
        }
        "or" => {
            let first = condition(text)?;
            text.takes(",").then_some(())?;
            ParamCond::Or(Box::new(first), Box::new(condition(text)?))
        }
        "bit_clear" => ParamCond::EQ(ParamRef::single_bit(text.bit().filter(|bit| *bit < BITS)?), ParamValue(0)),
        "is_ones" => {
            let bits = text.bits()?;
            ParamCond::EQ(bits, ParamValue(bits.mask() >> bits.start()))
        }
        "bit_count_lt" => {
            let bits = text.bits()?;
            text.takes(",").then_some(())?;
            ParamCond::BitCountLT(bits, text.bit()?)
        }
        _ => {
            let bits = text.bits()?;
            text.takes(",").then_some(())?;
            let number = ParamValue(text.number()?);
            match name {
                "eq" => ParamCond::EQ(bits, number),
                "lt" => ParamCond::LT(bits, number),
                "ge" => ParamCond::GE(bits, number),
                _ => return None,
            }
        }
    };
    text.takes(")").then_some(condition)
}
