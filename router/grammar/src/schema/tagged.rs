//! Grammars of values as nested elements whose tags name the kind of their value. A value's rule begins after the
//! name in its tag.

use super::params::Text;
use super::{Closer, Compiler, Dialect, Forbidden, Schema};
use crate::format::Tags;
use crate::lark::{GrammarForm, escape, literal};
use crate::limits::MAX_FREE_DEPTH;
use crate::rules::RuleError;

/// A name that no schema declares.
const ANY_NAME: &str = r#"[^"<>&\x00-\x1f\x7f]{1,64}"#;

/// What an attribute writes in place of a character (the template's `xml_attr`, and `'`); `&` is the last to be read.
pub(crate) const ENTITIES: [(&str, &str); 5] =
    [("<", "&lt;"), (">", "&gt;"), ("\"", "&quot;"), ("'", "&apos;"), ("&", "&amp;")];

/// The attribute of a member's name.
pub(crate) fn attribute(name: &str) -> String {
    let written = ENTITIES.iter().rev().filter(|(sign, _)| *sign != "'");
    let written = written.fold(name.to_owned(), |name, (sign, entity)| name.replace(sign, entity));
    format!("name=\"{written}\"")
}

impl Compiler<'_, '_, '_> {
    pub(super) fn tags(&self) -> Option<Tags> {
        if let Dialect::Tagged(tags) = self.dialect { Some(tags) } else { None }
    }

    /// Blanks between elements, as an expression inside a regular one.
    fn between_tags(&self) -> String {
        if self.work.writer.form == GrammarForm::Tolerant { r"[ \t\r\n]*".to_owned() } else { String::new() }
    }

    /// An element: its tag up to its name, and the value's rule.
    pub(super) fn tagged(&mut self, name: Option<&str>, tags: Tags, value: &str) -> String {
        let name = name.map(|name| format!(" {}", attribute(name))).unwrap_or_default();
        let tag = format!("{}{}", self.between_tags(), escape(&format!("{}{name}", tags.open)));
        format!("{} {value}", self.w().regex(&tag))
    }

    /// The tag of any member but these, up to its name.
    pub(super) fn other_tagged(&mut self, taken: &[String], tags: Tags) -> String {
        let blanks = self.between_tags();
        let tag = format!("{blanks}{} ", escape(tags.open));
        let taken: Vec<_> = taken.iter().map(|name| escape(&attribute(name))).collect();
        let but = if taken.is_empty() { String::new() } else { format!(" & ~/{tag}({})/", taken.join("|")) };
        self.w().terminal(&format!("/{tag}name=\"{ANY_NAME}\"/{but}"))
    }

    /// The rest of the tag of a list or an object.
    pub(super) fn container(&mut self, kind: &str) -> String {
        literal(&format!(" type=\"{kind}\">"))
    }

    pub(super) fn end_tag(&mut self, tags: Tags) -> String {
        let end = format!("{}{}", self.between_tags(), escape(tags.close));
        self.w().regex(&end)
    }

    /// One expression per way to satisfy the schema.
    pub(super) fn tagged_ways(&mut self, map: &Schema, tags: Tags, path: &str) -> Result<Vec<String>, RuleError> {
        let closer = ends_with(tags);
        let flats = self.ways(map, path)?;
        let (texts, others) = self.kinds(&flats, &closer, path)?;
        let raw = self.container("raw");
        let mut all: Vec<String> =
            self.told_by_end(texts, &closer).into_iter().map(|text| format!("{raw} {text}")).collect();
        let json = self.container("json");
        all.extend(others.into_iter().map(|(kind, rule)| match kind {
            "object" | "array" => rule,
            _ => format!("{json} {rule} {}", closer.whole),
        }));
        all.dedup();
        Ok(all)
    }

    /// Any arguments: names are enforced, arguments are not.
    pub fn any_tagged(&mut self, tags: Tags) -> String {
        let pair = self.free_tagged(tags).1;
        self.w().rule(&format!("{pair}::0x0*"))
    }

    /// Rules for any value, a member of any object and an item of any list; the parameter is the depth. See `free`.
    pub(super) fn free_tagged(&mut self, tags: Tags) -> (String, String, String) {
        let key = format!("any tagged {}", tags.open);
        if let Some(names) = self.w().shared(&key) {
            return names;
        }
        let closer = ends_with(tags);
        let (raw, json) = (self.container("raw"), self.container("json"));
        let (dict, list, end) = (self.container("dict"), self.container("list"), self.end_tag(tags));
        let text = self.raw(&Text::Free, &closer);
        let number = self.any_number();
        let words = self.w().regex("true|false|null");
        let (tag, item) = (self.other_tagged(&[], tags), self.tagged(None, tags, ""));
        let w = self.w();
        let (value, inner, pair, element) = (w.reserve(), w.reserve(), w.reserve(), w.reserve());
        let nested = format!("{inner}::incr(_) %if lt(_, {MAX_FREE_DEPTH})");
        let scalar = format!("{json} ({number} | {words}) {}", closer.whole);
        w.define_parametric(&value, &[format!("{raw} {text}"), scalar, nested]);
        let (object, array) = (format!("{dict} {pair}::_* {end}"), format!("{list} {element}::_* {end}"));
        w.define_parametric(&inner, &[object, array]);
        w.define_parametric(&pair, &[format!("{tag} {value}::_")]);
        w.define_parametric(&element, &[format!("{item} {value}::_")]);
        let names = (value, pair, element);
        w.share(&key, names.clone());
        names
    }
}

fn ends_with(tags: Tags) -> Closer {
    Closer {
        lead: String::new(),
        marker: Some(tags.close),
        forbidden: Some(Forbidden { marker: tags.close, follows: None, ends: escape(tags.close) }),
        rest: String::new(),
        whole: literal(tags.close),
        empty: None,
        at_once: true,
    }
}
