//! Heartbeats between ranks, and the message that the group has ended. This module does not know collective operations.

use std::{
    io::{self, ErrorKind, Read, Write},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::{Abort, Shared, Wire};

const INTERVAL: Duration = Duration::from_millis(100);
/// A rank without a heartbeat for this long has failed.
const SILENCE: Duration = Duration::from_millis(1200);
/// Time limit for sending a few bytes to one peer, or receiving them.
const PATIENCE: Duration = Duration::from_millis(1);
/// Length limit of a reason.
const REASON: usize = 1000;
const ALIVE: u8 = 1;
const ABORTED: u8 = 2;

struct Peer {
    rank: usize,
    wire: Wire,
    heard: Instant,
    /// An incomplete message.
    buffer: Vec<u8>,
    gone: bool,
}

pub fn start(rank: usize, heartbeats: Vec<Option<Wire>>, shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let now = Instant::now();
    let mut peers = Vec::new();
    for (rank, wire) in heartbeats.into_iter().enumerate() {
        let Some(wire) = wire else { continue };
        wire.raw.set_read_timeout(Some(PATIENCE))?;
        wire.raw.set_write_timeout(Some(INTERVAL))?;
        peers.push(Peer { rank, wire, heard: now, buffer: Vec::new(), gone: false });
    }
    std::thread::Builder::new().name(format!("heartbeat {rank}")).spawn(move || run(peers, &shared))
}

fn run(mut peers: Vec<Peer>, shared: &Shared) {
    let mut last = Instant::now();
    let abort = loop {
        if let Some(abort) = shared.wait(INTERVAL) {
            break abort;
        }
        if last.elapsed() > SILENCE / 2 {
            // This process was stopped: the messages that arrived meanwhile have not been read yet.
            peers.iter_mut().for_each(|peer| peer.heard = Instant::now());
        }
        last = Instant::now();
        for peer in &mut peers {
            // A lost peer is noticed when reading.
            let _ = peer.wire.stream.write_all(&[ALIVE]).and_then(|()| peer.wire.stream.flush());
            if let Some(abort) = peer.listen() {
                shared.abort(&abort.reason, abort.suspect);
            } else if peer.gone {
                shared.abort(&format!("rank {} closed its connection", peer.rank), Some(peer.rank));
            } else if peer.heard.elapsed() > SILENCE {
                shared.abort(&format!("no heartbeat from rank {} for {SILENCE:?}", peer.rank), Some(peer.rank));
            }
        }
    };
    let message = encode_abort(&abort);
    for peer in &mut peers {
        // Peers that cannot be told see their connections close.
        let _ = peer.wire.stream.write_all(&message).and_then(|()| peer.wire.stream.flush());
    }
    shared.cut();
}

impl Peer {
    /// Reads what has arrived; the last message of a peer is an abort.
    fn listen(&mut self) -> Option<Abort> {
        let mut bytes = [0; 256];
        loop {
            match self.wire.stream.read(&mut bytes) {
                Ok(0) => self.gone = true,
                Ok(n) => {
                    self.heard = Instant::now();
                    self.buffer.extend_from_slice(&bytes[..n]);
                    if n == bytes.len() {
                        continue;
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => self.gone = true,
            }
            break;
        }
        let alive = self.buffer.iter().take_while(|&&byte| byte == ALIVE).count();
        self.buffer.drain(..alive);
        // Anything else is not a message of a rank.
        self.gone |= self.buffer.first().is_some_and(|&first| first != ABORTED);
        read_abort(&self.buffer)
    }
}

fn encode_abort(abort: &Abort) -> Vec<u8> {
    let mut end = abort.reason.len().min(REASON);
    while !abort.reason.is_char_boundary(end) {
        end -= 1;
    }
    let suspect = abort.suspect.map_or(0, |rank| rank as u32 + 1);
    let mut out = vec![ABORTED];
    out.extend_from_slice(&suspect.to_le_bytes());
    out.extend_from_slice(&(end as u16).to_le_bytes());
    out.extend_from_slice(&abort.reason.as_bytes()[..end]);
    out
}

/// None: there is no abort, or it is incomplete.
fn read_abort(bytes: &[u8]) -> Option<Abort> {
    let (&first, rest) = bytes.split_first()?;
    let (suspect, rest) = rest.split_first_chunk::<4>()?;
    let (len, rest) = rest.split_first_chunk::<2>()?;
    let reason = rest.get(..u16::from_le_bytes(*len).into())?;
    let suspect = (u32::from_le_bytes(*suspect) as usize).checked_sub(1);
    (first == ABORTED).then(|| Abort { reason: String::from_utf8_lossy(reason).into_owned(), suspect })
}
