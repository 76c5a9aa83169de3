//! Tests of `response_format` and `structured_outputs`.

use serde_json::json;

use super::{Bench, rules, tool};
use crate::{Response, RuleError, Rules, ToolChoice};

fn respond(response: Response) -> Rules {
    Rules { response: Some(response), ..rules(Vec::new()) }
}

fn with_tool(response: Response) -> Rules {
    Rules { response: Some(response), ..rules(vec![tool("f", json!({"type": "object", "properties": {}}))]) }
}

#[test]
fn json_responses_work_with_and_without_tools() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    for format in ["kimi_k2", "hermes", "plain", "llama_json", "qwen3_coder"] {
        let b = Bench::new(crate::by_name(format).expect("format"), false);
        let json = respond(Response::JsonSchema { schema: schema.clone(), strict: true });
        assert!(b.takes(&json, "\n{\"a\": 1}\n"), "{format}");
        assert!(!b.takes(&json, "") && !b.takes(&json, "hello") && !b.takes(&json, "{}"), "{format}");
        assert!(b.takes(&respond(Response::JsonObject), r#"{"x": [1, 2, {}]}"#), "{format}");
        assert!(!b.takes(&respond(Response::JsonObject), "[]"), "{format}");
        if crate::by_name(format).is_some_and(|f| f.reasoning.is_some()) {
            assert!(b.takes(&json, "⟦<think>⟧hm⟦</think>⟧{\"a\": 1}"), "{format}");
            assert!(!b.takes(&json, "⟦<think>⟧hm"), "{format}");
        }
    }
    let b = Bench::new(crate::by_name("hermes").expect("format"), false);
    let both = with_tool(Response::JsonSchema { schema, strict: true });
    assert!(b.takes(&both, r#"{"a": 1}"#));
    assert!(b.takes(&both, "⟦<tool_call>⟧\n{\"name\": \"f\", \"arguments\": {}}\n⟦</tool_call>⟧"));
    assert!(!b.takes(&both, "text"));
    let forced = Rules { choice: ToolChoice::Required, ..both };
    assert!(!b.takes(&forced, r#"{"a": 1}"#));
    assert!(b.takes(&forced, "⟦<tool_call>⟧\n{\"name\": \"f\", \"arguments\": {}}\n⟦</tool_call>⟧"));
}

/// Whatever the models write between reasoning and answer is layout, whatever the answer must be.
#[test]
fn layout_around_reasoning_does_not_belong_to_a_response() {
    let answers = [
        (Response::JsonSchema { schema: json!({"type": "integer"}), strict: true }, "7"),
        (Response::Regex("[a-z]+".into()), "yes"),
        (Response::Choice(vec!["yes".into(), "no".into()]), "no"),
        (Response::Lark("start: /[a-z]+/".into()), "yes"),
        (Response::StructuralTag(json!({"format": {"type": "const_string", "value": "yes"}})), "yes"),
    ];
    for format in crate::formats().iter().filter(|f| f.reasoning.is_some()) {
        for spelled in [false, true] {
            if spelled && format.markers == crate::Markers::Special {
                continue;
            }
            let b = Bench::new(format, spelled);
            for (response, answer) in answers.clone() {
                let turn = crate::Turn { reasoning: Some("so".into()), text: answer.into(), calls: Vec::new() };
                let options = crate::RenderOptions { spelled, ..crate::RenderOptions::default() };
                let ids = b.tokens.ids(&crate::render(format, &turn, options));
                let tool = format.has_calls().then(|| with_tool(response.clone()));
                for rules in std::iter::once(respond(response.clone())).chain(tool) {
                    let (n, ended) = b.run(&mut b.matcher(&rules), &ids);
                    let taken = b.tokens.show(&ids[..n]);
                    assert!(n == ids.len() && ended, "{} {spelled} {response:?}: {taken:?}", format.name);
                }
            }
        }
    }
    let json = Response::JsonSchema { schema: json!({"type": "integer"}), strict: true };
    for name in ["qwen3_coder", "kimi_k2", "glm45", "plain"] {
        let b = Bench::new(crate::by_name(name).expect("format"), false);
        assert!(b.takes(&respond(json.clone()), "\n⟦<think>⟧hm⟦</think>⟧\n\n7"), "{name}");
        assert!(b.takes(&respond(json.clone()), "\n\n7"), "{name}");
    }
    // A blank by mistake forces reasoning only in formats that write one before it.
    let choice = respond(Response::Choice(vec!["yes".into()]));
    for (name, blank) in [("qwen3_coder", ""), ("glm45", "\n")] {
        let b = Bench::new(crate::by_name(name).expect("format"), false);
        assert_eq!(b.prefix(&choice, "\n⟦<think>⟧")[..blank.len()], *blank, "{name}");
    }
}

/// Text before a call does not bypass the response format.
#[test]
fn with_a_response_format_blocks_of_text_are_empty_or_the_response() {
    let json = with_tool(Response::JsonSchema { schema: json!({"type": "integer"}), strict: true });
    let b = Bench::new(crate::by_name("kimi_k3").expect("format"), false);
    let block = |text: &str| format!("⟦<|open|>⟧response⟦<|sep|>⟧{text}⟦<|close|>⟧response⟦<|sep|>⟧");
    let finish = "⟦<|close|>⟧message⟦<|sep|>⟧";
    let call = format!(
        "⟦<|open|>⟧tools⟦<|sep|>⟧⟦<|open|>⟧call tool=\"f\" index=\"1\"⟦<|sep|>⟧⟦<|close|>⟧call⟦<|sep|>⟧⟦<|close|>⟧tools⟦<|sep|>⟧{finish}"
    );
    let required = Rules { choice: ToolChoice::Required, ..json.clone() };
    for rules in [&json, &required] {
        assert!(b.takes(rules, &call) && b.takes(rules, &format!("{}{call}", block(""))));
        assert!(b.takes(rules, &format!("{}{call}", block("\n"))));
        assert!(!b.takes(rules, &format!("{}{call}", block("7"))) && !b.takes(rules, &format!("{}{call}", block("x"))));
        // The prompt has opened the block.
        assert!(b.takes(rules, &format!("⟦<|close|>⟧response⟦<|sep|>⟧{call}")));
    }
    assert!(
        b.takes(&json, &format!("{}{finish}", block("7"))) && !b.takes(&required, &format!("{}{finish}", block("7")))
    );
    let b = Bench::new(crate::by_name("gpt_oss").expect("format"), false);
    let said = "⟦<|channel|>⟧commentary⟦<|message|>⟧Hm.⟦<|end|>⟧⟦<|start|>⟧assistant";
    assert!(b.takes(&json, "⟦<|channel|>⟧final⟦<|message|>⟧7"));
    assert!(!b.takes(&json, &format!("{said}⟦<|channel|>⟧final⟦<|message|>⟧7")));
}

/// Limits that nothing enforces are reported, wherever they are.
#[test]
fn unknown_fields_of_a_tag_are_rejected_by_name() {
    let b = Bench::new(crate::by_name("kimi_k2").expect("format"), false);
    let integer = json!({"type": "json_schema", "json_schema": {"type": "integer"}});
    let tag = json!({"type": "tag", "begin": "<", "content": integer, "end": ">"});
    let formats = [
        (json!({"type": "any_text"}), "max_chars"),
        (json!({"type": "any_tokens"}), "max_tokens"),
        (integer.clone(), "max_whitespace_cnt"),
        (json!({"type": "const_string", "value": "a"}), "values"),
        (tag.clone(), "max_tokens"),
        (json!({"type": "dispatch", "rules": [["#", integer]]}), "looping"),
    ];
    let compile = |format: serde_json::Value| {
        b.grammars.compile(&respond(Response::StructuralTag(json!({"format": format})))).map(|_| ())
    };
    let structures = json!([{"begin": "<", "schema": {"type": "integer"}, "end": ">"}]);
    for whole in [
        json!({"type": "structural_tag", "format": {"type": "any_text"}, "max_chars": 1}),
        json!({"type": "structural_tag", "structures": structures, "triggers": ["<"], "max_chars": 1}),
    ] {
        let error = b.grammars.compile(&respond(Response::StructuralTag(whole))).expect_err("max_chars").to_string();
        assert!(error.starts_with("structural_tag.max_chars: is not supported here; a structural tag"), "{error}");
    }
    for (mut format, field) in formats {
        let list = |tag: &serde_json::Value| json!({"type": "tags_with_separator", "separator": ",", "tags": [tag]});
        assert_eq!(compile(format.clone()), Ok(()), "{field}");
        format[field] = json!(5);
        let mut nested = tag.clone();
        nested["content"] = format.clone();
        let mut wheres = vec![(format.clone(), "structural_tag.format"), (nested, "structural_tag.format.content")];
        if format["type"] == "tag" {
            wheres.push((list(&format), "structural_tag.format.tags[0]"));
        }
        for (format, place) in wheres {
            let error = compile(format).expect_err(field).to_string();
            assert!(error.starts_with(&format!("{place}.{field}: ")), "{error}");
        }
        format[field] = json!(null);
        assert_eq!(compile(format), Ok(()), "{field}");
    }
}

/// A response to a regular expression is validated by another engine, which reads it like the grammar: whole texts,
/// anchored at both ends, with the same quantifiers.
#[test]
fn a_regex_is_validated_as_the_grammar_reads_it() {
    let b = Bench::new(crate::by_name("kimi_k2").expect("format"), false);
    for (regex, texts) in [
        ("a|bc", vec!["a", "bc", "ab", "c", "abc", ""]),
        ("^a+$", vec!["a", "aa", "ba", "a\n"]),
        ("a++a", vec!["a", "aa", "aaa"]),
        ("(?i)k{2}", vec!["kK", "K\u{212a}", "k"]),
        ("(?s).", vec!["\n", "é", "ab"]),
        (".", vec!["\n", "\r", "é", "ab"]),
        (r"\d", vec!["7", "٣", "x"]),
        (r"[^/]/\/", vec!["a//", "///", "a/"]),
        (r"\n?x", vec!["\nx", "x", " x"]),
        // Its automaton takes more than 256 KiB.
        (r"[\w ]{1,60}x", vec!["a bx", "ab", "x"]),
        (r"\p{Greek}+", vec!["αβ", "ab"]),
        ("(?x) a b # and so on\n", vec!["ab", "a b"]),
        ("x{2,}?y*?", vec!["xx", "xxy", "x"]),
    ] {
        let rules = respond(Response::Regex(regex.into()));
        let compiled = b.compile(&rules);
        for text in texts {
            assert_eq!(compiled.validate_response(text).is_ok(), b.takes(&rules, text), "{regex:?} {text:?}");
        }
    }
}

#[test]
fn structured_outputs_are_enforced() {
    let b = Bench::new(crate::by_name("kimi_k2").expect("format"), false);
    let regex = respond(Response::Regex(r"\d{3}-[a-z/]+".into()));
    assert!(b.takes(&regex, "123-a/b") && !b.takes(&regex, "12-a"));
    let choice = respond(Response::Choice(vec!["yes".into(), "no".into(), "not \"sure\"".into()]));
    assert!(b.takes(&choice, "no") && b.takes(&choice, "not \"sure\"") && !b.takes(&choice, "maybe"));
    assert_eq!((b.prefix(&choice, " yes").as_str(), b.prefix(&choice, "\n")), ("", String::new()));
    assert!(b.takes(&choice, "⟦<think>⟧Hm.⟦</think>⟧no"));
    let lark =
        respond(Response::Lark("start: greeting \" \" NAME\ngreeting: \"hi\" | \"hello\"\nNAME: /[A-Z][a-z]*/".into()));
    assert!(b.takes(&lark, "hello Bob") && !b.takes(&lark, "hello bob"));
    let tag = json!({"triggers": ["<fn="], "structures": [
        {"begin": "<fn=a>", "schema": {"type": "integer"}, "end": "</fn>"},
        {"begin": "<fn=b>", "schema": {"type": "boolean"}, "end": "</fn>"}]});
    let tag = respond(Response::StructuralTag(tag));
    assert!(b.takes(&tag, "text <fn=a>12</fn> and <fn=b>true</fn>.") && b.takes(&tag, "") && b.takes(&tag, "<fn"));
    assert!(!b.takes(&tag, "<fn=a>true</fn>") && !b.takes(&tag, "<fn=c>"));
    let json = |schema| json!({"type": "json_schema", "json_schema": {"type": schema}});
    let tagged = |begin: &str, content, end| json!({"type": "tag", "begin": begin, "content": content, "end": end});
    let of = |format| respond(Response::StructuralTag(json!({"type": "structural_tag", "format": format})));
    let any = json!({"type": "any_text"});
    let think = of(json!({"type": "sequence", "elements": [
        tagged("<think>", any.clone(), json!("</think>")), {"type": "const_string", "value": "Answer: "}, json("integer")]}));
    assert!(b.takes(&think, "<think>a < b</think>Answer: 7") && !b.takes(&think, "<think>a</think>Answer: x"));
    assert!(!b.takes(&think, "<think>a</think>") && !b.takes(&think, "Answer: 7"));
    let upto = of(json!({"type": "sequence", "elements": [any, {"type": "const_string", "value": "
OK"}]}));
    assert!(
        b.takes(
            &upto,
            "whatever
no
OK"
        ) && !b.takes(&upto, "whatever")
            && !b.takes(
                &upto, "a
OKb"
            )
    );
    let calls = |more: serde_json::Value| {
        let mut format = json!({"type": "triggered_tags", "triggers": ["<fn="], "tags": [
            tagged("<fn=a>", json("integer"), json!(["</fn>", "</f>"])), tagged("<fn=b>", json("boolean"), json!("</fn>"))]});
        format.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        of(format)
    };
    let free = calls(json!({}));
    assert!(
        b.takes(&free, "x <fn=a>1</f> y <fn=b>true</fn>") && b.takes(&free, "x") && !b.takes(&free, "<fn=b>1</fn>")
    );
    let first = calls(json!({"at_least_one": true}));
    assert!(b.takes(&first, "<fn=a>1</f> and more") && !b.takes(&first, "x <fn=a>1</f>") && !b.takes(&first, ""));
    let one = calls(json!({"stop_after_first": true}));
    assert!(b.takes(&one, "x <fn=a>1</f>") && b.takes(&one, "x") && !b.takes(&one, "x <fn=a>1</f> y"));
    let within = of(tagged(
        "<r>",
        json!({"type": "dispatch", "rules": [["#", json("integer")]], "excludes": ["!"]}),
        json!("</r>"),
    ));
    assert!(b.takes(&within, "<r>a #1 b #22</r>") && b.takes(&within, "<r></r>"));
    assert!(!b.takes(&within, "<r>a #x</r>") && !b.takes(&within, "<r>a!</r>") && !b.takes(&within, "<r>a"));
    let list = of(
        json!({"type": "tags_with_separator", "separator": ",", "tags": [tagged("<", json("integer"), json!(">"))]}),
    );
    assert!(b.takes(&list, "<1>,<2>") && b.takes(&list, "") && !b.takes(&list, "<1><2>"));
    let words = of(json!({"type": "repeat", "min": 1, "max": 2, "content": {"type": "or", "elements": [
        {"type": "regex", "pattern": "[a-z]+;"}, {"type": "optional", "content": {"type": "const_string", "value": "!"}}]}}));
    assert!(b.takes(&words, "ab;!") && b.takes(&words, "!") && !b.takes(&words, "a;b;c;"));
    let token = |text: &str| json!({"type": "token", "token": text});
    let tag = json!({"type": "tag", "begin": token("<|tool_call_begin|>"), "content": json("integer"), "end": token("<|tool_call_end|>")});
    let by_token =
        of(json!({"type": "token_triggered_tags", "trigger_tokens": ["<|tool_call_begin|>"], "tags": [tag]}));
    let (one, two) = ("⟦<|tool_call_begin|>⟧1⟦<|tool_call_end|>⟧", "⟦<|tool_call_begin|>⟧22⟦<|tool_call_end|>⟧");
    assert!(b.takes(&by_token, &format!("a {one} b{two}")) && b.takes(&by_token, one) && b.takes(&by_token, "a"));
    assert!(!b.takes(&by_token, "a ⟦<|tool_call_begin|>⟧x") && !b.takes(&by_token, "⟦<|tool_call_end|>⟧"));
    let upto_token = of(json!({"type": "tag", "begin": "<r>", "end": token("<|tool_call_end|>"),
        "content": {"type": "any_tokens", "exclude_tokens": ["<|other|>"]}}));
    assert!(b.takes(&upto_token, "<r>a <r>⟦<|tool_call_end|>⟧") && !b.takes(&upto_token, "<r>⟦<|other|>⟧"));
    // An object, written as a family of models writes a call's arguments.
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]});
    let styled = |style: &str| {
        of(tagged("<f>", json!({"type": "json_schema", "style": style, "json_schema": schema}), json!("</f>")))
    };
    for (style, city, days) in [
        ("qwen_xml", "<parameter=city>\nParis <\n</parameter>\n", "<parameter=days>\n3\n</parameter>\n"),
        ("minimax_xml", "<parameter name=\"city\">Paris</parameter>\n", "<parameter name=\"days\">3</parameter>\n"),
        (
            "deepseek_xml",
            "<｜DSML｜parameter name=\"city\" string=\"true\">Paris</｜DSML｜parameter>\n",
            "<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n",
        ),
        (
            "glm_xml",
            "<arg_key>city</arg_key><arg_value>Paris</arg_value>",
            "<arg_key>days</arg_key><arg_value>3</arg_value>",
        ),
    ] {
        let tag = styled(style);
        assert!(b.takes(&tag, &format!("<f>{city}</f>")) && b.takes(&tag, &format!("<f>{city}{days}</f>")), "{style}");
        let wrong = days.replace('3', "x");
        assert!(
            !b.takes(&tag, &format!("<f>{days}</f>")) && !b.takes(&tag, &format!("<f>{city}{wrong}</f>")),
            "{style}"
        );
    }
    for bad in [
        Response::StructuralTag(json!({"format": {"type": "json_schema", "style": "yaml", "json_schema": {}}})),
        Response::StructuralTag(
            json!({"format": {"type": "sequence", "elements": [{"type": "any_text"}, json("integer")]}}),
        ),
        Response::StructuralTag(json!({"format": {"type": "token_dispatch"}})),
        Response::StructuralTag(json!({"format": {"type": "tag", "begin": "a", "content": {"type": "any_text"}}})),
        Response::Choice(vec![]),
        Response::Lark("nonsense".into()),
        Response::Regex("(".into()),
        Response::StructuralTag(json!({})),
    ] {
        assert!(b.grammars.compile(&respond(bad)).is_err());
    }
}

/// Nothing validates the content of a tag afterwards, so no part of its schema may be relaxed.
#[test]
fn a_schema_in_a_tag_is_enforced_completely() {
    let b = Bench::new(crate::PLAIN, false);
    let relaxed = json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}});
    let alone = Response::JsonSchema { schema: relaxed.clone(), strict: false };
    let relaxations = b.grammars.compile(&respond(alone)).expect("compiles").expect("a grammar").relaxations().to_vec();
    assert_eq!(relaxations.iter().map(ToString::to_string).collect::<Vec<_>>(), ["#/properties/a/uniqueItems"]);
    let content = |schema: &serde_json::Value| json!({"type": "json_schema", "json_schema": schema});
    let tag = |schema| json!({"type": "tag", "begin": "<", "content": content(schema), "end": ">"});
    let plain = json!({"type": "object"});
    let all = [
        (content(&relaxed), "format"),
        (tag(&relaxed), "format.content"),
        (json!({"type": "sequence", "elements": [tag(&plain), tag(&relaxed)]}), "format.elements[1].content"),
        (json!({"type": "triggered_tags", "triggers": ["<"], "tags": [tag(&relaxed)]}), "format.tags[0].content"),
    ];
    for (format, place) in all {
        let error =
            b.grammars.compile(&respond(Response::StructuralTag(json!({"format": format})))).expect_err("refused");
        let RuleError::Unenforceable { field, path, keyword, .. } = error else { panic!("{error}") };
        let field = (field.as_str(), path.as_str(), keyword.as_str());
        assert_eq!(field, (format!("structural_tag.{place}.json_schema").as_str(), "/properties/a", "uniqueItems"));
    }
    assert!(b.grammars.compile(&respond(Response::StructuralTag(json!({"format": tag(&plain)})))).is_ok());
}

/// The end of a tag may begin with a character that could continue a number.
#[test]
fn the_end_of_a_tag_ends_a_number() {
    let b = Bench::new(crate::PLAIN, false);
    let schemas = [
        json!({"type": "number"}),
        json!({"type": "integer"}),
        json!({"type": "number", "minimum": 0}),
        json!({"type": ["integer", "null", "array", "string"]}),
        json!({"enum": [1, 2.5, "x"]}),
        json!({}),
    ];
    let values = ["1", "25", "2.5", "1e5", "-3", "null", "[1]", "\"x\"", "1.5E+2 "];
    for end in ["END", "e", "E5x", ".", ".5", "5", "00", "-", "\"", "}", "]", "+1", " end", "\n</x>"] {
        for schema in &schemas {
            let validator = crate::SchemaValidator::new(schema).expect("a schema");
            let content = json!({"type": "json_schema", "json_schema": schema});
            let tag = json!({"type": "tag", "begin": "BEG", "content": content, "end": end});
            let followed = json!({"type": "sequence", "elements": [{"type": "const_string", "value": "BEG"}, content, {"type": "const_string", "value": end}]});
            for format in [tag, followed] {
                let rules =
                    Rules { response: Some(Response::StructuralTag(json!({"format": format}))), ..Rules::default() };
                for value in values {
                    let json: serde_json::Value = serde_json::from_str(value).expect("JSON");
                    let plain = !value.contains(['e', 'E', '.']);
                    let valid = validator.violations(&json, 1).is_empty();
                    let taken = b.takes(&rules, &format!("BEG{value}{end}"));
                    assert!(if plain { taken == valid } else { valid || !taken }, "{schema}: BEG{value}{end}: {taken}");
                    assert!(
                        value.ends_with(end) || !b.takes(&rules, &format!("BEG{value}")),
                        "{schema}: BEG{value} without {end}"
                    );
                }
            }
        }
    }
    let regex =
        |end| json!({"type": "tag", "begin": "<", "content": {"type": "regex", "pattern": "[a-z]+"}, "end": end});
    for (end, text) in [("end", "<blendend"), ("z", "<zzz"), (">", "<a>")] {
        let rules =
            Rules { response: Some(Response::StructuralTag(json!({"format": regex(end)}))), ..Rules::default() };
        assert!(b.takes(&rules, text) && !b.takes(&rules, "<ab1"), "{text}");
    }
}

/// Where several ends may follow a number, one that could continue it is refused: the model could never write it.
#[test]
fn a_number_before_several_ends_is_refused_if_one_could_continue_it() {
    let b = Bench::new(crate::PLAIN, false);
    let number = json!({"type": "json_schema", "json_schema": {"type": "number"}});
    let fixed = |text: &str| json!({"type": "const_string", "value": text});
    let tag = |begin: &str, end: &str| json!({"type": "tag", "begin": begin, "content": number, "end": end});
    let followed = |next: &[serde_json::Value]| {
        let elements: Vec<_> = std::iter::once(&number).chain(next).cloned().collect();
        json!({"type": "sequence", "elements": elements})
    };
    let either = |end: &str| json!({"type": "or", "elements": [fixed(end), fixed("<z>")]});
    let perhaps = |end: &str| json!({"type": "optional", "content": fixed(end)});
    let separated = |begin: &str| json!({"type": "tags_with_separator", "separator": ",", "tags": [tag(begin, ">")]});
    let between =
        |separator: &str| json!({"type": "tags_with_separator", "separator": separator, "tags": [tag("<", "")]});
    for (end, continues) in [("END", true), ("e.", true), (".5", true), ("7", true), ("</n>", false), (" E", false)] {
        for format in [
            followed(&[either(end)]),
            followed(&[perhaps(end)]),
            followed(&[perhaps("q"), fixed(end)]),
            followed(&[separated(end)]),
            between(end),
        ] {
            let rules = respond(Response::StructuralTag(json!({"format": format})));
            match b.grammars.compile(&rules) {
                Ok(_) => assert!(!continues, "{format}"),
                Err(error) => assert!(continues && error.to_string().contains("may continue"), "{format}: {error}"),
            }
        }
    }
    let rules = respond(Response::StructuralTag(json!({"format": followed(&[either("</n>")])})));
    assert!(b.takes(&rules, "1.5</n>") && b.takes(&rules, "2<z>"));
}

/// Blanks after the reasoning decide nothing, and markers that a model may write around its text are accepted.
#[test]
fn what_stands_around_a_response_is_accepted() {
    let json = Rules { response: Some(Response::JsonObject), ..Rules::default() };
    let with_tools = Rules {
        response: Some(Response::JsonObject),
        ..super::rules(vec![super::tool("f", json!({"type": "object"}))])
    };
    let k3 = "⟦<|open|>⟧think⟦<|sep|>⟧x⟦<|close|>⟧think⟦<|sep|>⟧\n⟦<|open|>⟧response⟦<|sep|>⟧{\"a\": 1}⟦<|close|>⟧response⟦<|sep|>⟧⟦<|close|>⟧message⟦<|sep|>⟧";
    for (name, turn) in [
        ("kimi_k3", k3),
        ("granite_3_3", "⟦<think>⟧t⟦</think>⟧⟦<response>⟧{\"a\": 1}⟦</response>⟧"),
        ("granite_3_3", "⟦<think>⟧t⟦</think>⟧\n⟦<response>⟧\n{\"a\": 1}\n⟦</response>⟧"),
        ("granite_3_3", "⟦<think>⟧t⟦</think>⟧{\"a\": 1}"),
    ] {
        let b = Bench::new(crate::by_name(name).expect("format"), false);
        for rules in [&json, &with_tools] {
            assert_eq!(b.prefix(rules, turn), turn.replace(['⟦', '⟧'], ""), "{name}");
            assert!(b.takes(rules, turn), "{name}: {turn}");
        }
    }
}

/// As in patterns of JSON Schema: \d and \w are ASCII, in the grammar and in the validation of a finished response.
#[test]
fn classes_of_a_clients_regex_are_ascii() {
    let b = Bench::new(crate::PLAIN, false);
    for (regex, text, valid) in [
        (r"\d{2}", "12", true),
        (r"\d{2}", "٣٤", false),
        (r"\w+", "a_9", true),
        (r"\w+", "é", false),
        (r"[\w-]+", "a-b", true),
        (r"[\w-]+", "ü", false),
        (r"\W", "é", true),
        (r"[^\d]", "٣", true),
        (r"\D", "7", false),
        (r"\\d", "\\d", true),
        (r"\\d", "7", false),
        (r"a/\d", "a/1", true),
    ] {
        for pattern in [json!(null), json!({"format": {"type": "regex", "pattern": regex}})] {
            let response = match pattern.is_null() {
                true => Response::Regex(regex.into()),
                false => Response::StructuralTag(pattern),
            };
            let rules = respond(response);
            assert_eq!(b.takes(&rules, text), valid, "{regex}: {text}");
            let validated = b.compile(&rules).validate_response(text).is_ok();
            assert!(
                validated == valid || matches!(rules.response, Some(Response::StructuralTag(_))),
                "{regex}: {text}"
            );
        }
    }
}
