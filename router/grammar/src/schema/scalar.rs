//! Grammars of strings, numbers and constants, in JSON and Python syntax.

use std::cmp::Ordering;
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::range::{Bound, EXACT_INTEGERS, NumberRange, between};
use super::{Compiler, Dialect, Schema};
use crate::lark::{escape, literal, parsing_steps, some_blanks};
use crate::limits::{MAX_COMPILE_WORK, MAX_DIVISOR, MAX_ROUND_DIVISOR};
use crate::rules::RuleError;

/// A JSON string. Escaped surrogates occur only in pairs, so that every parser accepts it.
const STRING: &str = concat!(
    r#""([^"\\\x00-\x1f]|\\["\\\/bfnrt]|\\u([0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"#,
    r#"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))*""#
);
/// A Python string in either quotes.
const PYTHON_STRING: &str = concat!(
    r#""([^"\\\x00-\x1f]|\\["'\\bfnrt]|\\u([0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))*""#,
    r#"|'([^'\\\x00-\x1f]|\\["'\\bfnrt]|\\u([0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))*'"#
);
/// As many digits as every parser accepts.
const INTEGER: &str = r"-?(0|[1-9][0-9]{0,19})";
/// With a fraction, a number has at most the 17 significant digits that tell two doubles apart (IEEE 754): a model
/// that repeats a digit comes to an end.
static NUMBER: LazyLock<String> = LazyLock::new(|| {
    let small = r"0(\.(0{0,19}[1-9][0-9]{0,16}|0{1,20}))?";
    let fractions = (1..DOUBLE_DIGITS).map(|n| format!(r"[1-9][0-9]{{{}}}\.[0-9]{{1,{}}}", n - 1, DOUBLE_DIGITS - n));
    let large = fractions.collect::<Vec<_>>().join("|");
    format!(r"-?({small}|[1-9][0-9]{{0,19}}|{large})([eE][+-]?[0-9]{{1,2}})?")
});
const DOUBLE_DIGITS: usize = 17;

/// With fewer steps left, ranges of numbers are relaxed.
const KEPT_FOR_THE_REST: u64 = MAX_COMPILE_WORK / 4;

pub(super) fn common_regexes() -> [String; 4] {
    [STRING, INTEGER, &NUMBER, "true|false"].map(str::to_owned)
}

impl Compiler<'_, '_, '_> {
    pub(super) fn any_string(&mut self) -> String {
        match self.dialect {
            Dialect::Json | Dialect::Elements(_) | Dialect::Tagged(_) => self.w().regex(STRING),
            Dialect::Python => self.w().regex(PYTHON_STRING),
            Dialect::Bare(mark) => self.marked("/(?s:.*)/", mark),
        }
    }

    /// A string of such texts between two marks.
    pub(super) fn marked(&mut self, texts: &str, mark: &str) -> String {
        let (quote, inside) = (literal(mark), escape(mark));
        self.w().terminal(&format!("{quote} (({texts}) & ~/(?s:.*){inside}(?s:.*)/) {quote}"))
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
        self.w().regex(&NUMBER)
    }

    /// None: there is no such number.
    pub(super) fn number(
        &mut self,
        flat: &Schema,
        kind: &str,
        banned: &[&Value],
        path: &str,
    ) -> Result<Option<String>, RuleError> {
        let whole = kind == "integer";
        let (low, high) = bounds(flat);
        let given: Vec<&str> =
            [("minimum", &low), ("maximum", &high)].iter().filter(|(_, b)| b.is_some()).map(|(k, _)| *k).collect();
        let mut body = format!("/{}/", if whole { INTEGER } else { &NUMBER });
        if self.work.loose {
            given.iter().for_each(|key| self.relax(path, key));
        } else if !given.is_empty() {
            let budget = &mut self.work.budget;
            if !budget.gives_up() && budget.left() < KEPT_FOR_THE_REST {
                given.iter().for_each(|key| self.relax_costly(path, key));
            } else {
                match between(low, high, whole, budget)? {
                    NumberRange::Numbers(range) => {
                        // llguidance parses it.
                        budget.reserve(parsing_steps(&range))?;
                        body = range;
                    }
                    NumberRange::Nothing => return Ok(None),
                    NumberRange::Beyond => given.iter().for_each(|key| self.relax(path, key)),
                }
            }
        }
        if let Some(of) = flat.get("multipleOf") {
            let price =
                divisor_price(of).filter(|price| self.work.budget.gives_up() || *price <= self.work.budget.left());
            self.work.budget.reserve(price.unwrap_or_default())?;
            match self.multiple(flat, of, kind).filter(|_| price.is_some()) {
                Some(rule) => {
                    if !banned.is_empty() {
                        self.relax(path, "not");
                    }
                    return Ok(Some(rule));
                }
                None if price.is_some() => self.relax(path, "multipleOf"),
                None => self.relax_costly(path, "multipleOf"),
            }
        }
        match banned {
            [] => {}
            banned if whole => {
                let banned: Vec<_> = banned.iter().filter_map(|n| integer(n)).flatten().collect();
                let banned: Vec<_> = banned.iter().map(|n| literal(n)).collect();
                body = format!("{body} & ~({})", banned.join(" | "));
            }
            _ => self.relax(path, "not"),
        }
        Ok(Some(self.w().terminal(&body)))
    }

    /// Multiples, which llguidance compiles itself, as far as floating point represents all integers. None: it cannot.
    fn multiple(&mut self, flat: &Schema, of: &Value, kind: &str) -> Option<String> {
        const MOST: i64 = EXACT_INTEGERS as i64 - 1;
        // Both its digits and its decimal places must be few.
        let text = of.as_f64().map(|of| format!("{of}"))?;
        let digits = text.chars().filter(char::is_ascii_digit).count();
        (digits <= 9 && !self.work.loose).then_some(())?;
        let mut leaf = json!({"type": kind, "multipleOf": of, "x-guidance": {"whitespace_pattern": some_blanks()}});
        let (low, high) = bounds(flat);
        let edge = |most: i64| Bound::new(&most.into(), false);
        let beyond = |bound: &Option<Bound>, most: i64, side: Ordering| {
            bound.as_ref().zip(edge(most)).is_some_and(|(bound, edge)| bound.compare(&edge) == side)
        };
        if beyond(&low, MOST, Ordering::Greater) || beyond(&high, -MOST, Ordering::Less) {
            return None;
        }
        for (plain, exclusive, bound, most) in
            [("minimum", "exclusiveMinimum", low, -MOST), ("maximum", "exclusiveMaximum", high, MOST)]
        {
            let side = if most < 0 { Ordering::Greater } else { Ordering::Less };
            match bound {
                bound if beyond(&bound, most, side) => {
                    for key in [plain, exclusive] {
                        if let Some(value) = flat.get(key) {
                            leaf[key] = value.clone();
                        }
                    }
                }
                _ => leaf[plain] = most.into(),
            }
        }
        Some(self.w().rule(&format!("%json {leaf}")))
    }

    pub(super) fn string(&mut self, flat: &Schema, banned: &[&Value], path: &str) -> Result<Option<String>, RuleError> {
        if let Some(rule) = self.quoted_grammar(flat, path)? {
            return Ok(Some(rule));
        }
        let Some(constraints) = self.texts(flat, path)? else { return Ok(None) };
        let constraints = self.excluding(constraints, banned.iter().filter_map(|v| v.as_str()), path)?;
        Ok(Some(if constraints.is_free() { self.any_string() } else { self.quoted_text(&constraints) }))
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

    /// The spellings of a constant that is neither a list nor an object.
    fn spellings(&self, value: &Value) -> Vec<String> {
        match value {
            Value::Null => vec![self.word("null").into()],
            Value::Bool(b) => vec![self.word(if *b { "true" } else { "false" }).into()],
            Value::String(s) => self.string_spellings(s),
            Value::Number(n) => {
                let whole = n.as_f64().filter(|f| n.is_f64() && f.fract() == 0.0 && f.abs() < 1e15);
                let whole = whole.map(|f| format!("{f:.0}"));
                let zero = (n.as_f64() == Some(0.0) && n.is_f64()).then(|| "0".to_owned());
                let mut all: Vec<String> = std::iter::once(n.to_string()).chain(whole).chain(zero).collect();
                all.dedup();
                all
            }
            other => vec![other.to_string()],
        }
    }

    pub(super) fn string_spellings(&self, text: &str) -> Vec<String> {
        let mut all = vec![quoted(text)];
        match self.dialect {
            Dialect::Bare(mark) => all = vec![format!("{mark}{text}{mark}")],
            Dialect::Json if !text.is_ascii() => all.push(ascii(text)),
            Dialect::Json | Dialect::Elements(_) | Dialect::Tagged(_) => {}
            Dialect::Python => {
                // The last quote is none of the text, whatever precedes it.
                let whole = quoted(text);
                let inner = whole[1..whole.len() - 1].replace("\\\"", "\"").replace('\'', "\\'");
                all.push(format!("'{inner}'"));
            }
        }
        all
    }
}

/// A JSON string.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A JSON string in ASCII only, as Python writes it by default.
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

/// The steps for compiling the multiples of a number. None: they cost too much, at compile time or per token.
///
/// llguidance follows each remainder, and looks from each for a way to a multiple. The last digits decide about factors
/// 2 and 5, so that way is short if the number has few others.
pub(crate) fn divisor_price(of: &Value) -> Option<u64> {
    const STEPS_PER_REMAINDER: u64 = 45;
    let text = of.as_f64().filter(|of| *of > 0.0).map(|of| format!("{of}"))?;
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let remainders: u64 = digits.parse().ok().filter(|remainders| *remainders > 0)?;
    let (mut others, mut twos) = (remainders, 0);
    while others % 2 == 0 {
        (others, twos) = (others / 2, twos + 1);
    }
    while others % 5 == 0 {
        others /= 5;
    }
    let is_round = others < 10 && twos < 10 && remainders <= MAX_ROUND_DIVISOR;
    (is_round || remainders <= MAX_DIVISOR).then(|| STEPS_PER_REMAINDER * remainders)
}

/// The bounds of a number's schema.
fn bounds(flat: &Schema) -> (Option<Bound>, Option<Bound>) {
    let bound = |key: &str, inclusive| Bound::new(flat.get(key)?, inclusive);
    let tighter = |plain: Option<Bound>, exclusive: Option<Bound>, is: Ordering| match (plain, exclusive) {
        (Some(plain), Some(exclusive)) if plain.compare(&exclusive) == is => Some(plain),
        (plain, exclusive) => exclusive.or(plain),
    };
    (
        tighter(bound("minimum", true), bound("exclusiveMinimum", false), Ordering::Greater),
        tighter(bound("maximum", true), bound("exclusiveMaximum", false), Ordering::Less),
    )
}

/// The spellings of an integer. None: the number is not an integer.
fn integer(value: &Value) -> Option<Vec<String>> {
    let text = match value.as_f64() {
        Some(float) if value.is_f64() => format!("{float}"),
        _ => value.to_string(),
    };
    (!text.contains('.'))
        .then(|| if text.trim_start_matches('-') == "0" { vec!["0".into(), "-0".into()] } else { vec![text] })
}
