use super::*;

#[test]
fn all_forms_of_addresses_are_parsed() {
    for (text, shown) in [
        ("127.0.0.1:8000", "127.0.0.1:8000"),
        ("0.0.0.0:0", "0.0.0.0:0"),
        ("localhost:8000", "localhost:8000"),
        ("worker-0.workers:80", "worker-0.workers:80"),
        (":8000", "0.0.0.0:8000"),
        ("8000", "127.0.0.1:8000"),
        ("0", "127.0.0.1:0"),
        ("[::1]:8000", "[::1]:8000"),
        ("[::]:8000", "[::]:8000"),
    ] {
        let address: ListenAddr = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(address.to_string(), shown, "{text}");
        assert_eq!(address.to_string().parse(), Ok(address), "{text}");
    }
    for bad in [
        "",
        ":",
        "localhost",
        "localhost:",
        "::1:8000",
        "::1",
        "[::1]",
        "[::1:8000",
        "[localhost]:8000",
        "-1",
        "+80",
        "h:+80",
        "h: 80",
        "http://localhost:8000",
        "a b:80",
        "h:80/x",
        "h:http",
        "256.1.1.1:x",
    ] {
        let error = bad.parse::<ListenAddr>().expect_err(bad);
        assert!(error.contains("expected HOST:PORT"), "{bad}: {error}");
    }
    for bad in ["h:65536", "65536", "127.0.0.1:99999", "[::1]:99999"] {
        let error = bad.parse::<ListenAddr>().expect_err(bad);
        assert!(error.starts_with("the port must be between 0 and 65535, got "), "{bad}: {error}");
    }
}

#[test]
fn host_and_port_are_replaced_separately() {
    let address: ListenAddr = "127.0.0.1:8000".parse().expect("an address");
    assert_eq!(address.with_host(listen_host("::").expect("a host")).to_string(), "[::]:8000");
    assert_eq!(address.with_host(listen_host("0.0.0.0").expect("a host")).to_string(), "0.0.0.0:8000");
    assert_eq!(address.with_port(9000).to_string(), "127.0.0.1:9000");
    for bad in ["", "h:80", "[::1]", "http://h", "a b"] {
        assert!(listen_host(bad).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn a_name_resolves_to_all_its_addresses() {
    let resolve = async |text: &str| text.parse::<ListenAddr>().expect(text).resolve().await;
    let local = resolve("localhost:80").await.expect("every machine has it");
    assert_eq!(local.first(), Some(&SocketAddr::from(([127, 0, 0, 1], 80))));
    assert!(local.iter().all(|address| address.ip().is_loopback() && address.port() == 80), "{local:?}");
    assert_eq!(resolve("[::1]:81").await.expect("an address"), [SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 81))]);
    assert!(resolve("no-such-host.invalid:80").await.is_err());
}
