//! Schemas that JSON Schema does not allow, as serializers and agents write them: one must not refuse all tools.

use rein_proto::v1;

use super::{
    grpc::{events, request as grpc_request},
    *,
};

/// A parameter's schema, a value that it takes, and what the header names, below the parameter.
fn parameters() -> Vec<(Value, Value, &'static [&'static str])> {
    vec![
        (json!({"type": "string", "description": null, "enum": null, "pattern": null}), json!("x"), &[]),
        (json!({"type": "object", "properties": []}), json!({}), &[]),
        (json!({"type": "string", "title": 7, "description": ["a"]}), json!("x"), &[]),
        (json!({"type": "string", "required": true}), json!("x"), &["/required"]),
        (json!({"type": "any"}), json!([1]), &["/type"]),
        (json!({"type": "float"}), json!(1.5), &["/type"]),
        (
            json!({"type": "OBJECT", "properties": {"b": {"type": "INTEGER"}}}),
            json!({"b": 1}),
            &["/type", "/properties/b/type"],
        ),
        (json!({"$ref": "#/definitions/none"}), json!("x"), &["/$ref"]),
        (json!({"anyOf": []}), json!(1), &["/anyOf"]),
        (json!({"type": "array", "items": "string"}), json!(["x"]), &["/items"]),
        (json!({"not": {"type": "date"}}), json!(1), &["/not/type", "/not"]),
    ]
}

fn schema(parameter: &Value) -> Value {
    json!({"type": "object", "properties": {"a": parameter}})
}

fn script(value: &Value) -> Vec<u32> {
    [&[SECTION], call("functions.f:0", &json!({"a": value}).to_string()).as_slice(), &[END_SECTION]].concat()
}

/// What the header names, of the parameter's keywords.
fn relaxed(answer: &Answer) -> String {
    answer.ok();
    answer.headers.get("x-rein-relaxed").map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
}

#[tokio::test]
async fn an_odd_schema_is_relaxed_and_named_in_every_api() {
    for (parameter, value, named) in parameters() {
        let (router, script, schema) = (TestRouter::enforcing(), script(&value), schema(&parameter));
        let named: Vec<String> = named.iter().map(|at| format!("f#/properties/a{at}")).collect();
        let function = json!({"name": "f", "parameters": schema});
        let other = json!({"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}});
        let tools = json!([other, {"type": "function", "function": function}]);
        let answer = router.chat(&script, json!({"tools": tools})).await;
        let body = answer.ok();
        let made = &body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"];
        assert_eq!(made, &json!({"a": value}).to_string(), "{parameter}: {body}");
        assert_eq!(relaxed(&answer), named.join(","), "{parameter}");

        let tool = json!({"type": "function", "name": "f", "parameters": schema, "strict": false});
        let body = json!({"model": "bytes", "input": "q", "tools": [tool], "script": script, "store": false});
        assert_eq!(relaxed(&router.post("/v1/responses", body).await), named.join(","), "{parameter}");

        let tool = json!({"name": "f", "input_schema": schema});
        let messages = json!([{"role": "user", "content": "q"}]);
        let body = json!({"model": "bytes", "messages": messages, "max_tokens": 99, "tools": [tool], "script": script});
        assert_eq!(relaxed(&router.post("/v1/messages", body).await), named.join(","), "{parameter}");

        let tool = v1::Tool { name: "f".into(), parameters_json: Some(schema.to_string()), ..v1::Tool::default() };
        let asked = v1::ChatRequest { tools: vec![tool], ..grpc_request(&script) };
        let ended = events(&router, asked).await;
        assert!(!ended.is_empty(), "{parameter}");
    }
}

#[tokio::test]
async fn an_odd_response_schema_is_relaxed_and_named() {
    for (parameter, value, named) in parameters() {
        let (router, schema) = (TestRouter::enforcing(), schema(&parameter));
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let answer = router.chat(&bytes(&json!({"a": value}).to_string()), json!({"response_format": format})).await;
        let named: Vec<String> = named.iter().map(|at| format!("#/properties/a{at}")).collect();
        assert_eq!(relaxed(&answer), named.join(","), "{parameter}");
    }
}

#[tokio::test]
async fn a_strict_schema_and_a_root_that_is_no_object_are_refused() {
    let router = TestRouter::enforcing();
    let refused = async |function: Value| {
        let tools = json!([{"type": "function", "function": function}]);
        let answer = router.chat(&bytes("b"), json!({"tools": tools})).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{function}");
    };
    for (parameter, _, named) in parameters() {
        if !named.is_empty() && !named.contains(&"/required") {
            let mut schema = schema(&parameter);
            schema["required"] = json!(["a"]);
            schema["additionalProperties"] = json!(false);
            refused(json!({"name": "f", "parameters": schema, "strict": true})).await;
        }
    }
    for root in [json!([]), json!("object"), json!(5), json!({"type": "array"}), json!({"type": "STRING"})] {
        refused(json!({"name": "f", "parameters": root})).await;
    }
}
