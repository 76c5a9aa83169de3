use super::*;

fn declared(tools: &Json) -> Result<String> {
    declare(&tools.as_array().unwrap().iter().map(sorted).collect::<Vec<_>>())
}

#[test]
fn declarations_equal_the_reference() {
    let golden = lossless::from_str(include_str!("../../../../../tests/fixtures/kimi_k2/tools_ts.json")).unwrap();
    let (mut same, mut refused) = (0, 0);
    for case in golden.as_array().unwrap() {
        let ours = declared(&case["tools"]);
        match case["tools_ts_str"].as_str() {
            Some(theirs) => assert_eq!(ours.as_deref(), Ok(theirs)),
            None => assert_eq!(ours.map_err(|e| e.to_string()).unwrap_err(), case["error"].as_str().unwrap()),
        }
        *if case["error"].is_null() { &mut same } else { &mut refused } += 1;
    }
    assert_eq!((same, refused), (18, 3));
}

#[test]
fn every_kind_of_schema() {
    let tool = |parameters: &str| {
        let function = format!(r#"{{"name": "f", "description": "Does\n\nit", "parameters": {parameters}}}"#);
        declared(&lossless::from_str(&format!(r#"[{{"type": "function", "function": {function}}}]"#)).unwrap())
    };
    let body = |parameters: &str| {
        let declared = tool(parameters).unwrap();
        let (_, body) = declared.split_once("// Does\n\n// it\ntype f = (_: ").unwrap();
        body.strip_suffix(") => any;\n}\n").unwrap().to_owned()
    };
    for (schema, expected) in [
        (
            r#"{"minimum": 0.5, "type": "number", "default": 1e20}"#,
            "// minimum: 0.5\n  // Default: 1e+20\n  x?: number",
        ),
        (r#"{"enum": [1.0, "a", false, null]}"#, r#"x?: 1.0 | "a" | False | None"#),
        (r#"{"type": ["array", "object", "integer"]}"#, "x?: Array<any> | {} | number"),
        (r#"{"type": "array", "items": {"anyOf": [{"type": "null"}, true]}}"#, "x?: Array<null | any>"),
        (r#"{"type": "string", "default": null, "pattern": "a\"b"}"#, "// pattern: a\"b\n  x?: string"),
        (r#"{"type": "object", "default": {"k": [1.5, true]}}"#, "// Default: {\"k\": [1.5, true]}\n  x?: {}"),
    ] {
        let parameters = format!(r#"{{"properties": {{"x": {schema}}}}}"#);
        assert_eq!(body(&parameters), format!("{{\n  {expected}\n}}"));
    }
    assert_eq!(body("null"), "{}");
    for wrong in [
        r#"{"type": 5}"#,
        r#"{"type": ["string", "what"]}"#,
        r#"{"type": "integer", "enum": [1.5]}"#,
        r#"{"enum": ["a"], "type": ["string", "integer"]}"#,
        r#"{"description": 7, "type": "string"}"#,
        r##"{"$ref": "#/$defs/Nowhere"}"##,
        r#"{"type": "array", "items": [{"type": "string"}]}"#,
        r#"{"type": "object", "additionalProperties": 1}"#,
        "[]",
    ] {
        assert!(tool(&format!(r#"{{"properties": {{"x": {wrong}}}}}"#)).is_err(), "{wrong}");
    }
    assert_eq!(declared(&serde_json::json!([{"type": "_plugin"}])).unwrap(), "");
}
