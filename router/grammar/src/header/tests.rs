use super::*;
use crate::formats::by_name;

#[test]
fn headers_are_read_leniently() {
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
fn attributes_are_read_in_any_order() {
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
