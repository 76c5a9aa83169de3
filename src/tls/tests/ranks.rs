//! The links between ranks, over mutual TLS.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use rein_kernels::collective::tcp::{ConnectionSide, JoinError, TransportStream};
use rein_kernels::collective::{Collective, threads};

use super::{Authority, Dir, Peers};

/// The tests of the kernels crate that every collective must pass. Here their TCP groups run over TLS.
#[path = "../../../kernels/src/collective/tests.rs"]
mod shared;

mod tcp {
    pub use rein_kernels::collective::tcp::{JoinRequest, RankListener, SecureConnection};

    pub fn plain() -> SecureConnection {
        super::OURS.1.secure()
    }
}

static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::new("ours"));
static OURS: LazyLock<(Dir, Peers)> = LazyLock::new(|| AUTHORITY.peer("rein-peer"));
const PATIENCE: Duration = Duration::from_secs(20);

/// Both ends of a connection through a relay. Once `slow` is set, the relay passes one byte per message on `allow`.
fn connect_through_relay(slow: &Arc<AtomicBool>, allow: Receiver<()>) -> [(Box<dyn TransportStream>, TcpStream); 2] {
    let inner = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let outer = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let (to, through) = (inner.local_addr().expect("bound"), outer.local_addr().expect("bound"));
    let slow = slow.clone();
    std::thread::spawn(move || {
        let client = outer.accept().expect("a client").0;
        let server = TcpStream::connect(to).expect("a server");
        for socket in [&client, &server] {
            socket.set_nodelay(true).expect("a socket");
        }
        let back = (server.try_clone().expect("a socket"), client.try_clone().expect("a socket"));
        std::thread::spawn(move || std::io::copy(&mut &back.0, &mut &back.1));
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = (&client).read(&mut bytes) {
            if !slow.load(Ordering::SeqCst) {
                (&server).write_all(&bytes[..n]).expect("passed on");
                continue;
            }
            for byte in &bytes[..n] {
                if allow.recv().is_err() {
                    return;
                }
                (&server).write_all(&[*byte]).expect("passed on");
            }
        }
    });
    let accepting = std::thread::spawn(move || {
        let raw = inner.accept().expect("the relay").0;
        let stream = tcp::plain()(raw.try_clone().expect("a socket"), ConnectionSide::Accepts).expect("a peer");
        (stream, raw)
    });
    let raw = TcpStream::connect(through).expect("the relay");
    let stream = tcp::plain()(raw.try_clone().expect("a socket"), ConnectionSide::Connects).expect("a peer");
    [(stream, raw), accepting.join().expect("no panic")]
}

/// Capacity of the channel to the relay, more than any test sends.
const PERMITS: usize = 100_000;

/// Heartbeats and joins read with timeouts, and retry after a timeout. A record that arrives one byte per timeout must
/// be read completely, and once.
#[test]
fn a_record_that_arrives_byte_by_byte_across_timeouts_is_read_completely() {
    let slow = Arc::new(AtomicBool::new(false));
    let (permits, allow) = sync_channel(PERMITS);
    let [(mut client, _), (mut server, raw)] = connect_through_relay(&slow, allow);
    slow.store(true, Ordering::SeqCst);
    raw.set_read_timeout(Some(Duration::from_millis(1))).expect("a socket");
    let sent: Vec<u8> = (0..60).collect();
    for message in sent.chunks(20) {
        client.write_all(message).and_then(|()| client.flush()).expect("sent");
    }
    let (mut received, mut waits, mut bytes) = (Vec::new(), 0, [0; 7]);
    while received.len() < sent.len() {
        match server.read(&mut bytes) {
            Ok(n) => received.extend_from_slice(&bytes[..n]),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
                waits += 1;
                permits.send(()).expect("the relay runs");
            }
        }
    }
    assert_eq!(received, sent);
    assert!(waits > sent.len(), "the record was not split: {waits} timeouts");
}

/// If the peer does not read, writes time out. Bytes accepted before the timeout must arrive in order, and once.
#[test]
fn bytes_accepted_before_a_write_timeout_arrive_once() {
    let slow = Arc::new(AtomicBool::new(false));
    let (_permits, allow) = sync_channel(PERMITS);
    let [(mut client, raw), (mut server, _)] = connect_through_relay(&slow, allow);
    raw.set_write_timeout(Some(Duration::from_millis(5))).expect("a socket");
    let mut taken: u64 = 0;
    let refused = loop {
        let block: Vec<u8> = (taken..taken + 10_000).map(|i| (i % 251) as u8).collect();
        match client.write(&block).and_then(|n| client.flush().map(|()| n).or(Ok(n))) {
            Ok(0) => break ErrorKind::WriteZero,
            Ok(n) => taken += n as u64,
            Err(error) => break error.kind(),
        }
        assert!(taken < 1 << 30, "no write timed out");
    };
    assert!(matches!(refused, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::WriteZero), "{refused:?}");
    let reading = std::thread::spawn(move || {
        let mut all = vec![0; taken as usize];
        server.read_exact(&mut all).map(|()| all)
    });
    raw.set_write_timeout(None).expect("a socket");
    client.flush().expect("it is read now");
    let all = reading.join().expect("no panic").expect("all of it");
    assert!(all.iter().enumerate().all(|(i, &byte)| byte == (i % 251) as u8));
}

fn listen(peers: &Peers) -> tcp::RankListener {
    tcp::RankListener::bind("127.0.0.1:0", peers.secure()).expect("loopback")
}

fn member(rank: usize, addresses: &[String]) -> tcp::JoinRequest {
    tcp::JoinRequest { group: "g".into(), epoch: 1, rank, protocol: 1, addresses: addresses.to_vec() }
}

fn addresses(listeners: [&tcp::RankListener; 2]) -> Vec<String> {
    listeners.map(|listener| listener.address().to_string()).to_vec()
}

#[test]
fn a_rank_with_another_authority_or_name_cannot_join() {
    let theirs = Authority::new("theirs");
    for (_dir, stranger) in [theirs.peer("rein-peer"), AUTHORITY.peer("rein-other")] {
        let (ours, other) = (listen(&OURS.1), listen(&stranger));
        let addresses = addresses([&ours, &other]);
        std::thread::scope(|scope| {
            let outside = scope.spawn(|| other.join(&member(1, &addresses), Duration::from_secs(2)));
            let inside = ours.join(&member(0, &addresses), Duration::from_millis(500));
            assert!(
                matches!(&inside, Err(JoinError::Missing { missing, .. }) if missing == &[1]),
                "{:?}",
                inside.err()
            );
            assert!(outside.join().expect("no panic").is_err());
        });
    }
}

#[test]
fn a_rank_without_tls_cannot_join_and_does_not_delay_others() {
    let (ours, plain) =
        (listen(&OURS.1), tcp::RankListener::bind("127.0.0.1:0", rein_kernels::collective::tcp::plain()));
    let plain = plain.expect("loopback");
    let strange = addresses([&ours, &plain]);
    let outside = plain.join(&member(1, &strange), Duration::from_millis(500));
    assert!(outside.is_err());
    // A client that connects and sends nothing.
    let _silent = TcpStream::connect(ours.address()).expect("it listens");
    let second = listen(&OURS.1);
    let addresses = addresses([&ours, &second]);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| second.join(&member(1, &addresses), PATIENCE));
        ours.join(&member(0, &addresses), PATIENCE).expect("both ranks join");
        other.join().expect("no panic").expect("both ranks join");
    });
}

/// Relays connections to an address, until the returned flag is set.
fn relay(to: String) -> (String, Arc<AtomicBool>) {
    let cut = Arc::new(AtomicBool::new(false));
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound").to_string();
    let off = cut.clone();
    let pass = |mut from: TcpStream, mut into: TcpStream, off: Arc<AtomicBool>| {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            while off.load(Ordering::SeqCst) {
                std::thread::park();
            }
            if into.write_all(&bytes[..n]).is_err() {
                return;
            }
        }
    };
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(&to) else { return };
            let pairs = [(client.try_clone(), server.try_clone()), (Ok(server), Ok(client))];
            for (from, into) in pairs.into_iter().filter_map(|(a, b)| Some((a.ok()?, b.ok()?))) {
                let off = off.clone();
                std::thread::spawn(move || pass(from, into, off));
            }
        }
    });
    (address, cut)
}

#[test]
fn a_rank_without_heartbeats_is_named_as_failed() {
    let listeners = [listen(&OURS.1), listen(&OURS.1)];
    let (through, cut) = relay(listeners[0].address().to_string());
    let addresses = [through, listeners[1].address().to_string()];
    let [a, b] = std::thread::scope(|scope| {
        let other = scope.spawn(|| listeners[1].join(&member(1, &addresses), PATIENCE));
        [listeners[0].join(&member(0, &addresses), PATIENCE), other.join().expect("no panic")]
    })
    .map(|rank| rank.expect("both ranks join"));
    let ends = [a.group_end(), b.group_end()];
    // While heartbeats arrive, the group does not end.
    let (_open, nothing) = sync_channel::<()>(1);
    assert!(nothing.recv_timeout(Duration::from_millis(300)).is_err());
    assert!(ends.iter().all(|end| end.abort().is_none()));
    cut.store(true, Ordering::SeqCst);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let other = scope.spawn(move || b.all_reduce(&mut [1.0]).expect_err("cut off"));
        let here = a.all_reduce(&mut [1.0]).expect_err("cut off");
        assert!(here.to_string().contains("no heartbeat from rank 1"), "{here}");
        let there = other.join().expect("no panic");
        assert!(there.to_string().contains("no heartbeat from rank 0"), "{there}");
    });
    assert_eq!(ends.map(|end| end.abort().and_then(|abort| abort.suspect)), [Some(1), Some(0)]);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// Clients that stall in the handshake, or send it one byte at a time, must not delay a join. They are disconnected
/// after a timeout.
#[test]
fn unfinished_handshakes_do_not_delay_a_join() {
    let listeners = [listen(&OURS.1), listen(&OURS.1)];
    let connect = |_| TcpStream::connect(listeners[0].address()).expect("it listens");
    let mut slow_clients: Vec<TcpStream> = (0..300).map(connect).collect();
    let last = slow_clients.last().expect("300 of them").try_clone().expect("a socket");
    let began = Instant::now();
    let (stop, stopped) = sync_channel::<()>(1);
    let addresses = addresses([&listeners[0], &listeners[1]]);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The header of a 16 KiB handshake record with a ClientHello of the same size.
            let hello = [22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc, 3, 3];
            for byte in hello.into_iter().chain(std::iter::repeat(0)) {
                // Some connections are already closed.
                slow_clients.iter_mut().for_each(|stream| drop(stream.write_all(&[byte])));
                if stopped.recv_timeout(Duration::from_millis(500)).is_ok() {
                    return;
                }
            }
        });
        let other = scope.spawn(|| listeners[1].join(&member(1, &addresses), PATIENCE));
        listeners[0].join(&member(0, &addresses), PATIENCE).expect("both ranks join");
        other.join().expect("no panic").expect("both ranks join");
        last.set_read_timeout(Some(PATIENCE)).expect("a socket");
        // An alert may arrive before the end of the stream.
        let ended = std::io::copy(&mut &last, &mut std::io::sink());
        assert!(
            !matches!(&ended, Err(error) if error.kind() == ErrorKind::WouldBlock),
            "the connection was not closed"
        );
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        stop.send(()).expect("the sender runs");
    });
}

#[test]
fn a_probe_reports_why_two_workers_cannot_link() {
    const TIME: Duration = Duration::from_millis(500);
    let (ours, theirs) = (listen(&OURS.1), Authority::new("theirs"));
    let (_a, foreign) = theirs.peer("rein-peer");
    let (foreign, same) = (listen(&foreign), listen(&OURS.1));
    let plain = tcp::RankListener::bind("127.0.0.1:0", rein_kernels::collective::tcp::plain()).expect("loopback");
    for listener in [&ours, &foreign, &same, &plain] {
        listener.register("w");
    }
    let probe = |from: &tcp::RankListener, to: &tcp::RankListener| {
        from.probe(&to.address().to_string(), "w", TIME).map_err(|error| error.to_string())
    };
    assert_eq!((probe(&ours, &same), probe(&same, &ours)), (Ok(()), Ok(())));
    for (from, to, why) in [
        (&ours, &foreign, "UnknownIssuer"),
        (&foreign, &ours, "UnknownIssuer"),
        (&ours, &plain, "TLS handshake"),
        (&plain, &ours, "TLS"),
    ] {
        let error = probe(from, to).expect_err("the workers must not link");
        assert!(error.contains(why), "{error}");
    }
}
