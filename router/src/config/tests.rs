use super::*;

#[test]
fn origins_are_parsed_as_browsers_send_them() {
    for (text, origin) in [
        ("https://chat.example", "https://chat.example"),
        ("HTTPS://Chat.Example:443", "https://chat.example"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("http://127.0.0.1:80", "http://127.0.0.1"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("app://obsidian.md", "app://obsidian.md"),
    ] {
        assert_eq!(text.parse(), Ok(Origin::Of(origin.into())));
    }
    assert_eq!("*".parse(), Ok(Origin::Any));
    for bad in [
        "",
        "chat.example",
        "https://chat.example/",
        "https://chat.example/x",
        "https://",
        "https://*.example x",
        "http://a:x",
        "https://me@x",
        "null",
        "http://x:",
    ] {
        let error = bad.parse::<Origin>().expect_err(bad);
        assert!(error.starts_with("expected an origin such as"), "{bad}: {error}");
    }
}
