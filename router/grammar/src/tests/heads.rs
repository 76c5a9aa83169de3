//! Formats whose calls are recognized by words after a token: a header, a name, code.

use serde_json::json;

use super::families::{check, check_from, format};
use super::{Random, cuts, parse, pieces, short};
use crate::{Call, Parser, ParserOptions, Region, RenderOptions, Tool, Turn, render};

#[test]
fn gpt_oss_is_read() {
    let cases = [
        (
            "«<|channel|>»analysis«<|message|>»Hm.«<|end|>»«<|start|>»assistant«<|channel|>»commentary to=functions.f «<|constrain|>»json«<|message|>»{\"n\": 1}«<|call|>»",
            r#"R(Hm.)C(f|-|{"n": 1})"#,
        ),
        // The header in any order.
        (" to=functions.f«<|channel|>»commentary json«<|message|>»{}«<|call|>»", "C(f|-|{})"),
        ("«<|start|>»assistant to=functions.ns.tool-x«<|channel|>»commentary«<|message|>»{}", "C(ns.tool-x|-|{})"),
        ("«<|channel|>»commentary «<|constrain|>»json to=f«<|message|>»{}", "C(f|-|{})"),
        (
            "«<|channel|>»commentary«<|message|>»I will look.«<|end|>»«<|start|>»assistant«<|channel|>»commentary to=functions.f«<|message|>»{}",
            "T(I will look.)C(f|-|{})",
        ),
        (
            "«<|channel|>»analysis«<|message|>»a«<|end|>»«<|start|>»assistant«<|channel|>»final«<|message|>»b«<|return|>»",
            "R(a)T(b)",
        ),
        ("«<|channel|>»final«<|message|>»to=functions.f is text", "T(to=functions.f is text)"),
        ("plain", "T(plain)"),
        ("to do", "T(to do)"),
        ("final answer", "T(final answer)"),
        ("final", "T(final)"),
        // The first marker is missing.
        ("analysis«<|message|>»a«<|end|>»«<|start|>»assistant«<|channel|>»final«<|message|>»b", "R(a)T(b)"),
        ("final«<|message|>»b", "T(b)"),
        ("«<|channel|>»unknown«<|message|>»b", "M(unknown)T(b)"),
        (
            "«<|channel|>»commentary to=python code«<|message|>»print(1)«<|call|>»",
            "M(commentary to=python code print(1))",
        ),
        (
            "«<|channel|>»commentary to=python «<|constrain|>»code«<|message|>»print(1)«<|end|>»«<|start|>»assistant«<|channel|>»final«<|message|>»b",
            "M(commentary to=python  code print(1))T(b)",
        ),
        // Without the first marker.
        (" to=python «<|constrain|>»code«<|message|>»print(1)", "M(to=python  code print(1))"),
        (" to=f «<|constrain|>»json«<|message|>»{\"a\": \"x\"}", "C(f|-|{\"a\": \"x\"})"),
        ("to=functions.f «<|constrain|>»json«<|message|>»{}«<|call|>»", "C(f|-|{})"),
        ("commentary to=f «<|constrain|>»json«<|message|>»{}«<|call|>»", "C(f|-|{})"),
        ("commentary to=python «<|constrain|>»code«<|message|>»x", "M(commentary to=python  code x)"),
        (
            "«<|channel|>»analysis«<|message|>»a«<|end|>»to=python «<|constrain|>»code«<|message|>»x",
            "R(a)M(to=python  code x)",
        ),
        ("commentary on it", "T(commentary on it)"),
        ("commentary to do", "T(commentary to do)"),
        // Doubled headers: the last one counts.
        (
            "«<|channel|>»commentary to=assistant«<|channel|>»analysis«<|message|>»Hm.«<|end|>»«<|start|>»assistant«<|channel|>»final«<|message|>»b",
            "M(commentary to=assistant)R(Hm.)T(b)",
        ),
        ("«<|channel|>»analysis«<|channel|>»analysis«<|message|>»Hm.«<|end|>»", "R(Hm.)"),
        ("«<|channel|>»commentary to=functions.f«<|channel|>»commentary json«<|message|>»{}", "C(f|-|{})"),
        (
            "«<|channel|>»commentary to=functions.f«<|channel|>»analysis«<|message|>»Hm.",
            "M(commentary to=functions.f)R(Hm.)",
        ),
        ("«<|channel|>»commentary?«<|channel|>»final«<|message|>»b", "M(commentary?)T(b)"),
        // To a recipient that is not a tool.
        ("«<|channel|>»analysis to=assistant«<|message|>»Hm.«<|end|>»", "M(to=assistant)R(Hm.)"),
        ("«<|channel|>»final to=user«<|message|>»b«<|return|>»", "M(to=user)T(b)"),
        ("«<|channel|>»commentary to=user«<|message|>»b", "M(commentary to=user b)"),
        ("«<|channel|>»analysis to=python code«<|message|>»x = {1}«<|call|>»", "M(analysis to=python code x = {1})"),
        ("«<|channel|>»commentary to=functions.nobody «<|constrain|>»json«<|message|>»{}", "C(nobody|-|{})"),
        // Without a message marker, no header word is text.
        ("«<|channel|>»?? I think«<|end|>»«<|start|>»assistant«<|channel|>»final«<|message|>»b", "M(?? I think)T(b)"),
        ("«<|channel|>»analysis«<|message|>»Hm.«<|end|>»«<|start|>»assistant", "R(Hm.)"),
        ("«<|channel|>»commentary to=functions.f", "M(commentary to=functions.f)"),
        ("«<|channel|>»commentary to=functions.f «<|constrain|>»json«<|message|>»{\"s\": \"x", r#"C?(f|-|{"s": "x)"#),
    ];
    check("gpt_oss", &cases);
}

#[test]
fn without_tools_a_recipient_is_never_text() {
    for (output, want) in [
        (" to=python «<|constrain|>»code«<|message|>»print(1)", "M(to=python  code print(1))"),
        (
            "«<|channel|>»commentary to=python «<|constrain|>»code«<|message|>»print(1)",
            "M(commentary to=python  code print(1))",
        ),
        ("to do", "T(to do)"),
    ] {
        for cut in cuts(&pieces(output), &mut Random::new(7)) {
            assert_eq!(
                short(&parse(format("gpt_oss"), ParserOptions::default(), &cut)),
                want,
                "{output:?} cut as {cut:?}"
            );
        }
    }
}

#[test]
fn kimi_k3_is_read() {
    let call = "«<|open|>»call tool=\"f\" index=\"1\"«<|sep|>»«<|open|>»argument key=\"s\" type=\"string\"«<|sep|>»x«<|close|>»argument«<|sep|>»«<|open|>»argument key=\"n\" type=\"number\"«<|sep|>»3«<|close|>»argument«<|sep|>»«<|close|>»call«<|sep|>»";
    let tools = format!("«<|open|>»tools«<|sep|>»{call}«<|close|>»tools«<|sep|>»«<|close|>»message«<|sep|>»");
    let whole = format!(
        "«<|open|>»think«<|sep|>»Hm.«<|close|>»think«<|sep|>»«<|open|>»response«<|sep|>»Hi.«<|close|>»response«<|sep|>»{tools}"
    );
    let unclosed = format!("«<|open|>»think«<|sep|>»Hm.{tools}");
    let bare = format!("{call}«<|close|>»message«<|sep|>»");
    let cases = [
        (whole.as_str(), r#"R(Hm.)T(Hi.)C(f|-|{"s": "x", "n": 3})"#),
        (unclosed.as_str(), r#"R(Hm.)C(f|-|{"s": "x", "n": 3})"#),
        (bare.as_str(), r#"C(f|-|{"s": "x", "n": 3})"#),
        ("«<|open|>»response«<|sep|>»tool=x«<|close|>»response«<|sep|>»", "T(tool=x)"),
    ];
    check("kimi_k3", &cases);
    check_from(
        "kimi_k3",
        Region::Reasoning,
        &[("Hm.«<|close|>»think«<|sep|>»«<|open|>»response«<|sep|>»Hi.", "R(Hm.)T(Hi.)")],
    );
    // The prompt may end inside the response.
    check("kimi_k3", &[("Hi.«<|close|>»response«<|sep|>»«<|close|>»message«<|sep|>»", "T(Hi.)")]);
}

#[test]
fn builtin_tools_of_llama_are_read() {
    let declared = |names: &[&str]| -> Vec<Tool> {
        let tool = |name: &&str| {
            let key = if *name == "brave_search" { "query" } else { "code" };
            let parameters = json!({"type": "object", "properties": {key: {"type": "string"}}});
            Tool { name: (*name).to_owned(), parameters: Some(parameters), ..Tool::default() }
        };
        names.iter().map(tool).collect()
    };
    let all = declared(&["brave_search", "code_interpreter"]);
    let cases = [
        (
            r#"«<|python_tag|>»brave_search.call(query="x \"y\"")«<|eom_id|>»"#,
            r#"C(brave_search|-|{"query": "x \"y\""})"#,
        ),
        (r#"«<|python_tag|>» brave_search.call(query='x')"#, r#"C(brave_search|-|{"query": "x"})"#),
        (
            r#"«<|python_tag|>»{"name": "brave_search", "parameters": {"query": "x"}}"#,
            r#"C(brave_search|-|{"query": "x"})"#,
        ),
        (r#"{"name": "brave_search", "parameters": {"query": "x"}}"#, r#"C(brave_search|-|{"query": "x"})"#),
        (
            "«<|python_tag|>»import os\nprint(\"{}\")\n«<|eom_id|>»",
            r#"C(code_interpreter|-|{"code": "import os\nprint(\"{}\")\n"})"#,
        ),
        ("«<|python_tag|>»brave = 1", r#"C(code_interpreter|-|{"code": "brave = 1"})"#),
        ("«<|python_tag|>»x = {'é': 1}", r#"C(code_interpreter|-|{"code": "x = {'é': 1}"})"#),
        (r#"«<|python_tag|>»brave_search.call(query="x"#, r#"C?(brave_search|-|{"query": "x)"#),
        ("«<|python_tag|>»brave_search.ca", "M(brave_search.ca)"),
    ];
    let none = [
        (r#"«<|python_tag|>»wolfram_alpha.call(query="x")"#, r#"M(wolfram_alpha.call(query="x"))"#),
        ("«<|python_tag|>»import os", "M(import os)"),
    ];
    let search = declared(&["brave_search"]);
    let runs = [(&all, &cases[..]), (&search, &none[..]), (&search, &cases[..4])];
    for (tools, cases) in runs {
        for (output, want) in cases {
            for cut in cuts(&pieces(output), &mut Random::new(7)) {
                let options =
                    ParserOptions { tools: tools.clone().into(), parse_tools: true, ..ParserOptions::default() };
                assert_eq!(short(&parse(format("llama_json"), options, &cut)), *want, "{output:?} cut as {cut:?}");
            }
        }
    }
    // What the renderer writes is read back; code that was cut by the length is incomplete.
    for (name, arguments) in [
        ("brave_search", r#"{"query": "a \"b\" \\ c"}"#),
        ("code_interpreter", "{\"code\": \"if x:\\n\\ty = '\\\\n'\"}"),
    ] {
        let turn = Turn { calls: vec![Call { name: name.into(), arguments: arguments.into() }], ..Turn::default() };
        let output = render(format("llama_json"), &turn, RenderOptions::default());
        let options = ParserOptions { tools: all.clone().into(), parse_tools: true, ..ParserOptions::default() };
        assert_eq!(short(&parse(format("llama_json"), options.clone(), &output)), format!("C({name}|-|{arguments})"));
        if name == "code_interpreter" {
            let mut parser = Parser::new(format("llama_json"), options);
            let mut events = Vec::new();
            output.iter().for_each(|piece| parser.push(piece.as_piece(), &mut events));
            parser.cut();
            parser.finish(&mut events);
            assert!(short(&events).starts_with("C?("), "{events:?}");
        }
    }
}
