//! What schemas say of the text of a string, for where it is not written as JSON.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;
use serde_json::Value;

use super::{Compiler, Dialect, Schema};
use crate::lark::literal;

/// Work that comparing two patterns may take.
const FUEL: u64 = 200_000;

const DATE: &str =
    "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-9]))";
const TIME: &str = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?([zZ]|[+\\-]([01][0-9]|2[0-3]):[0-5][0-9])";
const IPV4: &str = "((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
const LABEL: &str = "[a-zA-Z0-9]([a-zA-Z0-9\\-]{0,61}[a-zA-Z0-9])?";

/// A format as a regular expression of the whole text.
fn format(name: &str) -> Option<String> {
    let group = "[0-9a-fA-F]{1,4}";
    Some(match name {
        "date" => DATE.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{DATE}[tT]{TIME}"),
        "duration" => {
            let time = "T([0-9]{1,9}H([0-9]{1,9}M([0-9]{1,9}S)?)?|[0-9]{1,9}M([0-9]{1,9}S)?|[0-9]{1,9}S)";
            let date = "([0-9]{1,9}Y([0-9]{1,9}M([0-9]{1,9}D)?)?|[0-9]{1,9}M([0-9]{1,9}D)?|[0-9]{1,9}D)";
            format!("P({date}({time})?|{time}|[0-9]{{1,9}}W)")
        }
        "ipv4" => IPV4.to_owned(),
        "ipv6" => {
            let mut all = vec![format!("({group}:){{7}}({group}|:)"), format!("({group}:){{6}}{IPV4}")];
            // `::` stands for one group or more.
            for before in 0..=6 {
                let lead = format!("({group}(:{group}){{{}}})?", before - i32::from(before > 0));
                let lead = if before == 0 { String::new() } else { lead.trim_end_matches('?').to_owned() };
                all.push(format!("{lead}::({group}(:{group}){{0,{}}})?", 6 - before));
                if before < 6 {
                    all.push(format!("{lead}::({group}:){{0,{}}}{IPV4}", 5 - before));
                }
            }
            all.join("|")
        }
        "uuid" => "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}".to_owned(),
        "hostname" => format!("{LABEL}(\\.{LABEL})*"),
        "email" => {
            let atom = "[a-zA-Z0-9!#$%&'*+\\-\\/=?\\^_`{|}~]+";
            format!("{atom}(\\.{atom})*@{LABEL}(\\.{LABEL})*")
        }
        "uri" => "[a-zA-Z][a-zA-Z0-9+.\\-]*:([a-zA-Z0-9\\-._~:\\/?#@!$&'()*+,;=]|%[0-9a-fA-F]{2})*".to_owned(),
        _ => return None,
    })
}

impl Compiler<'_, '_, '_> {
    /// What a schema says of a text: expressions of terminals that all have to match.
    pub(super) fn texts(&mut self, flat: &Schema, path: &str) -> Vec<String> {
        let mut all = Vec::new();
        match lengths(flat) {
            (0, None) => {}
            (min, max) if !self.work.loose => {
                all.push(format!("/(?s:.{{{min},{}}})/", max.map_or(String::new(), |m| m.to_string())));
            }
            _ => self.relax(path, if flat.contains_key("maxLength") { "maxLength" } else { "minLength" }),
        }
        if let Some(pattern) = flat.get("pattern").and_then(Value::as_str) {
            match anchored(pattern).filter(|_| !self.work.loose) {
                Some(regex) => all.push(format!("/{regex}/")),
                None => self.relax(path, "pattern"),
            }
        }
        if let Some(name) = flat.get("format").and_then(Value::as_str) {
            match format(name).filter(|_| !self.work.loose) {
                Some(regex) => all.push(format!("/{regex}/")),
                None => self.relax(path, "format"),
            }
        }
        all
    }

    /// A string of a text without escapes.
    pub(super) fn quoted_text(&mut self, texts: &[String]) -> String {
        let texts = texts.join(" & ");
        let double = format!(r#""\"" (/[^"\\\x00-\x1f]*/ & {texts}) "\"""#);
        let body = match self.dialect {
            Dialect::Json => double,
            Dialect::Python => format!(r#"{double} | "'" (/[^'\\\x00-\x1f]*/ & {texts}) "'""#),
        };
        self.w().terminal(&body)
    }
}

/// The least and the greatest length of a string.
pub(super) fn lengths(flat: &Schema) -> (usize, Option<usize>) {
    use super::object::count;
    (count(flat, "minLength").unwrap_or(0), count(flat, "maxLength"))
}

/// Any text but these.
pub(super) fn but<'v>(banned: impl IntoIterator<Item = &'v str>) -> Option<String> {
    let (empty, banned): (Vec<&str>, Vec<&str>) = banned.into_iter().partition(|text| text.is_empty());
    let banned: Vec<_> = banned.into_iter().map(literal).collect();
    let rest = (!banned.is_empty()).then(|| format!("/(?s:.*)/ & ~({})", banned.join(" | ")));
    let some = (!empty.is_empty()).then(|| "/(?s:.+)/".to_owned());
    match (some, rest) {
        (Some(some), Some(rest)) => Some(format!("{some} & {rest}")),
        (some, rest) => some.or(rest),
    }
}

/// Whether llguidance can compile the pattern: it has no lookaround and no back references.
pub(super) fn compiles(pattern: &str) -> bool {
    let ast = RegexAst::SearchRegex(regex_to_lark(pattern, "dw"));
    RegexBuilder::new().mk(&ast).is_ok()
}

/// Whether no text matches both patterns. Not if that is hard to tell.
pub(super) fn exclusive(a: &str, b: &str) -> bool {
    let ast = RegexAst::And([a, b].map(|p| RegexAst::SearchRegex(regex_to_lark(p, "dw"))).to_vec());
    let mut builder = RegexBuilder::new();
    let Ok(both) = builder.mk(&ast) else { return false };
    builder.into_regex_limited(both, FUEL).is_ok_and(|mut regex| regex.always_empty())
}

/// A pattern as an expression for the whole text, where its anchors stand at its ends.
pub(super) fn anchored(pattern: &str) -> Option<String> {
    if !compiles(pattern) {
        return None;
    }
    let (start, rest) = match pattern.strip_prefix('^') {
        Some(rest) => ("", rest),
        None => ("(?s:.*)", pattern),
    };
    let (end, rest) = match rest.strip_suffix('$').filter(|r| !escapes_next(r)) {
        Some(rest) => ("", rest),
        None => ("(?s:.*)", rest),
    };
    // Anchors elsewhere, or an alternative that only one of them belongs to.
    let (mut depth, mut class, mut chars) = (0, false, rest.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                if matches!(chars.next(), Some('b' | 'B' | 'A' | 'z')) {
                    return None;
                }
            }
            '[' if !class => class = true,
            ']' => class = false,
            '(' if !class => depth += 1,
            ')' if !class => depth -= 1,
            '^' | '$' if !class => return None,
            '|' if !class && depth == 0 && start.len() + end.len() != 14 => return None,
            _ => {}
        }
    }
    let inner = regex_to_lark(rest, "dw");
    Some(format!("{start}({inner}){end}"))
}

fn escapes_next(text: &str) -> bool {
    text.bytes().rev().take_while(|b| *b == b'\\').count() % 2 == 1
}
