//! How the ranks of a group find each other: each listens for its life, and connects anew for each epoch.

use std::{
    collections::{HashMap, HashSet},
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::greet::{self, ACCEPTED, ELSEWHERE, EXPECTED, FOREIGN, Greetings, HERE, Hello, STALE};
use super::{Secure, Side, Tcp, Wire};

/// Between attempts to reach a peer, and to accept one.
pub(super) const RETRY: Duration = Duration::from_millis(20);
/// Longest time for one attempt.
const ATTEMPT: Duration = Duration::from_secs(2);

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

/// Why a worker's ranks could not be linked with.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("cannot connect to {address}: {error}")]
    Connect { address: String, error: io::Error },
    #[error("the TLS handshake with {address} failed: {error}")]
    Handshake { address: String, error: io::Error },
    #[error("{address} accepts connections, but does not answer within {time:?}")]
    Silent { address: String, time: Duration },
    #[error("{address} ends the connection without an answer ({error}); do both sides use TLS, under one authority?")]
    Refused { address: String, error: io::Error },
    #[error("another worker listens at {address}; is --advertise right?")]
    Elsewhere { address: String },
    #[error("{address} answers with something that is not the protocol of ranks; do both sides use TLS?")]
    Foreign { address: String },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub group: String,
    pub epoch: u64,
    pub from: usize,
    pub to: usize,
    pub size: usize,
    pub pulse: bool,
    pub protocol: u32,
}

#[derive(Default)]
pub(super) struct Hall {
    /// Peers for which a join waits here. Nobody else's connection is kept.
    pub expected: HashSet<Place>,
    pub waiting: HashMap<Place, Wire>,
    /// By group, the lowest epoch that may still be joined.
    fences: HashMap<String, u64>,
    /// Workers that are found here.
    pub names: HashSet<String>,
}

pub(super) struct Inner {
    hall: Mutex<Hall>,
    pub news: Condvar,
    pub secure: Secure,
    pub greetings: Greetings,
    pub closed: AtomicBool,
}

/// Where a process is found by its peers.
pub struct Listener {
    address: SocketAddr,
    inner: Arc<Inner>,
}

impl Inner {
    pub fn hall(&self) -> MutexGuard<'_, Hall> {
        self.hall.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until something happens, but not longer than this.
    pub fn pause(&self, time: Duration) {
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
    pub fn is_stale(&self, group: &str, epoch: u64) -> bool {
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
            greetings: Greetings::default(),
            closed: AtomicBool::new(false),
        });
        greet::start(listener, &inner)?;
        Ok(Listener { address, inner })
    }

    /// A worker of this name is found here: probes for it are answered.
    pub fn introduce(&self, name: &str) {
        self.inner.hall().names.insert(name.to_owned());
    }

    /// Whether ranks of this process can connect to those of the worker of this name, and it is found at this address.
    pub fn probe(&self, address: &str, name: &str, patience: Duration) -> Result<(), ProbeError> {
        let deadline = Instant::now() + patience;
        let address = || address.to_owned();
        let raw = dial(&address(), deadline).map_err(|error| ProbeError::Connect { address: address(), error })?;
        let silent = |error: &io::Error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        let secured = limit(&raw, deadline).and_then(|()| (self.inner.secure)(raw.try_clone()?, Side::Connects));
        let mut stream = secured.map_err(|error| match silent(&error) {
            true => ProbeError::Silent { address: address(), time: patience },
            false => ProbeError::Handshake { address: address(), error },
        })?;
        let mut answer = [0];
        let asked = limit(&raw, deadline).and_then(|()| {
            stream.write_all(&Hello::Probe(name.to_owned()).bytes())?;
            stream.flush()?;
            stream.read_exact(&mut answer)
        });
        match (asked, answer) {
            (Ok(()), [HERE]) => Ok(()),
            (Ok(()), [ELSEWHERE]) => Err(ProbeError::Elsewhere { address: address() }),
            (Ok(()), _) => Err(ProbeError::Foreign { address: address() }),
            (Err(error), _) if silent(&error) => Err(ProbeError::Silent { address: address(), time: patience }),
            (Err(error), _) => Err(ProbeError::Refused { address: address(), error }),
        }
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
            wire.raw.set_write_timeout(None)?;
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
            let until = deadline.min(Instant::now() + ATTEMPT);
            let greeted = dial(address, until).and_then(|raw| {
                limit(&raw, until)?;
                let mut stream = (self.inner.secure)(raw.try_clone()?, Side::Connects)?;
                stream.write_all(&Hello::Join(place.clone()).bytes()).and_then(|()| stream.flush())?;
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
        self.inner.greetings.wake();
        // Wakes the thread that accepts; if it is past that, there is nothing to wake.
        let _ = TcpStream::connect_timeout(&self.address, ATTEMPT);
    }
}

/// Connects to the first of the host's addresses that accepts.
fn dial(address: &str, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the address names no host");
    for address in address.to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(raw) => return raw.set_nodelay(true).map(|()| raw),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// No call on this connection lasts beyond the deadline, nor a handshake.
fn limit(raw: &TcpStream, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    raw.set_read_timeout(Some(left)).and_then(|()| raw.set_write_timeout(Some(left)))
}
