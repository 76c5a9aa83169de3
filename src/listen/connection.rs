//! A connection with a write timeout and a lingering close. It does not know the protocol, only how many bytes tell
//! which one it is.
//!
//! A write without progress for the stall time ends the connection. A close lingers: what the client is still sending
//! is read and dropped. The kernel resets a socket that is closed with unread data, and the client may then lose the
//! answer, such as a 401 to a request whose body was not read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// Bytes that tell HTTP/2 from HTTP/1: its preface.
const PREFACE_BYTES: usize = 24;
/// Time for these to arrive. After it, the protocol's own timeouts apply.
pub const PREFACE_TIME: Duration = Duration::from_secs(60);
/// Maximum time that a connection lingers.
const LINGER_TIME: Duration = Duration::from_secs(60);
/// A lingering connection closes after this time without data from the client.
const LINGER_SILENCE: Duration = Duration::from_secs(1);
/// A lingering connection closes after this many bytes.
const LINGER_BYTES: usize = 512 << 20;
/// Bytes per read while lingering.
const LINGER_READ: usize = 16 << 10;

/// The write timeout, and a counter of the connections that it closed.
#[derive(Clone)]
pub struct WriteTimeout {
    pub after: Duration,
    pub closed_connections: Counter,
}

impl WriteTimeout {
    /// A stalled request ends before its connection is closed.
    pub fn of(router: &rein_router::Router) -> Self {
        let (stall, closed_connections) = router.client_stalls();
        WriteTimeout { after: stall + rein_router::limits::STALL_GRACE, closed_connections }
    }
}

impl Default for WriteTimeout {
    fn default() -> Self {
        WriteTimeout { after: rein_router::limits::CLIENT_STALL, closed_connections: Counter::default() }
    }
}

pub struct Connection<S> {
    stream: S,
    timeout: WriteTimeout,
    /// Set while a write waits for the client.
    writing: Option<Pin<Box<Sleep>>>,
    /// Until the first bytes have been read.
    preface: Option<Preface>,
    closing: Closing,
}

struct Preface {
    late: Pin<Box<Sleep>>,
    missing: usize,
}

enum Closing {
    Open,
    /// Writing has ended. Reads until the earlier of the two times, and at most `left` bytes.
    Lingering {
        silent: Pin<Box<Sleep>>,
        until: Instant,
        left: usize,
    },
    Closed,
}

impl<S> Connection<S> {
    pub fn new(stream: S, timeout: WriteTimeout) -> Self {
        let late = Box::pin(tokio::time::sleep(PREFACE_TIME));
        let preface = Some(Preface { late, missing: PREFACE_BYTES });
        Connection { stream, timeout, writing: None, preface, closing: Closing::Open }
    }

    /// Applies the write timeout to the result of a write.
    fn watched<T>(&mut self, cx: &mut Context<'_>, write: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if write.is_ready() {
            self.writing = None;
            return write;
        }
        let after = self.timeout.after;
        let waiting = self.writing.get_or_insert_with(|| Box::pin(tokio::time::sleep(after)));
        ready!(waiting.as_mut().poll(cx));
        self.timeout.closed_connections.inc();
        let message = format!("the client read nothing for {} seconds", after.as_secs_f64());
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let known = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let Some(preface) = &mut self.preface else { return read };
        match read {
            Poll::Pending => {
                ready!(preface.late.as_mut().poll(cx));
                let message = format!("no request began within {} seconds", PREFACE_TIME.as_secs());
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
            }
            Poll::Ready(done) => {
                preface.missing = preface.missing.saturating_sub(buf.filled().len() - known);
                if preface.missing == 0 {
                    self.preface = None;
                }
                Poll::Ready(done)
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watched(cx, write)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watched(cx, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flush = Pin::new(&mut self.stream).poll_flush(cx);
        self.watched(cx, flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            match &mut this.closing {
                Closing::Open => {
                    let shutdown = Pin::new(&mut this.stream).poll_shutdown(cx);
                    ready!(this.watched(cx, shutdown))?;
                    let now = Instant::now();
                    let silent = Box::pin(sleep_until(now + LINGER_SILENCE));
                    this.closing = Closing::Lingering { silent, until: now + LINGER_TIME, left: LINGER_BYTES };
                }
                Closing::Lingering { silent, until, left } => {
                    let mut room = [0; LINGER_READ];
                    let mut dropped = ReadBuf::new(&mut room);
                    match Pin::new(&mut this.stream).poll_read(cx, &mut dropped) {
                        Poll::Ready(Ok(())) if !dropped.filled().is_empty() => {
                            *left = left.saturating_sub(dropped.filled().len());
                            let now = Instant::now();
                            silent.as_mut().reset((now + LINGER_SILENCE).min(*until));
                            if *left == 0 || now >= *until {
                                this.closing = Closing::Closed;
                            }
                        }
                        // The client has closed its side, or is gone.
                        Poll::Ready(_) => this.closing = Closing::Closed,
                        Poll::Pending => {
                            ready!(silent.as_mut().poll(cx));
                            this.closing = Closing::Closed;
                        }
                    }
                }
                Closing::Closed => return Poll::Ready(Ok(())),
            }
        }
    }
}

#[cfg(test)]
mod tests;
