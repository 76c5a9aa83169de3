//! What stands before arguments: the tool's name, and what else a format puts there.

use crate::codec::types::Types;
use crate::format::Step;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub name: String,
    pub index: Option<usize>,
}

/// Reads `text` by the header's steps, leniently: blanks around it, a literal before the name and the index may be missing.
/// A declared name decides how to split, since a name may itself contain the literals. None: no name in it.
pub(crate) fn read(steps: &[Step], text: &str, declared: impl Fn(&str) -> bool) -> Option<Header> {
    let text = text.trim();
    let at = steps.iter().position(|s| *s == Step::Name)?;
    let prefix: String = steps[..at].iter().map(literal).collect();
    let prefix = prefix.trim();
    let after = &steps[at + 1..];
    let separator = after.iter().map(literal).find(|l| !l.is_empty()).unwrap_or_default();
    // What follows on other lines is decoration, such as the start of a code block.
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

/// What the slots of a header hold. `name` is that of the tool or of the argument.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    pub name: Option<String>,
    pub kind: Option<String>,
    pub is_string: Option<bool>,
    /// What is in no slot.
    pub rest: String,
}

/// The attribute before a slot: `tool="` is `tool=`, and what the value may begin with.
pub(crate) fn label(literal: &'static str) -> Option<(&'static str, &'static str)> {
    let word = literal.rsplit(char::is_whitespace).next()?;
    let n = word.find('=')? + 1;
    Some((&word[..n], word[n..].trim_start_matches(['"', '\''])))
}

/// Reads attributes in any order, quoted as the model likes: `tool="f" index="1"`, `to=functions.f`, `"k" string="true"`.
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
            Step::Index | Step::Ordinal if value.bytes().all(|b| b.is_ascii_digit()) => {}
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

/// The value of one slot, and the text without it.
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
            // The literal that follows tells where a value ends that has quotes in it.
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
mod tests {
    use super::*;
    use crate::formats::by_name;

    #[test]
    fn headers() {
        let steps = by_name("kimi_k2").map(|f| f.header()).unwrap_or_default();
        let tools = ["search", "a:1", "mcp.x-y", "functions.odd", "both", "functions.both"];
        let declared = |n: &str| tools.contains(&n);
        type Named<'a> = Option<(&'a str, Option<usize>)>;
        let cases: &[(&str, Named<'_>)] = &[
            ("functions.search:0", Some(("search", Some(0)))),
            (" \nfunctions.search:12 \n", Some(("search", Some(12)))),
            ("search:2", Some(("search", Some(2)))),
            ("search", Some(("search", None))),
            ("functions.search", Some(("search", None))),
            ("functions.a:1:3", Some(("a:1", Some(3)))),
            ("functions.a:1", Some(("a:1", None))),
            ("functions.mcp.x-y:0", Some(("mcp.x-y", Some(0)))),
            ("functions.odd:4", Some(("functions.odd", Some(4)))),
            ("functions.functions.odd:4", Some(("functions.odd", Some(4)))),
            ("functions.both:4", Some(("both", Some(4)))),
            ("functions.unknown:4", Some(("unknown", Some(4)))),
            ("unknown:x", Some(("unknown:x", None))),
            ("functions.search:", Some(("search:", None))),
            ("", None),
            ("functions.:0", None),
            ("let me see", None),
            ("functions.search:99999999999999999999999", Some(("search:99999999999999999999999", None))),
        ];
        for (text, want) in cases {
            let got = read(steps, text, declared);
            let want = want.map(|(name, index)| Header { name: name.to_owned(), index });
            assert_eq!(got, want, "{text:?}");
        }
    }

    #[test]
    fn attributes() {
        let call = [Step::Lit("call tool=\""), Step::Name, Step::Lit("\" index=\""), Step::Ordinal, Step::Lit("\"")];
        let to = [Step::Lit("commentary to=functions."), Step::Name, Step::Lit(" ")];
        let param = [Step::Lit("\""), Step::Key, Step::Lit("\" string=\""), Step::IsString, Step::Lit("\">")];
        let plain = [Step::Key, Step::Lit(">\n")];
        let quoted = [Step::Lit("\""), Step::Key, Step::Lit("\">")];
        type Want<'a> = (Option<&'a str>, Option<bool>, &'a str);
        let cases: &[(&[Step], &str, Want<'_>)] = &[
            (&call, "call tool=\"f\" index=\"1\"", (Some("f"), None, "")),
            (&call, "call index='1' tool='f'", (Some("f"), None, "")),
            (&call, "call odd tool=f", (Some("f"), None, "odd")),
            (&to, "assistant to=functions.f commentary json", (Some("f"), None, "assistant json")),
            (&to, "commentary to=f ", (Some("f"), None, "")),
            (&param, "\"k\" string=\"true\"", (Some("k"), Some(true), "")),
            (&param, "\"a \"b\" c\" string=\"false\"", (Some("a \"b\" c"), Some(false), "")),
            (&param, "k string=false", (Some("k"), Some(false), "")),
            (&param, "\"k\"", (Some("k"), None, "")),
            (&plain, " k ", (Some("k"), None, "")),
            (&plain, "a b", (Some("a b"), None, "")),
            (&quoted, "\"a\"b\"", (Some("a\"b"), None, "")),
            (&quoted, "'k'", (Some("k"), None, "")),
            (&quoted, "k", (Some("k"), None, "")),
            (&quoted, "", (None, None, "")),
        ];
        for (steps, text, (name, is_string, rest)) in cases {
            let got = slots(steps, text);
            assert_eq!((got.name.as_deref(), got.is_string, got.rest.as_str()), (*name, *is_string, *rest), "{text:?}");
        }
    }
}
