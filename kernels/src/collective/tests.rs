//! Properties of all collectives, tested on every kind.

use std::{
    sync::{Barrier, mpsc::sync_channel},
    time::{Duration, Instant},
};

use super::{Collective, tcp, threads};

type Rank = Box<dyn Collective>;
type Group = fn(usize) -> Vec<Rank>;

fn over_threads(size: usize) -> Vec<Rank> {
    threads::group(size).into_iter().map(|rank| Box::new(rank) as Rank).collect()
}

fn over_tcp(size: usize) -> Vec<Rank> {
    let listeners: Vec<_> =
        (0..size).map(|_| tcp::RankListener::bind("127.0.0.1:0", tcp::plain()).expect("loopback")).collect();
    let addresses: Vec<String> = listeners.iter().map(|listener| listener.address().to_string()).collect();
    std::thread::scope(|scope| {
        let joins: Vec<_> = listeners
            .iter()
            .enumerate()
            .map(|(rank, listener)| {
                let member =
                    tcp::JoinRequest { group: "g".into(), epoch: 1, rank, protocol: 1, addresses: addresses.clone() };
                scope.spawn(move || listener.join(&member, Duration::from_secs(20)).expect("all come"))
            })
            .collect();
        joins.into_iter().map(|join| Box::new(join.join().expect("no panic")) as Rank).collect()
    })
}

/// Time in which a rank that does not wait for others would finish.
const BLOCKED: Duration = Duration::from_millis(50);
/// Time in which an abort must have woken every rank.
const WOKEN: Duration = Duration::from_secs(1);
const KINDS: [Group; 2] = [over_threads, over_tcp];

/// Runs `f` on every rank's own thread; results in rank order. All ranks live until the last is done.
fn on_ranks<R: Send>(ranks: Vec<Rank>, f: impl Fn(&dyn Collective) -> R + Sync) -> Vec<R> {
    let done = Barrier::new(ranks.len());
    std::thread::scope(|scope| {
        let run = |rank: Rank| {
            let (f, done) = (&f, &done);
            scope.spawn(move || {
                let result = f(&*rank);
                done.wait();
                result
            })
        };
        let threads: Vec<_> = ranks.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn sums_have_the_same_bits_everywhere() {
    // Both ways of a TCP group: sent to all, and split.
    for (len, rounds) in [(7, 200), (40_001, 3)] {
        for size in [1, 2, 3, 5] {
            let sums = KINDS.map(|kind| {
                on_ranks(kind(size), |rank| {
                    let term = |i: usize, round| 0.1 * (i + 1) as f32 * 10f32.powi(rank.rank() as i32) + round as f32;
                    let sum = |round| {
                        let mut x: Vec<f32> = (0..len).map(|i| term(i, round)).collect();
                        rank.all_reduce(&mut x).expect("alive");
                        x.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                    };
                    (0..rounds).map(sum).collect::<Vec<_>>()
                })
            });
            for (round, sums) in sums[0][0].iter().enumerate() {
                for (i, &sum) in sums.iter().enumerate() {
                    let term = |rank: i32| 0.1 * (i + 1) as f32 * 10f32.powi(rank) + round as f32;
                    let want = (1..size as i32).fold(term(0), |sum, rank| sum + term(rank));
                    assert_eq!(sum, want.to_bits());
                }
            }
            assert!(sums.iter().flatten().all(|sum| *sum == sums[0][0]), "{size} ranks, {len} values");
        }
    }
}

#[test]
fn gather_scatter_and_broadcast_deliver_all_values() {
    for kind in KINDS {
        let results = on_ranks(kind(3), |rank| {
            let r = rank.rank();
            let gathered = rank.all_gather(&vec![r as f32; r + 1]).expect("alive");
            let parts = (0..3).map(|to| vec![(10 * r + to) as f32; to * 20_000]).collect();
            let received = rank.all_to_all(parts).expect("alive");
            let at_one = rank.gather(1, &vec![r as f32; 2 * r]).expect("alive");
            let mut x = vec![r as f32; 50_000];
            rank.broadcast(2, &mut x).expect("alive");
            let mut shared = [vec![7; 100_001], Vec::new()].map(|bytes| if r == 1 { bytes } else { vec![1, 2, 3] });
            shared.iter_mut().for_each(|bytes| rank.share(1, bytes).expect("alive"));
            assert_eq!(shared, [vec![7; 100_001], Vec::new()]);
            let bytes = rank.gather_bytes(&vec![r as u8; r]).expect("alive");
            assert_eq!(bytes, [vec![], vec![1], vec![2, 2]]);
            (gathered, received, at_one, x)
        });
        for (r, (gathered, received, at_one, x)) in results.into_iter().enumerate() {
            assert_eq!(gathered, [vec![0.0], vec![1.0; 2], vec![2.0; 3]]);
            assert_eq!(received, (0..3).map(|from| vec![(10 * from + r) as f32; r * 20_000]).collect::<Vec<_>>());
            let all = vec![vec![], vec![1.0; 2], vec![2.0; 4]];
            assert_eq!(at_one, if r == 1 { all } else { Vec::new() });
            assert_eq!(x, vec![2.0; 50_000]);
        }
    }
}

#[test]
fn ranks_that_disagree_get_an_error() {
    for kind in KINDS {
        let results = on_ranks(kind(2), |rank| rank.all_reduce(&mut vec![0.0; 1 + rank.rank()]));
        assert!(results.iter().all(Result::is_err), "{results:?}");
        let results = on_ranks(kind(2), |rank| match rank.rank() {
            0 => rank.all_reduce(&mut [0.0]),
            _ => rank.all_gather(&[0.0]).map(drop),
        });
        assert!(results.iter().all(Result::is_err), "{results:?}");
    }
}

/// Its error, as text.
type Op = fn(&dyn Collective) -> Result<(), String>;

/// All but the last rank are blocked in `op`; then `end` is called with the last one. All must return `why` in time,
/// while the last rank lives if `end` returns it. Their threads are not joined: those of a broken group would block the
/// test.
fn all_wake(kind: Group, op: Op, why: &str, end: impl FnOnce(Rank) -> Option<Rank>) {
    let mut ranks = kind(4);
    let last = ranks.pop().expect("four");
    let (done, results) = sync_channel(4);
    for rank in ranks {
        let done = done.clone();
        std::thread::spawn(move || done.send(op(&*rank)));
    }
    // Long enough to be parked.
    assert!(results.recv_timeout(BLOCKED).is_err(), "a rank returned without the last one");
    let began = Instant::now();
    let _last = end(last);
    for woken in 0..3 {
        let left = WOKEN.saturating_sub(began.elapsed());
        let result = results.recv_timeout(left).unwrap_or_else(|_| panic!("{woken} of three ranks woke"));
        assert_eq!(result.expect_err("aborted"), format!("collective aborted: {why}"));
    }
}

/// Blocked before anything comes from the last rank.
fn waits(rank: &dyn Collective) -> Result<(), String> {
    rank.all_reduce(&mut [1.0]).map_err(|error| error.to_string())
}

/// Blocked because the last rank does not receive: the data exceeds any socket's buffers.
fn gives(rank: &dyn Collective) -> Result<(), String> {
    let given = rank.all_to_all(vec![vec![0.5; 2 << 20]; rank.size()]);
    given.map(drop).map_err(|error| error.to_string())
}

#[test]
fn an_abort_wakes_every_blocked_rank() {
    for kind in KINDS {
        for op in [waits as Op, gives] {
            all_wake(kind, op, "test over", |last| {
                let watch = last.abort_watch();
                assert_eq!(watch.reason(), None);
                last.abort_handle().abort("test over");
                assert_eq!(watch.reason().as_deref(), Some("test over"));
                let late = last.all_gather(&[1.0]).expect_err("the group is over").to_string();
                assert_eq!(late, "collective aborted: test over");
                Some(last)
            });
        }
    }
}

#[test]
fn a_dropped_rank_aborts_the_others() {
    for kind in KINDS {
        for op in [waits as Op, gives] {
            all_wake(kind, op, "rank 3 left the group", |_| None);
        }
    }
}
