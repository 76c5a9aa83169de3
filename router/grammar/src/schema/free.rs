//! Grammars of values without a schema.

use super::members::Punctuation;
use super::{Compiler, Dialect};
use crate::limits::MAX_FREE_DEPTH;

impl Compiler<'_, '_, '_> {
    /// Any value of bounded depth.
    pub(super) fn any(&mut self) -> String {
        if let Some(mark) = self.element_mark() {
            let value = self.free_elements(mark, MAX_FREE_DEPTH).0;
            return self.w().rule(&format!("{value}::0x0"));
        }
        if let Some(tags) = self.tags() {
            let value = self.free_tagged(tags).0;
            return self.w().rule(&format!("{value}::0x0"));
        }
        let value = self.free().0;
        self.w().rule(&format!("{value}::0x0"))
    }

    /// Any object of bounded depth.
    pub(super) fn any_object(&mut self) -> String {
        if let Some(mark) = self.element_mark() {
            let (first, pair) = (self.first_mark(mark), self.free_elements(mark, MAX_FREE_DEPTH).1);
            return self.w().rule(&format!("{first} {pair}::0x0*"));
        }
        if let Some(tags) = self.tags() {
            let (open, pair, close) = (self.open(), self.free_tagged(tags).1, self.close());
            return self.w().rule(&format!("{open} {pair}::0x0* {close}"));
        }
        let (_, pair, _) = self.free();
        let (open, close, comma) = (self.open(), self.close(), self.comma());
        self.w().rule(&format!("{open} ({pair}::0x0 ({comma} {pair}::0x0)*)? {close}"))
    }

    /// Any array of bounded depth.
    pub(super) fn any_array(&mut self) -> String {
        if let Some(mark) = self.element_mark() {
            let (first, value) = (self.first_mark(mark), self.free_elements(mark, MAX_FREE_DEPTH).0);
            let item = self.item(&format!("{value}::0x0"));
            return self.w().rule(&format!("{first} ({item})*"));
        }
        if let Some(tags) = self.tags() {
            let (open, item) = (self.container("list"), self.free_tagged(tags).2);
            let close = self.end_tag(tags);
            return self.w().rule(&format!("{open} {item}::0x0* {close}"));
        }
        let (value, ..) = self.free();
        let (start, end) = (self.punctuation(Punctuation::ArrayStart), self.punctuation(Punctuation::ArrayEnd));
        let comma = self.comma();
        self.w().rule(&format!("{start} ({value}::0x0 ({comma} {value}::0x0)*)? {end}"))
    }

    /// Rules for any value and for a member of any object; the parameter is the depth. It only grows where a value
    /// becomes an object or an array: llguidance cannot use a rule that is being defined with another parameter than
    /// its own.
    fn free(&mut self) -> (String, String, String) {
        let (string, number, comma, colon) = (self.any_string(), self.any_number(), self.comma(), self.colon());
        let name = if matches!(self.dialect, Dialect::Bare(_)) { self.other_key(&[]) } else { string.clone() };
        let words = format!("{}|{}|{}", self.word("true"), self.word("false"), self.word("null"));
        let words = self.w().regex(&words);
        let (open, close) = (self.open(), self.close());
        let (start, end) = (self.punctuation(Punctuation::ArrayStart), self.punctuation(Punctuation::ArrayEnd));
        let w = self.w();
        let key = format!("any of {string} {words}");
        if let Some(names) = w.shared(&key) {
            return names;
        }
        let (value, object, array, pair) = (w.reserve(), w.reserve(), w.reserve(), w.reserve());
        let nested = |name: &str| format!("{name}::incr(_) %if lt(_, {MAX_FREE_DEPTH})");
        w.define_parametric(&value, &[string.clone(), number, words, nested(&object), nested(&array)]);
        w.define_parametric(&pair, &[format!("{name} {colon} {value}::_")]);
        w.define_parametric(
            &object,
            &[format!("{open} {close}"), format!("{open} {pair}::_ ({comma} {pair}::_)* {close}")],
        );
        w.define_parametric(
            &array,
            &[format!("{start} {end}"), format!("{start} {value}::_ ({comma} {value}::_)* {end}")],
        );
        let names = (value, pair, array);
        w.share(&key, names.clone());
        names
    }
}
