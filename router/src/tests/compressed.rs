//! Compressed bodies, as Codex sends them, and halves of surrogate pairs in bodies.

use async_compression::tokio::bufread::{GzipEncoder, ZstdEncoder};
use tokio::io::AsyncReadExt;

use super::*;

async fn compressed(coding: &str, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match coding {
        "gzip" => GzipEncoder::new(body).read_to_end(&mut out).await.unwrap(),
        _ => ZstdEncoder::new(body).read_to_end(&mut out).await.unwrap(),
    };
    out
}

async fn send(router: &TestRouter, path: &str, coding: &str, body: Vec<u8>) -> Answer {
    let request = Request::post(path).header("content-encoding", coding).header("content-type", "application/json");
    Answer::of(router.send(request.body(body.into()).unwrap()).await).await
}

#[tokio::test]
async fn compressed_bodies_are_read() {
    let router = TestRouter::new();
    let chat = chat_request(&bytes("a"), json!({})).to_string();
    let input = json!({"model": "bytes", "input": "q", "script": bytes("a"), "store": false}).to_string();
    for (path, body) in [("/v1/chat/completions", chat), ("/v1/responses", input)] {
        for coding in ["gzip", "zstd"] {
            send(&router, path, coding, compressed(coding, body.as_bytes()).await).await.ok();
            // Two frames in one body, as some clients flush.
            let (first, second) = body.split_at(body.len() / 2);
            let frames = [compressed(coding, first.as_bytes()).await, compressed(coding, second.as_bytes()).await];
            send(&router, path, coding, frames.concat()).await.ok();
        }
        let answer = send(&router, path, "GZIP", compressed("gzip", body.as_bytes()).await).await;
        answer.ok();
    }
}

#[tokio::test]
async fn compressed_bodies_are_limited_as_they_are_decoded() {
    let router = TestRouter::with(
        RouterConfig {
            memory: crate::MemoryLimits { body: 100_000, ..crate::MemoryLimits::default() },
            ..RouterConfig::default()
        },
        Fake::default(),
    );
    for coding in ["gzip", "zstd"] {
        let body = compressed(coding, &vec![b' '; 50_000_000]).await;
        assert!(body.len() < 100_000, "{coding}: {}", body.len());
        let answer = send(&router, "/v1/chat/completions", coding, body).await;
        assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{coding}: {}", answer.text);
        let whole = compressed(coding, chat_request(&bytes("a"), json!({})).to_string().as_bytes()).await;
        for broken in [whole[..whole.len() - 9].to_vec(), b"{}".to_vec(), [b"xx", whole.as_slice()].concat()] {
            let answer = send(&router, "/v1/chat/completions", coding, broken).await;
            assert_eq!(
                (answer.status, &answer.json()["error"]["code"]),
                (StatusCode::BAD_REQUEST, &json!("broken_body")),
                "{coding}"
            );
        }
    }
}

/// A zstd frame may ask for a window of any size: RFC 9659 limits it for HTTP.
#[tokio::test]
async fn a_zstd_window_that_is_too_large_is_refused() {
    // Magic number, no content size, a window of 2^30 bytes, and one raw block of one byte, the last one.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, (30 - 10) << 3, 0x09, 0x00, 0x00, b'x'];
    let answer = send(&TestRouter::new(), "/v1/chat/completions", "zstd", frame.to_vec()).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
    assert_eq!(answer.json()["error"]["code"], "broken_body");
}

#[tokio::test]
async fn half_a_surrogate_pair_is_replaced_and_named() {
    let router =
        TestRouter::of("{% for m in messages %}{{ m.content }}{% endfor %}", RouterConfig::default(), Fake::default());
    let body = r#"{"model": "bytes", "messages": [{"role": "user", "content": "a\ud83d!"}], "script": [98, 98]}"#;
    let answer = router.post_bytes("/v1/chat/completions", body).await;
    answer.ok();
    assert_eq!(answer.header("x-rein-ignored-fields"), "messages[0].content");
    let prompt: Vec<u8> = router.fake.starts().pop().unwrap().prompt.iter().map(|id| *id as u8).collect();
    assert_eq!(String::from_utf8(prompt).unwrap(), "a\u{fffd}!");
    let body = r#"{"model": "bytes", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "text", "text": "\ude00"}]}], "script": [98]}"#;
    let answer = router.post_bytes("/v1/messages", body).await;
    assert_eq!(answer.header("x-rein-ignored-fields"), "messages[0].content[0].text", "{}", answer.text);
    let body = r#"{"model": "bytes", "input": "\ud83d", "script": [98], "store": false}"#;
    let answer = router.post_bytes("/v1/responses", body).await;
    assert_eq!(answer.header("x-rein-ignored-fields"), "input", "{}", answer.text);
}
