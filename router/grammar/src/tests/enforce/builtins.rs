//! Calls of built-in tools: the parser reads what the grammar accepts.

use serde_json::{Value, json};

use super::{Bench, rules, tool};
use crate::tests::short;
use crate::{ParserOptions, Tool, by_name};

fn one(key: &str, schema: Value) -> Value {
    json!({"type": "object", "properties": {key: schema}, "required": [key]})
}

#[test]
fn builtin_calls_are_accepted_if_their_tools_are_declared() {
    let b = Bench::new(by_name("llama_json").expect("a format"), false);
    let text = json!({"type": "string"});
    let search = ("brave_search", one("query", text.clone()));
    let code = ("code_interpreter", one("code", text));
    let short_code = ("code_interpreter", one("code", json!({"type": "string", "maxLength": 4})));
    let tag = "⟦<|python_tag|>⟧";
    let cases = [
        (vec![&search], r#"brave_search.call(query="x")"#, Some(r#"C(brave_search|-|{"query": "x"})"#)),
        (
            vec![&search],
            r#"{"name": "brave_search", "parameters": {"query": "x"}}"#,
            Some(r#"C(brave_search|-|{"query": "x"})"#),
        ),
        (vec![&search], "brave_search.call(limit=1)", None),
        (vec![&search], "brave_search.call()", None),
        (vec![&search], r#"wolfram_alpha.call(query="x")"#, None),
        (vec![&search], "import os", None),
        (
            vec![&search, &code],
            "import os\nprint({1})",
            Some(r#"C(code_interpreter|-|{"code": "import os\nprint({1})"})"#),
        ),
        (vec![&search, &code], "bra = 1", Some(r#"C(code_interpreter|-|{"code": "bra = 1"})"#)),
        (vec![&search, &code], r#"wolfram_alpha.call(query="x")"#, None),
        (vec![&search, &code], "{1}", None),
        (vec![&short_code], "import os", None),
    ];
    for (tools, written, want) in cases {
        let rules = rules(tools.iter().map(|(name, schema)| tool(name, schema.clone())).collect());
        let ids = b.tokens.text(&format!("{tag}{written}"));
        assert_eq!(b.takes_ids(&rules, &ids), want.is_some(), "{written}");
        let Some(want) = want else { continue };
        let tools = tools.iter().map(|(name, schema)| Tool {
            name: (*name).into(),
            parameters: Some(schema.clone()),
            ..Tool::default()
        });
        let options = ParserOptions { tools: tools.collect(), parse_tools: true, ..ParserOptions::default() };
        let want = want.replace("\\n", "\n").replace('\n', "\\n");
        assert_eq!(short(&crate::tests::parse(b.format, options, &b.tokens.pieces(&ids))), want);
    }
}
