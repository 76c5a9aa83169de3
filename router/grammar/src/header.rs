//! Reads the header of a call: the tool's name and whatever else a format puts before the arguments. It does not read
//! arguments.

use crate::format::Step;
use crate::json_schema::Types;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub name: String,
    pub index: Option<usize>,
}

/// Reads `text` by the header's steps, leniently: blanks around it, a literal before the name and the index may be
/// missing. A declared name decides how to split, because a name may contain the literals. None: no name found.
pub(crate) fn read(steps: &[Step], text: &str, declared: impl Fn(&str) -> bool) -> Option<Header> {
    let text = text.trim();
    let at = steps.iter().position(|s| *s == Step::Name)?;
    let prefix: String = steps[..at].iter().map(literal).collect();
    let prefix = prefix.trim();
    let after = &steps[at + 1..];
    let separator = after.iter().map(literal).find(|l| !l.is_empty()).unwrap_or_default();
    // Text on other lines is decoration, such as the start of a code block.
    let (text, rest) = text.split_once('\n').unwrap_or((text, ""));
    let text = text.trim();
    if !rest.trim().is_empty() && !separator.contains(rest.trim()) {
        return None;
    }

    let mut splits = Vec::new();
    if after.contains(&Step::Index)
        && let Some((name, digits)) = text.rsplit_once(separator)
        && let digits = digits.trim()
        && digits.bytes().all(|b| b.is_ascii_digit())
        && let Ok(index) = digits.parse()
    {
        splits.push((name.trim_end(), Some(index)));
    }
    splits.push((text, None));

    let stripped = |name: &str| name.strip_prefix(prefix).map(str::to_owned);
    for &(name, index) in &splits {
        if let Some(name) = stripped(name).filter(|n| declared(n)) {
            return Some(Header { name, index });
        }
        if declared(name) {
            return Some(Header { name: name.to_owned(), index });
        }
    }
    let (name, index) = splits[0];
    let name = stripped(name).unwrap_or_else(|| name.to_owned());
    let name = name.trim_matches(['"', '\'']);
    is_plausible(name).then(|| Header { name: name.to_owned(), index })
}

pub(crate) fn is_plausible(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control() || "{}()[]\"".contains(c))
}

fn literal(step: &Step) -> &'static str {
    if let Step::Lit(l) = step { l } else { "" }
}

/// The values of a header's slots. `name` is the name of the tool or of the argument.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    pub name: Option<String>,
    pub kind: Option<String>,
    pub is_string: Option<bool>,
    /// Text that belongs to no slot.
    pub rest: String,
}

/// The attribute before a slot: for `tool="` it is `tool=`, and the prefix of the value.
pub(crate) fn label(literal: &'static str) -> Option<(&'static str, &'static str)> {
    let word = literal.rsplit(char::is_whitespace).next()?;
    let n = word.find('=')? + 1;
    Some((&word[..n], word[n..].trim_start_matches(['"', '\''])))
}

/// Reads attributes in any order and with any quotes: `tool="f" index="1"`, `to=functions.f`, `"k" string="true"`.
pub(crate) fn slots(steps: &[Step], text: &str) -> Slots {
    let mut out = Slots::default();
    let mut rest = text.to_owned();
    for (i, step) in steps.iter().enumerate() {
        if matches!(step, Step::Lit(_) | Step::Tok(_) | Step::Maybe(_)) {
            continue;
        }
        let before = i.checked_sub(1).map(|i| literal(&steps[i])).unwrap_or_default();
        let after = steps.get(i + 1).map(literal).unwrap_or_default();
        let Some((value, left)) = slot(before, after, &rest) else { continue };
        rest = left;
        match step {
            Step::Name | Step::Key => out.name = Some(value),
            Step::Type if Types::named(&value).is_some() => out.kind = Some(value),
            Step::IsString if value.eq_ignore_ascii_case("true") => out.is_string = Some(true),
            Step::IsString if value.eq_ignore_ascii_case("false") => out.is_string = Some(false),
            Step::Index | Step::Ordinal if is_plausible(&value) => {}
            _ => {
                rest.push(' ');
                rest.push_str(&value);
            }
        }
    }
    for step in steps {
        for word in literal(step).split(|c: char| c.is_whitespace() || "\"'>".contains(c)).filter(|w| !w.is_empty()) {
            let found = rest.split_whitespace().any(|w| w == word);
            if found {
                rest = rest.split_whitespace().filter(|w| *w != word).collect::<Vec<_>>().join(" ");
            }
        }
    }
    out.rest = rest.trim_matches(|c: char| c.is_whitespace() || "\"'>/".contains(c)).to_owned();
    out
}

/// The value of one slot, and the remaining text.
fn slot(before: &'static str, after: &'static str, text: &str) -> Option<(String, String)> {
    let (start, from, prefix) = match label(before) {
        Some((key, prefix)) => {
            let boundary = |n: usize| text[..n].chars().next_back().is_none_or(|c| !c.is_alphanumeric());
            let start = text.match_indices(key).map(|(n, _)| n).find(|n| boundary(*n))?;
            (start, start + key.len(), prefix)
        }
        None => (0, text.len() - text.trim_start().len(), ""),
    };
    let value = &text[from..];
    let trimmed = value.trim_start();
    let skipped = value.len() - trimmed.len();
    let quote = trimmed.chars().next().filter(|c| matches!(c, '"' | '\''));
    let (value, end) = match quote {
        Some(quote) => {
            let inner = &trimmed[1..];
            // The literal after a value tells where it ends if it contains quotes.
            let literal = after.trim_end().trim_end_matches('>');
            let exact = if literal.len() > 1 { inner.find(literal) } else { None };
            let last =
                if label(before).is_none() && literal.len() <= 1 { inner.rfind(quote) } else { inner.find(quote) };
            let n = exact.or(last).unwrap_or(inner.len());
            (&inner[..n], from + skipped + 1 + n + usize::from(n < inner.len()))
        }
        None => {
            let whole = label(before).is_none() && label(after).is_none();
            let n = if whole { trimmed.len() } else { trimmed.find(char::is_whitespace).unwrap_or(trimmed.len()) };
            (trimmed[..n].trim_end(), from + skipped + n)
        }
    };
    let value = value.strip_prefix(prefix).unwrap_or(value);
    (!value.is_empty()).then(|| (value.to_owned(), format!("{} {}", &text[..start], &text[end..])))
}

#[cfg(test)]
mod tests;
