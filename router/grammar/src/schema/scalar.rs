//! Strings, numbers and constants, as JSON and as Python write them.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;
use serde_json::{Value, json};

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
/// A JSON string whose text is what it spells, but for the plainest escapes: nothing else can be the same key.
const PLAIN_KEY: &str = r#""([^"\\\x00-\x1f]|\\["\\bfnrt])*""#;
/// A Python string in either quotes.
const PYTHON_STRING: &str = concat!(
    r#""([^"\\\x00-\x1f]|\\["'\\bfnrt]|\\u([0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))*""#,
    r#"|'([^'\\\x00-\x1f]|\\["'\\bfnrt]|\\u([0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))*'"#
);
/// As many digits as any reader takes.
const INTEGER: &str = r"-?(0|[1-9][0-9]{0,19})";
const NUMBER: &str = r"-?(0|[1-9][0-9]{0,19})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?";
/// The formats that llguidance knows.
const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"];

impl Compiler<'_, '_, '_> {
    pub(super) fn any_string(&mut self) -> String {
        let regex = match self.dialect {
            Dialect::Json => STRING,
            Dialect::Python => PYTHON_STRING,
        };
        self.w().regex(regex)
    }

    /// Any key but these.
    pub(super) fn other_key(&mut self, taken: &[String]) -> String {
        // Both quotes of Python would have to exclude each name.
        let any = format!("/{PLAIN_KEY}/");
        let body = match taken {
            [] => any,
            taken => {
                let taken: Vec<_> = taken.iter().map(|t| literal(&quoted(t))).collect();
                format!("{any} & ~({})", taken.join(" | "))
            }
        };
        self.w().terminal(&body)
    }

    pub(super) fn word(&self, json: &'static str) -> &'static str {
        match (self.dialect, json) {
            (Dialect::Python, "true") => "True",
            (Dialect::Python, "false") => "False",
            (Dialect::Python, "null") => "None",
            _ => json,
        }
    }

    pub(super) fn boolean(&mut self) -> String {
        let regex = format!("{}|{}", self.word("true"), self.word("false"));
        self.w().regex(&regex)
    }

    pub(super) fn null(&mut self) -> String {
        literal(self.word("null"))
    }

    pub(super) fn any_number(&mut self) -> String {
        self.w().regex(NUMBER)
    }

    pub(super) fn number(&mut self, flat: &Schema, kind: &str, path: &str) -> String {
        const KEYS: &[&str] = &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
        let plain = if kind == "integer" { INTEGER } else { NUMBER };
        self.leaf(flat, kind, KEYS, path).unwrap_or_else(|| self.w().regex(plain))
    }

    pub(super) fn string(&mut self, flat: &Schema, path: &str) -> String {
        let keys: &[&str] = match self.dialect {
            Dialect::Json => &["minLength", "maxLength", "pattern", "format"],
            Dialect::Python => {
                for key in ["minLength", "maxLength", "pattern", "format"] {
                    if flat.contains_key(key) {
                        self.relax(path, key);
                    }
                }
                &[]
            }
        };
        self.leaf(flat, "string", keys, path).unwrap_or_else(|| self.any_string())
    }

    /// What llguidance compiles by itself; none if the schema says no more than its type.
    fn leaf(&mut self, flat: &Schema, kind: &str, keys: &[&str], path: &str) -> Option<String> {
        let mut leaf = Schema::new();
        for key in keys {
            let Some(value) = flat.get(*key) else { continue };
            let useless = match (*key, value) {
                ("minLength", v) => v.as_u64() == Some(0),
                _ => false,
            };
            if useless {
                continue;
            }
            let known = match *key {
                "format" => value.as_str().is_some_and(|f| FORMATS.contains(&f)),
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
        let general = !leaf.contains_key("pattern") && !leaf.contains_key("format");
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

    /// A key as an expression.
    pub(super) fn key(&mut self, key: &str) -> String {
        let all: Vec<_> = self.string_spellings(key).iter().map(|s| literal(s)).collect();
        either(&all)
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

/// Whether llguidance can compile the pattern: it has no lookaround and no back references.
pub(super) fn compiles(pattern: &str) -> bool {
    let ast = RegexAst::SearchRegex(regex_to_lark(pattern, "dw"));
    RegexBuilder::new().mk(&ast).is_ok()
}
