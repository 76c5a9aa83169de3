//! How the ranks of a group find each other: each process listens for its whole life, and ranks connect anew for each
//! epoch. This module does not know collective operations.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::handshake::{
    self, ACCEPTED, ELSEWHERE, EXPECTED, FOREIGN, HERE, Handshakes, Hello, Inner, LinkId, RETRY, STALE,
};
use super::{ConnectionSide, SecureConnection, Tcp, Wire};

/// Time limit of one attempt.
const ATTEMPT: Duration = Duration::from_secs(2);

/// One rank of a group in one epoch, and where the others are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinRequest {
    pub group: String,
    pub epoch: u64,
    pub rank: usize,
    /// The protocol of this process. Ranks with another protocol are not linked.
    pub protocol: u32,
    /// Where each rank listens, as `host:port`, in rank order.
    pub addresses: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("this epoch of group {group} has ended")]
    Stale { group: String, epoch: u64 },
    #[error("ranks {missing:?} of group {group} did not connect in time")]
    Missing { group: String, epoch: u64, missing: Vec<usize> },
    #[error("rank {rank} of group {group} runs a release with another protocol than that of this process, {protocol}")]
    Foreign { group: String, epoch: u64, rank: usize, protocol: u32 },
    #[error("cannot link the ranks: {0}")]
    Io(#[from] io::Error),
}

/// Why this process cannot link with another worker's ranks.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("cannot connect to {address}: {error}")]
    Connect { address: String, error: io::Error },
    #[error("the TLS handshake with {address} failed: {error}")]
    Handshake { address: String, error: io::Error },
    #[error("{address} accepts connections but did not answer within {time:?}")]
    Silent { address: String, time: Duration },
    #[error(
        "{address} closed the connection without an answer ({error}); check that both sides use TLS with the same CA"
    )]
    Refused { address: String, error: io::Error },
    #[error("another worker listens at {address}; check --advertise")]
    Elsewhere { address: String },
    #[error("{address} does not use the protocol of ranks; check that both sides use TLS")]
    Foreign { address: String },
}

/// Accepts connections from ranks of other processes.
pub struct RankListener {
    address: SocketAddr,
    inner: Arc<Inner>,
}

/// Peers that a join waits for.
struct Expecting<'a> {
    inner: &'a Inner,
    places: Vec<LinkId>,
}

impl Drop for Expecting<'_> {
    fn drop(&mut self) {
        let mut joins = self.inner.joins();
        for place in &self.places {
            joins.expected.remove(place);
            joins.waiting.remove(place);
        }
    }
}

impl RankListener {
    pub fn bind(address: impl ToSocketAddrs, secure: SecureConnection) -> io::Result<RankListener> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let inner = Arc::new(Inner {
            joins: Mutex::default(),
            news: Condvar::new(),
            secure,
            handshakes: Handshakes::default(),
            closed: AtomicBool::new(false),
        });
        handshake::start(listener, &inner)?;
        Ok(RankListener { address, inner })
    }

    /// Registers a worker of this process: probes for it are answered.
    pub fn register(&self, name: &str) {
        self.inner.joins().names.insert(name.to_owned());
    }

    /// Checks whether this process can connect to the ranks of the worker with this name at this address.
    pub fn probe(&self, address: &str, name: &str, patience: Duration) -> Result<(), ProbeError> {
        let deadline = Instant::now() + patience;
        let address = || address.to_owned();
        let raw = dial(&address(), deadline).map_err(|error| ProbeError::Connect { address: address(), error })?;
        let silent = |error: &io::Error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        let secured =
            limit(&raw, deadline).and_then(|()| (self.inner.secure)(raw.try_clone()?, ConnectionSide::Connects));
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

    /// Epochs of the group below this one can no longer be joined. Joins of this process that wait for them fail.
    pub fn fence(&self, group: &str, epoch: u64) {
        let mut joins = self.inner.joins();
        let fence = joins.fences.entry(group.to_owned()).or_default();
        *fence = epoch.max(*fence);
        let fence = *fence;
        joins.waiting.retain(|place, wire| {
            let stale = place.group == group && place.epoch < fence;
            if stale {
                // The peer may be gone.
                let _ = wire.stream.write_all(&[STALE]).and_then(|()| wire.stream.flush());
            }
            !stale
        });
        self.inner.news.notify_all();
    }

    /// Links this rank with all others of its group and epoch. Returns when all have connected, or on an error.
    pub fn join(&self, member: &JoinRequest, patience: Duration) -> Result<Tcp, JoinError> {
        let deadline = Instant::now() + patience;
        let JoinRequest { group, epoch, rank, protocol, addresses } = member;
        let size = addresses.len();
        let place = |from, to, heartbeat| LinkId {
            group: group.clone(),
            epoch: *epoch,
            from,
            to,
            size,
            heartbeat,
            protocol: *protocol,
        };
        let above = [false, true].into_iter().flat_map(|heartbeat| (rank + 1..size).map(move |peer| (peer, heartbeat)));
        let _expecting = self.expect(above.map(|(peer, heartbeat)| place(peer, *rank, heartbeat)).collect());
        let empty = || (0..size).map(|_| None).collect::<Vec<Option<Wire>>>();
        let mut links = [empty(), empty()];
        // First connect to lower ranks, then accept higher ranks, then wait for acceptance by lower ranks: this order
        // cannot deadlock.
        let reach = |to: usize, heartbeat| self.reach(&addresses[to], &place(*rank, to, heartbeat), deadline);
        for (heartbeat, links) in [false, true].into_iter().zip(&mut links) {
            for (peer, link) in links.iter_mut().enumerate().take(*rank) {
                *link = Some(reach(peer, heartbeat)?);
            }
        }
        for (heartbeat, links) in [false, true].into_iter().zip(&mut links) {
            for (peer, link) in links.iter_mut().enumerate().skip(rank + 1) {
                let mut wire = self.await_peer(&place(peer, *rank, heartbeat), deadline)?;
                wire.stream.write_all(&[ACCEPTED]).and_then(|()| wire.stream.flush())?;
                *link = Some(wire);
            }
        }
        for link in &mut links {
            for (peer, wire) in link.iter_mut().enumerate().take(*rank) {
                if let Some(wire) = wire {
                    self.await_acceptance(wire, &place(*rank, peer, false), deadline)?;
                }
            }
        }
        let [data, heartbeats] = links;
        for wire in data.iter().chain(&heartbeats).flatten() {
            wire.raw.set_read_timeout(None)?;
            wire.raw.set_write_timeout(None)?;
        }
        Ok(Tcp::new(*rank, data, heartbeats)?)
    }

    /// Keeps connections of these peers, until the result is dropped.
    fn expect(&self, places: Vec<LinkId>) -> Expecting<'_> {
        self.inner.joins().expected.extend(places.iter().cloned());
        Expecting { inner: &self.inner, places }
    }

    fn missing(place: &LinkId, peer: usize) -> JoinError {
        JoinError::Missing { group: place.group.clone(), epoch: place.epoch, missing: vec![peer] }
    }

    fn foreign(place: &LinkId) -> JoinError {
        let LinkId { group, epoch, to, protocol, .. } = place.clone();
        JoinError::Foreign { group, epoch, rank: to, protocol }
    }

    fn stale(place: &LinkId) -> JoinError {
        JoinError::Stale { group: place.group.clone(), epoch: place.epoch }
    }

    /// The time left to connect to a peer.
    fn time_left(&self, place: &LinkId, deadline: Instant) -> Result<Duration, JoinError> {
        if self.inner.joins().is_stale(&place.group, place.epoch) {
            return Err(Self::stale(place));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(Self::missing(place, place.to)) } else { Ok(left) }
    }

    /// Connects and sends the hello, until the peer expects this rank.
    fn reach(&self, address: &str, place: &LinkId, deadline: Instant) -> Result<Wire, JoinError> {
        loop {
            let left = self.time_left(place, deadline)?;
            let until = deadline.min(Instant::now() + ATTEMPT);
            let greeted = dial(address, until).and_then(|raw| {
                limit(&raw, until)?;
                let mut stream = (self.inner.secure)(raw.try_clone()?, ConnectionSide::Connects)?;
                stream.write_all(&Hello::Join(place.clone()).bytes()).and_then(|()| stream.flush())?;
                let mut answer = [0];
                stream.read_exact(&mut answer)?;
                Ok((Wire { stream, raw }, answer))
            });
            match greeted {
                Ok((wire, [EXPECTED])) => return Ok(wire),
                Ok((_, [STALE])) => return Err(Self::stale(place)),
                Ok((_, [FOREIGN])) => return Err(Self::foreign(place)),
                // The peer may still have to start, to take its seat, or to reload its certificates.
                Ok(_) | Err(_) => self.inner.pause(RETRY.min(left)),
            }
        }
    }

    /// Waits for a connection from a peer.
    fn await_peer(&self, place: &LinkId, deadline: Instant) -> Result<Wire, JoinError> {
        let mut joins = self.inner.joins();
        loop {
            if let Some(wire) = joins.waiting.remove(place) {
                return Ok(wire);
            }
            if joins.is_stale(&place.group, place.epoch) {
                return Err(Self::stale(place));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Self::missing(place, place.from));
            }
            joins = self.inner.news.wait_timeout(joins, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for the answer to our hello.
    fn await_acceptance(&self, wire: &mut Wire, place: &LinkId, deadline: Instant) -> Result<(), JoinError> {
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

impl Drop for RankListener {
    fn drop(&mut self) {
        self.inner.closed.store(true, Ordering::SeqCst);
        self.inner.handshakes.wake();
        // Wakes the accepting thread; if it is past that call, there is nothing to wake.
        let _ = TcpStream::connect_timeout(&self.address, ATTEMPT);
    }
}

/// Connects to the first of the host's addresses that accepts.
fn dial(address: &str, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the host has no address");
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

/// Limits every call on this connection, including a handshake, to the deadline.
fn limit(raw: &TcpStream, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    raw.set_read_timeout(Some(left)).and_then(|()| raw.set_write_timeout(Some(left)))
}
