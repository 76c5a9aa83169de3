//! The accepting side of TLS, and connections with or without TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

use super::{Certificate, HANDSHAKE_TIME};

/// TLS of a listener. Clones share the certificates.
#[derive(Clone)]
pub struct ServerTls {
    config: Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>,
    pub certificate: Certificate,
}

/// An accepted connection.
pub enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl ServerTls {
    /// `config` is called for each connection, so that it can return reloaded certificates.
    pub fn new(config: impl Fn() -> Arc<ServerConfig> + Send + Sync + 'static, certificate: Certificate) -> Self {
        ServerTls { config: Arc::new(config), certificate }
    }

    /// Performs the handshake, within [`HANDSHAKE_TIME`].
    pub async fn accept(&self, socket: TcpStream) -> io::Result<Socket> {
        let accepting = TlsAcceptor::from((self.config)()).accept(socket);
        match tokio::time::timeout(HANDSHAKE_TIME, accepting).await {
            Ok(accepted) => accepted.map(|stream| Socket::Tls(Box::new(stream))),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake timed out")),
        }
    }

    #[cfg(test)]
    pub fn config(&self) -> Arc<ServerConfig> {
        (self.config)()
    }
}

impl Socket {
    pub async fn accepted(socket: TcpStream, tls: Option<&ServerTls>) -> io::Result<Self> {
        match tls {
            None => Ok(Socket::Plain(socket)),
            Some(tls) => tls.accept(socket).await,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Socket::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Socket::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Socket::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Socket::Plain(stream) => stream.is_write_vectored(),
            Socket::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Socket::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
