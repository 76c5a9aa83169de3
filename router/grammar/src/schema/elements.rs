//! Grammars of values as nested elements with a mark before each tag. A value's rule has the mark that ends it, but not
//! the tag after that.

use super::params::Text;
use super::{Closer, Compiler, Dialect, Forbidden, Schema};
use crate::lark::{escape, literal};
use crate::rules::RuleError;

/// The name of the elements of a list.
pub(crate) const ELEMENT_OF_LIST: &str = "item";

/// A name that no schema declares. Its end tag may have another name: a grammar cannot compare them.
const ANY_NAME: &str = r"[^<>\/\x00-\x20\x7f][^<>\x00-\x20\x7f]{0,63}";

impl Compiler<'_, '_, '_> {
    /// The mark before the tags, in this dialect.
    pub(super) fn element_mark(&self) -> Option<&'static str> {
        if let Dialect::Elements(mark) = self.dialect { Some(mark) } else { None }
    }

    /// Whether values are elements.
    pub(super) fn nests(&self) -> bool {
        matches!(self.dialect, Dialect::Elements(_) | Dialect::Tagged(_))
    }

    /// Whether a member of this name can be written.
    pub(super) fn writes(&self, name: &str) -> bool {
        let plain = !name.is_empty() && !name.starts_with('/') && !name.contains(['<', '>', '\n']);
        self.element_mark().is_none_or(|mark| plain && !name.contains(mark))
    }

    /// A list's item.
    pub(super) fn item(&mut self, value: &str) -> String {
        match self.dialect {
            Dialect::Elements(mark) => element(ELEMENT_OF_LIST, value, mark),
            Dialect::Tagged(tags) => self.tagged(None, tags, value),
            _ => value.to_owned(),
        }
    }

    /// A declared member.
    pub(super) fn member(&mut self, name: &str, value: &str) -> String {
        match self.dialect {
            Dialect::Elements(mark) => element(name, value, mark),
            Dialect::Tagged(tags) => self.tagged(Some(name), tags, value),
            _ => {
                let (key, colon) = (self.key(name), self.colon());
                format!("{key} {colon} {value}")
            }
        }
    }

    /// A member whose key is this expression.
    pub(super) fn other_member(&mut self, key: &str, value: &str) -> String {
        match self.element_mark() {
            Some(mark) => {
                let end = self.w().regex(&format!(r"<\/{ANY_NAME}>{}", escape(mark)));
                format!("{key} {value} {end}")
            }
            None => format!("{key} {} {value}", self.colon()),
        }
    }

    /// The tag of any member but these.
    pub(super) fn other_tag(&mut self, taken: &[String]) -> String {
        let taken: Vec<_> = taken.iter().map(|name| literal(&format!("<{name}>"))).collect();
        let but = if taken.is_empty() { String::new() } else { format!(" & ~({})", taken.join(" | ")) };
        self.w().terminal(&format!("/<{ANY_NAME}>/{but}"))
    }

    /// What begins an object or a list: the mark of its first tag, or of the end.
    pub(super) fn first_mark(&mut self, mark: &str) -> String {
        self.w().regex(&format!(r"\n?{}", escape(mark)))
    }

    /// One expression per way to satisfy the schema. All texts are one lexeme, because one ends where the mark is.
    pub(super) fn elements(&mut self, map: &Schema, mark: &'static str, path: &str) -> Result<Vec<String>, RuleError> {
        let closer = ends_at(mark);
        let flats = self.ways(map, path)?;
        let (mut texts, others) = self.kinds(&flats, &closer, path)?;
        let (scalars, mut all): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|(kind, _)| !matches!(*kind, "object" | "array"));
        if !scalars.is_empty() {
            // Multiples are rules, and cannot be part of a lexeme.
            let (lexemes, rules): (Vec<_>, Vec<_>) =
                scalars.into_iter().partition(|(_, rule)| rule.starts_with(['T', '"']));
            let end = literal(mark);
            all.extend(rules.into_iter().map(|(kind, rule)| (kind, format!("{rule} {end}"))));
            if !lexemes.is_empty() {
                texts.push(Text::Scalars(lexemes.into_iter().map(|(_, rule)| rule).collect()));
            }
        }
        let mut rules = self.told_by_end(texts, &closer);
        rules.extend(all.into_iter().map(|(_, rule)| rule));
        rules.dedup();
        Ok(rules)
    }

    /// Texts that end where the same letters are, so that they are one lexeme.
    pub(super) fn told_by_end(&mut self, texts: Vec<Text>, closer: &Closer) -> Vec<String> {
        if texts.iter().any(|text| matches!(text, Text::Free)) {
            return vec![self.raw(&Text::Free, closer)];
        }
        let (grammars, texts): (Vec<_>, Vec<_>) = texts.into_iter().partition(|text| matches!(text, Text::Grammar(_)));
        let mut rules: Vec<String> = grammars.iter().map(|text| self.raw(text, closer)).collect();
        if !texts.is_empty() {
            rules.push(self.raw(&Text::AnyOf(texts), closer));
        }
        rules
    }

    /// Rules for any value and for a member of any object; the parameter is the depth. See `free`.
    pub(super) fn free_elements(&mut self, mark: &'static str, most: usize) -> (String, String) {
        let text = self.raw(&Text::Free, &ends_at(mark));
        let (first, tag) = (self.first_mark(mark), self.other_tag(&[]));
        let key = format!("any elements {mark}");
        if let Some((value, pair, _)) = self.w().shared(&key) {
            return (value, pair);
        }
        let (value, inner, pair) = (self.w().reserve(), self.w().reserve(), self.w().reserve());
        let nested = format!("{inner}::incr(_) %if lt(_, {most})");
        let member = self.other_member(&tag, &format!("{value}::_"));
        let w = self.w();
        w.define_parametric(&value, &[text, nested]);
        w.define_parametric(&inner, &[format!("{first} {pair}::_*")]);
        w.define_parametric(&pair, &[member]);
        w.share(&key, (value.clone(), pair.clone(), inner));
        (value, pair)
    }
}

fn element(name: &str, value: &str, mark: &str) -> String {
    format!("{} {value} {}", literal(&format!("<{name}>")), literal(&format!("</{name}>{mark}")))
}

fn ends_at(mark: &'static str) -> Closer {
    let end = literal(mark);
    Closer {
        lead: String::new(),
        marker: Some(mark),
        forbidden: Some(Forbidden { marker: mark, follows: None, ends: escape(mark) }),
        rest: String::new(),
        whole: end,
        empty: None,
        at_once: false,
    }
}
