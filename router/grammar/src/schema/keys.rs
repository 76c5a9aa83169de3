//! Grammars of object keys.

use serde_json::{Value, json};

use super::constants::{excluded, values};
use super::pattern::{Reading, found_in};
use super::text::{TextConstraints, Texts, exclusive};
use super::{Compiler, Dialect, Schema};
use crate::lark::{Price, either, escape, literal};
use crate::limits::{MAX_PART_WORK, MAX_TEXT_FUEL};
use crate::rules::RuleError;

/// A JSON string in plain spelling: ASCII unescaped or by the shortest escape, everything else unescaped or in
/// lower-case digits. No two of these spell the same key.
const PLAIN_KEY: &str = concat!(
    r#""([^"\\\x00-\x1f]|\\["\\bfnrt]|\\u(00[89a-f][0-9a-f]|0[1-9a-f][0-9a-f]{2}|[1-9a-ce-f][0-9a-f]{3}"#,
    r#"|d[0-7][0-9a-f]{2}|d[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}))*""#
);

/// A name of Gemma's objects without marks.
const BARE_KEY: &str =
    r#"[^{}\[\],:"'<>\x00-\x20\x7f]([^{}\[\],:"'<>\x00-\x1f\x7f]{0,62}[^{}\[\],:"'<>\x00-\x20\x7f])?"#;

impl Compiler<'_, '_, '_> {
    /// A key as an expression.
    pub(super) fn key(&mut self, key: &str) -> String {
        if let Dialect::Bare(mark) = self.dialect {
            return literal(&bare_name(key, mark));
        }
        let all: Vec<_> = self.string_spellings(key).iter().map(|s| literal(s)).collect();
        either(&all)
    }

    /// Any key but these.
    pub(super) fn other_key(&mut self, taken: &[String]) -> String {
        if self.element_mark().is_some() {
            return self.other_tag(taken);
        }
        if let Some(tags) = self.tags() {
            return self.other_tagged(taken, tags);
        }
        // Both quote styles of Python would have to exclude each name.
        let bare = matches!(self.dialect, Dialect::Bare(_));
        let any = format!("/{}/", if bare { BARE_KEY } else { PLAIN_KEY });
        let body = match taken {
            [] => any,
            taken => {
                let taken: Vec<_> = taken.iter().map(|t| if bare { literal(t) } else { plain(t) }).collect();
                format!("{any} & ~({})", taken.join(" | "))
            }
        };
        self.w().terminal(&body)
    }

    /// Keys that obey `names` (a schema) and `patterns`, but are none of these.
    fn keys(
        &mut self,
        names: Option<&Value>,
        patterns: &TextConstraints,
        taken: &[String],
        path: &str,
    ) -> Result<Vec<String>, RuleError> {
        let flats = match names {
            None => vec![Schema::new()],
            Some(names) => {
                let map = json!({"type": "string", "allOf": [names]});
                map.as_object().map_or(Ok(Vec::new()), |map| self.ways(map, path))?
            }
        };
        let mut all = Vec::new();
        for flat in flats {
            if let Some(allowed) = values(&flat) {
                let names = allowed.iter().filter_map(Value::as_str).filter(|n| !taken.iter().any(|t| t == n));
                let names: Vec<_> = names.map(|n| self.key(n)).collect();
                if !patterns.is_free() {
                    self.relax(path, "propertyNames");
                }
                all.extend(names);
                continue;
            }
            let Some(mut constraints) = self.texts(&flat, path)? else { continue };
            constraints.all.extend(patterns.all.iter().cloned());
            constraints.none.extend(patterns.none.iter().cloned());
            let excluded = excluded(&flat);
            if constraints.is_free() {
                let excluded = excluded.iter().filter_map(Value::as_str).map(str::to_owned);
                let taken: Vec<String> = taken.iter().cloned().chain(excluded).collect();
                all.push(self.other_key(&taken));
                continue;
            }
            let names = taken.iter().map(String::as_str).chain(excluded.iter().filter_map(Value::as_str));
            constraints.none.extend(names.map(super::pattern::literal));
            match constraints.price_to_compile(self.work.budget)? {
                Price::Affordable => all.push(self.quoted_text(&constraints)),
                Price::Empty => {}
                Price::Costly => return Err(self.too_large(path, "the cost of its patterns", MAX_TEXT_FUEL as usize)),
            }
        }
        Ok(all)
    }

    /// Members that the schema does not name: those that its patterns match, and `rest`.
    pub(super) fn others(
        &mut self,
        flat: &Schema,
        rest: &Value,
        taken: &[String],
        path: &str,
    ) -> Result<Option<String>, RuleError> {
        let names = flat.get("propertyNames").filter(|_| !self.nests());
        if names.is_none() && flat.contains_key("propertyNames") {
            self.relax(path, "propertyNames");
        }
        let patterns = flat.get("patternProperties").and_then(Value::as_object);
        let patterns: Vec<(&String, &Value)> = patterns.into_iter().flatten().collect();
        let regexes: Option<Vec<_>> =
            patterns.iter().map(|(p, _)| Some((found_in(p, Reading::Narrow)?, found_in(p, Reading::Wide)?))).collect();
        let Some(regexes) =
            regexes.filter(|_| self.dialect == Dialect::Json && !self.work.loose || patterns.is_empty())
        else {
            self.relax(path, "patternProperties");
            return Ok(Some(self.any_other(taken)));
        };
        let end = self.work.budget.spent().saturating_add(MAX_PART_WORK);
        // Which patterns a key matches, and what its value must be then.
        let mut ways: Vec<(Vec<usize>, Value)> =
            patterns.iter().enumerate().map(|(i, (_, schema))| (vec![i], (*schema).clone())).collect();
        for (i, (a, first)) in patterns.iter().enumerate() {
            for (j, (b, second)) in patterns.iter().enumerate().skip(i + 1) {
                if self.work.budget.spent() > end {
                    self.relax_costly(path, "patternProperties");
                    return Ok(Some(self.any_other(taken)));
                }
                if !exclusive(a, b, self.work.budget)? {
                    ways.push((vec![i, j], json!({"allOf": [first, second]})));
                }
            }
        }
        // Keys that match three of them cannot be expressed; an inexact grammar is not worth its cost.
        if patterns.len() > 2 && ways.len() > patterns.len() + 1 {
            self.relax_costly(path, "patternProperties");
            return Ok(Some(self.any_other(taken)));
        }
        if *rest != Value::Bool(false) {
            ways.push((Vec::new(), rest.clone()));
        }
        let (mut all, mut spent) = (Vec::new(), 0);
        for (which, schema) in &ways {
            let Some(value) = self.value(schema, path)? else { continue };
            let not = |i: &usize| {
                !which.contains(i) && ways.iter().any(|(w, _)| which.iter().all(|x| w.contains(x)) && w.contains(i))
            };
            let mut constraints = TextConstraints::default();
            for (i, (narrow, wide)) in regexes.iter().enumerate() {
                if which.contains(&i) {
                    constraints.all.push(Texts::Own(narrow.clone()));
                } else if not(&i) {
                    constraints.none.push(wide.clone());
                }
            }
            let before = self.work.budget.spent();
            let keys = self.keys(names, &constraints, taken, path);
            spent += self.work.budget.spent() - before;
            match keys {
                Ok(keys) if spent <= MAX_PART_WORK => {
                    all.extend(keys.iter().map(|key| self.other_member(key, &value)));
                }
                Ok(_) | Err(RuleError::TooLarge { .. }) => {
                    let keyword = if patterns.is_empty() { "propertyNames" } else { "patternProperties" };
                    self.relax_costly(path, keyword);
                    return Ok(Some(self.any_other(taken)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok((!all.is_empty()).then(|| either(&all)))
    }

    /// A member with any other name and any value.
    fn any_other(&mut self, taken: &[String]) -> String {
        let (key, value) = (self.other_key(taken), self.any());
        self.other_member(&key, &value)
    }
}

/// A name of Gemma's objects: without marks, if nothing in it has a meaning.
pub(crate) fn bare_name(key: &str, mark: &str) -> String {
    let meaningful = |c: char| "{}[],:\"'<>".contains(c) || c.is_control();
    let plain = !key.is_empty() && key.trim() == key && !key.contains(meaningful) && !key.contains(mark);
    if plain { key.to_owned() } else { format!("{mark}{key}{mark}") }
}

/// The spellings of a key in [`PLAIN_KEY`].
fn plain(text: &str) -> String {
    let quoted = super::quoted(text);
    if quoted.is_ascii() {
        return literal(&quoted);
    }
    let mut regex = String::new();
    for c in quoted.chars() {
        if c.is_ascii() {
            regex.push_str(&escape(&c.to_string()));
        } else {
            let mut units = [0; 2];
            let units: String = c.encode_utf16(&mut units).iter().map(|unit| format!("\\\\u{unit:04x}")).collect();
            regex.push_str(&format!("({c}|{units})"));
        }
    }
    format!("/{regex}/")
}
