//! Compares rendering with Jinja2. `expected.json` has template sources, variables, and the text that the environment
//! of transformers 5.23 (Jinja2 3.1.6) renders, or null if it raises. tests/py/test_batteries.py checks that file.

mod properties;
mod work;

use serde_json::json;

use super::*;

fn options() -> TemplateOptions {
    let mut options = TemplateOptions { now: parse_now("2026-11-21T10:30:05"), ..TemplateOptions::default() };
    options.special_tokens.insert("bos_token".into(), json!("<s>"));
    options
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::from_source(source, options()).unwrap()
}

fn input(messages: Json) -> RenderInput {
    RenderInput { messages: messages.as_array().unwrap().clone(), ..RenderInput::default() }
}

fn user(text: &str) -> RenderInput {
    input(json!([{"role": "user", "content": text}]))
}

#[test]
fn expressions_render_as_in_jinja2() {
    let expected = lossless::from_str(include_str!("expected.json")).unwrap();
    let list = |name: &str| expected[name].as_array().unwrap().clone();
    let cases: Vec<(String, Option<String>)> = serde_json::from_value(expected["cases"].clone()).unwrap();
    assert!(cases.len() > 1000);
    let input = RenderInput {
        messages: list("messages"),
        tools: Some(list("tools").into()),
        kwargs: expected["variables"].as_object().unwrap().clone(),
        add_generation_prompt: false,
        raw: true,
        ..RenderInput::default()
    };
    for (source, expected) in cases {
        let rendered = ChatTemplate::from_source(&source, options()).and_then(|t| t.render(&input));
        assert_eq!(rendered.as_ref().ok(), expected.as_ref(), "{source}: {rendered:?}");
    }
}

#[test]
fn newlines_of_the_source_are_normalized_and_the_last_one_is_removed() {
    assert_eq!(template("a\r\n{% if true %}\r\nb\r{% endif %}\r\nc\r\n").render(&user("x")).unwrap(), "a\nb\nc");
}

#[test]
fn the_template_gets_the_variables_of_transformers() {
    let source = "{{ bos_token }}|{{ eos_token }}|{{ tools }}|{{ documents }}|{{ add_generation_prompt }}|{{ x }}|{{ messages|length }}";
    let mut input = user("x");
    input.tools = Some(ToolSet::default());
    input.kwargs = json!({"x": 1.0, "messages": "no", "tools": [1]}).as_object().unwrap().clone();
    assert_eq!(template(source).render(&input).unwrap(), "<s>||None|None|True|1.0|1");
    input.kwargs = json!({"add_generation_prompt": false, "bos_token": "<b>"}).as_object().unwrap().clone();
    assert_eq!(template(source).render(&input).unwrap(), "<b>||None|None|False||1");
}

const LISTS: &str = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}[{{ c.text }}]{% endfor %}{% endif %};{% endfor %}";
const STRINGS: &str = "{% for m in messages %}{{ m.content }};{% endfor %}";

#[test]
fn text_parts_are_joined_unless_the_template_supports_lists() {
    let input =
        input(json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]));
    assert_eq!(template(LISTS).render(&input).unwrap(), "[a][b];");
    assert_eq!(template(STRINGS).render(&input).unwrap(), "a\nb;");
    let raw = RenderInput { raw: true, ..input };
    assert_eq!(
        template(STRINGS).render(&raw).unwrap(),
        "[{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'b'}];"
    );
}

#[test]
fn string_arguments_are_parsed_unless_the_template_supports_strings() {
    let dumps =
        "{% for m in messages %}{% for t in m.tool_calls %}{{ t.function.arguments|tojson }}{% endfor %}{% endfor %}";
    let tests = "{% for m in messages %}{% for t in m.tool_calls %}{% if t.function.arguments is string %}{{ t.function.arguments }}{% else %}{{ t.function.arguments|tojson }}{% endif %}{% endfor %}{% endfor %}";
    for (arguments, by_dumps, by_tests) in [
        (
            "{\"a\":1e20,\"b\":18446744073709551616}",
            "{\"a\": 1e+20, \"b\": 18446744073709551616}",
            "{\"a\":1e20,\"b\":18446744073709551616}",
        ),
        ("", "{}", ""),
        ("not json", "{}", "not json"),
        ("[1]", "{}", "[1]"),
    ] {
        let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let input = input(
            json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [call]}]),
        );
        assert_eq!(template(dumps).render(&input).unwrap(), by_dumps);
        assert_eq!(template(tests).render(&input).unwrap(), by_tests);
    }
}

#[test]
fn string_arguments_are_parsed_if_the_template_writes_them_in_another_syntax() {
    let source = "{% for m in messages %}{% for t in m.tool_calls %}{{ t.function.name }}{ {%- if t.function.arguments is string %}{{ t.function.arguments }}\
        {%- else %}{% for k, v in t.function.arguments.items() %}{{ k }}:<{{ v }}>{% endfor %}{% endif %}}{% endfor %}{% endfor %}";
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": \"b\"}"}});
    let messages =
        json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [call]}]);
    assert_eq!(template(source).render(&input(messages)).unwrap(), "f{a:<b>}");
}

#[test]
fn arguments_that_are_an_object_are_written_as_the_template_does_or_as_json() {
    let of = |arguments: &str| {
        format!("{{% for m in messages %}}{{% for t in m.tool_calls %}}{arguments}{{% endfor %}}{{% endfor %}}")
    };
    let raw = of("{{ t.function.arguments }}");
    let compact = of("{% if t.function.arguments is string %}{{ t.function.arguments }}\
        {% else %}{{ t.function.arguments | tojson(separators=(',', ':')) }}{% endif %}");
    let arguments = json!({"a": [1, "é"], "b": "\u{F0002}123456789012345678901234567890"});
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}});
    let messages =
        json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [call]}]);
    for (source, expected) in [
        (raw, r#"{"a": [1, "é"], "b": 123456789012345678901234567890}"#),
        (compact, r#"{"a":[1,"é"],"b":123456789012345678901234567890}"#),
    ] {
        assert_eq!(template(&source).render(&input(messages.clone())).unwrap(), expected);
    }
}

#[test]
fn reasoning_is_available_under_both_names() {
    let source = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }};{% endfor %}";
    for (message, expected) in [
        (json!({"role": "assistant", "content": "", "reasoning": "r"}), "r|r;"),
        (json!({"role": "assistant", "content": "", "thinking": "t", "reasoning": "r"}), "t|t;"),
        (json!({"role": "assistant", "content": "", "reasoning_content": null, "thinking": "t"}), "t|t;"),
        (json!({"role": "assistant", "content": "", "reasoning_content": "c", "thinking": "t"}), "c|t;"),
        (json!({"role": "assistant", "content": ""}), "|;"),
    ] {
        assert_eq!(template(source).render(&input(json!([message]))).unwrap(), expected);
    }
}

const BROKEN_ON_NULL: &str =
    "{% for m in messages %}{{ m.role }}{{ ':' + m.content }}{{ m.tool_calls is defined }};{% endfor %}";

#[test]
fn absent_content_is_passed_in_the_form_that_the_template_supports() {
    let call = json!({"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    for (source, calls, silent) in [
        // A template that tests for none gets none.
        (
            "{% for m in messages %}{% if m.content is none %}none{% else %}{{ m.content }}{% endif %};{% endfor %}",
            "none",
            "none",
        ),
        (
            "{% for m in messages %}{% if m['content'] == None %}none{% endif %}{{ m.content or '' }};{% endfor %}",
            "none",
            "none",
        ),
        (
            "{% for m in messages %}{{ m.content is defined }}{{ m.content == '' }};{% endfor %}",
            "TrueFalse",
            "TrueFalse",
        ),
        // Handles none only in messages with calls.
        (
            "{% for m in messages %}{% if m.tool_calls and m.content is none %}none{% else %}{{ '[' + m.content + ']' }}{% endif %};{% endfor %}",
            "none",
            "[]",
        ),
        // Would print none or fail.
        ("{% for m in messages %}{{ m.content }};{% endfor %}", "", ""),
        ("{% for m in messages %}{{ m.content | tojson }};{% endfor %}", "\"\"", "\"\""),
        ("{% for m in messages %}{{ '[' + m.content + ']' }};{% endfor %}", "[]", "[]"),
        ("{% for m in messages %}{% if 'x' in m.content %}{% endif %}{{ m.content | length }};{% endfor %}", "0", "0"),
        ("{% for m in messages %}{{ m.content[:3] }}{{ m.content[-2:] }};{% endfor %}", "", ""),
        ("{% for m in messages %}{% for part in m.content %}{{ part }}{% endfor %};{% endfor %}", "", ""),
        // Rejects an empty text.
        (
            "{% for m in messages %}{% if m.content == '' or m.content is none %}{{ raise_exception('empty') }}{% endif %}{{ 'content' in m }};{% endfor %}",
            "False",
            "False",
        ),
        (
            "{% for m in messages %}{% if m.content == '' %}{{ raise_exception('empty') }}{% endif %}{{ m.content or '-' }};{% endfor %}",
            "-",
            "-",
        ),
    ] {
        let template = template(source);
        for content in [Some(Json::Null), None] {
            let message = |calls: Json| {
                let mut message = json!({"role": "assistant", "tool_calls": calls, "refusal": null});
                if let Some(content) = &content {
                    message["content"] = content.clone();
                }
                message
            };
            let messages = json!([message(json!([call])), message(Json::Null)]);
            assert_eq!(
                template.render(&input(messages)).unwrap(),
                format!("{calls};{silent};"),
                "{source} {content:?}"
            );
        }
    }
    let messages = json!([{"role": "assistant", "content": null, "tool_calls": null}, {"role": "user", "content": ""}]);
    assert_eq!(template(BROKEN_ON_NULL).render(&input(messages)).unwrap(), "assistant:False;user:False;");
}

#[test]
fn a_system_message_with_only_tools_gets_content_that_the_template_supports() {
    let messages =
        json!([{"role": "system", "tools": [{"function": {"name": "f"}}]}, {"role": "user", "content": "x"}]);
    let shows = "{% for m in messages %}{% for t in m.tools or [] %}{{ t.function.name }}{% endfor %}";
    for (rest, expected) in
        [("[{{ m.content }}]{% endfor %}", "f[][x]"), ("{{ m.content is none }}{% endfor %}", "fTrueFalse")]
    {
        assert_eq!(template(&format!("{shows}{rest}")).render(&input(messages.clone())).unwrap(), expected);
    }
}

#[test]
fn errors_of_messages_name_the_field() {
    let template = template(STRINGS);
    for (messages, param) in [
        (json!([]), "messages"),
        (json!(["hi"]), "messages[0]"),
        (json!([{"content": "x"}]), "messages[0].role"),
        (json!([{"role": 1, "content": "x"}]), "messages[0].role"),
        (json!([{"role": "user", "content": null}]), "messages[0].content"),
        (json!([{"role": "user"}]), "messages[0].content"),
        (json!([{"role": "user", "content": 5}]), "messages[0].content"),
        (json!([{"role": "user", "content": [5]}]), "messages[0].content[0]"),
        (json!([{"role": "user", "content": [{"type": "text", "text": 5}]}]), "messages[0].content[0].text"),
        (json!([{"role": "assistant", "tool_calls": {}}]), "messages[0].tool_calls"),
        (json!([{"role": "assistant", "tool_calls": ["x"]}]), "messages[0].tool_calls[0]"),
        (json!([{"role": "assistant", "content": "", "thinking": []}]), "messages[0].thinking"),
    ] {
        let error = template.render(&input(messages)).unwrap_err();
        assert_eq!((error.reason, error.param.as_deref()), (Reason::Input, Some(param)), "{error}");
        assert!(error.message.contains(param.rsplit('.').next().unwrap()), "{error}");
    }
    let tools = RenderInput { tools: Some(vec![json!("f")].into()), ..user("x") };
    assert_eq!(template.render(&tools).unwrap_err().param.as_deref(), Some("tools[0]"));
}

#[test]
fn the_last_message_can_be_continued() {
    let spaced = template("{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}");
    let trimmed = template("{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}<end>{% endfor %}");
    let dropped = template("{% for m in messages %}<{{ m.role }}>{{ m.content[:1] }}{% endfor %}");
    let parts = template(LISTS);
    let mut input = input(json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "so far "}]));
    input.continue_final_message = true;
    assert_eq!(spaced.render(&input).unwrap_err().param.as_deref(), Some("continue_final_message"));
    input.add_generation_prompt = false;
    assert_eq!(spaced.render(&input).unwrap(), "<user>q<end><assistant>so far ");
    assert_eq!(trimmed.render(&input).unwrap(), "<user>q<end><assistant>so far");
    assert_eq!(dropped.render(&input).unwrap_err().reason, Reason::Failed);
    input.messages[1] =
        json!({"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]});
    assert_eq!(parts.render(&input).unwrap(), "q;[a][b");
    input.messages[1] = json!({"role": "assistant", "content": null});
    assert_eq!(spaced.render(&input).unwrap_err().reason, Reason::Input);
}

#[test]
fn a_message_with_only_reasoning_continues_its_reasoning() {
    let shown = template(
        "{% for m in messages %}<{{ m.role }}>{% if m.thinking %}[{{ m.thinking|trim }}]{% endif %}{{ m.content }}{% endfor %}",
    );
    let ahead = template(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>[\n{% endif %}",
    );
    let aside = template(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
    );
    for name in ["reasoning_content", "reasoning", "thinking"] {
        let mut input =
            input(json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "", name: "so far "}]));
        (input.continue_final_message, input.add_generation_prompt) = (true, false);
        assert_eq!(shown.render(&input).unwrap(), "<user>q<assistant>[so far");
        // As in transformers, a raw message continues its content, which is an empty text here.
        let raw = RenderInput { raw: true, ..input.clone() };
        assert_eq!(shown.render(&raw).unwrap(), "<user>q<assistant>[so far]");
        assert_eq!(
            ahead.render(&input).unwrap_err().reason,
            Reason::Failed,
            "the text that begins reasoning is unknown"
        );
        input.reasoning_open = Some("[".into());
        assert_eq!(ahead.render(&input).unwrap(), "<user>q<assistant>[\nso far ");
        assert_eq!(aside.render(&input).unwrap(), "<user>q<assistant>[so far ");
        input.messages.remove(0);
        assert_eq!(aside.render(&input).unwrap_err().reason, Reason::Failed);
    }
}

#[test]
fn templates_that_read_typescript_declarations_get_them() {
    let source = "{% if tools_ts_str %}{{ tools_ts_str }}{% else %}{{ tools|tojson }}{% endif %}";
    let tools = |parameters: &str| {
        let tool = format!(r#"{{"type": "function", "function": {{"name": "f", "parameters": {parameters}}}}}"#);
        RenderInput { tools: Some(vec![lossless::from_str(&tool).unwrap()].into()), ..user("x") }
    };
    let good = tools(r#"{"type": "object", "properties": {"b": {"type": "number"}, "a": {"type": "string"}}}"#);
    let declared =
        "# Tools\n\n## functions\nnamespace functions {\ntype f = (_: {\n  a?: string,\n  b?: number\n}) => any;\n}\n";
    assert_eq!(template(source).render(&good).unwrap(), declared);
    let bad = tools(r#"{"properties": {"x": {"$ref": "other.json", "default": 1e20}}}"#);
    let sorted = r#"[{"function": {"name": "f", "parameters": {"properties": {"x": {"$ref": "other.json", "default": 1e+20}}}}, "type": "function"}]"#;
    assert_eq!(template(source).render(&bad).unwrap(), sorted);
    assert_eq!(template(source).render(&user("x")).unwrap(), "null");
    let plain = "{{ tools|tojson }}{{ tools_ts is defined }}";
    assert!(template(plain).render(&good).unwrap().starts_with(r#"[{"type": "function""#));
    let raw = RenderInput { raw: true, ..good };
    assert!(template(source).render(&raw).unwrap().starts_with(r#"[{"type": "function""#));
}

#[test]
fn tools_of_system_messages_are_always_shown() {
    let tool =
        |name: &str| json!({"type": "function", "function": {"name": name, "description": "", "parameters": {}}});
    let mut input = input(
        json!([{"role": "system", "tools": [tool("g")]}, {"role": "developer", "content": "d", "tools": [tool("h")]},
        {"role": "user", "content": "q", "tools": 5}]),
    );
    input.tools = Some(vec![tool("f")].into());
    let names = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}|{% for m in messages %}{{ m.role }}{{ m.content }};{% endfor %}";
    assert_eq!(template(names).render(&input).unwrap(), "fgh|developerd;userq;");
    let aware = format!(
        "{names}{{% for m in messages %}}{{% if m.role != 'user' %}}{{% for t in m.tools or [] %}}{{{{ t.function.name }}}}{{% endfor %}}{{% endif %}}{{% endfor %}}"
    );
    assert_eq!(template(&aware).render(&input).unwrap(), "f|system;developerd;userq;gh");
    input.tools = None;
    assert_eq!(template(names).render(&input).unwrap(), "gh|developerd;userq;");
}

#[test]
fn errors_of_templates_name_the_line() {
    let error = ChatTemplate::from_source("a\n{% if %}", options()).unwrap_err();
    assert_eq!(error.reason, Reason::Syntax);
    assert!(error.message.contains("line 2: {% if %}"), "{error}");
    let error = template("{{ raise_exception('roles must alternate') }}").render(&user("x")).unwrap_err();
    assert_eq!((error.reason, error.message.as_str()), (Reason::Raised, "roles must alternate"));
    let error = template("a\n{% for x in messages[0].nothing.at_all %}{% endfor %}").render(&user("x")).unwrap_err();
    assert_eq!(error.reason, Reason::Failed);
    assert!(error.message.contains("line 2: {% for x in messages[0].nothing.at_all"), "{error}");
}

#[test]
fn templates_run_within_limits_and_never_panic() {
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(1_000), ")".repeat(1_000));
    assert_eq!(ChatTemplate::from_source(&deep, options()).unwrap_err().reason, Reason::Syntax);
    let huge = template("{{ 'x' * 10000000000 }}").render(&user("x")).unwrap_err();
    assert_eq!(huge.reason, Reason::Failed);
    let endless = "{% for a in range(10000) %}{% for b in range(10000) %}{{ a }}{% endfor %}{% endfor %}";
    let few = TemplateOptions { fuel: 500_000, ..TemplateOptions::default() };
    let error = ChatTemplate::from_source(endless, few).unwrap().render(&user("x")).unwrap_err();
    assert_eq!(error.reason, Reason::Fuel);
    let long = template("{% for a in range(100) %}{{ 'x' * 1000000 }}{% endfor %}").render(&user("x")).unwrap_err();
    assert_eq!(long.reason, Reason::TooLarge);
    let source = " ".repeat(MAX_TEMPLATE_BYTES + 1);
    assert_eq!(ChatTemplate::from_source(&source, options()).unwrap_err().reason, Reason::TooLarge);
    let deep = template("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}").render(&user("x")).unwrap_err();
    assert_eq!(deep.reason, Reason::Failed);
}

#[test]
fn a_model_may_have_several_templates() {
    let dir = std::env::temp_dir().join(format!("rein-template-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("additional_chat_templates")).unwrap();
    let config =
        json!({"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]});
    let load = |config: &Json| ChatTemplate::from_sources(Sources::from_model(&dir, config).unwrap(), options());
    let tools = RenderInput { tools: Some(vec![json!({"type": "function"})].into()), ..user("x") };
    let template = load(&config).unwrap();
    assert_eq!((template.render(&user("x")).unwrap(), template.render(&tools).unwrap()), ("D".into(), "T".into()));
    assert!(template.render_named(Some("rag"), &tools).unwrap_err().message.contains("default, tool_use"));
    assert_eq!(load(&json!({"chat_template": "S"})).unwrap().render(&tools).unwrap(), "S");
    assert_eq!(load(&Json::Null).unwrap_err().reason, Reason::Missing);
    assert!(Sources::from_model(&dir, &json!({"chat_template": 5})).is_err());
    std::fs::write(dir.join("additional_chat_templates/rag.jinja"), "R").unwrap();
    std::fs::write(dir.join("chat_template.jinja"), "F").unwrap();
    let template = load(&config).unwrap();
    assert_eq!(template.render(&tools).unwrap(), "F");
    assert_eq!(template.render_named(Some("rag"), &tools).unwrap(), "R");
    std::fs::remove_dir_all(dir).unwrap();
}

/// Runs on a thread with the stack size of the server's threads: a template that would need more is rejected.
#[test]
fn deeply_nested_templates_fail_without_a_stack_overflow() {
    let sources = [
        format!("{{{{ 1{} }}}}", " + 1".repeat(100_000)),
        format!("{{{{ {}true }}}}", "not ".repeat(100_000)),
        format!("{{{{ 1{} }}}}", "|abs".repeat(1_000)),
        format!("{{{{ {}1{} }}}}", "(".repeat(2_000), ")".repeat(2_000)),
        format!("{{% if false %}}{}{{% endif %}}", "{% elif false %}".repeat(30_000)),
        format!("{{% if false %}}{}{{% endif %}}", "{% elif false %}".repeat(500)),
        format!("{{{{ 1{} }}}}", "+1".repeat(2_000)),
        format!("{}{}", "{% if true %}".repeat(30_000), "{% endif %}".repeat(30_000)),
        format!("{}{}", "{% for a in [1] %}".repeat(3_000), "{% endfor %}".repeat(3_000)),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
    ];
    let render = move || {
        for source in sources {
            let answer = ChatTemplate::from_source(&source, options()).and_then(|template| template.render(&user("x")));
            assert!(answer.is_err() || source.len() < 9_000, "{}", &source[..40]);
        }
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(render).unwrap().join().unwrap();
}

#[test]
fn the_sign_that_opens_a_comment_does_not_close_it() {
    let template = |source: &str| ChatTemplate::from_source(source, TemplateOptions::default());
    assert!(template("{#}}#}{{ messages | length }}").is_ok());
    assert!(template("{#}").is_err());
}

/// As published templates do: one that wants system messages at the beginning, and one that wants none.
const REJECTS_LATE: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
    {{ raise_exception('System message must be at the beginning.') }}{% endif %}[{{ m.role }}:\
    {% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}]\
    {% endfor %}";
const REJECTS_ALL: &str = "{% for m in messages %}{% if m.role == 'system' %}\
    {{ raise_exception('System role not supported') }}{% elif m.role == 'user' and loop.previtem and \
    loop.previtem.role == 'user' %}{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}:{{ m.content }}]\
    {% endfor %}";

#[test]
fn system_messages_that_a_template_rejects_become_part_of_the_turns_beside_them() {
    let (late, all) = (template(REJECTS_LATE), template(REJECTS_ALL));
    let message = |role: &str, text: &str| json!({"role": role, "content": text});
    let [system, user, assistant, tool] =
        ["system", "user", "assistant", "tool"].map(|role| move |text: &str| message(role, text));
    for (messages, by_late, by_all) in [
        (vec![system("S"), user("a")], "[system:S][user:a]", "[user:S\n\na]"),
        (vec![user("a"), system("S")], "[user:a\n\nS]", "[user:a\n\nS]"),
        (vec![user("a"), system("S"), user("b")], "[user:a\n\nS][user:b]", "[user:a\n\nS\n\nb]"),
        (
            vec![system("S"), user("a"), assistant("b"), system("T"), system("U"), user("c")],
            "[system:S][user:a][assistant:b][user:T\n\nU\n\nc]",
            "[user:S\n\na][assistant:b][user:T\n\nU\n\nc]",
        ),
        (
            vec![user("a"), tool("r"), system("S"), assistant("b")],
            "[user:a][tool:r][user:S][assistant:b]",
            "[user:a][tool:r][user:S][assistant:b]",
        ),
        (vec![system("S"), system("T"), user("a")], "[system:S\n\nT][user:a]", "[user:S\n\nT\n\na]"),
    ] {
        let input = RenderInput { messages, add_generation_prompt: false, ..RenderInput::default() };
        assert_eq!(late.render(&input).unwrap(), by_late);
        assert_eq!(all.render(&input).unwrap(), by_all);
    }
    // As transformers renders it.
    let raw = RenderInput { raw: true, ..input(json!([user("a"), system("S")])) };
    assert_eq!(late.render(&raw).unwrap_err().reason, Reason::Raised);
    // Lists of parts are joined; what a template accepts stays at its place.
    let parts =
        json!([{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "system", "content": "S"}]);
    assert_eq!(late.render(&input(parts.clone())).unwrap(), "[user:<a><S>]");
    let accepts = template("{% for m in messages %}[{{ m.role }}]{% endfor %}");
    assert_eq!(accepts.render(&input(parts)).unwrap(), "[user][system]");
    // The developer's messages are the system's.
    let rejects = REJECTS_LATE.replace("m.role == 'system'", "m.role == 'developer'");
    let late = json!([{"role": "user", "content": "a"}, {"role": "developer", "content": "S"}]);
    assert_eq!(template(&rejects).render(&input(late)).unwrap(), "[user:a\n\nS]");
}

#[test]
fn tools_get_what_a_template_cannot_render_without() {
    let described = "{% for t in tools %}// {{ '[' + t.function.description + ']' }}{{ t.function.name }};{% endfor %}";
    let counted = "{% for t in tools %}{{ t.function.name }}({% for k, v in t.function.parameters.properties.items() %}\
        {{ k + ':' + v.type }}{% endfor %}){% endfor %}";
    // Knows no lists of types.
    let single = "{% for t in tools %}{% for k, v in t.function.parameters.properties.items() %}{{ k }}:\
        {% if v.type not in ['string', 'integer'] %}{{ raise_exception(v.type) }}{% endif %}{{ v.type[0] }},{% endfor %}{% endfor %}";
    let raising = "{% for t in tools %}{% if not t.function.parameters is mapping %}{{ raise_exception('no parameters') }}\
        {% endif %}{{ t.function.name }}{% endfor %}";
    let tool = |function: Json| {
        let mut input = user("x");
        input.tools = Some(vec![json!({"type": "function", "function": function})].into());
        input
    };
    let whole = json!({"name": "f", "description": "d", "parameters": {"properties": {"a": {"type": "string"}}}});
    for (source, function, expected) in [
        (described, whole.clone(), "// [d]f;"),
        (described, json!({"name": "f"}), "// []f;"),
        (described, json!({"name": "f", "description": null}), "// []f;"),
        (counted, whole, "f(a:string)"),
        (counted, json!({"name": "f", "parameters": null}), "f()"),
        (counted, json!({"name": "f", "parameters": {"type": "object"}}), "f()"),
        (counted, json!({"name": "f", "parameters": {"properties": []}}), "f()"),
        (counted, json!({"name": "f", "parameters": {"properties": {"a": {"enum": [1]}}}}), "f(a:any)"),
        (raising, json!({"name": "f"}), "f"),
        (
            single,
            json!({"name": "f", "parameters": {"properties": {"a": {"type": ["null", "integer"]}, "b": {}, "c": {"type": "null"}}}}),
            "a:i,b:s,c:s,",
        ),
    ] {
        assert_eq!(template(source).render(&tool(function.clone())).as_deref(), Ok(expected), "{source}: {function}");
    }
    // A template that renders without them gets nothing.
    assert_eq!(template("{{ tools[0].function }}").render(&tool(json!({"name": "f"}))).unwrap(), "{'name': 'f'}");
    let raises = template("{% for t in tools %}{{ raise_exception('no') }}{% endfor %}");
    assert_eq!(raises.render(&tool(json!({"name": "f"}))).unwrap_err().message, "no");
}

/// Templates of models that also take images iterate over parts, and drop a text.
#[test]
fn a_template_that_takes_only_parts_gets_parts() {
    let parts = "{% for m in messages %}{{ m.role }}:{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %};{% endfor %}";
    let selecting = "{% for m in messages %}{{ m.role }}:{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}\
        {{ p['text'] }}{% endfor %};{% endfor %}";
    let texts = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
    let either = "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}\
        [{{ p.text }}]{% endfor %}{% endif %};{% endfor %}";
    let asked = |content: Json| {
        input(
            json!([{"role": "system", "content": "S"}, {"role": "user", "content": content}, {"role": "assistant", "content": "A"},
            {"role": "user", "content": content}]),
        )
    };
    let listed = json!([{"type": "text", "text": "U"}]);
    for (source, content, expected) in [
        (parts, json!("U"), "system:S;user:U;assistant:A;user:U;"),
        (parts, listed.clone(), "system:S;user:U;assistant:A;user:U;"),
        (selecting, json!("U"), "system:S;user:U;assistant:A;user:U;"),
        (selecting, listed.clone(), "system:S;user:U;assistant:A;user:U;"),
        (texts, listed.clone(), "system:S;user:U;assistant:A;user:U;"),
        (either, json!("U"), "system:S;user:U;assistant:A;user:U;"),
        (either, listed, "system:S;user:[U];assistant:A;user:[U];"),
    ] {
        assert_eq!(template(source).render(&asked(content.clone())).as_deref(), Ok(expected), "{source}: {content}");
    }
    let mut continued = asked(json!("U"));
    continued.messages.pop();
    (continued.continue_final_message, continued.add_generation_prompt) = (true, false);
    assert_eq!(template(parts).render(&continued).unwrap(), "system:S;user:U;assistant:A");
    // Only the user's content has parts.
    let mixed = "{% for m in messages %}{{ m.role }}:{% if m.role == 'user' %}{% for p in m.content %}{{ p.text }}{% endfor %}\
        {% else %}{{ m.content }}{% endif %};{% endfor %}";
    assert_eq!(template(mixed).render(&asked(json!("U"))).unwrap(), "system:S;user:U;assistant:A;user:U;");
}
