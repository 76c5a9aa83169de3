use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::*;

fn timeout_after(seconds: u64) -> WriteTimeout {
    WriteTimeout { after: Duration::from_secs(seconds), closed_connections: Counter::default() }
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_if_the_client_stops_reading_but_not_if_it_reads_slowly() {
    let (mut client, server) = duplex(100);
    let timeout = timeout_after(60);
    let mut server = Connection::new(server, timeout.clone());
    let slow = tokio::spawn(async move {
        let mut byte = [0; 10];
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_secs(50)).await;
            client.read_exact(&mut byte).await?;
        }
        Ok::<_, io::Error>(client)
    });
    server.write_all(&[7; 300]).await.unwrap();
    let _client = slow.await.unwrap().unwrap();
    let began = Instant::now();
    let error = server.write_all(&[7; 300]).await.unwrap_err();
    assert_eq!((error.kind(), began.elapsed()), (io::ErrorKind::TimedOut, timeout.after));
    assert_eq!(timeout.closed_connections.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_close_reads_what_the_client_still_sends() {
    let (mut client, server) = duplex(100);
    let mut server = Connection::new(server, timeout_after(60));
    server.write_all(b"401").await.unwrap();
    let sending = tokio::spawn(async move {
        client.write_all(&[7; 100_000]).await?;
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    });
    server.shutdown().await.unwrap();
    drop(server);
    assert_eq!(sending.await.unwrap().unwrap(), b"401");
    // A silent client delays the close only for the linger silence.
    let (_client, server) = duplex(100);
    let began = Instant::now();
    Connection::new(server, timeout_after(60)).shutdown().await.unwrap();
    assert_eq!(began.elapsed(), LINGER_SILENCE);
    // A client that sends forever delays the close only for the linger time.
    let (mut client, server) = duplex(100);
    let sending = tokio::spawn(async move {
        while client.write_all(b"x").await.is_ok() {
            tokio::time::sleep(LINGER_SILENCE / 2).await;
        }
    });
    let began = Instant::now();
    Connection::new(server, timeout_after(60)).shutdown().await.unwrap();
    assert!(began.elapsed() <= LINGER_TIME + LINGER_SILENCE, "{:?}", began.elapsed());
    sending.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_connection_ends_that_does_not_say_what_it_speaks() {
    for sent in [0, PREFACE_BYTES - 1] {
        let (mut client, server) = duplex(100);
        let mut server = Connection::new(server, timeout_after(60));
        client.write_all(&vec![b'P'; sent]).await.unwrap();
        let began = Instant::now();
        let error = server.read_exact(&mut [0; PREFACE_BYTES]).await.unwrap_err();
        assert_eq!((error.kind(), began.elapsed()), (io::ErrorKind::TimedOut, PREFACE_TIME), "{sent}");
    }
    // What follows may be late.
    let (mut client, server) = duplex(100);
    let mut server = Connection::new(server, timeout_after(60));
    let late = tokio::spawn(async move {
        client.write_all(&[b'P'; PREFACE_BYTES]).await?;
        tokio::time::sleep(2 * PREFACE_TIME).await;
        client.write_all(b"!").await
    });
    server.read_exact(&mut [0; PREFACE_BYTES + 1]).await.unwrap();
    late.await.unwrap().unwrap();
}
