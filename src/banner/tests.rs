use super::*;

#[test]
fn urls_can_be_opened_on_this_machine() {
    let address = |text: &str| text.parse::<SocketAddr>().expect(text);
    let banner = Banner::new("serves demo").row("model", "demo");
    let banner = banner.urls("https", address("0.0.0.0:8000"), address("[::]:50051")).to_string();
    let expected = "  model       demo\n  API         https://127.0.0.1:8000/v1\n  playground  https://127.0.0.1:8000/\n  \
                    metrics     https://127.0.0.1:8000/metrics\n  gRPC        [::1]:50051\n";
    assert!(banner.starts_with("\nrein ") && banner.ends_with(expected), "{banner}");
}
