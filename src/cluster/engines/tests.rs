use std::path::Path;

use prometheus_client::registry::Registry;
use rein_adapter::EngineDialect;
use rein_router::metrics::{on_scrape, text};

use super::*;
use crate::metrics_reference;

fn demo() -> FrontedModel {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo");
    FrontedModel::load(&dir, Some("demo".into()), Some(100), ModelOverrides::default()).expect("the demo model")
}

#[test]
fn engines_must_tokenize_text_and_added_tokens_as_the_model_does() {
    let model = demo();
    let deployment = model.deployment;
    assert_eq!((deployment.context, deployment.least_context), (Some(100), Some(100)));
    assert_eq!(deployment.probes.len(), PROBES.len() + 2);
    let combining = |c: &char| ('\u{300}'..='\u{36F}').contains(c);
    assert_eq!(PROBES.concat().chars().find(combining), None, "not in NFC");
    assert!(deployment.probes.iter().all(|(text, ids)| !text.is_empty() && !ids.is_empty()));
    let (text, ids) = deployment.probes.last().expect("the added tokens");
    assert!(text.contains("<|im_end|>") && ids.contains(&model.text.stop_token_ids[0]), "{text}");
}

#[tokio::test]
async fn the_reference_lists_the_metrics() {
    let joined = Joined {
        served_name: "demo".into(),
        model: "served".into(),
        version: "0.11.0".into(),
        vocab_size: 400,
        context: 100,
        block_size: 16,
        engine_block: 16,
        blocks: 10,
        slots: 4,
        prefix_cache: false,
        lacks_cache: true,
    };
    // Nothing listens there, and nothing is asked of it.
    let tls = rein_adapter::client_config(None).expect("the public authorities");
    let http = EngineHttp::new("http://127.0.0.1:9".parse().expect("an address"), None, tls).expect("a client");
    let deployment = Deployment {
        served_name: Some("demo".into()),
        vocab_size: 400,
        context: None,
        least_context: None,
        probes: Vec::new(),
    };
    let options = AdapterOptions { events: Some("127.0.0.1:9".into()), ..AdapterOptions::default() };
    let service = AdapterService::start(http, EngineDialect::Vllm, deployment, joined, options);
    let observed = [ObservedEngine { service, name: "engines/a0".into() }];
    let mut registry = Registry::default();
    on_scrape(&mut registry, move |samples| write_metrics(samples, &observed));
    let text = text(&registry);
    metrics_reference::check("Adapters", &text);
    let kind =
        "rein_engine_kind{model=\"demo\",engine=\"engines/a0\",kind=\"vllm\",version=\"0.11.0\",served=\"served\"} 1";
    let cache = "rein_engine_prefix_cache{model=\"demo\",engine=\"engines/a0\"} 0";
    // It has not been silent for long.
    let events = "rein_engine_block_events{model=\"demo\",engine=\"engines/a0\"} 1";
    for line in [kind, cache, events] {
        assert!(text.contains(line), "{line} in {text}");
    }
}
