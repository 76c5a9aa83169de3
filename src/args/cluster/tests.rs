use super::*;

#[test]
fn an_engines_address_may_name_the_port_of_its_block_events() {
    let parse = |text: &str| text.parse::<EngineAddress>();
    let plain = parse("vllm=http://10.0.0.5:8000/").expect("valid");
    assert_eq!((plain.url.as_str(), plain.events), ("http://10.0.0.5:8000", None));
    let events = parse("sglang=http://[::1]:8000#events=5557").expect("valid");
    assert_eq!((events.url.as_str(), events.events.as_deref()), ("http://[::1]:8000", Some("[::1]:5557")));
    for (wrong, said) in [
        ("vllm=http://a#events=0", "expected #events=PORT with the port of the engine's block events, got #events=0"),
        ("vllm=http://a#events=70000", "got #events=70000"),
        ("vllm=http://a#", "got #"),
        ("vllm=http://a#metrics=1", "got #metrics=1"),
        ("llama-server=http://a#events=1", "llama-server publishes no block events, got #events=1"),
    ] {
        let error = parse(wrong).expect_err(wrong);
        assert!(error.ends_with(said), "{wrong}: {error}");
    }
}
