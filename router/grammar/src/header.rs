//! The part of a call that names the tool, between two markers.

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
    let literal = |s: &Step| if let Step::Lit(l) = s { *l } else { "" };
    let prefix: String = steps[..at].iter().map(literal).collect();
    let after = &steps[at + 1..];
    let separator = after.iter().map(literal).find(|l| !l.is_empty()).unwrap_or_default();

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

    let stripped = |name: &str| name.strip_prefix(prefix.as_str()).map(str::to_owned);
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
    let plausible =
        !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control() || "{}\"".contains(c));
    plausible.then_some(Header { name, index })
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
}
