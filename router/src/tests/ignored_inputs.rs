//! Inputs that the template ignores: tools that are not in the prompt, and variables that are not read.

use super::*;

const DROPS: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
/// Shows tools only if the conversation has a system message.
const SOMETIMES: &str = "{% for m in messages %}{% if m.role == 'system' and tools %}{{ tools | tojson }}{% endif %}{{ m.content }}{% endfor %}";
/// Shows only the first tool.
const FIRST: &str =
    "{% if tools %}{{ tools[0] | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";

fn router(template: &str) -> TestRouter {
    TestRouter::of(template, RouterConfig::default(), Fake::default())
}

async fn refused(router: &TestRouter, path: &str, more: Value) -> Value {
    let answer = router.post(path, chat_request(&bytes("x"), more)).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
    answer.json()["error"].clone()
}

#[tokio::test]
async fn tools_that_the_template_ignores_are_refused() {
    let weather = json!({"tools": tools(&["weather", "mail"])});
    for path in ["/v1/chat/completions", "/v1/chat/completions/render"] {
        let error = refused(&router(DROPS), path, weather.clone()).await;
        assert_eq!(error["param"], "tools");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("does not show the tool 'weather'") && message.contains("--allow-dropped-tools"),
            "{message}"
        );
    }
    // A mention of the tool in the messages does not count.
    let spoken = json!({"tools": tools(&["weather"]), "messages": [{"role": "user", "content": "call weather"}]});
    assert_eq!(refused(&router(DROPS), "/v1/chat/completions", spoken.clone()).await["param"], "tools");
    assert_eq!(refused(&router(SOMETIMES), "/v1/chat/completions", spoken).await["param"], "tools");
    let error = refused(&router(FIRST), "/v1/chat/completions", weather.clone()).await;
    assert!(error["message"].as_str().unwrap().contains("'mail'"), "{error}");
    let declared = json!({"messages": [{"role": "system", "content": "s"}, {"role": "system", "tools": tools(&["weather"])}, {"role": "user", "content": "u"}]});
    assert_eq!(refused(&router(DROPS), "/v1/chat/completions", declared.clone()).await["param"], "tools");
    router(SOMETIMES).chat(&bytes("x"), declared).await.ok();
}

#[tokio::test]
async fn requests_whose_tools_are_shown_are_answered() {
    let call = json!({"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}});
    let history = json!({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "1"}]});
    for more in [history, json!({"tools": []}), json!({"tools": tools(&["weather"]), "tool_choice": "none"})] {
        router(DROPS).chat(&bytes("x"), more).await.ok();
    }
    router(FIRST).chat(&bytes("x"), json!({"tools": tools(&["weather"])})).await.ok();
    let system = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]);
    router(SOMETIMES).chat(&bytes("x"), json!({"tools": tools(&["weather"]), "messages": system})).await.ok();
    let policy = ModelPolicy { allow_dropped_tools: true, ..ModelPolicy::default() };
    TestRouter::with_policy(DROPS, policy).chat(&bytes("x"), json!({"tools": tools(&["weather"])})).await.ok();
}

#[tokio::test]
async fn template_variables_that_are_not_read_are_reported() {
    let template = "{% set budget = budget or 5 %}{% macro m(local) %}{{ local }}{{ inner }}{% endmacro %}{# commented #}\
        {% for m in messages %}{{ m.content }}{{ m.attribute }}{{ 'spelled' }}{% if false %}{{ deep[nested] }}{% endif %}{% endfor %}\
        {% with a = outer %}{{ a }}{% endwith %}{{ budget }}{{ m(local='x') }}{{ dict(keyword=1) }}{{ enable_thinking }}";
    let read = ["budget", "inner", "deep", "nested", "outer", "enable_thinking"];
    let ignored = ["enable_thinkin", "local", "commented", "attribute", "spelled", "a", "keyword"];
    let kwargs: serde_json::Map<String, Value> =
        read.iter().chain(&ignored).map(|name| ((*name).to_owned(), json!("x"))).collect();
    let answer = router(template).chat(&bytes("x"), json!({"chat_template_kwargs": kwargs, "unknown": 1})).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let mut named: Vec<&str> = answer.header("x-rein-ignored-fields").split(',').collect();
    let mut expected: Vec<String> = ignored.iter().map(|name| format!("chat_template_kwargs.{name}")).collect();
    expected.push("unknown".into());
    named.sort_unstable();
    expected.sort_unstable();
    assert_eq!(named, expected);

    for (template, more, named) in [
        (
            DROPS,
            json!({"thinking": true, "reasoning_effort": "high", "documents": [{"text": "x"}]}),
            "documents,thinking,reasoning_effort",
        ),
        (DROPS, json!({"reasoning_effort": "none"}), "reasoning_effort"),
        ("{{ enable_thinking }}", json!({"thinking": true, "reasoning_effort": "none"}), ""),
        ("{{ thinking }}", json!({"thinking": false, "reasoning_effort": "low"}), "reasoning_effort"),
        ("{{ documents }}{{ reasoning_effort }}", json!({"documents": [], "reasoning_effort": "low"}), ""),
    ] {
        for path in ["/v1/chat/completions", "/v1/chat/completions/render", "/tokenize"] {
            let answer = router(template).post(path, chat_request(&bytes("x"), more.clone())).await;
            let header = answer.header("x-rein-ignored-fields").replace("script,", "").replace("script", "");
            assert_eq!(header, named, "{template} {path} {more} {}", answer.text);
        }
    }
}

#[tokio::test]
async fn variables_that_the_renderer_sets_are_refused() {
    for name in [
        "chat_template",
        "bos_token",
        "eos_token",
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "tokenize",
        "continue_final_message",
        "return_dict",
        "raise_exception",
        "strftime_now",
        "namespace",
        "tools_ts_str",
        "__add",
    ] {
        let error =
            refused(&TestRouter::new(), "/v1/chat/completions", json!({"chat_template_kwargs": {name: "x"}})).await;
        assert_eq!(error["param"], format!("chat_template_kwargs.{name}"));
        assert!(error["message"].as_str().unwrap().contains(&format!("may not set '{name}'")), "{error}");
    }
    assert!(rein_text::template::is_reserved("pad_token") && !rein_text::template::is_reserved("thinking"));
}

#[tokio::test]
async fn grpc_reports_ignored_variables() {
    let mut client = super::grpc::client(&router(DROPS));
    let request = rein_proto::v1::ChatRequest {
        chat_template_kwargs_json: Some(r#"{"enable_thinkin": 1}"#.into()),
        ..super::grpc::request(&bytes("x"))
    };
    let response = client.chat(request).await.unwrap();
    assert_eq!(response.metadata().get("x-rein-ignored-fields").unwrap(), "chat_template_kwargs.enable_thinkin");
    let tool = rein_proto::v1::Tool { name: "f".into(), ..Default::default() };
    let status = client
        .chat(rein_proto::v1::ChatRequest { tools: vec![tool], ..super::grpc::request(&[]) })
        .await
        .map(|_| ())
        .unwrap_err();
    assert_eq!(status.metadata().get("rein-param").unwrap(), "tools");
}
