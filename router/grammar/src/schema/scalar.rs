//! Strings, numbers and constants, as JSON and as Python write them.

use serde_json::{Value, json};

use super::range::{Bound, between};
use super::text::{but, compiles, lengths};
use super::{Compiler, Schema};
use crate::lark::{either, literal, some_blanks};
use crate::rules::RuleError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Json,
    Python,
}

/// A JSON string. Escaped surrogates come in pairs only, so that every reader takes it.
const STRING: &str = concat!(
    r#""([^"\\\x00-\x1f]|\\["\\\/bfnrt]|\\u([0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"#,
    r#"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))*""#
);
/// A Python string in either quotes.
const PYTHON_STRING: &str = concat!(
    r#""([^"\\\x00-\x1f]|\\["'\\bfnrt]|\\u([0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))*""#,
    r#"|'([^'\\\x00-\x1f]|\\["'\\bfnrt]|\\u([0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))*'"#
);
/// As many digits as any reader takes.
const INTEGER: &str = r"-?(0|[1-9][0-9]{0,19})";
const NUMBER: &str = r"-?(0|[1-9][0-9]{0,19})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?";
/// What llguidance takes of a string's schema.
const TEXT: &[&str] = &["minLength", "maxLength", "pattern"];

impl Compiler<'_, '_, '_> {
    pub(super) fn any_string(&mut self) -> String {
        let regex = match self.dialect {
            Dialect::Json => STRING,
            Dialect::Python => PYTHON_STRING,
        };
        self.w().regex(regex)
    }

    pub(super) fn word(&self, json: &'static str) -> &'static str {
        match (self.dialect, json) {
            (Dialect::Python, "true") => "True",
            (Dialect::Python, "false") => "False",
            (Dialect::Python, "null") => "None",
            _ => json,
        }
    }

    pub(super) fn boolean(&mut self, banned: &[&Value]) -> Option<String> {
        let words = [(true, "true"), (false, "false")].into_iter().filter(|(b, _)| !banned.contains(&&Value::Bool(*b)));
        let words: Vec<_> = words.map(|(_, word)| self.word(word)).collect();
        (!words.is_empty()).then(|| self.w().regex(&words.join("|")))
    }

    pub(super) fn null(&mut self) -> String {
        literal(self.word("null"))
    }

    pub(super) fn any_number(&mut self) -> String {
        self.w().regex(NUMBER)
    }

    pub(super) fn number(&mut self, flat: &Schema, kind: &str, banned: &[&Value], path: &str) -> String {
        const KEYS: &[&str] = &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
        let plain = if kind == "integer" { INTEGER } else { NUMBER };
        let whole = kind == "integer";
        let mut flat = std::borrow::Cow::Borrowed(flat);
        for key in KEYS {
            if flat.get(*key).is_some_and(is_beyond_doubles) {
                self.relax(path, key);
                flat.to_mut().remove(*key);
            }
        }
        let flat = &*flat;
        if !flat.contains_key("multipleOf")
            && let Some((low, high)) = bounds(flat)
            && let Some(range) = between(low, high, whole)
        {
            if !banned.is_empty() {
                self.relax(path, "not");
            }
            return self.w().terminal(&range);
        }
        let bounded = self.leaf(flat, kind, KEYS, path);
        if kind == "integer" && bounded.is_none() && !banned.is_empty() {
            let banned: Vec<_> = banned.iter().map(|n| literal(&n.to_string())).collect();
            let zero = if banned.contains(&literal("0")) { " & ~\"-0\"" } else { "" };
            return self.w().terminal(&format!("/{plain}/ & ~({}){zero}", banned.join(" | ")));
        }
        if !banned.is_empty() {
            self.relax(path, "not");
        }
        bounded.unwrap_or_else(|| self.w().regex(plain))
    }

    pub(super) fn string(&mut self, flat: &Schema, banned: &[&Value], path: &str) -> String {
        let banned: Vec<&str> = banned.iter().filter_map(|v| v.as_str()).collect();
        let (pattern, format) = (flat.contains_key("pattern"), flat.contains_key("format"));
        let sized = lengths(flat) != (0, None);
        if !pattern && !format && !sized {
            let banned: Vec<String> = banned.into_iter().map(str::to_owned).collect();
            return if banned.is_empty() { self.any_string() } else { self.other_key(&banned) };
        }
        if !format && banned.is_empty() {
            match self.dialect {
                dialect if !pattern && !self.work.loose => {
                    let (min, max) = lengths(flat);
                    let max = max.map_or(String::new(), |max| max.to_string());
                    let times = format!("){{{min},{max}}}");
                    let unbounded = if dialect == Dialect::Json { STRING } else { PYTHON_STRING };
                    return self.w().regex(&unbounded.replace(")*", &times));
                }
                Dialect::Python if !self.work.loose => {
                    let texts = self.texts(flat, path);
                    let plain = (!texts.is_empty()).then(|| self.quoted_text(&texts));
                    let json = self.leaf(flat, "string", TEXT, path);
                    let both: Vec<_> = plain.into_iter().chain(json).collect();
                    return if both.is_empty() { self.any_string() } else { either(&both) };
                }
                _ => return self.leaf(flat, "string", TEXT, path).unwrap_or_else(|| self.any_string()),
            }
        }
        let mut texts = self.texts(flat, path);
        texts.extend(but(banned));
        if texts.is_empty() { self.any_string() } else { self.quoted_text(&texts) }
    }

    /// What llguidance compiles by itself; none if the schema says no more than its type.
    fn leaf(&mut self, flat: &Schema, kind: &str, keys: &[&str], path: &str) -> Option<String> {
        let mut leaf = Schema::new();
        for key in keys {
            let Some(value) = flat.get(*key) else { continue };
            let useless = match (*key, value) {
                ("minLength", v) => v.as_f64() == Some(0.0),
                _ => false,
            };
            if useless {
                continue;
            }
            let known = match *key {
                "pattern" => value.as_str().is_some_and(compiles),
                _ => true,
            };
            if known && !self.work.loose {
                leaf.insert((*key).into(), value.clone());
            } else {
                self.relax(path, key);
            }
        }
        if leaf.is_empty() {
            return None;
        }
        if leaf.contains_key("multipleOf") {
            // Beyond these, readers that use floating point lose the last digits.
            leaf.entry("minimum").or_insert_with(|| json!(-9_007_199_254_740_991_i64));
            leaf.entry("maximum").or_insert_with(|| json!(9_007_199_254_740_991_i64));
        }
        // Escapes are decoded before lengths are counted, but not before patterns are matched.
        let general = !leaf.contains_key("pattern");
        leaf.insert("type".into(), kind.into());
        leaf.insert(
            "x-guidance".into(),
            json!({"whitespace_pattern": some_blanks(), "json_allow_general_unicode_escapes": general}),
        );
        Some(self.w().rule(&format!("%json {}", Value::Object(leaf))))
    }

    /// Alternatives for constants.
    pub(super) fn constants(&mut self, values: &[Value], path: &str) -> Result<Vec<String>, RuleError> {
        let mut lexemes = Vec::new();
        let mut rules = Vec::new();
        for value in values {
            match value {
                Value::Array(items) => {
                    let schema = json!({"type": "array", "prefixItems": items.iter().map(|v| json!({"const": v})).collect::<Vec<_>>(),
                        "minItems": items.len(), "maxItems": items.len()});
                    rules.extend(self.value(&schema, path)?);
                }
                Value::Object(members) => {
                    let properties: Schema = members.iter().map(|(k, v)| (k.clone(), json!({"const": v}))).collect();
                    let required: Vec<_> = members.keys().collect();
                    let schema = json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
                    rules.extend(self.value(&schema, path)?);
                }
                scalar => lexemes.extend(self.spellings(scalar)),
            }
        }
        if !lexemes.is_empty() {
            let lexemes: Vec<_> = lexemes.iter().map(|l| literal(l)).collect();
            rules.push(match lexemes.as_slice() {
                [one] => one.clone(),
                many => self.w().terminal(&many.join(" | ")),
            });
        }
        Ok(rules)
    }

    /// How a constant that is no list and no object may be written.
    fn spellings(&self, value: &Value) -> Vec<String> {
        match value {
            Value::Null => vec![self.word("null").into()],
            Value::Bool(b) => vec![self.word(if *b { "true" } else { "false" }).into()],
            Value::String(s) => self.string_spellings(s),
            Value::Number(n) => {
                let whole = n.as_f64().filter(|f| n.is_f64() && f.fract() == 0.0 && f.abs() < 1e15);
                let whole = whole.map(|f| format!("{f:.0}"));
                std::iter::once(n.to_string()).chain(whole).collect()
            }
            other => vec![other.to_string()],
        }
    }

    pub(super) fn string_spellings(&self, text: &str) -> Vec<String> {
        let mut all = vec![quoted(text)];
        match self.dialect {
            Dialect::Json if !text.is_ascii() => all.push(ascii(text)),
            Dialect::Json => {}
            Dialect::Python => {
                let inner = quoted(text).replace("\\\"", "\"").replace('\'', "\\'");
                all.push(format!("'{}'", &inner[1..inner.len() - 1]));
            }
        }
        all
    }
}

/// A JSON string.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A JSON string without other than ASCII letters, as Python writes it by default.
fn ascii(text: &str) -> String {
    let mut out = String::new();
    for c in quoted(text).chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

/// Integers that a double may round.
fn is_beyond_doubles(bound: &Value) -> bool {
    const EXACT: u64 = 1 << f64::MANTISSA_DIGITS;
    bound.as_i64().map(i64::unsigned_abs).or(bound.as_u64()).is_some_and(|n| n > EXACT)
}

/// The bounds of a schema for numbers, if it has any.
fn bounds(flat: &Schema) -> Option<(Option<Bound>, Option<Bound>)> {
    let bound = |key: &str, inclusive| Some(Bound { value: flat.get(key)?.as_f64()?, inclusive });
    let both = |plain: &str, exclusive: &str, tighter: fn(f64, f64) -> bool| match (
        bound(plain, true),
        bound(exclusive, false),
    ) {
        (Some(a), Some(b)) if tighter(a.value, b.value) => Some(a),
        (a, b) => b.or(a),
    };
    let low = both("minimum", "exclusiveMinimum", |a, b| a > b);
    let high = both("maximum", "exclusiveMaximum", |a, b| a < b);
    (low.is_some() || high.is_some()).then_some((low, high))
}
