use super::*;

#[test]
fn addresses_of_engines_are_checked() {
    for good in ["http://10.0.0.5:8000", "http://vllm", "http://vllm:8000/prefix/", "http://[::1]:80"] {
        assert!(EngineHttp::new(good, Some("key")).is_ok(), "{good}");
    }
    assert_eq!(EngineHttp::new("http://vllm:8000/", None).expect("a client").url(), "http://vllm:8000");
    for (url, host) in
        [("http://vllm:8000/x", "vllm"), ("http://[::1]:80", "[::1]"), ("http://[::1]", "[::1]"), ("http://a", "a")]
    {
        assert_eq!(EngineHttp::new(url, None).expect("a client").host(), host);
    }
    for (bad, part) in [
        ("https://vllm", "https is not supported"),
        ("vllm:8000", "expected a URL"),
        ("http://", "expected a URL"),
        ("http://vllm?x=1", "no query"),
        ("http://user:secret@vllm", "must not contain"),
        ("", "expected a URL"),
    ] {
        let error = EngineHttp::new(bad, None).expect_err(bad).to_string();
        assert!(error.contains(part) && !error.contains("secret"), "{bad}: {error}");
    }
    assert!(EngineHttp::new("http://vllm", Some("a\nb")).expect_err("a key").to_string().contains("REIN_ENGINE_KEY"));
}
