//! What a new connection says first, and who is let in. It does not know what ranks do once they are linked.

use std::{
    collections::VecDeque,
    io::{self, Read},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use super::join::{Inner, Place, RETRY};
use super::{Side, Wire};

const MAGIC: &[u8; 5] = b"REIN3";
/// Longest time from a connection to the end of its hello, with the TLS handshake and however the bytes come.
pub const GREETING: Duration = Duration::from_secs(5);
/// New connections that may be about to say hello. One more ends the oldest: a rank says it at once, and tries again.
const GREETINGS: usize = 256;
/// Longest name of a group or worker, in bytes: the only part of a hello whose length varies.
const NAME: usize = 255;
pub const ACCEPTED: u8 = 1;
pub const STALE: u8 = 2;
/// This process joins that group and waits for that rank. It hangs up on a rank that it does not wait for.
pub const EXPECTED: u8 = 3;
/// This process waits for that rank, but speaks another protocol.
pub const FOREIGN: u8 = 4;
/// The worker that is asked for is found here.
pub const HERE: u8 = 5;
/// Other workers are found here.
pub const ELSEWHERE: u8 = 6;

/// What a connection is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hello {
    /// One of the two connections between two ranks.
    Join(Place),
    /// Whether the worker of this name is found here.
    Probe(String),
}

impl Hello {
    pub fn bytes(&self) -> Vec<u8> {
        let (protocol, kind, epoch, numbers, name) = match self {
            Hello::Join(place) => {
                let numbers = [place.from, place.to, place.size];
                (place.protocol, u8::from(place.pulse), place.epoch, numbers, &place.group)
            }
            Hello::Probe(name) => (0, 2, 0, [0; 3], name),
        };
        let mut out = MAGIC.to_vec();
        let name = &name.as_bytes()[..name.len().min(NAME)];
        out.extend_from_slice(&protocol.to_le_bytes());
        out.push(kind);
        out.extend_from_slice(&epoch.to_le_bytes());
        for number in numbers {
            out.extend_from_slice(&(number as u32).to_le_bytes());
        }
        out.push(name.len() as u8);
        out.extend_from_slice(name);
        out
    }

    fn read(stream: &mut (impl Read + ?Sized)) -> io::Result<Hello> {
        fn take<const N: usize>(stream: &mut (impl Read + ?Sized)) -> io::Result<[u8; N]> {
            let mut bytes = [0; N];
            stream.read_exact(&mut bytes)?;
            Ok(bytes)
        }
        if take::<5>(stream)? != *MAGIC {
            return Err(io::Error::other("not a rank"));
        }
        let protocol = u32::from_le_bytes(take(stream)?);
        let [kind] = take::<1>(stream)?;
        let epoch = u64::from_le_bytes(take(stream)?);
        let mut number = || take::<4>(stream).map(|bytes| u32::from_le_bytes(bytes) as usize);
        let (from, to, size) = (number()?, number()?, number()?);
        let [len] = take::<1>(stream)?;
        let mut name = vec![0; len.into()];
        stream.read_exact(&mut name)?;
        let name = String::from_utf8(name).map_err(io::Error::other)?;
        match kind {
            0 | 1 => Ok(Hello::Join(Place { group: name, epoch, from, to, size, pulse: kind == 1, protocol })),
            2 => Ok(Hello::Probe(name)),
            _ => Err(io::Error::other("not a rank")),
        }
    }
}

/// Connections that have not said what they are for.
#[derive(Default)]
pub(super) struct Greetings {
    open: Mutex<Open>,
    begun: Condvar,
}

#[derive(Default)]
struct Open {
    /// How many there have been.
    count: u64,
    /// Oldest first.
    streams: VecDeque<(u64, Instant, TcpStream)>,
}

impl Open {
    fn end_oldest(&mut self) {
        if let Some((_, _, oldest)) = self.streams.pop_front() {
            // One that has hung up is cut already.
            let _ = oldest.shutdown(Shutdown::Both);
        }
    }
}

impl Greetings {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn wake(&self) {
        // Locked first, so that a waiting thread either sees the change or is woken.
        drop(self.open());
        self.begun.notify_all();
    }

    fn begin(&self, raw: &TcpStream) -> io::Result<u64> {
        let raw = raw.try_clone()?;
        let mut open = self.open();
        if open.streams.len() >= GREETINGS {
            open.end_oldest();
        }
        open.count += 1;
        let id = open.count;
        open.streams.push_back((id, Instant::now(), raw));
        self.begun.notify_all();
        Ok(id)
    }

    fn end(&self, id: u64) {
        self.open().streams.retain(|(known, ..)| *known != id);
    }

    /// Ends those whose time is over, until `closed`.
    fn watch(&self, closed: impl Fn() -> bool) {
        let mut open = self.open();
        while !closed() {
            let left = open.streams.front().map(|(_, began, _)| GREETING.saturating_sub(began.elapsed()));
            open = match left {
                Some(Duration::ZERO) => {
                    open.end_oldest();
                    open
                }
                Some(left) => self.begun.wait_timeout(open, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.begun.wait(open).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// The threads that accept, and that see to it that nobody takes for ever.
pub(super) fn start(listener: TcpListener, inner: &Arc<Inner>) -> io::Result<()> {
    let (accepting, watching) = (inner.clone(), inner.clone());
    let closed = move |inner: &Inner| inner.closed.load(Ordering::SeqCst);
    let watch = move || watching.greetings.watch(|| closed(&watching));
    std::thread::Builder::new().name("greetings".into()).spawn(watch)?;
    std::thread::Builder::new().name("ranks".into()).spawn(move || {
        while !closed(&accepting) {
            accept(&listener, &accepting);
        }
    })?;
    Ok(())
}

fn accept(listener: &TcpListener, inner: &Arc<Inner>) {
    let Ok((raw, _)) = listener.accept() else {
        // Out of file descriptors, say: others may close theirs.
        return inner.pause(RETRY);
    };
    let Ok(id) = inner.greetings.begin(&raw) else { return };
    let greeting = inner.clone();
    let greeted = std::thread::Builder::new().name("greeting".into()).spawn(move || {
        // One that does not know the protocol is hung up on.
        let _ = greet(raw, id, &greeting);
        greeting.greetings.end(id);
    });
    if greeted.is_err() {
        inner.greetings.end(id);
    }
}

fn greet(raw: TcpStream, id: u64, inner: &Inner) -> io::Result<()> {
    raw.set_nodelay(true)?;
    raw.set_read_timeout(Some(GREETING))?;
    raw.set_write_timeout(Some(GREETING))?;
    let mut stream = (inner.secure)(raw.try_clone()?, Side::Accepts)?;
    let hello = Hello::read(&mut *stream)?;
    // From here on nobody cuts it in favour of another. The answer is a byte, for which there is room.
    inner.greetings.end(id);
    let mut hall = inner.hall();
    let (answer, place) = match hello {
        Hello::Probe(name) if hall.names.contains(&name) => (HERE, None),
        Hello::Probe(_) => (ELSEWHERE, None),
        Hello::Join(place) if hall.is_stale(&place.group, place.epoch) => (STALE, None),
        Hello::Join(place) if hall.expected.contains(&place) => (EXPECTED, Some(place)),
        Hello::Join(place) => {
            let like = |known: &Place| Place { protocol: place.protocol, ..known.clone() } == place;
            match hall.expected.iter().any(like) {
                true => (FOREIGN, None),
                false => return Ok(()),
            }
        }
    };
    let Some(place) = place else {
        drop(hall);
        return stream.write_all(&[answer]).and_then(|()| stream.flush());
    };
    stream.write_all(&[answer]).and_then(|()| stream.flush())?;
    raw.set_read_timeout(None)?;
    raw.set_write_timeout(None)?;
    hall.waiting.insert(place, Wire { stream, raw });
    inner.news.notify_all();
    Ok(())
}
