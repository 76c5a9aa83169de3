use super::*;
use crate::Tool;

#[test]
fn calls_in_text_are_found_and_the_format_that_reads_them() {
    let tools: Tools = vec![Tool { name: "f".into(), parameters: None, ..Tool::default() }].into();
    let found =
        |text: &str| lookalike(text, &tools).map(|(name, format)| format!("{name} {}", format.map_or("-", |f| f.name)));
    let cases = [
        ("```json\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n```", Some("f hermes_json")),
        ("{\"name\": \"f\", \"parameters\": {}}", Some("f hermes_json")),
        ("Let me see: {\"name\": \"f\", \"parameters\": {}}", Some("f llama_json")),
        ("{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{}\"}}", Some("f -")),
        ("{\"name\": \"g\", \"arguments\": {}}", None),
        ("{\"name\": \"f\", \"age\": 3}", None),
        ("{\"name\": \"f\"", None),
        ("f(a=1)", None),
    ];
    for (text, want) in cases {
        assert_eq!(found(text).as_deref(), want, "{text}");
    }
}
