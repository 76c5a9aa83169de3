use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::{Endpoint, ReusedConnection, retry_after};

#[test]
fn a_server_may_ask_to_wait_for_seconds_or_until_a_date() {
    assert_eq!(retry_after(" 7 "), Some(Duration::from_secs(7)));
    assert_eq!(retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
    assert_eq!(retry_after("soon"), None);
}

/// A TLS server with the certificate in tests/fixtures/tls. It answers one request for the models per connection.
async fn secure_server() -> u16 {
    let fixture =
        |name: &str| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tls").join(name);
    let chain = vec![CertificateDer::from_pem_file(fixture("server.pem")).unwrap_or_else(|e| panic!("{e}"))];
    let key = PrivateKeyDer::from_pem_file(fixture("server.key")).unwrap_or_else(|e| panic!("{e}"));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|b| b.with_no_client_auth().with_single_cert(chain, key))
        .unwrap_or_else(|e| panic!("{e}"));
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap_or_else(|e| panic!("{e}"));
    let port = listener.local_addr().map_or(0, |a| a.port());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let Ok(mut socket) = acceptor.accept(socket).await else { continue };
            let mut request = [0; 4096];
            let n = socket.read(&mut request).await.unwrap_or(0);
            assert!(request[..n].starts_with(b"GET /v1/models HTTP/1.1\r\n"));
            let body = r#"{"data": [{"id": "over-tls"}]}"#;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            socket.write_all((head + body).as_bytes()).await.unwrap_or_else(|e| panic!("{e}"));
        }
    });
    port
}

#[tokio::test]
async fn https_checks_certificates() {
    let port = secure_server().await;
    let ca = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tls/ca.pem");
    let ask = async |host: &str, ca: Option<&std::path::Path>| {
        let endpoint = Endpoint::new(&format!("https://{host}:{port}/v1"), None, ca, Duration::from_secs(20));
        endpoint.unwrap_or_else(|e| panic!("{e}")).first_model().await.map_err(|e| e.to_string())
    };
    assert_eq!(ask("127.0.0.1", Some(&ca)).await, Ok("over-tls".into()));
    assert_eq!(ask("localhost", Some(&ca)).await, Ok("over-tls".into()));
    let unknown = ask("127.0.0.1", None).await;
    assert!(unknown.as_ref().is_err_and(|e| e.contains("UnknownIssuer")), "{unknown:?}");
    let missing = Endpoint::new("https://x", None, Some(std::path::Path::new("no.pem")), Duration::from_secs(1));
    assert!(missing.is_err_and(|e| e.to_string().starts_with("--ca-file: no.pem")));
}

#[test]
fn errors_and_debug_output_do_not_contain_secrets() {
    let mut endpoint =
        Endpoint::new("http://x", Some("s3cret"), None, Duration::from_secs(1)).unwrap_or_else(|e| panic!("{e}"));
    let error = endpoint.header("x-key: s3cret\n\u{7}").map_err(|e| e.to_string());
    assert!(error.as_ref().is_err_and(|e| e.contains("x-key") && !e.contains("s3cret")), "{error:?}");
    assert!(endpoint.header("x-other: s3cret").is_ok());
    assert!(!format!("{endpoint:?}").contains("s3cret"), "{endpoint:?}");
    let in_url = Endpoint::new("http://me:s3cret@x", None, None, Duration::from_secs(1)).map_err(|e| e.to_string());
    assert!(in_url.as_ref().is_err_and(|e| e.contains("--header") && !e.contains("s3cret")), "{in_url:?}");
}

/// When a server closes a connection.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Closing {
    /// After its answer to the first request, without `connection: close`.
    CloseAfterAnswer,
    /// After it has read the second request.
    CloseAtSecond,
    /// After a part of its answer to the second request.
    BreakSecond,
    /// After it has read the first request.
    CloseAtFirst,
}

/// Starts a server that closes connections like this. Returns a counter of its connections.
async fn closing_server(closing: Closing) -> (Endpoint, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap_or_else(|e| panic!("{e}"));
    let port = listener.local_addr().map_or(0, |a| a.port());
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            // Loopback delivers a small request in one read.
            let mut request = [0; 4096];
            let first = socket.read(&mut request).await.unwrap_or(0);
            if first == 0 || closing == Closing::CloseAtFirst {
                continue;
            }
            let answer = b"HTTP/1.1 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok";
            socket.write_all(answer).await.unwrap_or_else(|e| panic!("{e}"));
            if closing == Closing::CloseAfterAnswer {
                continue;
            }
            let second = socket.read(&mut request).await.unwrap_or(0);
            if second > 0 && closing == Closing::BreakSecond {
                socket.write_all(b"HTTP/1.1 2").await.unwrap_or_else(|e| panic!("{e}"));
            }
        }
    });
    let endpoint = Endpoint::new(&format!("http://127.0.0.1:{port}/v1"), None, None, Duration::from_secs(20));
    (endpoint.unwrap_or_else(|e| panic!("{e}")), connections)
}

#[tokio::test]
async fn a_request_on_a_closed_idle_connection_is_sent_once_more() {
    for (closing, answered, connected) in [
        (Closing::CloseAfterAnswer, [true; 4], 4),
        (Closing::CloseAtSecond, [true; 4], 4),
        // A request is not sent again if a part of the answer has arrived, or if it was sent on a new connection.
        (Closing::BreakSecond, [true, false, true, false], 2),
        (Closing::CloseAtFirst, [false; 4], 4),
    ] {
        let (endpoint, connections) = closing_server(closing).await;
        let mut connection = ReusedConnection::new(&endpoint);
        let mut results = Vec::new();
        for _ in 0..4 {
            let ask = connection.ask("/x", "{}".into(), async |response, _| super::collect(response).await);
            results.push(ask.await);
        }
        assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), answered, "{closing:?}: {results:?}");
        let failed = results.iter().filter_map(|result| result.as_ref().err());
        assert!(failed.clone().all(|failure| failure.kind() == "no_response"), "{closing:?}: {results:?}");
        assert_eq!(connections.load(Ordering::Relaxed), connected, "{closing:?}");
    }
}
