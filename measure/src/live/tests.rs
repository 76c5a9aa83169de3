use axum::routing::{get, post};
use axum::{Json, Router};

use super::*;

/// A server whose model writes `plain` without enforcement and `auto` and `required` with it, to every question.
fn server(plain: Value, auto: Value, required: Value) -> Asked {
    let choice = |choice: &Value| Json(json!({"choices": [choice]}));
    let (plain, chats) = (choice(&plain), [choice(&auto), choice(&required)]);
    let chat = move |Json(body): Json<Value>| {
        let answer = chats[usize::from(body["tool_choice"] == "required")].clone();
        async { answer }
    };
    let routes = Router::new()
        .route("/v1/models", get(async || Json(json!({"data": [{"id": "m", "format": "hermes"}]}))))
        .route("/v1/chat/completions/render", post(async || Json(json!({"prompt": "p", "token_ids": [1]}))))
        .route("/tokenize", post(async || Json(json!({"count": 9}))))
        .route("/v1/completions", post(async || plain))
        .route("/v1/chat/completions", post(chat));
    Asked::Router(routes)
}

fn call(arguments: &str) -> Value {
    json!({"message": {"content": null, "tool_calls": [{"function": {"name": "get_weather", "arguments": arguments}}]},
        "finish_reason": "tool_calls", "token_ids": [1, 2, 3]})
}

async fn found(asked: Asked) -> CheckReport {
    report(&asked, None, 100).await.expect("a report")
}

fn verdict(report: &CheckReport, check: &str) -> (Verdict, String) {
    let finding = report.findings.iter().find(|finding| finding.check == check).expect("a finding");
    (finding.verdict, finding.message.clone())
}

const WRITTEN: &str = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";

#[tokio::test]
async fn a_model_whose_calls_are_read_is_fine() {
    let plain = json!({"text": WRITTEN, "finish_reason": "stop", "token_ids": [1, 2, 3]});
    let good = call("{\"city\": \"Rome\"}");
    let report = found(server(plain, good.clone(), good)).await;
    for check in ["live lost", "live changed", "live length", "live tokens", "live format"] {
        assert_eq!(verdict(&report, check).0, Verdict::Fine, "{report:?}");
    }
    // Not every question declares the tool.
    let (worst, message) = verdict(&report, "live calls");
    assert_eq!(worst, Verdict::Broken);
    assert_eq!(
        message,
        "5 valid and 7 invalid calls in 12 answers; 1 of 10 questions for a tool got calls of the right ones"
    );
    assert_eq!(verdict(&report, "live tokens").1, "demanded calls took 30 tokens where hermes itself takes 100");
}

#[tokio::test]
async fn calls_that_go_out_as_text_are_lost() {
    let text = "```json\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n```";
    let plain = json!({"text": text, "finish_reason": "stop", "token_ids": [1, 2]});
    let auto = json!({"message": {"content": text}, "finish_reason": "stop", "token_ids": [1, 2]});
    let report = found(server(plain, auto.clone(), auto)).await;
    assert_eq!(verdict(&report, "live lost").0, Verdict::Broken);
    assert_eq!(verdict(&report, "live required").0, Verdict::Broken);
    let (worst, message) = verdict(&report, "live format");
    assert_eq!(worst, Verdict::Warning);
    assert!(message.ends_with("hermes reads 0: try --format hermes_json"), "{message}");
    assert_eq!(verdict(&report, "live changed").0, Verdict::Fine);
}

#[tokio::test]
async fn changed_and_endless_answers_are_told() {
    let plain = json!({"text": "It is warm.", "finish_reason": "stop", "token_ids": [1, 2]});
    let auto = json!({"message": {"content": "It is"}, "finish_reason": "length", "token_ids": [1, 4, 4]});
    let long = json!({"token_ids": [7], "message": {"content": ""}, "finish_reason": "length"});
    let report = found(server(plain, auto, long)).await;
    let (worst, message) = verdict(&report, "live changed");
    assert_eq!(worst, Verdict::Warning);
    assert!(message.starts_with("enforcement changed 12 answers"), "{message}");
    assert_eq!(
        verdict(&report, "live length"),
        (Verdict::Warning, "12 answers ended by length; 12 of them end without enforcement".into())
    );
    assert_eq!(verdict(&report, "live calls").0, Verdict::Warning);
    // Cut answers tell neither that calls are missing nor what they cost.
    assert_eq!(verdict(&report, "live required").0, Verdict::Warning);
    assert!(report.findings.iter().all(|finding| finding.check != "live tokens"));
}

#[tokio::test]
async fn a_server_that_refuses_is_named() {
    let error = report(&Asked::Router(Router::new()), None, 1).await.expect_err("no server");
    assert!(error.starts_with("/v1/models: HTTP 404"), "{error}");
    let unknown =
        Router::new().route("/v1/models", get(async || Json(json!({"data": [{"id": "m", "format": "new"}]}))));
    let error = report(&Asked::Router(unknown), None, 1).await.expect_err("an unknown format");
    assert!(error.contains("\"new\" is not in the table"), "{error}");
}

#[test]
fn questions_declare_what_they_want() {
    let (questions, tools) = Question::read().expect("questions");
    assert_eq!(questions.len(), 12);
    for question in questions {
        let declared = question.declared(&tools);
        assert_eq!(declared.len(), question.tools.len(), "{question:?}");
        assert!(question.calls.iter().all(|call| question.tools.contains(call)), "{question:?}");
    }
}
