//! Ranks in separate processes, each pair linked by TCP. CPU groups use it; GPU groups use NCCL.
//!
//! If a rank dies, its connections close and its peers notice at once. If it hangs, or its network is cut, they notice
//! its silence: beside the data connection, each pair has one for heartbeats. This module does not know what is
//! computed.

mod handshake;
mod heartbeat;
mod join;
#[cfg(test)]
mod tests;

use std::{
    cell::{Cell, RefCell},
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

pub use join::{JoinError, JoinRequest, ProbeError, RankListener};

use super::{AbortHandle, AbortWatch, Collective, ControlLink};
use crate::error::{KernelError, Result};

/// Bytes written before others are read. The buffers of all connections hold as much, so ranks cannot deadlock.
const CHUNK: usize = 32 << 10;
/// Larger sums are split over the ranks, each of which adds up one part for all.
const SHARED_SUM: usize = 64 << 10;
/// How long a rank that lost a connection waits to learn which rank failed first. The heartbeat thread checks for that
/// message every `heartbeat::INTERVAL`, and notices a dead rank's closed connection as well.
const GRACE: Duration = Duration::from_millis(500);
const HEADER: usize = 21;

/// The transport of a connection: TCP, or TLS over TCP.
pub trait TransportStream: Read + Write + Send {}
impl<T: Read + Write + Send> TransportStream for T {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionSide {
    Connects,
    Accepts,
}

/// Turns a new TCP connection into the transport for data, within the connection's own read timeout.
pub type SecureConnection =
    Arc<dyn Fn(TcpStream, ConnectionSide) -> io::Result<Box<dyn TransportStream>> + Send + Sync>;

/// Plain TCP.
pub fn plain() -> SecureConnection {
    Arc::new(|stream, _| Ok(Box::new(stream)))
}

/// One connection. `raw` is the same socket: shutting it down ends every call that is blocked on it.
struct Wire {
    stream: Box<dyn TransportStream>,
    raw: TcpStream,
}

/// Why a group ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abort {
    pub reason: String,
    /// The rank that failed, if known.
    pub suspect: Option<usize>,
}

struct Shared {
    abort: Mutex<Option<Abort>>,
    aborted: Condvar,
    sockets: Vec<TcpStream>,
    /// The rank for which this one waits to send or receive; this rank itself while it computes.
    waiting: AtomicUsize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Abort>> {
        self.abort.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first abort counts. The heartbeat thread tells the others and closes the connections.
    fn abort(&self, reason: &str, suspect: Option<usize>) {
        self.lock().get_or_insert_with(|| Abort { reason: reason.to_owned(), suspect });
        self.aborted.notify_all();
    }

    /// Waits for an abort, at most this long.
    fn wait(&self, time: Duration) -> Option<Abort> {
        let guard = self.aborted.wait_timeout_while(self.lock(), time, |abort| abort.is_none());
        guard.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    fn cut(&self) {
        for socket in &self.sockets {
            // The peer may have closed it already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Tells any thread whether and why the group ended.
#[derive(Clone)]
pub struct GroupEnd(Arc<Shared>);

impl GroupEnd {
    pub fn abort(&self) -> Option<Abort> {
        self.0.lock().clone()
    }

    /// Ends the group, blaming the rank that is being waited for: another one, or this one if it computes.
    pub fn give_up(&self, reason: &str) {
        self.0.abort(reason, Some(self.0.waiting.load(Ordering::Relaxed)));
    }

    /// Waits for the end of the group, at most this long.
    pub fn wait(&self, time: Duration) -> Option<Abort> {
        self.0.wait(time)
    }
}

/// One rank; dropping it aborts the group for the others.
pub struct Tcp {
    rank: usize,
    /// None for this rank itself.
    peers: Vec<Option<RefCell<Box<dyn TransportStream>>>>,
    /// Number of operations begun.
    round: Cell<u64>,
    shared: Arc<Shared>,
    heartbeat: Option<JoinHandle<()>>,
}

/// Precedes a rank's data in an operation. All ranks must send the same, except for the length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    op: Op,
    /// Root of a broadcast; 0 otherwise.
    root: u32,
    round: u64,
    /// In bytes.
    len: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    AllReduce = 1,
    AllGather = 2,
    AllToAll = 3,
    Broadcast = 4,
    Share = 5,
    Gather = 6,
    GatherBytes = 7,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Op::AllReduce => "all_reduce",
            Op::AllGather => "all_gather",
            Op::AllToAll => "all_to_all",
            Op::Broadcast => "broadcast",
            Op::Share => "share",
            Op::Gather => "gather",
            Op::GatherBytes => "gather_bytes",
        }
    }
}

impl Header {
    fn bytes(self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[0] = self.op as u8;
        out[1..5].copy_from_slice(&self.root.to_le_bytes());
        out[5..13].copy_from_slice(&self.round.to_le_bytes());
        out[13..].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    fn read(bytes: &[u8; HEADER]) -> Option<Header> {
        let op = [Op::AllReduce, Op::AllGather, Op::AllToAll, Op::Broadcast, Op::Share, Op::Gather, Op::GatherBytes];
        let number = |range: std::ops::Range<usize>| {
            bytes[range].iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte))
        };
        let op = op.into_iter().find(|&op| op as u8 == bytes[0])?;
        Some(Header { op, root: number(1..5) as u32, round: number(5..13), len: number(13..21) })
    }
}

/// The data to and from one peer.
#[derive(Default)]
struct Traffic {
    out: Vec<u8>,
    sent: usize,
    expects: bool,
    /// Bytes still to come; known once the header was read.
    left: Option<usize>,
    got: Vec<u8>,
}

impl Traffic {
    fn is_done(&self) -> bool {
        self.sent == self.out.len() && (!self.expects || self.left == Some(0))
    }
}

/// A rank's input to an operation.
#[derive(Clone, Copy)]
enum Part<'a> {
    Floats(&'a [f32]),
    Bytes(&'a [u8]),
}

impl Part<'_> {
    fn len(self) -> usize {
        match self {
            Part::Floats(values) => 4 * values.len(),
            Part::Bytes(bytes) => bytes.len(),
        }
    }

    fn after(self, header: Header) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + self.len());
        out.extend_from_slice(&header.bytes());
        match self {
            Part::Floats(values) => values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes())),
            Part::Bytes(bytes) => out.extend_from_slice(bytes),
        }
        out
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
}

impl Tcp {
    fn new(rank: usize, data: Vec<Option<Wire>>, heartbeats: Vec<Option<Wire>>) -> io::Result<Tcp> {
        let all = data.iter().chain(&heartbeats).flatten();
        let sockets = all.map(|wire| wire.raw.try_clone()).collect::<io::Result<Vec<_>>>()?;
        let shared = Arc::new(Shared {
            abort: Mutex::new(None),
            aborted: Condvar::new(),
            sockets,
            waiting: AtomicUsize::new(rank),
        });
        let heartbeat = heartbeat::start(rank, heartbeats, shared.clone())?;
        let peers = data.into_iter().map(|wire| wire.map(|wire| RefCell::new(wire.stream))).collect();
        Ok(Tcp { rank, peers, round: Cell::new(0), shared, heartbeat: Some(heartbeat) })
    }

    pub fn group_end(&self) -> GroupEnd {
        GroupEnd(self.shared.clone())
    }

    fn check(&self) -> Result<()> {
        let abort = self.shared.lock();
        abort.as_ref().map_or(Ok(()), |abort| Err(KernelError::Aborted(abort.reason.clone())))
    }

    /// The connection to `peer` failed: because of an abort that is on its way here, or because that rank is lost.
    fn lost(&self, peer: usize, error: &io::Error) -> KernelError {
        let abort = self.shared.wait(GRACE).unwrap_or_else(|| {
            self.shared.abort(&format!("lost the connection to rank {peer}: {error}"), Some(peer));
            self.shared.lock().clone().unwrap_or(Abort { reason: String::new(), suspect: None })
        });
        KernelError::Aborted(abort.reason)
    }

    /// Runs a call on the connection to `peer`, recording that it is being waited for.
    fn with(
        &self,
        peer: usize,
        stream: &RefCell<Box<dyn TransportStream>>,
        call: impl FnOnce(&mut dyn TransportStream) -> io::Result<()>,
    ) -> Result<()> {
        self.shared.waiting.store(peer, Ordering::Relaxed);
        let done = call(&mut **stream.borrow_mut());
        self.shared.waiting.store(self.rank, Ordering::Relaxed);
        done.map_err(|error| self.lost(peer, &error))
    }

    /// Reads the header of a peer's data.
    fn header(&self, peer: usize, expected: Header) -> Result<usize> {
        let mut bytes = [0; HEADER];
        let Some(stream) = &self.peers[peer] else { return Ok(0) };
        self.with(peer, stream, |stream| stream.read_exact(&mut bytes))?;
        let said = Header::read(&bytes);
        match said {
            Some(said) if said == (Header { len: said.len, ..expected }) => Ok(said.len as usize),
            _ => {
                let what = format!("rank {} is in {expected:?}, but rank {peer} is in {said:?}", self.rank);
                self.shared.abort(&format!("{}: {what}", expected.op.name()), None);
                Err(KernelError::Shape { op: expected.op.name(), what })
            }
        }
    }

    /// Sends each peer its part, if any, and receives from the peers in `from`. Works chunk by chunk, so that all
    /// connections are busy at the same time and no rank waits for a reader that is itself waiting.
    fn exchange_bytes<'a>(
        &self,
        op: Op,
        root: usize,
        part: impl Fn(usize) -> Option<Part<'a>>,
        from: impl Fn(usize) -> bool,
    ) -> Result<Vec<Vec<u8>>> {
        self.check()?;
        self.round.set(self.round.get() + 1);
        let header = |len| Header { op, root: root as u32, round: self.round.get(), len };
        let peer = |peer: usize| match &self.peers[peer] {
            Some(_) => Traffic {
                out: part(peer).map_or_else(Vec::new, |part| part.after(header(part.len() as u64))),
                expects: from(peer),
                ..Traffic::default()
            },
            None => Traffic::default(),
        };
        let mut traffic: Vec<Traffic> = (0..self.peers.len()).map(peer).collect();
        while !traffic.iter().all(Traffic::is_done) {
            for (peer, traffic) in traffic.iter_mut().enumerate() {
                if let Some(stream) = &self.peers[peer]
                    && traffic.sent < traffic.out.len()
                {
                    let end = traffic.out.len().min(traffic.sent + CHUNK);
                    let chunk = &traffic.out[traffic.sent..end];
                    self.with(peer, stream, |stream| stream.write_all(chunk).and_then(|()| stream.flush()))?;
                    traffic.sent = end;
                }
            }
            for (peer, traffic) in traffic.iter_mut().enumerate() {
                let Some(stream) = self.peers[peer].as_ref().filter(|_| traffic.expects) else { continue };
                let (left, room) = match traffic.left {
                    Some(left) => (left, CHUNK),
                    None => {
                        let len = self.header(peer, header(0))?;
                        // The announced length is not trusted before the data arrives.
                        traffic.got.reserve(len.min(4 * CHUNK));
                        (len, CHUNK - HEADER)
                    }
                };
                let start = traffic.got.len();
                traffic.got.resize(start + left.min(room), 0);
                self.with(peer, stream, |stream| stream.read_exact(&mut traffic.got[start..]))?;
                traffic.left = Some(left - left.min(room));
            }
        }
        Ok(traffic.into_iter().map(|traffic| traffic.got).collect())
    }

    fn exchange<'a>(
        &self,
        op: Op,
        root: usize,
        part: impl Fn(usize) -> Option<&'a [f32]>,
        from: impl Fn(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>> {
        let got = self.exchange_bytes(op, root, |peer| part(peer).map(Part::Floats), from)?;
        Ok(got.iter().map(|bytes| floats(bytes)).collect())
    }

    fn check_root(&self, op: Op, root: usize) -> Result<()> {
        if root < self.size() {
            return Ok(());
        }
        Err(KernelError::Shape { op: op.name(), what: format!("root {root} of {} ranks", self.size()) })
    }

    fn same_length(&self, op: Op, peer: usize, got: usize, mine: usize) -> Result<()> {
        if got == mine {
            return Ok(());
        }
        let what = format!("rank {} sent {mine} values, rank {peer} sent {got}", self.rank);
        self.shared.abort(&format!("{}: {what}", op.name()), None);
        Err(KernelError::Shape { op: op.name(), what })
    }

    /// The sum of this rank's `x` and the others', in rank order.
    fn add_up(&self, x: &[f32], others: &[Vec<f32>]) -> Result<Vec<f32>> {
        let mut sum: Option<Vec<f32>> = None;
        for (rank, other) in others.iter().enumerate() {
            let part = if rank == self.rank { x } else { other.as_slice() };
            self.same_length(Op::AllReduce, rank, part.len(), x.len())?;
            match &mut sum {
                None => sum = Some(part.to_vec()),
                Some(sum) => sum.iter_mut().zip(part).for_each(|(sum, y)| *sum += y),
            }
        }
        Ok(sum.unwrap_or_default())
    }
}

impl ControlLink for Tcp {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.peers.len()
    }

    fn share(&self, root: usize, bytes: &mut Vec<u8>) -> Result<()> {
        self.check_root(Op::Share, root)?;
        let rank = self.rank;
        let mine: &[u8] = bytes;
        let mut all =
            self.exchange_bytes(Op::Share, root, |_| (rank == root).then_some(Part::Bytes(mine)), |peer| peer == root)?;
        if rank != root {
            *bytes = std::mem::take(&mut all[root]);
        }
        Ok(())
    }

    fn gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = self.exchange_bytes(Op::GatherBytes, 0, |_| Some(Part::Bytes(bytes)), |_| true)?;
        all[self.rank] = bytes.to_vec();
        Ok(all)
    }

    fn abort(&self, reason: &str) {
        self.shared.abort(reason, None);
    }

    fn abort_handle(&self) -> AbortHandle {
        let shared = Arc::clone(&self.shared);
        AbortHandle::new(move |reason| shared.abort(reason, None))
    }

    fn give_up_handle(&self) -> AbortHandle {
        let (end, rank) = (self.group_end(), self.rank);
        AbortHandle::new(move |reason| match end.0.waiting.load(Ordering::Relaxed) {
            waiting if waiting == rank => end.0.abort(reason, None),
            missing => end.0.abort(&format!("{reason}: rank {missing} does not answer"), Some(missing)),
        })
    }

    fn abort_watch(&self) -> AbortWatch {
        let shared = Arc::clone(&self.shared);
        AbortWatch::new(move || shared.lock().as_ref().map(|abort| abort.reason.clone()))
    }
}

impl Collective for Tcp {
    fn all_reduce(&self, x: &mut [f32]) -> Result<()> {
        let size = self.size();
        if size == 1 {
            return self.check();
        }
        if size == 2 || 4 * x.len() <= SHARED_SUM {
            let mine: &[f32] = x;
            let others = self.exchange(Op::AllReduce, 0, |_| Some(mine), |_| true)?;
            x.copy_from_slice(&self.add_up(x, &others)?);
            return Ok(());
        }
        let share = |rank: usize| x.len() * rank / size..x.len() * (rank + 1) / size;
        let mine: &[f32] = x;
        let others = self.exchange(Op::AllReduce, 0, |peer| Some(&mine[share(peer)]), |_| true)?;
        let sum = self.add_up(&x[share(self.rank)], &others)?;
        let sums = self.exchange(Op::AllReduce, 0, |_| Some(&sum), |_| true)?;
        for (rank, part) in sums.iter().enumerate() {
            let part = if rank == self.rank { &sum } else { part };
            let share = x.len() * rank / size..x.len() * (rank + 1) / size;
            self.same_length(Op::AllReduce, rank, part.len(), share.len())?;
            x[share].copy_from_slice(part);
        }
        Ok(())
    }

    fn all_gather(&self, x: &[f32]) -> Result<Vec<Vec<f32>>> {
        let mut all = self.exchange(Op::AllGather, 0, |_| Some(x), |_| true)?;
        all[self.rank] = x.to_vec();
        Ok(all)
    }

    fn gather(&self, root: usize, x: &[f32]) -> Result<Vec<Vec<f32>>> {
        self.check_root(Op::Gather, root)?;
        let rank = self.rank;
        let mut all = self.exchange(Op::Gather, root, |peer| (peer == root).then_some(x), |_| rank == root)?;
        if rank != root {
            return Ok(Vec::new());
        }
        all[root] = x.to_vec();
        Ok(all)
    }

    fn all_to_all(&self, mut parts: Vec<Vec<f32>>) -> Result<Vec<Vec<f32>>> {
        if parts.len() != self.size() {
            let what = format!("needs one part for each of {} ranks, got {}", self.size(), parts.len());
            return Err(KernelError::Shape { op: "all_to_all", what });
        }
        let mut all = self.exchange(Op::AllToAll, 0, |peer| Some(&parts[peer]), |_| true)?;
        all[self.rank] = std::mem::take(&mut parts[self.rank]);
        Ok(all)
    }

    fn broadcast(&self, root: usize, x: &mut [f32]) -> Result<()> {
        self.check_root(Op::Broadcast, root)?;
        let mine: &[f32] = x;
        let rank = self.rank;
        let mut all = self.exchange(Op::Broadcast, root, |_| (rank == root).then_some(mine), |peer| peer == root)?;
        if rank != root {
            let given = std::mem::take(&mut all[root]);
            self.same_length(Op::Broadcast, root, given.len(), x.len())?;
            x.copy_from_slice(&given);
        }
        Ok(())
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.shared.abort(&format!("rank {} left the group", self.rank), Some(self.rank));
        if let Some(heartbeat) = self.heartbeat.take() {
            // The thread ends on the abort; a panic has been printed.
            let _ = heartbeat.join();
        }
    }
}
