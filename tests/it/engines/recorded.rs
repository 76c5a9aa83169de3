//! The stubs answer in the form of real engines, which `tests/engines/record.py` recorded.

use std::collections::BTreeSet;

use rein_adapter::EngineDialect;
use serde_json::Value;

use super::{no_fault, stub};

/// The paths of all members; the entries of an array have one path.
fn add_members(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                // Ids of tokens are names, too.
                let name = if name.starts_with("token_id:") { "token_id" } else { name };
                let path = format!("{path}/{name}");
                add_members(member, &path, found);
                found.insert(path);
            }
        }
        Value::Array(entries) => entries.iter().for_each(|entry| add_members(entry, path, found)),
        _ => {}
    }
}

/// Those of all events of an answer, or of its one document.
fn add_answer(answer: &str, found: &mut BTreeSet<String>) {
    for line in answer.lines().filter(|line| !line.is_empty() && *line != "data: [DONE]") {
        let line = line.strip_prefix("data: ").unwrap_or(line);
        add_members(&serde_json::from_str(line).expect("JSON"), "", found);
    }
}

#[tokio::test]
async fn stubs_answer_in_the_form_of_real_engines() {
    for (dialect, text) in [
        (EngineDialect::Vllm, include_str!("../../../adapter/src/dialect/recorded/vllm.json")),
        (EngineDialect::LlamaServer, include_str!("../../../adapter/src/dialect/recorded/llama-server.json")),
    ] {
        let recorded: Value = serde_json::from_str(text).expect("a recording");
        let stub = stub(dialect, no_fault()).await;
        let (mut real, mut stubbed) = (BTreeSet::new(), BTreeSet::new());
        for exchange in recorded["exchanges"].as_array().expect("exchanges") {
            let answer = exchange["answer"].as_str().expect("an answer");
            add_answer(answer, &mut real);
            let own = stub.text_of_answer(exchange["request"].clone()).await;
            assert_eq!(own.starts_with("data: "), answer.starts_with("data: "), "{dialect:?}");
            assert_eq!(own.ends_with("data: [DONE]\n\n"), answer.ends_with("data: [DONE]\n\n"), "{dialect:?}");
            add_answer(&own, &mut stubbed);
        }
        let unknown: Vec<_> = stubbed.difference(&real).collect();
        assert!(unknown.is_empty() && stubbed.len() > 5, "{dialect:?}: {unknown:?}");
    }
}
