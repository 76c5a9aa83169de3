use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use hyper::server::conn::http1;

use super::*;

#[tokio::test]
async fn a_connection_over_the_limit_waits_for_another_to_end() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (closing, closed) = watch::channel(false);
    let app = axum::Router::new().route("/", axum::routing::get(async || "here"));
    let server = tokio::spawn(accept(
        "http",
        listener,
        1,
        None,
        WriteTimeout::default(),
        wait_until_true(closed),
        move |socket| http1::Builder::new().serve_connection(socket, TowerToHyperService::new(app.clone())),
    ));
    let ask = async |socket: &mut TcpStream| {
        socket.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await?;
        let mut answer = [0; 12];
        socket.read_exact(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let mut first = TcpStream::connect(address).await?;
    assert_eq!(&ask(&mut first).await?, b"HTTP/1.1 200");
    let mut second = TcpStream::connect(address).await?;
    let waiting = tokio::time::timeout(Duration::from_millis(200), ask(&mut second)).await;
    assert!(waiting.is_err(), "the second connection was served while the first was open");
    drop(first);
    let mut answer = [0; 12];
    second.read_exact(&mut answer).await?;
    assert_eq!(&answer, b"HTTP/1.1 200");
    drop(second);
    closing.send_replace(true);
    Ok(server.await??)
}

#[tokio::test]
async fn http_2_without_tls_is_spoken_beside_http_1() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (closing, closed) = watch::channel(false);
    let app = axum::Router::new().route("/", axum::routing::get(async || "here"));
    let server = tokio::spawn(serve_http(app, listener, None, WriteTimeout::default(), wait_until_true(closed)));
    let socket = TokioIo::new(TcpStream::connect(address).await?);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), socket).await?;
    let connection = tokio::spawn(connection);
    let request = http::Request::get(format!("http://{address}/")).body(String::new())?;
    let answer = sender.send_request(request).await?;
    assert_eq!((answer.status().as_u16(), answer.version()), (200, http::Version::HTTP_2));
    let mut socket = TcpStream::connect(address).await?;
    socket.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("here"), "{answer}");
    // One that says nothing does not hold up the end.
    let _silent = TcpStream::connect(address).await?;
    tokio::time::sleep(Duration::from_millis(50)).await;
    closing.send_replace(true);
    tokio::time::timeout(CLOSE_TIME, server).await???;
    drop(sender);
    connection.await??;
    Ok(())
}
