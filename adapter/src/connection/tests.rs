use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::crypto::ring;

use super::*;

#[test]
fn addresses_of_engines_are_checked() {
    for good in ["http://10.0.0.5:8000", "https://vllm", "http://vllm:8000/prefix/", "https://[::1]:80"] {
        assert!(good.parse::<EngineUrl>().is_ok(), "{good}");
    }
    assert_eq!("http://vllm:8000/".parse::<EngineUrl>().expect("an address").as_str(), "http://vllm:8000");
    for (url, host) in
        [("http://vllm:8000/x", "vllm"), ("http://[::1]:80", "[::1]"), ("http://[::1]", "[::1]"), ("http://a", "a")]
    {
        assert_eq!(url.parse::<EngineUrl>().expect("an address").host(), host);
    }
    for (bad, part) in [
        ("ftp://vllm", "expected a URL"),
        ("vllm:8000", "expected a URL"),
        ("http://", "expected a URL"),
        ("http://vllm?x=1", "no query"),
        ("http://user:secret@vllm", "must not contain"),
        ("", "expected a URL"),
    ] {
        let error = bad.parse::<EngineUrl>().expect_err(bad).to_string();
        assert!(error.contains(part) && !error.contains("secret"), "{bad}: {error}");
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let tls = builder.with_safe_default_protocol_versions().expect("versions");
    let tls = tls.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let engine = EngineHttp::new("http://vllm".parse().expect("an address"), Some("a\nb"), Arc::new(tls));
    assert!(engine.expect_err("a key").to_string().contains("REIN_ENGINE_KEY"));
}
