//! Implements Python's methods of strings, lists and dicts.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, State, Value};
use minijinja_contrib::pycompat;

use super::filters::{FilterArguments, invalid};
use super::python::{self, is_space};
use super::views::View;

/// The environment's unknown-method callback: methods that `pycompat` lacks or implements differently, then `pycompat`.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let result = match value.kind() {
        ValueKind::String => string(value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq | ValueKind::Iterable => list(value, method, args)?,
        ValueKind::Map if method == "copy" => Some(value.clone()),
        ValueKind::Map if matches!(method, "keys" | "values" | "items") => {
            from_args::<()>(args)?;
            Some(View::wrap(value, method)?)
        }
        _ => None,
    };
    match result {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn list(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(match method {
        "copy" => Some(Value::from(value.try_iter()?.collect::<Vec<_>>())),
        "count" => {
            let (what,): (&Value,) = from_args(args)?;
            Some(Value::from(value.try_iter()?.filter(|v| v == what).count()))
        }
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|v| v == *what);
            Some(Value::from(at.ok_or_else(|| invalid(format!("{} is not in list", python::str_of(what))))?))
        }
        _ => None,
    })
}

fn string(s: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let text = |s: &str| Ok(Some(Value::from(s)));
    let none = || from_args::<()>(args);
    let all = |test: fn(char) -> bool| {
        none()?;
        Ok(Some(Value::from(!s.is_empty() && s.chars().all(test))))
    };
    match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            let drop = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
            text(match method {
                "strip" => s.trim_matches(drop),
                "lstrip" => s.trim_start_matches(drop),
                _ => s.trim_end_matches(drop),
            })
        }
        "split" | "rsplit" => {
            let call = FilterArguments::parse("split", args)?;
            let separator = call.get(0, "sep")?.filter(|v| !v.is_none());
            let most = call.integer(1, "maxsplit")?.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
            call.end(2)?;
            let parts = match separator.as_ref().map(|v| v.as_str()) {
                None => split_space(s, most, method == "rsplit"),
                Some(None) => return Err(invalid("split: the separator must be a string or None")),
                Some(Some("")) => return Err(invalid("empty separator")),
                Some(Some(separator)) if method == "split" => s.splitn(most.saturating_add(1), separator).collect(),
                Some(Some(separator)) => {
                    let mut parts: Vec<&str> = s.rsplitn(most.saturating_add(1), separator).collect();
                    parts.reverse();
                    parts
                }
            };
            Ok(Some(Value::from(parts.into_iter().map(Value::from).collect::<Vec<_>>())))
        }
        "splitlines" => {
            let call = FilterArguments::parse("splitlines", args)?;
            let keep = call.truth(0, "keepends")?;
            call.end(1)?;
            Ok(Some(Value::from(split_lines(s, keep).into_iter().map(Value::from).collect::<Vec<_>>())))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(invalid("empty separator"));
            }
            let found = if method == "partition" { s.split_once(separator) } else { s.rsplit_once(separator) };
            let parts = match found {
                Some((before, after)) => [before, separator, after],
                None if method == "partition" => [s, "", ""],
                None => ["", "", s],
            };
            Ok(Some(Value::from(minijinja::value::Tuple::from(parts.map(Value::from)))))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text(s.strip_prefix(prefix).unwrap_or(s))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text(s.strip_suffix(suffix).unwrap_or(s))
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            let (part, skipped) = window(s, start, end);
            if method == "count" {
                return Ok(Some(Value::from(part.map_or(0, |part| part.matches(what).count()))));
            }
            let at = part.and_then(|part| {
                let at = if method.starts_with('r') { part.rfind(what) } else { part.find(what) };
                at.map(|at| part[..at].chars().count() + skipped)
            });
            match at {
                Some(at) => Ok(Some(Value::from(at))),
                None if method.ends_with("find") => Ok(Some(Value::from(-1))),
                None => Err(invalid("substring not found")),
            }
        }
        "startswith" | "endswith" => {
            let (what, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
            let (part, _) = window(s, start, end);
            let holds = |what: &Value| match what.as_str() {
                Some(what) if method == "startswith" => Ok(part.is_some_and(|part| part.starts_with(what))),
                Some(what) => Ok(part.is_some_and(|part| part.ends_with(what))),
                None => Err(invalid(format!("{method} needs a string or a tuple of strings, not {}", what.kind()))),
            };
            if what.is_tuple() {
                let mut any = false;
                for what in what.try_iter()? {
                    any |= holds(&what)?;
                }
                return Ok(Some(Value::from(any)));
            }
            holds(what).map(|b| Some(Value::from(b)))
        }
        "title" => {
            none()?;
            let mut cased = false;
            let mut out = String::new();
            for c in s.chars() {
                if cased {
                    out.extend(c.to_lowercase());
                } else {
                    push_title(&mut out, c);
                }
                cased = c.is_lowercase() || c.is_uppercase();
            }
            text(&out)
        }
        "capitalize" => {
            none()?;
            text(&capitalize(s))
        }
        "swapcase" => {
            none()?;
            let mut out = String::new();
            for c in s.chars() {
                if c.is_uppercase() {
                    out.extend(c.to_lowercase());
                } else {
                    out.extend(c.to_uppercase());
                }
            }
            text(&out)
        }
        "casefold" => {
            none()?;
            text(&s.to_lowercase().replace('ß', "ss"))
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let (sign, digits) = s.split_at(usize::from(s.starts_with(['+', '-'])));
            let width = width.min(MAX_WIDTH).saturating_sub(sign.len());
            text(&format!("{sign}{}", pad(digits, width, '0', Align::Right)))
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<&str>) = from_args(args)?;
            let mut fill = fill.unwrap_or(" ").chars();
            let (Some(fill), None) = (fill.next(), fill.next()) else {
                return Err(invalid("The fill character must be exactly one character long"));
            };
            let align = match method {
                "ljust" => Align::Left,
                "rjust" => Align::Right,
                _ => Align::Center,
            };
            text(&pad(s, width, fill, align))
        }
        "encode" => {
            let (encoding,): (Option<&str>,) = from_args(args)?;
            match encoding.map_or_else(|| "utf-8".to_owned(), str::to_lowercase).as_str() {
                "utf-8" | "utf8" => Ok(Some(Value::from_bytes(s.as_bytes().to_vec()))),
                other => Err(invalid(format!("encode: the encoding {other} is not supported"))),
            }
        }
        "isspace" => all(is_space),
        "isdecimal" => all(is_decimal),
        "isdigit" => all(|c| is_decimal(c) || "¹²³⁰⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉".contains(c)),
        _ => Ok(None),
    }
}

/// Python's `str.capitalize`.
pub(super) fn capitalize(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut chars = s.chars();
    if let Some(first) = chars.next() {
        push_title(&mut out, first);
    }
    out + &chars.as_str().to_lowercase()
}

/// The title case of a character. Digraphs have their own; a character that becomes several letters keeps one capital.
fn push_title(out: &mut String, c: char) {
    match c {
        'Ǆ'..='ǆ' => out.push('ǅ'),
        'Ǉ'..='ǉ' => out.push('ǈ'),
        'Ǌ'..='ǌ' => out.push('ǋ'),
        'Ǳ'..='ǳ' => out.push('ǲ'),
        c => {
            let mut upper = c.to_uppercase();
            out.extend(upper.next());
            out.extend(upper.flat_map(char::to_lowercase));
        }
    }
}

/// Whether a character is in Unicode's category Nd. Rust's `is_numeric` also accepts fractions and numerals.
fn is_decimal(c: char) -> bool {
    c.is_ascii_digit() || (c.is_numeric() && ND.is_match(c.encode_utf8(&mut [0; 4])).unwrap_or(false))
}

static ND: std::sync::LazyLock<fancy_regex::Regex> =
    std::sync::LazyLock::new(|| fancy_regex::Regex::new(r"^\p{Nd}$").expect("a valid pattern"));

/// Largest width to which a template may pad a text.
const MAX_WIDTH: usize = 1 << 16;

pub(super) enum Align {
    Left,
    Right,
    Center,
}

pub(super) fn pad(s: &str, width: usize, fill: char, align: Align) -> String {
    let missing = width.min(MAX_WIDTH).saturating_sub(s.chars().count());
    let left = match align {
        Align::Left => 0,
        Align::Right => missing,
        // CPython puts the odd character on the left only if the width is odd too.
        Align::Center => missing / 2 + (missing & width & 1),
    };
    let run = |n: usize| std::iter::repeat_n(fill, n).collect::<String>();
    format!("{}{s}{}", run(left), run(missing - left))
}

/// `s[start:end]` in characters, and the number of characters before it; `None` if `start` is after `end`.
fn window(s: &str, start: Option<i64>, end: Option<i64>) -> (Option<&str>, usize) {
    if start.is_none() && end.is_none() {
        return (Some(s), 0);
    }
    let len = s.chars().count() as i64;
    let clamp = |at: i64| if at < 0 { (at + len).max(0) } else { at };
    let (start, end) = (clamp(start.unwrap_or(0)), clamp(end.unwrap_or(len)).min(len));
    if start > end {
        return (None, 0);
    }
    let byte = |at: i64| s.char_indices().nth(at as usize).map_or(s.len(), |(i, _)| i);
    (Some(&s[byte(start)..byte(end)]), start as usize)
}

fn split_space(s: &str, most: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = s.trim_matches(is_space);
    if most == 0 || rest.is_empty() {
        // Without a split, Python keeps the whitespace on the other side.
        let rest = if from_right { s.trim_end_matches(is_space) } else { s.trim_start_matches(is_space) };
        return if rest.is_empty() { parts } else { vec![rest] };
    }
    if from_right {
        rest = s.trim_end_matches(is_space);
        while !rest.is_empty() {
            match rest.rfind(is_space).filter(|_| parts.len() < most) {
                Some(at) => {
                    let width = rest[at..].chars().next().map_or(1, char::len_utf8);
                    parts.push(&rest[at + width..]);
                    rest = rest[..at].trim_end_matches(is_space);
                }
                None => {
                    parts.push(rest);
                    break;
                }
            }
        }
        parts.reverse();
        return parts;
    }
    rest = s.trim_start_matches(is_space);
    while !rest.is_empty() {
        match rest.find(is_space).filter(|_| parts.len() < most) {
            Some(at) => {
                parts.push(&rest[..at]);
                rest = rest[at..].trim_start_matches(is_space);
            }
            None => {
                parts.push(rest);
                break;
            }
        }
    }
    parts
}

/// Python's `str.splitlines`.
pub(super) fn split_lines(s: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut start = 0;
    let mut chars = s.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if !matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}') {
            continue;
        }
        let mut end = at + c.len_utf8();
        if c == '\r' && chars.next_if(|(_, c)| *c == '\n').is_some() {
            end += 1;
        }
        lines.push(&s[start..if keep_ends { end } else { at }]);
        start = end;
    }
    if start < s.len() {
        lines.push(&s[start..]);
    }
    lines
}
