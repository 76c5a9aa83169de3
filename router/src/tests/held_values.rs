//! Values that the grammar does not enforce completely: they are held until they are validated, the rest of the call
//! streams.

use super::*;

/// zod's pattern of an e-mail address.
const EMAIL: &str = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$";

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "body": {"type": "string"},
            "to": {"type": "array", "items": {"type": "object", "properties": {
                "mail": {"type": "string", "pattern": EMAIL}, "note": {"type": "string"},
            }}},
            "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": true},
        },
    })
}

fn arguments(mail: &str, tags: &str) -> String {
    let letters = "abcdefghijklmnopqrstuvwxyz".repeat(4);
    format!(r#"{{"body": "{letters}", "to": [{{"mail": "{mail}", "note": "{letters}"}}], "tags": {tags}}}"#)
}

fn script(arguments: &str) -> Vec<u32> {
    [&[SECTION], call("functions.f:0", arguments).as_slice(), &[END_SECTION, END]].concat()
}

fn tools() -> Value {
    json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": schema()}}]})
}

#[tokio::test]
async fn only_the_value_of_a_relaxed_keyword_is_held() {
    let arguments = arguments("a.b@c.org", r#"["x", "y"]"#);
    let chunks = TestRouter::enforcing().stream(&script(&arguments), tools()).await;
    let deltas: Vec<&str> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str())
        .filter(|delta| !delta.is_empty())
        .collect();
    assert_eq!(deltas.concat(), arguments);
    assert!(deltas.iter().any(|delta| delta.contains(r#""a.b@c.org""#)), "{deltas:?}");
    assert!(deltas.iter().any(|delta| delta.contains(r#"["x", "y"]"#)), "{deltas:?}");
    // Each other letter is a token and an event.
    assert!(deltas.len() > arguments.len() - 30, "{} of {}", deltas.len(), arguments.len());
}

#[tokio::test]
async fn an_invalid_value_never_goes_out() {
    for (mail, tags, last) in [("a..b@c.org", "[]", r#""mail": "#), ("a@b.org", r#"["x", "x"]"#, r#""tags": "#)] {
        let arguments = arguments(mail, tags);
        let router = TestRouter::enforcing();
        let chunks = router.stream(&script(&arguments), tools()).await;
        let joined = &join(&chunks)[0];
        let sent = arguments.split_inclusive(last).next().unwrap();
        assert_eq!(joined["calls"][0]["arguments"], sent, "{chunks:?}");
        assert_eq!(joined["finish"], "stop");
        let choice = &chunks.last().unwrap()["choices"][0]["delta"]["incomplete_tool_calls"][0];
        assert_eq!((&choice["id"], &choice["function"]["arguments"]), (&joined["calls"][0]["id"], &json!(arguments)));

        let body = router.chat(&script(&arguments), tools()).await.ok();
        let message = &body["choices"][0]["message"];
        assert!(message.get("tool_calls").is_none_or(Value::is_null), "{body}");
        assert_eq!(message["incomplete_tool_calls"][0]["function"]["arguments"], arguments, "{body}");
    }
}
