//! Answers that continue the last message under a format: both together are judged.

use super::*;

fn continued(text: &str, format: Value) -> Value {
    let mut request = json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}],
        "continue_final_message": true, "add_generation_prompt": false});
    request.as_object_mut().unwrap().extend(format.as_object().unwrap().clone());
    request
}

#[tokio::test]
async fn a_prefix_and_its_continuation_are_one_response() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "maximum": 20}}, "required": ["a"], "additionalProperties": false});
    let json_schema =
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
    let object = json!({"response_format": {"type": "json_object"}});
    let regex = json!({"structured_outputs": {"regex": "[0-9]{3}-[0-9]{2}"}});
    let choice = json!({"structured_outputs": {"choice": ["alpha", "beta"]}});
    let router = TestRouter::enforcing();
    for (prefix, rest, format) in [
        ("{", "\"a\": 1}", &json_schema),
        ("{\"a\": ", "12}", &json_schema),
        ("{\"a\": 1", "2}", &json_schema),
        ("  {\"", "a\": 3}", &json_schema),
        ("{\"a\": 1}", "", &json_schema),
        ("{\"b", "\": []}", &object),
        ("12", "3-45", &regex),
        ("123-", "45", &regex),
        ("al", "pha", &choice),
    ] {
        let answer = router.chat(&bytes(rest), continued(prefix, format.clone())).await;
        let body = answer.ok();
        let choice = &body["choices"][0];
        assert_eq!(choice["message"]["content"].as_str().unwrap_or_default(), rest, "{prefix}: {body}");
        assert_eq!(choice["finish_reason"], "stop", "{prefix}: {body}");
        let chunks = router.stream(&bytes(rest), continued(prefix, format.clone())).await;
        assert_eq!(join(&chunks)[0]["content"].as_str().unwrap_or_default(), rest, "{prefix}: {chunks:?}");
    }
    for (prefix, format) in
        [("[", &json_schema), ("{\"b", &json_schema), ("Sure: {", &object), ("x", &regex), ("gam", &choice)]
    {
        let answer = router.chat(&bytes("x"), continued(prefix, format.clone())).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!("messages")),
            "{prefix}: {}",
            answer.text
        );
    }
    // Without a format, and with tools only, the text is free.
    router.chat(&bytes("b"), continued("anything", json!({"tools": tools(&["f"])}))).await.ok();
}
