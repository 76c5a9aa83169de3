//! Heads of calls in another order, as gpt-oss's template writes them: the parser reads what the grammar accepts.

use serde_json::json;

use super::{Bench, rules, tool};
use crate::tests::short;
use crate::{ParserOptions, Rules, Tool, ToolChoice, by_name};

const CALL: &str = r#"C(get_weather|-|{"city": "Paris"})"#;

#[test]
fn the_recipient_may_come_first() {
    let b = Bench::new(by_name("gpt_oss").expect("a format"), false);
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": false});
    let open = rules(vec![tool("get_weather", schema.clone())]);
    let must = Rules { choice: ToolChoice::Required, ..open.clone() };
    let reasoned = "⟦<|channel|>⟧analysis⟦<|message|>⟧the city⟦<|end|>⟧⟦<|start|>⟧assistant";
    let [channel, constrain, message] = ["⟦<|channel|>⟧", "⟦<|constrain|>⟧", "⟦<|message|>⟧"];
    let arguments = r#"{"city": "Paris"}"#;
    // What is written, whether it is accepted, and whether that is a call.
    let cases = [
        (format!(" to=functions.get_weather{channel}commentary json{message}{arguments}"), true),
        (format!(" to=functions.get_weather{channel}commentary {constrain}json{message}{arguments}"), true),
        (format!("to=functions.get_weather{channel}commentary json{message}{arguments}"), false),
        (format!("{channel}commentary to=functions.get_weather {constrain}json{message}{arguments}"), true),
        (format!(" to=functions.get_time{channel}commentary json{message}{arguments}"), false),
        (format!(" to=functions.get_weather{channel}final{message}{arguments}"), false),
        (format!(r#" to=functions.get_weather{channel}commentary json{message}{{"town": 1}}"#), false),
    ];
    for (written, good) in &cases {
        for before in ["", reasoned] {
            let ids = b.tokens.text(&format!("{before}{written}"));
            for rules in [&open, &must] {
                assert_eq!(b.takes_ids(rules, &ids), *good, "{before}{written} {:?}", rules.choice);
            }
            if !good {
                continue;
            }
            let tools = vec![Tool { name: "get_weather".into(), parameters: Some(schema.clone()), ..Tool::default() }];
            let options = ParserOptions { tools: tools.into(), parse_tools: true, ..ParserOptions::default() };
            let read = short(&crate::tests::parse(b.format, options, &b.tokens.pieces(&ids)));
            assert!(read.ends_with(CALL), "{before}{written}: {read}");
        }
    }
    // Text that only looks alike.
    for text in [" to=get_weather", " to=function", " going to=functions.get_weather", "to be"] {
        assert!(b.takes_ids(&open, &b.tokens.text(text)), "{text}");
        assert!(!b.takes_ids(&must, &b.tokens.text(text)), "{text}");
    }
}
