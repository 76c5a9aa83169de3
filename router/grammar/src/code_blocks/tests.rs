use regex::Regex;

use super::*;
use crate::tests::Random;

const PIECES: &[&str] =
    &["`", "``", "```", "````", "\n", "\n", " ", "json", "x", "\r\n", "```\n", "```json\n", "a b", "\t", "x`y"];

/// Code as the lexemes of the grammar read it, each as long as possible.
struct Lexemes {
    whole: Regex,
    unclosed: Regex,
    open: Regex,
}

impl Lexemes {
    fn ends_outside(&self, text: &str) -> bool {
        let mut rest = text;
        while let Some(at) = rest.find('`') {
            rest = &rest[at..];
            let whole = self.whole.find(rest).map(|code| code.end());
            let unclosed = self.unclosed.find(rest).map(|code| code.end());
            match (whole, unclosed, self.open.is_match(rest)) {
                (Some(n), None, false) | (None, Some(n), false) => rest = &rest[n..],
                (None, None, true) => return false,
                other => panic!("{rest:?}: {other:?}"),
            }
        }
        true
    }
}

#[test]
fn the_parser_and_the_grammar_see_the_same_code() {
    let regex = |regex: String| Regex::new(&regex).unwrap();
    let code = Lexemes {
        whole: regex(format!("^(?:{})", whole_code())),
        unclosed: regex(format!("^(?:{UNCLOSED})")),
        open: regex(format!("^(?:{})$", KINDS.each_ref().map(CodeKind::unfinished).join("|"))),
    };
    let layout = regex(format!("^[ \\t\\r\\n]*({LAYOUT})?$"));
    let block_end = regex(format!("^[ \\t\\r\\n]*{BLOCK_END}"));
    let mut random = Random::new(11);
    let mut seen = [0; 2];
    for _ in 0..20_000 {
        let text: String = (0..1 + random.below(12)).map(|_| *random.pick(PIECES)).collect();
        let is = |place| {
            let mut blocks = CodeBlocks::new(place);
            blocks.feed(&text);
            blocks.is_outside()
        };
        let first = |text: &str| code.ends_outside(text) || layout.is_match(text);
        assert_eq!(is(TextPlace::Reasoning), code.ends_outside(&text), "{text:?}");
        assert_eq!(is(TextPlace::Beginning), first(&text), "{text:?}");
        let after_block = block_end.find(&text).map_or(text.as_str(), |block| &text[block.end()..]);
        assert_eq!(is(TextPlace::AfterCall), first(after_block), "{text:?}");
        seen[usize::from(code.ends_outside(&text))] += 1;
    }
    assert!(seen.iter().all(|n| *n > 1000), "{seen:?}");
}

#[test]
fn code_is_what_markdown_shows_as_code() {
    let cases = [
        ("Write ", true),
        ("Write `", false),
        ("Write `a` and ", true),
        ("Write ``a", false),
        ("Write `a\n", true),
        ("Like this:\n```\n", false),
        ("Like this:\n```xml\nx `y` z\n", false),
        ("Like this:\n```xml\nx\n```", true),
        ("````md\n```\n", false),
        ("````md\n```\n```\nx\n````\n", true),
        ("Use ```a``` ", true),
    ];
    for (text, outside) in cases {
        let mut blocks = CodeBlocks::new(TextPlace::Reasoning);
        blocks.feed(text);
        assert_eq!(blocks.is_outside(), outside, "{text:?}");
    }
}
