//! Strings whose text a Lark grammar describes (`x-rein-lark`, our own keyword).

use regex_syntax::hir::{Class, Hir, HirKind};

use super::spelled::{Quotes, escapes, spelled, spelling_price, unescaped};
use super::{Compiler, Dialect, Schema};
use crate::lark::{Spelling, check_lark, literal, respell};
use crate::limits::MAX_CLIENT_GRAMMAR_BYTES;
use crate::rules::RuleError;

/// The keyword of a schema with the Lark grammar of a string's text.
pub const LARK_KEYWORD: &str = "x-rein-lark";

impl Compiler<'_, '_, '_> {
    /// The rule of a quoted string whose text has a grammar. None: the schema names none.
    pub(super) fn quoted_grammar(&mut self, flat: &Schema, path: &str) -> Result<Option<String>, RuleError> {
        let Some(lark) = self.grammar_of(flat, path)? else { return Ok(None) };
        if let Dialect::Bare(mark) = self.dialect {
            let text = self.raw_grammar(flat, path, mark)?;
            let quote = literal(mark);
            return Ok(text.map(|text| self.w().rule(&format!("{quote} {text} {quote}"))));
        }
        let quotes = match self.dialect {
            Dialect::Json => &[Quotes::Json][..],
            Dialect::Python => &[Quotes::Double, Quotes::Single],
            Dialect::Bare(_) | Dialect::Elements(_) | Dialect::Tagged(_) => &[],
        };
        let mut ways = Vec::new();
        for quotes in quotes {
            let quote = literal(quotes.mark());
            let text = self.foreign(&lark, path, Spelling::Rules, &mut |texts| rule_of(texts, *quotes))?;
            ways.push(format!("({quote} {text} {quote})"));
        }
        let body = ways.join(" | ");
        Ok(Some(self.w().rule(&body)))
    }

    /// The same for a text without quotes that `end` follows, if the lexer always finds that end: if `end` has no
    /// letters, or no terminal goes on after the first of them.
    pub(super) fn raw_grammar(&mut self, flat: &Schema, path: &str, end: &str) -> Result<Option<String>, RuleError> {
        let Some(lark) = self.grammar_of(flat, path)? else { return Ok(None) };
        let mut ends = true;
        let mut spell = |texts: &Hir| {
            ends &= end.chars().next().is_none_or(|first| !goes_on_after(texts, first));
            spelled(texts, Quotes::Raw)
        };
        let text = self.foreign(&lark, path, Spelling::Terminals, &mut spell)?;
        if !ends {
            self.relax(path, LARK_KEYWORD);
        }
        Ok(ends.then_some(text))
    }

    fn grammar_of(&mut self, flat: &Schema, path: &str) -> Result<Option<String>, RuleError> {
        let Some(value) = flat.get(LARK_KEYWORD) else { return Ok(None) };
        let field = || format!("{}{path}/{LARK_KEYWORD}", self.field);
        let Some(lark) = value.as_str() else {
            return Err(RuleError::invalid(field(), "must be a Lark grammar as a string"));
        };
        if lark.len() > MAX_CLIENT_GRAMMAR_BYTES {
            let (found, limit) = (lark.len(), MAX_CLIENT_GRAMMAR_BYTES);
            return Err(RuleError::TooLarge { field: field(), what: "its size in bytes", found, limit });
        }
        self.work.budget.spend(lark.len() as u64)?;
        Ok(Some(lark.to_owned()))
    }

    /// Adds a grammar that a client sent; returns the reference to it.
    fn foreign(
        &mut self,
        lark: &str,
        path: &str,
        spelling: Spelling,
        spell: &mut dyn FnMut(&Hir) -> String,
    ) -> Result<String, RuleError> {
        let field = format!("{}{path}/{LARK_KEYWORD}", self.field);
        let (mut steps, most) = (0, self.work.budget.left());
        let respelled = respell(lark, spelling, &mut |texts| {
            let next = steps + spelling_price(texts);
            // What cannot be afforded uses up the budget, which ends a first attempt.
            steps = next.min(most);
            (next <= most).then(|| spell(texts))
        });
        self.work.budget.spend(steps)?;
        let invalid = |problem| RuleError::invalid(field, problem);
        let text = match respelled {
            Ok(text) => text,
            Err(problem) => return Err(invalid(problem)),
        };
        if let Some((name, _)) = self.work.writer.foreign.iter().find(|(_, known)| *known == text) {
            return Ok(format!("@{name}"));
        }
        let cost = check_lark(&text).map_err(invalid)?;
        self.work.budget.spend(cost + text.len() as u64)?;
        let all = &mut self.work.writer.foreign;
        let name = format!("string{}", all.len());
        all.push((name.clone(), text));
        Ok(format!("@{name}"))
    }
}

/// An expression of rules for the spellings of a part of a string.
///
/// The lexer never goes back. A lexeme that could end before a backslash, or go on after it, would be lost when the
/// escape turns out to mean a character that it cannot have. So each lexeme has a fixed number of characters, or is a
/// run of characters without escapes.
fn rule_of(texts: &Hir, quotes: Quotes) -> String {
    if is_fixed(texts) {
        return format!("/{}/", unquoted(texts, quotes));
    }
    match texts.kind() {
        HirKind::Capture(group) => rule_of(&group.sub, quotes),
        HirKind::Alternation(all) => {
            let all: Vec<_> = all.iter().map(|one| rule_of(one, quotes)).collect();
            format!("({})", all.join(" | "))
        }
        HirKind::Concat(parts) => {
            let runs = parts.chunk_by(|a, b| is_fixed(a) && is_fixed(b));
            let runs = runs.map(|run| match run {
                [one] => rule_of(one, quotes),
                fixed => format!("/{}/", unquoted(&Hir::concat(fixed.to_vec()), quotes)),
            });
            format!("({})", runs.collect::<Vec<_>>().join(" "))
        }
        HirKind::Repetition(repetition) => {
            let (min, max) = (repetition.min, repetition.max);
            let times = match (min, max) {
                (0, None) => "*".to_owned(),
                (1, None) => "+".to_owned(),
                (0, Some(1)) => "?".to_owned(),
                (min, None) => format!("{{{min},}}"),
                (min, Some(max)) => format!("{{{min},{max}}}"),
            };
            match repetition.sub.kind() {
                HirKind::Class(Class::Unicode(class)) if min <= 1 && max.is_none() => {
                    let run = unescaped(class, quotes).map(|class| format!("/{class}+/"));
                    let escape = escapes(class, quotes).map(|escapes| format!("/{escapes}/"));
                    let all: Vec<_> = run.into_iter().chain(escape).collect();
                    format!("({}){times}", all.join(" | "))
                }
                _ => format!("({}){times}", rule_of(&repetition.sub, quotes)),
            }
        }
        HirKind::Empty | HirKind::Look(_) | HirKind::Literal(_) | HirKind::Class(_) => "\"\"".into(),
    }
}

/// Whether no text is the beginning of another one, because all have the same number of characters. False where that
/// is not obvious.
fn is_fixed(texts: &Hir) -> bool {
    match texts.kind() {
        HirKind::Literal(_) | HirKind::Class(_) => true,
        HirKind::Capture(group) => is_fixed(&group.sub),
        HirKind::Concat(parts) => parts.iter().all(is_fixed),
        HirKind::Repetition(repetition) => {
            repetition.min > 0 && repetition.max == Some(repetition.min) && is_fixed(&repetition.sub)
        }
        HirKind::Empty | HirKind::Look(_) | HirKind::Alternation(_) => false,
    }
}

/// The spellings of a part of a string, without quotes.
fn unquoted(texts: &Hir, quotes: Quotes) -> String {
    let (whole, mark) = (spelled(texts, quotes), quotes.mark());
    let inner = whole.strip_prefix(mark).and_then(|rest| rest.strip_suffix(mark));
    inner.unwrap_or(&whole).to_owned()
}

/// Whether one of these texts may have this character after its beginning. May be true where none has.
fn goes_on_after(texts: &Hir, c: char) -> bool {
    match texts.kind() {
        HirKind::Empty | HirKind::Look(_) => false,
        HirKind::Literal(literal) => String::from_utf8_lossy(&literal.0).chars().skip(1).any(|one| one == c),
        HirKind::Class(_) => false,
        HirKind::Repetition(repetition) => {
            let once = repetition.max == Some(1);
            goes_on_after(&repetition.sub, c) || !once && has(&repetition.sub, c)
        }
        HirKind::Capture(group) => goes_on_after(&group.sub, c),
        HirKind::Alternation(all) => all.iter().any(|one| goes_on_after(one, c)),
        HirKind::Concat(parts) => {
            parts.first().is_some_and(|part| goes_on_after(part, c)) || parts.iter().skip(1).any(|part| has(part, c))
        }
    }
}

fn has(texts: &Hir, c: char) -> bool {
    match texts.kind() {
        HirKind::Empty | HirKind::Look(_) => false,
        HirKind::Literal(literal) => String::from_utf8_lossy(&literal.0).contains(c),
        HirKind::Class(Class::Unicode(class)) => {
            class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&c))
        }
        HirKind::Class(Class::Bytes(class)) => {
            class.ranges().iter().any(|range| (range.start()..=range.end()).any(|byte| char::from(byte) == c))
        }
        HirKind::Repetition(repetition) => has(&repetition.sub, c),
        HirKind::Capture(group) => has(&group.sub, c),
        HirKind::Alternation(all) | HirKind::Concat(all) => all.iter().any(|one| has(one, c)),
    }
}
