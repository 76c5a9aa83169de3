use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

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
