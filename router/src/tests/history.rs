//! What agents cannot take back: past calls, results and reasoning that no template or model can read. Each gets an
//! answer, and is named.

use super::*;

/// Prints arguments one by one, as most templates do, and ids of calls and results.
const ITEMS: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for t in m.tool_calls %}\
    {{ t.function.name }}({% for k, v in t.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}){% endfor %}{{ '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}assistant: {% endif %}";
/// Prints arguments as the text that they are.
const TEXTS: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for t in m.tool_calls %}\
    {{ t.function.name }}({% if t.function.arguments is string %}{{ t.function.arguments }}{% else %}\
    {{ t.function.arguments | tojson }}{% endif %}){% endfor %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
/// Refuses turns of one side that follow each other, as Mistral's.
const ALTERNATING: &str = "{% set ns = namespace(last='') %}{% for m in messages %}\
    {% if m.role == 'user' and ns.last in ['user', 'tool'] %}{{ raise_exception('roles must alternate') }}{% endif %}\
    {{ m.role }}: {{ m.content }}{{ '\\n' }}{% set ns.last = m.role %}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

const IMAGE: &str = "[image: not shown, because this model reads only text]";

fn router(template: &str) -> TestRouter {
    TestRouter::of(template, RouterConfig::default(), Fake::default())
}

/// The text of the prompt of the latest request.
fn prompt(router: &TestRouter) -> String {
    let start = router.fake.starts().pop().unwrap();
    String::from_utf8(start.prompt.iter().map(|id| *id as u8).collect()).unwrap()
}

/// What the header names.
fn named(answer: &Answer) -> String {
    answer.ok();
    answer.headers.get("x-rein-ignored-fields").map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
}

fn turn(arguments: Option<Value>) -> Value {
    let mut function = json!({"name": "f"});
    if let Some(arguments) = arguments {
        function["arguments"] = arguments;
    }
    json!([
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ])
}

#[tokio::test]
async fn past_arguments_that_are_no_object_do_not_end_a_conversation() {
    let path = "messages[1].tool_calls[0].function.arguments";
    for (arguments, items, texts, fine) in [
        (Some(json!("{\"a\": \"x\"}")), "f(a=x)", "f({\"a\": \"x\"})", true),
        (Some(json!({"a": "x"})), "f(a=x)", "f({\"a\": \"x\"})", true),
        (Some(json!("")), "f()", "f()", true),
        (Some(json!("{\"a\": \"x")), "f()", "f({\"a\": \"x)", false),
        (Some(json!("{\"a\": {\"b\": 1}")), "f()", "f({\"a\": {\"b\": 1})", false),
        (Some(json!("see above")), "f()", "f(see above)", false),
        (Some(json!("[1]")), "f()", "f([1])", false),
        (Some(json!([1])), "f()", "f({})", false),
        (Some(json!(3)), "f()", "f({})", false),
        (Some(json!(null)), "f()", "f({})", false),
        (None, "f()", "f({})", false),
    ] {
        for (template, expected) in [(ITEMS, items), (TEXTS, texts)] {
            let router = router(template);
            let answer = router.chat(&bytes("b"), json!({"messages": turn(arguments.clone())})).await;
            assert_eq!(named(&answer), if fine { "" } else { path }, "{arguments:?}");
            assert!(prompt(&router).contains(expected), "{arguments:?}: {}", prompt(&router));
        }
    }
}

#[tokio::test]
async fn past_arguments_that_are_no_object_in_the_other_apis() {
    let router = router(ITEMS);
    for arguments in [json!("{\"a\": \"x"), json!(null), json!({"a": 1})] {
        let input = json!([{"role": "user", "content": "q"}, {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments},
            {"type": "function_call_output", "call_id": "c", "output": "r"}]);
        let body = json!({"model": "bytes", "input": input, "script": bytes("b"), "store": false});
        let answer = router.post("/v1/responses", body).await;
        let whole = arguments.is_object();
        assert_eq!(named(&answer), if whole { "" } else { "input[1].arguments" }, "{arguments}");
        assert!(prompt(&router).contains(if whole { "f(a=1)" } else { "f()" }), "{arguments}: {}", prompt(&router));
    }
    for input in [json!("{\"a\""), json!([1]), json!({"a": 1})] {
        let messages = json!([{"role": "user", "content": "q"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": input}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}]}]);
        let body = json!({"model": "bytes", "messages": messages, "max_tokens": 9, "script": bytes("b")});
        let answer = router.post("/v1/messages", body).await;
        let whole = input.is_object();
        assert_eq!(named(&answer), if whole { "" } else { "messages[1].content[0].input" }, "{input}");
        assert!(prompt(&router).contains(if whole { "f(a=1)" } else { "f()" }), "{input}: {}", prompt(&router));
    }
}

#[tokio::test]
async fn a_results_images_become_a_line() {
    let router = router(ITEMS);
    let png = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}});
    let mut messages = turn(Some(json!("{}")));
    messages[2]["content"] = json!([{"type": "text", "text": "a"}, png]);
    // A number that needs its exact text has its own copy of the messages.
    for extra in [json!(1), json!(1.10)] {
        messages[0]["extra"] = extra;
        let answer = router.chat(&bytes("b"), json!({"messages": messages})).await;
        assert!(named(&answer).contains("messages[2].content[1]"), "{}", named(&answer));
        assert!(prompt(&router).contains(&format!("tool: a\n{IMAGE}\n")), "{}", prompt(&router));
    }
    messages[0]["content"] = json!([png]);
    let answer = router.chat(&bytes("b"), json!({"messages": messages})).await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["param"]),
        (StatusCode::BAD_REQUEST, &json!("messages[0].content[0].type"))
    );

    let output = json!([{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:,"}, {"type": "input_file", "filename": "x.pdf"}]);
    let input = json!([{"role": "user", "content": "q"}, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": output}]);
    let answer = router
        .post("/v1/responses", json!({"model": "bytes", "input": input, "script": bytes("b"), "store": false}))
        .await;
    assert_eq!(named(&answer), "input[2].output[1],input[2].output[2]");
    assert!(
        prompt(&router).contains(IMAGE) && prompt(&router).contains("[file \"x.pdf\": not shown"),
        "{}",
        prompt(&router)
    );

    let result = json!([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}},
        {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "whole"}},
        {"type": "search_result", "title": "S", "source": "s", "content": [{"type": "text", "text": "found"}]}]);
    let messages = json!([{"role": "user", "content": "q"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": result}]}]);
    let answer = router
        .post("/v1/messages", json!({"model": "bytes", "messages": messages, "max_tokens": 9, "script": bytes("b")}))
        .await;
    assert_eq!(named(&answer), "messages[2].content[0].content[0]");
    assert!(prompt(&router).contains(&format!("tool: {IMAGE}\nT\nwhole\nS\ns\nfound\n")), "{}", prompt(&router));
}

#[tokio::test]
async fn items_of_hosted_tools_are_left_out() {
    let router = router(ITEMS);
    let items = [
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "computer_call",
        "computer_call_output",
        "local_shell_call",
        "mcp_call",
        "mcp_list_tools",
        "mcp_approval_request",
    ];
    let mut input = vec![json!({"role": "user", "content": "q"})];
    input.extend(items.map(|kind| json!({"type": kind, "id": "x", "status": "completed", "action": {"query": "y"}})));
    let answer = router
        .post("/v1/responses", json!({"model": "bytes", "input": input, "script": bytes("b"), "store": false}))
        .await;
    let expected: Vec<String> = (1..=items.len()).map(|i| format!("input[{i}]")).collect();
    assert_eq!(named(&answer), expected.join(","));
    assert_eq!(prompt(&router), "user: q\nassistant: ");
}

#[tokio::test]
async fn neighbours_become_one_turn_where_the_template_refuses_them() {
    let router = router(ALTERNATING);
    let mut messages = turn(Some(json!("{}"))).as_array().unwrap().clone();
    messages.push(json!({"role": "user", "content": "reminder"}));
    router.chat(&bytes("b"), json!({"messages": messages})).await.ok();
    assert_eq!(prompt(&router), "user: q\nassistant: \ntool: r\n\nreminder\nassistant: ");
    let two = json!([{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]);
    router.chat(&bytes("b"), json!({"messages": two})).await.ok();
    assert_eq!(prompt(&router), "user: a\n\nb\nassistant: c\nuser: d\nassistant: ");
    // A template that takes them gets them as they are.
    let plain = self::router(ITEMS);
    plain.chat(&bytes("b"), json!({"messages": two})).await.ok();
    assert_eq!(prompt(&plain), "user: a\nuser: b\nassistant: c\nuser: d\nassistant: ");
}
