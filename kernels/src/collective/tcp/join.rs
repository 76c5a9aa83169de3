//! How the ranks of a group find each other: each listens for its life, and connects anew for each epoch.

use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::{Secure, Side, Tcp, Wire};

const MAGIC: &[u8; 5] = b"REIN1";
/// Longest wait for what a new connection says first.
const HELLO: Duration = Duration::from_secs(2);
/// New connections that may be about to say it.
const GREETINGS: usize = 256;
/// Connections that may wait for this process to join their group.
const WAITING: usize = 4096;
/// Between attempts to reach a peer.
const RETRY: Duration = Duration::from_millis(20);
/// Longest name of a group.
const NAME: usize = 255;
const ACCEPTED: u8 = 1;
const STALE: u8 = 2;

/// One rank's place in a group of one epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub group: String,
    pub epoch: u64,
    pub rank: usize,
    /// Where each rank listens, as `host:port`, in rank order.
    pub addresses: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("epoch {epoch} of group {group} is over")]
    Stale { group: String, epoch: u64 },
    #[error("ranks {missing:?} of group {group}, epoch {epoch}, did not come in time")]
    Missing { group: String, epoch: u64, missing: Vec<usize> },
    #[error("cannot link the ranks: {0}")]
    Io(#[from] io::Error),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Place {
    group: String,
    epoch: u64,
    from: usize,
    to: usize,
    size: usize,
    pulse: bool,
}

#[derive(Default)]
struct Hall {
    waiting: HashMap<Place, Wire>,
    /// By group, the lowest epoch that may still be joined.
    fences: HashMap<String, u64>,
}

struct Inner {
    hall: Mutex<Hall>,
    news: Condvar,
    secure: Secure,
    greeting: AtomicUsize,
    closed: AtomicBool,
}

/// Where a process is found by its peers.
pub struct Listener {
    address: SocketAddr,
    inner: Arc<Inner>,
}

impl Inner {
    fn hall(&self) -> MutexGuard<'_, Hall> {
        self.hall.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until something happens, but not longer than this.
    fn pause(&self, time: Duration) {
        drop(self.news.wait_timeout(self.hall(), time));
    }
}

impl Hall {
    fn is_stale(&self, group: &str, epoch: u64) -> bool {
        self.fences.get(group).is_some_and(|&fence| epoch < fence)
    }
}

impl Listener {
    pub fn bind(address: impl ToSocketAddrs, secure: Secure) -> io::Result<Listener> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let inner = Arc::new(Inner {
            hall: Mutex::default(),
            news: Condvar::new(),
            secure,
            greeting: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        });
        let accepting = inner.clone();
        std::thread::Builder::new().name("ranks".into()).spawn(move || accept(&listener, &accepting))?;
        Ok(Listener { address, inner })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Epochs of the group below this one can no longer be joined. Whoever waits in such a join, here, is told.
    pub fn fence(&self, group: &str, epoch: u64) {
        let mut hall = self.inner.hall();
        let fence = hall.fences.entry(group.to_owned()).or_default();
        *fence = epoch.max(*fence);
        let fence = *fence;
        hall.waiting.retain(|place, wire| {
            let stale = place.group == group && place.epoch < fence;
            if stale {
                // It may have gone already.
                let _ = wire.stream.write_all(&[STALE]).and_then(|()| wire.stream.flush());
            }
            !stale
        });
        self.inner.news.notify_all();
    }

    /// Links this rank with all others of its group and epoch. Returns when all have come, or not.
    pub fn join(&self, member: &Member, patience: Duration) -> Result<Tcp, JoinError> {
        let deadline = Instant::now() + patience;
        let Member { group, epoch, rank, addresses } = member;
        let size = addresses.len();
        let place = |from, to, pulse| Place { group: group.clone(), epoch: *epoch, from, to, size, pulse };
        let empty = || (0..size).map(|_| None).collect::<Vec<Option<Wire>>>();
        let mut links = [empty(), empty()];
        // First say hello to those below, then let those above in, then hear whether those below let us in: no circle.
        let reach = |to: usize, pulse| self.reach(&addresses[to], &place(*rank, to, pulse), deadline);
        for (pulse, links) in [false, true].into_iter().zip(&mut links) {
            for (peer, link) in links.iter_mut().enumerate().take(*rank) {
                *link = Some(reach(peer, pulse)?);
            }
        }
        for (pulse, links) in [false, true].into_iter().zip(&mut links) {
            for (peer, link) in links.iter_mut().enumerate().skip(rank + 1) {
                let mut wire = self.let_in(&place(peer, *rank, pulse), deadline)?;
                wire.stream.write_all(&[ACCEPTED]).and_then(|()| wire.stream.flush())?;
                *link = Some(wire);
            }
        }
        for link in &mut links {
            for (peer, wire) in link.iter_mut().enumerate().take(*rank) {
                if let Some(wire) = wire {
                    self.let_me_in(wire, &place(*rank, peer, false), deadline)?;
                }
            }
        }
        let [data, pulses] = links;
        for wire in data.iter().chain(&pulses).flatten() {
            wire.raw.set_read_timeout(None)?;
        }
        Ok(Tcp::new(*rank, data, pulses)?)
    }

    fn missing(place: &Place, peer: usize) -> JoinError {
        JoinError::Missing { group: place.group.clone(), epoch: place.epoch, missing: vec![peer] }
    }

    fn stale(place: &Place) -> JoinError {
        JoinError::Stale { group: place.group.clone(), epoch: place.epoch }
    }

    /// For a connection to somebody else.
    fn time_left(&self, place: &Place, deadline: Instant) -> Result<Duration, JoinError> {
        if self.inner.hall().is_stale(&place.group, place.epoch) {
            return Err(Self::stale(place));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(Self::missing(place, place.to)) } else { Ok(left) }
    }

    /// Connects, as soon as the other side listens, and says hello.
    fn reach(&self, address: &str, place: &Place, deadline: Instant) -> Result<Wire, JoinError> {
        loop {
            let left = self.time_left(place, deadline)?;
            let connected = address.to_socket_addrs().and_then(|mut addresses| {
                let address = addresses.next().ok_or_else(|| io::Error::other("the address names no host"))?;
                TcpStream::connect_timeout(&address, left.min(HELLO))
            });
            let greeted = connected.and_then(|raw| {
                raw.set_nodelay(true)?;
                let mut stream = (self.inner.secure)(raw.try_clone()?, Side::Connects)?;
                stream.write_all(&hello(place)).and_then(|()| stream.flush())?;
                Ok(Wire { stream, raw })
            });
            match greeted {
                Ok(wire) => return Ok(wire),
                // It may be about to start, or to read its certificates anew.
                Err(_) => self.inner.pause(RETRY.min(left)),
            }
        }
    }

    /// Waits for a peer that connects.
    fn let_in(&self, place: &Place, deadline: Instant) -> Result<Wire, JoinError> {
        let mut hall = self.inner.hall();
        loop {
            if let Some(wire) = hall.waiting.remove(place) {
                return Ok(wire);
            }
            if hall.is_stale(&place.group, place.epoch) {
                return Err(Self::stale(place));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Self::missing(place, place.from));
            }
            hall = self.inner.news.wait_timeout(hall, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for the answer to our hello.
    fn let_me_in(&self, wire: &mut Wire, place: &Place, deadline: Instant) -> Result<(), JoinError> {
        loop {
            let left = self.time_left(place, deadline)?;
            wire.raw.set_read_timeout(Some(left.min(RETRY)))?;
            let mut answer = [0];
            match wire.stream.read_exact(&mut answer) {
                Ok(()) if answer == [ACCEPTED] => return Ok(()),
                Ok(()) => return Err(Self::stale(place)),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                Err(_) => return Err(Self::missing(place, place.to)),
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.inner.closed.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts; if it is past that, there is nothing to wake.
        let _ = TcpStream::connect_timeout(&self.address, HELLO);
    }
}

fn accept(listener: &TcpListener, inner: &Arc<Inner>) {
    while !inner.closed.load(Ordering::SeqCst) {
        let Ok((raw, _)) = listener.accept() else {
            // Out of file descriptors, say: others may close theirs.
            inner.pause(RETRY);
            continue;
        };
        if inner.greeting.fetch_add(1, Ordering::SeqCst) >= GREETINGS {
            inner.greeting.fetch_sub(1, Ordering::SeqCst);
            continue;
        }
        let greeting = inner.clone();
        let greeted = std::thread::Builder::new().name("greeting".into()).spawn(move || {
            // One that does not know the protocol is hung up on.
            let _ = greet(raw, &greeting);
            greeting.greeting.fetch_sub(1, Ordering::SeqCst);
        });
        if greeted.is_err() {
            inner.greeting.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

fn greet(raw: TcpStream, inner: &Inner) -> io::Result<()> {
    raw.set_nodelay(true)?;
    raw.set_read_timeout(Some(HELLO))?;
    raw.set_write_timeout(Some(HELLO))?;
    let mut stream = (inner.secure)(raw.try_clone()?, Side::Accepts)?;
    let place = read_hello(&mut *stream)?;
    raw.set_read_timeout(None)?;
    raw.set_write_timeout(None)?;
    let mut hall = inner.hall();
    if hall.is_stale(&place.group, place.epoch) {
        drop(hall);
        return stream.write_all(&[STALE]).and_then(|()| stream.flush());
    }
    if hall.waiting.len() < WAITING {
        hall.waiting.insert(place, Wire { stream, raw });
        inner.news.notify_all();
    }
    Ok(())
}

fn hello(place: &Place) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    let name = &place.group.as_bytes()[..place.group.len().min(NAME)];
    out.push(u8::from(place.pulse));
    out.extend_from_slice(&place.epoch.to_le_bytes());
    for number in [place.from, place.to, place.size] {
        out.extend_from_slice(&(number as u32).to_le_bytes());
    }
    out.push(name.len() as u8);
    out.extend_from_slice(name);
    out
}

fn read_hello(stream: &mut (impl Read + ?Sized)) -> io::Result<Place> {
    fn take<const N: usize>(stream: &mut (impl Read + ?Sized)) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
    if take::<5>(stream)? != *MAGIC {
        return Err(io::Error::other("not a rank"));
    }
    let [pulse] = take::<1>(stream)?;
    let epoch = u64::from_le_bytes(take(stream)?);
    let mut number = || take::<4>(stream).map(|bytes| u32::from_le_bytes(bytes) as usize);
    let (from, to, size) = (number()?, number()?, number()?);
    let [len] = take::<1>(stream)?;
    let mut name = vec![0; len.into()];
    stream.read_exact(&mut name)?;
    let group = String::from_utf8(name).map_err(io::Error::other)?;
    Ok(Place { group, epoch, from, to, size, pulse: pulse != 0 })
}
