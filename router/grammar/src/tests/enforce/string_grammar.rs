//! Strings whose text has a Lark grammar of its own, such as the patches of a coding agent.

use serde_json::json;

use super::{Bench, rules, tool};
use crate::tests::Random;
use crate::{Compiled, LARK_KEYWORD, Rules, ToolChoice, by_name, formats};

/// The patches that Codex describes to its models.
const PATCHES: &str = r#"
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"#;

const ADD: &str = "*** Begin Patch\n*** Add File: a \"b\".txt\n+say \"hi\\n\" \u{1f600}\n+\n*** End Patch";
const UPDATE: &str = "*** Begin Patch\n*** Update File: src/a.rs\n*** Move to: src/b.rs\n@@ fn f\n-\told</x>\n+\tnew\n *** End Patch\n*** End Patch\n";

fn taking(grammar: &str) -> Rules {
    let input = json!({"type": "string", "x-rein-lark": grammar});
    let schema = json!({"type": "object", "properties": {"input": input}, "required": ["input"]});
    Rules { choice: ToolChoice::Required, ..rules(vec![tool("patch", schema)]) }
}

fn compiled(b: &Bench, grammar: &str) -> Result<Compiled, String> {
    b.grammars.compile(&taking(grammar)).map_err(|e| e.to_string()).map(|compiled| compiled.expect("a grammar"))
}

fn takes(b: &Bench, compiled: &Compiled, value: &str) -> bool {
    let arguments = json!({"input": value}).to_string();
    let turn = crate::Turn { calls: vec![crate::Call { name: "patch".into(), arguments }], ..crate::Turn::default() };
    let ids = b.tokens.ids(&crate::render(b.format, &turn, crate::RenderOptions::default()));
    b.run(&mut compiled.matcher().expect("a matcher"), &ids) == (ids.len(), true)
}

#[test]
fn every_format_takes_the_patches_of_the_grammar_and_no_others() {
    for format in formats().iter().filter(|format| format.has_calls()) {
        let b = Bench::new(format, false);
        let compiled = compiled(&b, PATCHES).unwrap_or_else(|e| panic!("{}: {e}", format.name));
        // The lexer cannot tell letters that end a string from those of a patch's lines.
        let relaxed = compiled.relaxations().iter().map(|relaxation| relaxation.keyword.as_str()).collect::<Vec<_>>();
        if format.string_mark().is_some() || matches!(format.codec(), crate::Codec::Tagged(_)) {
            assert_eq!(relaxed, [LARK_KEYWORD], "{}", format.name);
            continue;
        }
        assert!(relaxed.is_empty(), "{}: {relaxed:?}", format.name);
        for good in [ADD, UPDATE, "*** Begin Patch\n*** Delete File: x\n*** End Patch"] {
            assert!(takes(&b, &compiled, good), "{}: {good:?}", format.name);
        }
        for bad in [
            "",
            "*** Begin Patch\n*** End Patch",
            "*** Begin Patch\n*** Add File: a\n*** End Patch",
            "*** Begin Patch\n*** Add File: a\nno plus\n*** End Patch",
            "*** Begin Patch\n*** Update File: \n*** End Patch",
            "*** Begin Patch\n*** Delete File: x\n*** End Patch and more",
            "{\"input\": \"*** Begin Patch\"}",
        ] {
            assert!(!takes(&b, &compiled, bad), "{}: {bad:?}", format.name);
        }
    }
}

/// The text is judged after unescaping, whatever its spelling.
#[test]
fn any_spelling_of_a_json_string_is_accepted() {
    let b = Bench::new(by_name("kimi_k2").expect("a format"), false);
    let compiled = compiled(
        &b,
        "start: \"say \" WORD (\"/\" | \"\\n\" | NOTE)*\nWORD: /[a-z\"\\\\\u{e9}\u{1f600}]+/\nNOTE: \"x\"..\"z\"",
    )
    .expect("a grammar");
    let call = |string: &str| {
        format!(
            "⟦<|tool_calls_section_begin|>⟧⟦<|tool_call_begin|>⟧functions.patch:0⟦<|tool_call_argument_begin|>⟧{{\"input\": {string}}}⟦<|tool_call_end|>⟧⟦<|tool_calls_section_end|>⟧"
        )
    };
    let taken = |string: &str| {
        let ids = b.tokens.text(&call(string));
        b.run(&mut compiled.matcher().expect("a matcher"), &ids) == (ids.len(), true)
    };
    for (string, valid) in [
        (r#""say hi""#, true),
        (r#""s\u0061y\u0020hi""#, true),
        (r#""say \"\\\u0022""#, true),
        (r#""say h\/""#, true),
        (r#""say h/\u002F\/\nz""#, true),
        ("\"say \u{e9}\\u00e9\\u00E9\"", true),
        ("\"say \u{1f600}\\ud83d\\uDE00\"", true),
        (r#""say \ud83d\ude01""#, false),
        (r#""say H""#, false),
        (r#""say \u0048""#, false),
        (r#""say""#, false),
        (r#""say h\tz""#, false),
        (r#""say hw""#, true),
        (r#""say h w""#, false),
    ] {
        let decoded: Result<String, _> = serde_json::from_str(string);
        assert!(decoded.is_ok(), "{string}");
        assert_eq!(taken(string), valid, "{string}");
    }
}

#[test]
fn walks_give_texts_that_the_grammar_accepts_again() {
    let lines = "start: (\"+\" /[a\\\"\\\\]{0,3}/ LF)+ \"end\"i\n%import common.LF";
    for name in ["kimi_k2", "hermes", "qwen3_coder", "glm45", "pythonic", "deepseek_v3"] {
        let Some(format) = by_name(name) else { panic!("{name}") };
        let b = Bench::new(format, false);
        let (rules, compiled) = (taking(lines), compiled(&b, lines).unwrap_or_else(|e| panic!("{name}: {e}")));
        let mut random = Random::new(5);
        let mut calls = 0;
        for _ in 0..20 {
            let Some(ids) = b.walk(&mut compiled.matcher().expect("a matcher"), &mut random, 3000) else { continue };
            for (_, arguments) in b.parse(&rules, &ids).unwrap_or_else(|e| panic!("{name}: {e}")) {
                let arguments: serde_json::Value = serde_json::from_str(&arguments).expect("JSON");
                let text = arguments["input"].as_str().expect("a string");
                let (body, end) = text.split_at(text.len() - 3);
                assert!(end.eq_ignore_ascii_case("end"), "{name}: {text:?}");
                let within = |line: &str| line.len() <= 4 && line[1..].chars().all(|c| "a\"\\".contains(c));
                assert!(body.lines().all(|line| line.starts_with('+') && within(line)), "{name}: {text:?}");
                assert!(takes(&b, &compiled, text), "{name}: {text:?}");
                calls += 1;
            }
        }
        assert!(calls > 0, "{name}");
    }
}

/// A raw value ends at letters that a greedy terminal could read as its own.
#[test]
fn a_grammar_whose_end_cannot_be_found_is_relaxed() {
    let anything = "start: /(?s:.)+/";
    for (name, relaxed) in [("qwen3_coder", true), ("kimi_k2", false), ("hermes", false), ("glm45", false)] {
        let b = Bench::new(by_name(name).expect("a format"), false);
        let compiled = compiled(&b, anything).unwrap_or_else(|e| panic!("{name}: {e}"));
        let told: Vec<_> = compiled.relaxations().iter().map(ToString::to_string).collect();
        let expected: &[&str] = if relaxed { &["patch#/properties/input/x-rein-lark"] } else { &[] };
        assert_eq!(told, expected, "{name}");
        assert!(takes(&b, &compiled, "a\n</b>\nc"), "{name}");
        let mut strict = taking(anything);
        strict.tools = strict.tools.iter().map(|tool| crate::Tool { strict: true, ..tool.clone() }).collect();
        assert_eq!(b.grammars.compile(&strict).is_err(), relaxed, "{name}");
    }
}

#[test]
fn grammars_that_cannot_be_used_in_a_string_are_the_clients_error() {
    let b = Bench::new(by_name("kimi_k2").expect("a format"), false);
    for (grammar, problem) in [
        ("start: <|im_end|>", "special tokens"),
        ("start: <[5106]>", "special tokens"),
        ("start: @other", "references to other grammars"),
        ("start: T\nT: /a+/ & /aa/", "conjunctions"),
        ("start: T\nT: ~/a/", "negation"),
        ("start: \"a\"\n%ignore /ab+/", "can only ignore runs"),
        ("start: %json {\"type\": \"object\"}", "%json cannot be used"),
        ("start: X\n%import common.NOPE", "%import common.NOPE is unknown"),
        ("start: X\n%import other.LF", "%import other.LF is unknown"),
        ("start: \"a", "has no end on its line"),
        ("start: /a/\nX: /(/", "is invalid"),
        ("start: /^a$/", "may have no anchors"),
        ("start: \"b\"..\"a\"", "must go to a later character"),
        ("start: other", "patch].function.parameters/properties/input/x-rein-lark: at 1(8): unknown name: \"other\""),
        ("start: start", ""),
        ("begin: \"a\"", "x-rein-lark: "),
        ("", "x-rein-lark: "),
    ] {
        let error = compiled(&b, grammar).expect_err(grammar);
        assert!(error.contains(problem), "{grammar}: {error}");
    }
    let schema = json!({"type": "object", "properties": {"input": {"type": "string", "x-rein-lark": 5}}});
    let error = b.grammars.compile(&rules(vec![tool("patch", schema)])).expect_err("a number").to_string();
    assert!(error.contains("x-rein-lark") && error.contains("must be a Lark grammar"), "{error}");
}

#[test]
fn blanks_between_terminals_are_ignored_where_the_grammar_says_so() {
    for name in ["kimi_k2", "hermes", "glm45", "pythonic"] {
        let b = Bench::new(by_name(name).expect("a format"), false);
        let sums = "start: INT (\"+\" INT)*\n%import common.INT\n%import common.WS\n%ignore WS\n";
        let compiled = compiled(&b, sums).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (value, valid) in [("1", true), ("1 +  22", true), ("1\t+\n2", true), ("1 2", false), ("1 + a", false)] {
            assert_eq!(takes(&b, &compiled, value), valid, "{name}: {value:?}");
        }
    }
}
