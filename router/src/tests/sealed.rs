//! Sealed reasoning comes back to any router of the cluster, for the same model, and is refused everywhere else.

use serde_json::json;

use super::*;
use crate::seal::Seal;

const KEY: [u8; 32] = [5; 32];

/// A router of two models, with the key of its cluster.
fn router(key: &[u8; 32]) -> TestRouter {
    let fake = Fake::default();
    let mut other = entry(TEMPLATE, &fake);
    other.text.name = "other".into();
    let config = RouterConfig { seal: Seal::new(key), ..RouterConfig::default() };
    TestRouter { router: Router::new(config, vec![entry(TEMPLATE, &fake), other]).unwrap(), fake }
}

/// A body with the first answer's items, and a question after them.
fn continued(model: &str, output: &Value) -> Value {
    let mut input = vec![json!({"role": "user", "content": "hi"})];
    input.extend(output.as_array().unwrap().iter().cloned());
    input.push(json!({"role": "user", "content": "and"}));
    json!({"model": model, "input": input, "script": bytes("b"), "store": false})
}

#[tokio::test]
async fn reasoning_is_opened_with_the_clusters_key_for_its_model_only() {
    let script = [&[THINK], bytes("secret thought").as_slice(), &[END_THINK], &bytes("a")].concat();
    let body = json!({"model": "bytes", "input": "hi", "script": script, "store": false,
        "include": ["reasoning.encrypted_content"]});
    let first = router(&KEY).post("/v1/responses", body).await;
    let output = &first.ok()["output"];
    let sealed = output[0]["encrypted_content"].as_str().unwrap();
    assert!(!sealed.is_empty() && !sealed.contains("thought"));
    // Another router of the cluster.
    router(&KEY).post("/v1/responses", continued("bytes", output)).await.ok();
    // A client cannot mend what does not open: it is left out, and named.
    let mut changed = output.clone();
    changed[0]["encrypted_content"] = format!("{}AAAA", &sealed[..sealed.len() - 4]).into();
    for (key, model, output) in [([6; 32], "bytes", output), (KEY, "other", output), (KEY, "bytes", &changed)] {
        let answer = router(&key).post("/v1/responses", continued(model, output)).await;
        let named = answer.headers.get("x-rein-ignored-fields").map(|value| value.to_str().unwrap());
        assert_eq!(named, Some("input[1].encrypted_content"), "{}", answer.text);
        answer.ok();
    }
}
