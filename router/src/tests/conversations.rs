//! How a conversation reaches the template: call ids, tools declared in messages, and continued messages.

use rein_proto::v1;
use serde_json::json;

use super::*;

/// A template like Kimi's, with call ids and with results by id and name.
const NATIVE: &str = "{% if tools %}tools: {% for t in tools %}{{ t.function.name }} {% endfor %}{{ '\\n' }}{% endif %}\
    {% for m in messages %}{{ m.role }}{% if m.name %}/{{ m.name }}{% endif %}: \
    {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\
    {% for t in m.tool_calls %}[{{ t.id }}]{% endfor %}{% if m.role == 'tool' %} of {{ m.tool_call_id }}{% endif %}\
    {{ '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% if thinking %}<think>{% endif %}{% endif %}\
    {# <|tool_calls_section_begin|> #}";

fn router() -> TestRouter {
    TestRouter::of(NATIVE, RouterConfig::default(), Fake::default())
}

async fn prompt(router: &TestRouter, more: Value) -> String {
    let rendered = router.post("/v1/chat/completions/render", chat_request(&[], more)).await.ok();
    rendered["prompt"].as_str().unwrap().to_owned()
}

async fn refused(router: &TestRouter, more: Value) -> (String, String) {
    let answer = router.chat(&[], more).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
    let error = answer.json()["error"].clone();
    (error["param"].as_str().unwrap_or_default().to_owned(), error["message"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn foreign_call_ids_become_native_and_new_calls_continue_the_count() {
    let call =
        |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
    let messages = json!([
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call("call_x", "f"), call("call_y", "g")]},
        {"role": "tool", "tool_call_id": "call_y", "content": "2"},
        {"role": "tool", "tool_call_id": "", "name": "f", "content": "1"},
    ]);
    let router = router();
    let more = json!({"messages": messages, "tools": tools(&["f", "g"])});
    assert_eq!(
        prompt(&router, more.clone()).await,
        "tools: f g \nuser: q\nassistant: [functions.f:0][functions.g:1]\ntool/g: 2 of functions.g:1\n\
         tool/f: 1 of functions.f:0\nassistant: "
    );
    let script = [&[SECTION], call_tokens("functions.f:0").as_slice(), &[END_SECTION]].concat();
    let body = router.chat(&script, more).await.ok();
    assert_eq!(body["choices"][0]["message"]["tool_calls"][0]["id"], "functions.f:2");
}

fn call_tokens(header: &str) -> Vec<u32> {
    super::call(header, "{}")
}

#[tokio::test]
async fn tools_that_a_system_message_declares_can_be_called() {
    let declared = |name: &str| tools(&[name]).as_array().unwrap().clone();
    let messages = |role: &str, tools: Value| json!([{"role": "user", "content": "q"}, {"role": role, "tools": tools}]);
    let more = json!({"messages": messages("system", json!(declared("g")))});
    let router = router();
    // A template that does not read a message's tools gets them with the request's tools.
    assert_eq!(prompt(&router, more.clone()).await, "tools: g \nuser: q\nassistant: ");
    let script = [&[SECTION], call_tokens("functions.g:0").as_slice(), &[END_SECTION]].concat();
    let body = router.chat(&script, more.clone()).await.ok();
    assert_eq!(body["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "g");
    let only = json!({"tools": tools(&["f"]), "messages": [{"role": "system", "tools": declared("g")}, {"role": "user", "content": "q"}]});
    assert_eq!(prompt(&router, only.clone()).await, "tools: f g \nuser: q\nassistant: ");
    let aware = TestRouter::of(
        "{% for m in messages %}{{ m.role }}{% if m.tools %} has {{ m.tools[0].function.name }}{% endif %};{% endfor %}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}",
        RouterConfig::default(),
        Fake::default(),
    );
    assert_eq!(prompt(&aware, only).await, "system has g;user;f");

    for (messages, param) in [
        (messages("user", json!([])), "messages[1].tools"),
        (messages("system", json!({})), "messages[1].tools"),
        (messages("system", json!([{"type": "function", "function": {}}])), "messages[1].tools[0].function.name"),
        (messages("developer", json!([5])), "messages[1].tools[0]"),
        (json!([{"role": "system", "tools": []}]), "messages[0].content"),
    ] {
        assert_eq!(refused(&router, json!({"messages": messages})).await.0, param, "{messages}");
    }
    let numbered = |name: &str, count: u32| -> Value {
        let names: Vec<String> = (0..count).map(|i| format!("{name}{i}")).collect();
        tools(&names.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let many = json!({"tools": numbered("f", 1000), "messages": messages("system", numbered("g", 25))});
    assert_eq!(refused(&router, many).await.0, "tools");
}

#[test]
fn the_last_declaration_of_a_tool_counts() {
    let tool = |name: &str, description: &str| json!({"type": "function", "function": {"name": name, "description": description}});
    let job = crate::request::job::ChatJob {
        tools: vec![tool("f", "1"), tool("g", "2")].into(),
        messages: json!([{"role": "system", "tools": [tool("h", "3"), tool("f", "4")]}, {"role": "user", "tools": [tool("i", "5")]},
            {"role": "assistant", "tool_calls": [{"function": {"name": "j", "arguments": "{}"}}]}])
        .as_array()
        .unwrap()
        .clone(),
        ..crate::request::job::ChatJob::default()
    };
    assert_eq!(job.declared_tools(), [&tool("f", "4"), &tool("g", "2"), &tool("h", "3")]);
}

#[tokio::test]
async fn every_field_name_for_continuing_a_message_works() {
    let router = router();
    let said = |more: Value| {
        let mut last = json!({"role": "assistant", "content": "well"});
        last.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!([{"role": "user", "content": "hi"}, last])
    };
    for more in [
        json!({"messages": said(json!({})), "continue_final_message": true}),
        json!({"messages": said(json!({"partial": true}))}),
        json!({"messages": said(json!({"prefix": true}))}),
        json!({"messages": said(json!({"partial": true})), "continue_final_message": true, "add_generation_prompt": false}),
    ] {
        assert_eq!(prompt(&router, more.clone()).await, "user: hi\nassistant: well");
        // The answer has only the new text, with its leading blanks.
        let body = router.chat(&bytes("\n\n, then"), more.clone()).await.ok();
        assert_eq!(body["choices"][0]["message"]["content"], "\n\n, then");
        let chunks = router.stream(&bytes("\n\n, then"), more).await;
        assert_eq!(join(&chunks)[0]["content"], "\n\n, then");
    }
    let call = json!([{"function": {"name": "f", "arguments": "{}"}}]);
    for (more, param, why) in [
        (json!({"messages": said(json!({"role": "user", "partial": true}))}), "messages[1].partial", "role assistant"),
        (
            json!({"messages": said(json!({"tool_calls": call, "prefix": true}))}),
            "messages[1].prefix",
            "without tool_calls",
        ),
        (json!({"messages": said(json!({"content": null, "partial": true}))}), "messages[1].partial", "with content"),
        (json!({"messages": said(json!({"partial": "yes"}))}), "messages[1].partial", "a boolean"),
        (
            json!({"messages": [{"role": "assistant", "content": "a", "partial": true}, {"role": "user", "content": "b"}]}),
            "messages[0].partial",
            "only on the last message",
        ),
        (
            json!({"messages": said(json!({"partial": true})), "add_generation_prompt": true}),
            "messages[1].partial",
            "cannot both be true",
        ),
        (
            json!({"messages": said(json!({"tool_calls": call})), "continue_final_message": true}),
            "continue_final_message",
            "tool_calls",
        ),
        (
            json!({"messages": said(json!({"role": "user"})), "continue_final_message": true}),
            "continue_final_message",
            "role assistant",
        ),
    ] {
        let (named, message) = refused(&router, more.clone()).await;
        assert!(named == param && message.contains(why), "{more}: {named} {message}");
    }
}

#[tokio::test]
async fn unfinished_reasoning_is_continued_as_reasoning() {
    let router = router();
    let dropping = TestRouter::new();
    let last =
        |last: Value| json!({"messages": [{"role": "user", "content": "hi"}, last], "continue_final_message": true});
    let script = [bytes("\n on").as_slice(), &[END_THINK], &bytes("So.")].concat();
    let reasoning = json!({"role": "assistant", "reasoning_content": "so far"});
    let inline = json!({"role": "assistant", "content": "<think>so far"});
    for (router, message, expected) in [
        (&router, &reasoning, "user: hi\nassistant: <think>so far"),
        (&router, &inline, "user: hi\nassistant: <think>so far"),
        (&dropping, &reasoning, "user: hi\nassistant: <think>so far"),
    ] {
        let more = last(message.clone());
        assert_eq!(prompt(router, more.clone()).await, expected, "{message}");
        let body = router.chat(&script, more.clone()).await.ok();
        let answer = &body["choices"][0]["message"];
        assert_eq!((&answer["reasoning_content"], &answer["content"]), (&json!("\n on"), &json!("So.")), "{message}");
        assert_eq!(join(&router.stream(&script, more).await)[0]["reasoning"], "\n on");
        let ids = &router.fake.starts()[0].prompt;
        assert_eq!(ids.iter().filter(|&&id| id >= 256).copied().collect::<Vec<_>>(), [THINK]);
    }
    // The template's own opening marker is not repeated.
    let mut more = last(reasoning);
    more["thinking"] = true.into();
    assert_eq!(prompt(&dropping, more).await, "user: hi\nassistant: <think>so far");
    // If the message has text, the text is continued.
    for message in [
        json!({"role": "assistant", "content": "So", "reasoning_content": "why"}),
        json!({"role": "assistant", "content": "<think>why</think>So"}),
    ] {
        let more = last(message);
        assert_eq!(prompt(&router, more.clone()).await, "user: hi\nassistant: <think>why</think>So");
        let body = router.chat(&bytes(" be it"), more).await.ok();
        assert_eq!(body["choices"][0]["message"]["content"], " be it");
        assert!(body["choices"][0]["message"].get("reasoning_content").is_none_or(Value::is_null));
    }
}

#[tokio::test]
async fn a_continued_region_starts_once_and_ends() {
    let router = router();
    let messages = vec![
        v1::Message { role: "user".into(), content: Some("hi".into()), ..v1::Message::default() },
        v1::Message { role: "assistant".into(), reasoning_content: Some("so far".into()), ..v1::Message::default() },
    ];
    let request = v1::ChatRequest {
        model: "bytes".into(),
        messages,
        continue_final_message: Some(true),
        script: [bytes("on").as_slice(), &[END_THINK], &bytes("x")].concat(),
        ..v1::ChatRequest::default()
    };
    use v1::chat_event::Event;
    let kinds: Vec<&str> = grpc::events(&router, request)
        .await
        .iter()
        .filter_map(|event| match event.event.as_ref()? {
            Event::ReasoningStart(_) => Some("reasoning{"),
            Event::ReasoningDelta(_) => Some("."),
            Event::ReasoningEnd(_) => Some("}"),
            Event::TextStart(_) => Some("text{"),
            Event::TextDelta(_) => Some("."),
            Event::TextEnd(_) => Some("}"),
            _ => None,
        })
        .collect();
    assert_eq!(kinds.concat(), "reasoning{..}text{.}");
}
