//! Properties of TCP links only. Those of all collectives are tested in `collective/tests.rs`.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use super::{Collective, ControlLink, JoinError, JoinRequest, ProbeError, RankListener, Tcp, plain};

const PATIENCE: Duration = Duration::from_secs(20);

fn listen() -> RankListener {
    RankListener::bind("127.0.0.1:0", plain()).expect("loopback")
}

fn member(epoch: u64, rank: usize, addresses: &[String]) -> JoinRequest {
    JoinRequest { group: "g".into(), epoch, rank, protocol: 1, addresses: addresses.to_vec() }
}

/// Relays everything between two listeners, until it is switched off.
fn relay(to: String) -> (String, std::sync::Arc<std::sync::atomic::AtomicBool>) {
    let cut = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound").to_string();
    let off = cut.clone();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(&to) else { return };
            let pairs = [(client.try_clone(), server.try_clone()), (Ok(server), Ok(client))];
            for (from, into) in pairs.into_iter().filter_map(|(a, b)| Some((a.ok()?, b.ok()?))) {
                let off = off.clone();
                std::thread::spawn(move || pass(from, into, &off));
            }
        }
    });
    (address, cut)
}

fn pass(mut from: TcpStream, mut into: TcpStream, off: &std::sync::atomic::AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        // Switched off: neither data nor the end of the connection arrives.
        while off.load(std::sync::atomic::Ordering::SeqCst) {
            std::thread::park();
        }
        if into.write_all(&bytes[..n]).is_err() {
            return;
        }
    }
}

fn pair(listeners: &[RankListener; 2], epoch: u64, addresses: &[String]) -> [Result<Tcp, JoinError>; 2] {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| listeners[1].join(&member(epoch, 1, addresses), PATIENCE));
        [listeners[0].join(&member(epoch, 0, addresses), PATIENCE), other.join().expect("no panic")]
    })
}

#[test]
fn a_rank_without_heartbeats_is_named_as_failed() {
    let listeners = [listen(), listen()];
    let (through, cut) = relay(listeners[0].address().to_string());
    let addresses = [through, listeners[1].address().to_string()];
    let [a, b] = pair(&listeners, 1, &addresses).map(|rank| rank.expect("both come"));
    cut.store(true, std::sync::atomic::Ordering::SeqCst);
    let began = Instant::now();
    let ends = [a.group_end(), b.group_end()];
    std::thread::scope(|scope| {
        let other = scope.spawn(move || b.all_reduce(&mut [1.0]).expect_err("cut off"));
        let here = a.all_reduce(&mut [1.0]).expect_err("cut off");
        assert!(here.to_string().contains("no heartbeat from rank 1"), "{here}");
        let there = other.join().expect("no panic");
        assert!(there.to_string().contains("no heartbeat from rank 0"), "{there}");
    });
    assert_eq!(ends.map(|group_end| group_end.abort().and_then(|abort| abort.suspect)), [Some(1), Some(0)]);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn all_ranks_blame_the_one_that_failed_first() {
    let listeners: Vec<RankListener> = (0..4).map(|_| listen()).collect();
    let addresses: Vec<String> = listeners.iter().map(|listener| listener.address().to_string()).collect();
    for epoch in 1..=5 {
        let mut ranks: Vec<Tcp> = std::thread::scope(|scope| {
            let addresses = &addresses;
            let joins: Vec<_> = listeners
                .iter()
                .enumerate()
                .map(|(rank, listener)| scope.spawn(move || listener.join(&member(epoch, rank, addresses), PATIENCE)))
                .collect();
            joins.into_iter().map(|join| join.join().expect("no panic").expect("all come")).collect()
        });
        let dying = ranks.remove(2);
        let ends: Vec<_> = ranks.iter().map(Tcp::group_end).collect();
        std::thread::scope(|scope| {
            let blocked: Vec<_> =
                ranks.drain(..).map(|rank| scope.spawn(move || rank.all_reduce(&mut [1.0]))).collect();
            // As with a killed process: every connection closes without a message.
            dying.shared.cut();
            for thread in blocked {
                assert!(thread.join().expect("no panic").is_err());
            }
        });
        let suspects: Vec<_> = ends.iter().map(|group_end| group_end.abort().and_then(|abort| abort.suspect)).collect();
        assert_eq!(suspects, [Some(2); 3], "epoch {epoch}");
    }
}

/// The blamed rank is the one that does not send, the one that does not receive, or this one while it computes.
#[test]
fn an_expired_wait_blames_the_awaited_rank() {
    let listeners = [listen(), listen()];
    let addresses: Vec<String> = listeners.iter().map(|listener| listener.address().to_string()).collect();
    type Op = fn(&Tcp) -> crate::Result<()>;
    let gives: Op = |rank| rank.broadcast(0, &mut vec![0.0; 4 << 20]);
    let takes: Op = |rank| rank.broadcast(1, &mut [0.0]);
    for (epoch, (op, suspect)) in (1..).zip([(None, 0), (Some(takes), 1), (Some(gives), 1)]) {
        let [a, b] = pair(&listeners, epoch, &addresses).map(|rank| rank.expect("both come"));
        let ends = [a.group_end(), b.group_end()];
        let (done, result) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let ended = op.map(|op| op(&a));
            // A rank that computes stays until it has been told.
            let told = a.group_end().wait(PATIENCE);
            done.send((ended, told))
        });
        // Blocked: it has waited for the same rank at 100 checks in a row, however late its thread began.
        let deadline = Instant::now() + PATIENCE;
        let mut looks = 0;
        while looks < 100 {
            assert!(Instant::now() < deadline, "rank 0 never waits for rank {suspect}");
            let ended = result.recv_timeout(Duration::from_millis(1));
            assert!(ended.is_err(), "{ended:?}");
            let waits = ends[0].0.waiting.load(std::sync::atomic::Ordering::Relaxed) == suspect;
            looks = if waits { looks + 1 } else { 0 };
        }
        ends[0].give_up("test over");
        let (ended, _) = result.recv_timeout(PATIENCE).expect("the rank returns");
        assert!(ended.is_none_or(|ended| ended.is_err()));
        for group_end in ends {
            let abort = group_end.wait(PATIENCE).expect("all ranks learn the reason");
            assert_eq!((abort.suspect, abort.reason.as_str()), (Some(suspect), "test over"));
        }
    }
}

#[test]
fn other_epochs_are_rejected() {
    let listeners = [listen(), listen()];
    let addresses: Vec<String> = listeners.iter().map(|listener| listener.address().to_string()).collect();
    listeners[0].fence("g", 5);
    let late = listeners[1].join(&member(4, 1, &addresses), PATIENCE);
    assert!(matches!(late, Err(JoinError::Stale { epoch: 4, .. })), "{:?}", late.err());
    // A waiting join fails as soon as its epoch has ended.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| listeners[0].join(&member(5, 0, &addresses), PATIENCE));
        listeners[0].fence("g", 6);
        let told = waiting.join().expect("no panic");
        assert!(matches!(told, Err(JoinError::Stale { epoch: 5, .. })), "{:?}", told.err());
    });
    // The same listeners serve the next epoch.
    for rank in pair(&listeners, 6, &addresses) {
        assert_eq!(rank.expect("both come").size(), 2);
    }
}

/// A hello for an unknown group.
fn invented_hello(number: u64) -> Vec<u8> {
    let mut hello = [b"REIN3".as_slice(), &1u32.to_le_bytes(), &[0], &number.to_le_bytes()].concat();
    [1u32, 0, 2].iter().for_each(|part| hello.extend(part.to_le_bytes()));
    hello.extend([1, b'x']);
    hello
}

#[test]
fn connections_for_unknown_groups_are_closed() {
    let listeners = [listen(), listen()];
    let addresses: Vec<String> = listeners.iter().map(|listener| listener.address().to_string()).collect();
    for number in 0..300 {
        let mut stranger = TcpStream::connect(listeners[0].address()).expect("it listens");
        stranger.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stranger.write_all(&invented_hello(number)).expect("sent");
        assert_eq!(stranger.read(&mut [0]).expect("an end, not silence"), 0);
    }
    for rank in pair(&listeners, 1, &addresses) {
        assert_eq!(rank.expect("both come").size(), 2);
    }
}

#[test]
fn slow_connections_do_not_block_ranks() {
    let listeners = [listen(), listen()];
    let addresses: Vec<String> = listeners.iter().map(|listener| listener.address().to_string()).collect();
    let connect = |_| TcpStream::connect(listeners[0].address()).expect("it listens");
    let mut dripping: Vec<TcpStream> = (0..300).map(connect).collect();
    let (stop, stopped) = std::sync::mpsc::sync_channel::<()>(1);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for byte in invented_hello(1).into_iter().chain(std::iter::repeat(0)) {
                // Some are closed already.
                dripping.iter_mut().for_each(|stream| drop(stream.write_all(&[byte])));
                if stopped.recv_timeout(Duration::from_millis(500)) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        let ranks = pair(&listeners, 1, &addresses);
        drop(stop);
        for rank in ranks {
            assert_eq!(rank.expect("both come").size(), 2);
        }
    });
}

#[test]
fn missing_ranks_are_named_and_strangers_are_ignored() {
    let listeners = [listen(), listen()];
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let addresses = [listeners[0].address().to_string(), nobody.to_string()];
    let mut stranger = TcpStream::connect(listeners[0].address()).expect("it listens");
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    let alone = listeners[0].join(&member(1, 0, &addresses), Duration::from_millis(200));
    assert!(matches!(&alone, Err(JoinError::Missing { missing, .. }) if missing == &[1]), "{:?}", alone.err());
}

#[test]
fn ranks_of_two_protocols_fail_to_link_at_once() {
    let listeners = [listen(), listen()];
    let addresses: Vec<String> = listeners.iter().map(|listener| listener.address().to_string()).collect();
    let began = Instant::now();
    let short = Duration::from_secs(1);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| listeners[0].join(&member(1, 0, &addresses), short).map(drop));
        let comes = listeners[1].join(&JoinRequest { protocol: 2, ..member(1, 1, &addresses) }, PATIENCE).map(drop);
        let error = comes.expect_err("of another release");
        assert!(matches!(error, JoinError::Foreign { rank: 0, protocol: 2, .. }), "{error}");
        assert!(matches!(waits.join().expect("no panic"), Err(JoinError::Missing { .. })));
    });
    assert!(began.elapsed() < PATIENCE);
    for rank in pair(&listeners, 2, &addresses) {
        assert_eq!(rank.expect("of one release").size(), 2);
    }
}

/// The time limit applies however steadily the bytes arrive.
#[test]
fn a_hello_that_takes_too_long_is_closed() {
    let listener = listen();
    let mut slow = TcpStream::connect(listener.address()).expect("it listens");
    slow.set_read_timeout(Some(Duration::from_millis(250))).expect("a socket");
    let began = Instant::now();
    let closed = invented_hello(1).into_iter().any(|byte| {
        // It may have been closed already.
        let _ = slow.write_all(&[byte]);
        match slow.read(&mut [0]) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => false,
            Ok(0) | Err(_) => true,
            Ok(_) => panic!("an answer to half a hello"),
        }
    });
    assert!(closed, "a hello of 30 bytes at four bytes per second was read completely");
    let ended = began.elapsed();
    assert!(ended > Duration::from_secs(4) && ended < Duration::from_secs(10), "{ended:?}");
}

#[test]
fn a_probe_reports_whether_a_worker_is_at_an_address_and_why_not() {
    const TIME: Duration = Duration::from_millis(500);
    let [here, there] = [listen(), listen()];
    there.register("w1");
    there.register("w2");
    let address = there.address().to_string();
    for name in ["w1", "w2"] {
        here.probe(&address, name, TIME).expect("it is there");
    }
    let fails = |address: &str, name| here.probe(address, name, TIME).expect_err("it is not there");
    assert!(matches!(fails(&address, "w3"), ProbeError::Elsewhere { .. }));
    let silent = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = silent.local_addr().expect("bound").to_string();
    let began = Instant::now();
    assert!(matches!(fails(&address, "w1"), ProbeError::Silent { .. }));
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    let foreign = std::thread::spawn(move || {
        let mut answering = silent.incoming().skip(1).map(|stream| stream.expect("a client"));
        let mut answer = |bytes: &[u8]| {
            let mut client = answering.next().expect("a client");
            let mut hello = [0; 5];
            client.read_exact(&mut hello).and_then(|()| client.write_all(bytes)).expect("said");
        };
        answer(b"HTTP/1.1 400 Bad Request");
        answer(b"");
        // The listener is dropped here.
    });
    assert!(matches!(fails(&address, "w1"), ProbeError::Foreign { .. }));
    assert!(matches!(fails(&address, "w1"), ProbeError::Refused { .. }));
    foreign.join().expect("no panic");
    for gone in [address.as_str(), "127.0.0.1:1", "no-such-host.invalid:1", "no address"] {
        let error = fails(gone, "w1");
        assert!(matches!(&error, ProbeError::Connect { .. }), "{error}");
    }
    // Ranks link as before.
    let listeners = [here, there];
    let addresses: Vec<String> = listeners.iter().map(|listener| listener.address().to_string()).collect();
    for rank in pair(&listeners, 1, &addresses) {
        assert_eq!(rank.expect("both come").size(), 2);
    }
}
