//! How the ranks of a group find each other: each listens for its life, and connects anew for each epoch.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::{Secure, Side, Tcp, Wire};

const MAGIC: &[u8; 5] = b"REIN3";
/// Longest wait for each part of what a new connection says first, and for the answer.
const HELLO: Duration = Duration::from_secs(2);
/// New connections that may be about to say it. One more ends the oldest: a rank says it at once, and tries again.
const GREETINGS: usize = 256;
/// Between attempts to reach a peer.
const RETRY: Duration = Duration::from_millis(20);
/// Longest name of a group.
const NAME: usize = 255;
const ACCEPTED: u8 = 1;
const STALE: u8 = 2;
/// This process joins that group and waits for that rank. It hangs up on a rank that it does not wait for.
const EXPECTED: u8 = 3;
/// This process waits for that rank, but speaks another protocol.
const FOREIGN: u8 = 4;

/// One rank's place in a group of one epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub group: String,
    pub epoch: u64,
    pub rank: usize,
    /// That this process speaks. Ranks of another one are not linked.
    pub protocol: u32,
    /// Where each rank listens, as `host:port`, in rank order.
    pub addresses: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("epoch {epoch} of group {group} is over")]
    Stale { group: String, epoch: u64 },
    #[error("ranks {missing:?} of group {group}, epoch {epoch}, did not come in time")]
    Missing { group: String, epoch: u64, missing: Vec<usize> },
    #[error(
        "rank {rank} of group {group}, epoch {epoch}, is of a release that speaks another protocol than this one, \
         {protocol}"
    )]
    Foreign { group: String, epoch: u64, rank: usize, protocol: u32 },
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
    protocol: u32,
}

#[derive(Default)]
struct Hall {
    /// Peers for which a join waits here. Nobody else's connection is kept.
    expected: HashSet<Place>,
    waiting: HashMap<Place, Wire>,
    /// By group, the lowest epoch that may still be joined.
    fences: HashMap<String, u64>,
}

struct Inner {
    hall: Mutex<Hall>,
    news: Condvar,
    secure: Secure,
    /// Connections that have not said who they are, oldest first, and how many there have been.
    greeting: Mutex<VecDeque<(u64, TcpStream)>>,
    greeted: AtomicU64,
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

    fn greeting(&self) -> MutexGuard<'_, VecDeque<(u64, TcpStream)>> {
        self.greeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_greeting(&self, raw: &TcpStream) -> io::Result<u64> {
        let id = self.greeted.fetch_add(1, Ordering::Relaxed);
        let raw = raw.try_clone()?;
        let mut greeting = self.greeting();
        if greeting.len() >= GREETINGS
            && let Some((_, oldest)) = greeting.pop_front()
        {
            // One that has hung up is cut already.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        greeting.push_back((id, raw));
        Ok(id)
    }

    fn end_greeting(&self, id: u64) {
        self.greeting().retain(|(known, _)| *known != id);
    }

    /// Until something happens, but not longer than this.
    fn pause(&self, time: Duration) {
        drop(self.news.wait_timeout(self.hall(), time));
    }
}

/// Peers that a join waits for.
struct Expecting<'a> {
    inner: &'a Inner,
    places: Vec<Place>,
}

impl Drop for Expecting<'_> {
    fn drop(&mut self) {
        let mut hall = self.inner.hall();
        for place in &self.places {
            hall.expected.remove(place);
            hall.waiting.remove(place);
        }
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
            greeting: Mutex::default(),
            greeted: AtomicU64::new(0),
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
        let Member { group, epoch, rank, protocol, addresses } = member;
        let size = addresses.len();
        let place =
            |from, to, pulse| Place { group: group.clone(), epoch: *epoch, from, to, size, pulse, protocol: *protocol };
        let above = [false, true].into_iter().flat_map(|pulse| (rank + 1..size).map(move |peer| (peer, pulse)));
        let _expecting = self.expect(above.map(|(peer, pulse)| place(peer, *rank, pulse)).collect());
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

    /// Connections of these peers are kept from now on, until this is dropped.
    fn expect(&self, places: Vec<Place>) -> Expecting<'_> {
        self.inner.hall().expected.extend(places.iter().cloned());
        Expecting { inner: &self.inner, places }
    }

    fn missing(place: &Place, peer: usize) -> JoinError {
        JoinError::Missing { group: place.group.clone(), epoch: place.epoch, missing: vec![peer] }
    }

    fn foreign(place: &Place) -> JoinError {
        let Place { group, epoch, to, protocol, .. } = place.clone();
        JoinError::Foreign { group, epoch, rank: to, protocol }
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

    /// Connects and says hello, until the other side expects this rank.
    fn reach(&self, address: &str, place: &Place, deadline: Instant) -> Result<Wire, JoinError> {
        loop {
            let left = self.time_left(place, deadline)?;
            let connected = address.to_socket_addrs().and_then(|mut addresses| {
                let address = addresses.next().ok_or_else(|| io::Error::other("the address names no host"))?;
                TcpStream::connect_timeout(&address, left.min(HELLO))
            });
            let greeted = connected.and_then(|raw| {
                raw.set_nodelay(true)?;
                raw.set_read_timeout(Some(left.min(HELLO)))?;
                let mut stream = (self.inner.secure)(raw.try_clone()?, Side::Connects)?;
                stream.write_all(&hello(place)).and_then(|()| stream.flush())?;
                let mut answer = [0];
                stream.read_exact(&mut answer)?;
                Ok((Wire { stream, raw }, answer))
            });
            match greeted {
                Ok((wire, [EXPECTED])) => return Ok(wire),
                Ok((_, [STALE])) => return Err(Self::stale(place)),
                Ok((_, [FOREIGN])) => return Err(Self::foreign(place)),
                // It may be about to start, to take its seat, or to read its certificates anew.
                Ok(_) | Err(_) => self.inner.pause(RETRY.min(left)),
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
        let Ok(id) = inner.begin_greeting(&raw) else { continue };
        let greeting = inner.clone();
        let greeted = std::thread::Builder::new().name("greeting".into()).spawn(move || {
            // One that does not know the protocol is hung up on.
            let _ = greet(raw, id, &greeting);
            greeting.end_greeting(id);
        });
        if greeted.is_err() {
            inner.end_greeting(id);
        }
    }
}

fn greet(raw: TcpStream, id: u64, inner: &Inner) -> io::Result<()> {
    raw.set_nodelay(true)?;
    raw.set_read_timeout(Some(HELLO))?;
    raw.set_write_timeout(Some(HELLO))?;
    let mut stream = (inner.secure)(raw.try_clone()?, Side::Accepts)?;
    let place = read_hello(&mut *stream)?;
    // From here on nobody cuts it in favour of another.
    inner.end_greeting(id);
    let mut hall = inner.hall();
    if hall.is_stale(&place.group, place.epoch) {
        drop(hall);
        return stream.write_all(&[STALE]).and_then(|()| stream.flush());
    }
    if !hall.expected.contains(&place) {
        let foreign = hall.expected.iter().any(|known| Place { protocol: place.protocol, ..known.clone() } == place);
        drop(hall);
        return if foreign { stream.write_all(&[FOREIGN]).and_then(|()| stream.flush()) } else { Ok(()) };
    }
    // A byte has room in the connection's buffer: this does not wait.
    stream.write_all(&[EXPECTED]).and_then(|()| stream.flush())?;
    raw.set_read_timeout(None)?;
    raw.set_write_timeout(None)?;
    hall.waiting.insert(place, Wire { stream, raw });
    inner.news.notify_all();
    Ok(())
}

fn hello(place: &Place) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    let name = &place.group.as_bytes()[..place.group.len().min(NAME)];
    out.extend_from_slice(&place.protocol.to_le_bytes());
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
    let protocol = u32::from_le_bytes(take(stream)?);
    let [pulse] = take::<1>(stream)?;
    let epoch = u64::from_le_bytes(take(stream)?);
    let mut number = || take::<4>(stream).map(|bytes| u32::from_le_bytes(bytes) as usize);
    let (from, to, size) = (number()?, number()?, number()?);
    let [len] = take::<1>(stream)?;
    let mut name = vec![0; len.into()];
    stream.read_exact(&mut name)?;
    let group = String::from_utf8(name).map_err(io::Error::other)?;
    Ok(Place { group, epoch, from, to, size, pulse: pulse != 0, protocol })
}
