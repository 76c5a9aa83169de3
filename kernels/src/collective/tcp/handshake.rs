//! The handshake of a new connection: what it is for, and whether it is accepted. This module does not know what linked
//! ranks do.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io::{self, Read},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{ConnectionSide, SecureConnection, Wire};

/// Pause between attempts to connect and to accept.
pub(super) const RETRY: Duration = Duration::from_millis(20);
const MAGIC: &[u8; 5] = b"REIN3";
/// Time limit from the connection to the end of its hello, including the TLS handshake, however slowly bytes arrive.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Connections in a handshake. One more closes the oldest: a rank sends its hello at once, and retries.
const HANDSHAKES: usize = 256;
/// Length limit for the name of a group or worker: the only part of a hello with a variable length.
const NAME: usize = 255;
pub const ACCEPTED: u8 = 1;
pub const STALE: u8 = 2;
/// This process joins that group and waits for that rank. A rank that is not expected is disconnected.
pub const EXPECTED: u8 = 3;
/// This process waits for that rank but uses another protocol.
pub const FOREIGN: u8 = 4;
/// The worker with this name is in this process.
pub const HERE: u8 = 5;
/// Other workers are in this process.
pub const ELSEWHERE: u8 = 6;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct LinkId {
    pub group: String,
    pub epoch: u64,
    pub from: usize,
    pub to: usize,
    pub size: usize,
    pub heartbeat: bool,
    pub protocol: u32,
}

#[derive(Default)]
pub(super) struct JoinState {
    /// Peers for which a join waits. Connections of other peers are closed.
    pub expected: HashSet<LinkId>,
    pub waiting: HashMap<LinkId, Wire>,
    /// Per group, the lowest epoch that may still be joined.
    pub fences: HashMap<String, u64>,
    /// Names of workers in this process.
    pub names: HashSet<String>,
}

/// What the threads of a listener share.
pub(super) struct Inner {
    pub joins: Mutex<JoinState>,
    pub news: Condvar,
    pub secure: SecureConnection,
    pub handshakes: Handshakes,
    pub closed: AtomicBool,
}

impl JoinState {
    pub fn is_stale(&self, group: &str, epoch: u64) -> bool {
        self.fences.get(group).is_some_and(|&fence| epoch < fence)
    }
}

impl Inner {
    pub fn joins(&self) -> MutexGuard<'_, JoinState> {
        self.joins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, at most this long.
    pub fn pause(&self, time: Duration) {
        drop(self.news.wait_timeout(self.joins(), time));
    }
}

/// The purpose of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hello {
    /// One of the two connections between two ranks.
    Join(LinkId),
    /// Asks whether the worker with this name is in this process.
    Probe(String),
}

impl Hello {
    pub fn bytes(&self) -> Vec<u8> {
        let (protocol, kind, epoch, numbers, name) = match self {
            Hello::Join(place) => {
                let numbers = [place.from, place.to, place.size];
                (place.protocol, u8::from(place.heartbeat), place.epoch, numbers, &place.group)
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
            0 | 1 => Ok(Hello::Join(LinkId { group: name, epoch, from, to, size, heartbeat: kind == 1, protocol })),
            2 => Ok(Hello::Probe(name)),
            _ => Err(io::Error::other("not a rank")),
        }
    }
}

/// Connections that have not sent their hello.
#[derive(Default)]
pub(super) struct Handshakes {
    open: Mutex<Open>,
    begun: Condvar,
}

#[derive(Default)]
struct Open {
    /// Number of connections so far.
    count: u64,
    /// Oldest first.
    streams: VecDeque<(u64, Instant, TcpStream)>,
}

impl Open {
    fn end_oldest(&mut self) {
        if let Some((_, _, oldest)) = self.streams.pop_front() {
            // It may be closed already.
            let _ = oldest.shutdown(Shutdown::Both);
        }
    }
}

impl Handshakes {
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
        if open.streams.len() >= HANDSHAKES {
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

    /// Closes connections whose time is over, until `closed`.
    fn watch(&self, closed: impl Fn() -> bool) {
        let mut open = self.open();
        while !closed() {
            let left = open.streams.front().map(|(_, began, _)| HANDSHAKE_TIME.saturating_sub(began.elapsed()));
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

/// Starts the thread that accepts connections and the one that closes slow ones.
pub(super) fn start(listener: TcpListener, inner: &Arc<Inner>) -> io::Result<()> {
    let (accepting, watching) = (inner.clone(), inner.clone());
    let closed = move |inner: &Inner| inner.closed.load(Ordering::SeqCst);
    let watch = move || watching.handshakes.watch(|| closed(&watching));
    std::thread::Builder::new().name("handshakes".into()).spawn(watch)?;
    std::thread::Builder::new().name("ranks".into()).spawn(move || {
        while !closed(&accepting) {
            accept(&listener, &accepting);
        }
    })?;
    Ok(())
}

fn accept(listener: &TcpListener, inner: &Arc<Inner>) {
    let Ok((raw, _)) = listener.accept() else {
        // For example, out of file descriptors. Others may close theirs.
        return inner.pause(RETRY);
    };
    let Ok(id) = inner.handshakes.begin(&raw) else { return };
    let greeting = inner.clone();
    let greeted = std::thread::Builder::new().name("handshake".into()).spawn(move || {
        // A peer that does not use the protocol is disconnected.
        let _ = shake_hands(raw, id, &greeting);
        greeting.handshakes.end(id);
    });
    if greeted.is_err() {
        inner.handshakes.end(id);
    }
}

fn shake_hands(raw: TcpStream, id: u64, inner: &Inner) -> io::Result<()> {
    raw.set_nodelay(true)?;
    raw.set_read_timeout(Some(HANDSHAKE_TIME))?;
    raw.set_write_timeout(Some(HANDSHAKE_TIME))?;
    let mut stream = (inner.secure)(raw.try_clone()?, ConnectionSide::Accepts)?;
    let hello = Hello::read(&mut *stream)?;
    // From here on it is not closed in favor of another connection. The answer is one byte, which fits in the socket's
    // buffer.
    inner.handshakes.end(id);
    let mut joins = inner.joins();
    let (answer, place) = match hello {
        Hello::Probe(name) if joins.names.contains(&name) => (HERE, None),
        Hello::Probe(_) => (ELSEWHERE, None),
        Hello::Join(place) if joins.is_stale(&place.group, place.epoch) => (STALE, None),
        Hello::Join(place) if joins.expected.contains(&place) => (EXPECTED, Some(place)),
        Hello::Join(place) => {
            let like = |known: &LinkId| LinkId { protocol: place.protocol, ..known.clone() } == place;
            match joins.expected.iter().any(like) {
                true => (FOREIGN, None),
                false => return Ok(()),
            }
        }
    };
    let Some(place) = place else {
        drop(joins);
        return stream.write_all(&[answer]).and_then(|()| stream.flush());
    };
    stream.write_all(&[answer]).and_then(|()| stream.flush())?;
    raw.set_read_timeout(None)?;
    raw.set_write_timeout(None)?;
    joins.waiting.insert(place, Wire { stream, raw });
    inner.news.notify_all();
    Ok(())
}
