//! Ranks of one process on one device: what they exchange, against the threads' collectives.

use super::*;
use crate::collective::{Collective, ControlLink, tcp, threads};
use crate::cuda::ranks::hang_time;

/// How the ranks of a test are linked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum By {
    /// All on device 0.
    Peers,
    /// Each on a device of its own, as in processes of their own.
    Nccl,
    /// Each on a device of its own. Not more than this many bytes are read by peers.
    Both(usize),
}

/// All of them. NCCL links at most as many ranks as there are devices.
const LINKS: [By; 4] = [By::Peers, By::Nccl, By::Both(0), By::Both(600)];

fn open_devices(by: By, ranks: usize) -> CudaDevices {
    let indices: Vec<usize> = (0..ranks).map(|rank| if by == By::Peers { 0 } else { rank }).collect();
    CudaDevices::open(&indices).expect("devices")
}

fn connected(devices: &CudaDevices, by: By, rank: usize, ranks: usize, link: threads::Threads) -> Cuda {
    connected_within(devices, by, rank, ranks, link, hang_time(None))
}

/// With another limit for a device that waits in vain.
fn connected_within(
    devices: &CudaDevices,
    by: By,
    rank: usize,
    ranks: usize,
    link: threads::Threads,
    hang_time: std::time::Duration,
) -> Cuda {
    let mut cuda = devices.open(rank, ranks, Box::new(link)).expect("a backend");
    cuda.group.hang_time = hang_time;
    // Fewer ranks in this process than in the group: they need NCCL.
    cuda.connect(if by == By::Nccl { 1 } else { ranks }).expect("connected");
    if let By::Both(most) = by {
        cuda.group.most_by_peers.set(most);
    }
    cuda
}

/// Runs `f` on a backend for each rank. Results in rank order.
pub(super) fn on_ranks<R: Send>(by: By, ranks: usize, f: impl Fn(&mut Cuda) -> R + Sync) -> Vec<R> {
    let devices = open_devices(by, ranks);
    let run = |rank, link| {
        let mut cuda = connected(&devices, by, rank, ranks, link);
        let result = f(&mut cuda);
        // No rank leaves before all are done.
        cuda.group.meet_on_hosts().expect("all are alive");
        result
    };
    std::thread::scope(|scope| {
        let run = &run;
        let links = threads::group(ranks).into_iter().enumerate();
        let threads: Vec<_> = links.map(|(rank, link)| scope.spawn(move || run(rank, link))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// This rank's numbers: magnitudes differ, so that the order of additions shows.
fn part(rank: usize, rows: usize, cols: usize) -> Vec<f32> {
    let mut random = Random::new((31 * rank + rows) as u64);
    random.numbers(rows * cols, 10f32.powi(rank as i32 % 5))
}

/// What the threads' collectives make of the same parts.
fn sums(ranks: usize, rows: usize, cols: usize) -> Vec<u32> {
    let links = threads::group(ranks);
    let results: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let run = |link: threads::Threads| {
            let mut x = part(link.rank(), rows, cols);
            link.all_reduce(&mut x).expect("alive");
            bits(&x)
        };
        let threads: Vec<_> = links.into_iter().map(|link| scope.spawn(move || run(link))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(results.iter().all(|sum| *sum == results[0]));
    results[0].clone()
}

#[test]
#[ignore = "needs a CUDA driver and NCCL: tests/py/test_cuda_ranks.py"]
fn sums_have_the_bits_of_the_threads_collectives() {
    let mut random = Random::new(5);
    let shapes: Vec<(usize, usize)> = (0..12).map(|_| (1 + random.below(9), 1 + random.below(700))).collect();
    for (ranks, by) in [1, 2, 3, 4, 7].into_iter().flat_map(|ranks| LINKS.map(|by| (ranks, by))) {
        // Whole, and split into rows of which each rank adds up its own.
        let found = on_ranks(by, ranks, |cuda| {
            let mut all = Vec::new();
            for whole in [usize::MAX, 0] {
                cuda.group.whole_sum.set(whole);
                for &(rows, cols) in &shapes {
                    let mut x = cuda.to_device(rows, cols, part(cuda.rank(), rows, cols));
                    cuda.all_reduce(&mut x).expect("a sum");
                    all.push(bits(&cuda.to_host(&x)));
                }
            }
            cuda.ops.check().expect("no error");
            all
        });
        for (rank, found) in found.iter().enumerate() {
            for (found, (rows, cols)) in found.iter().zip(shapes.iter().chain(&shapes)) {
                assert!(*found == sums(ranks, *rows, *cols), "{by:?}, rank {rank} of {ranks}: [{rows}, {cols}]");
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA driver and NCCL: tests/py/test_cuda_ranks.py"]
fn the_norm_of_a_sum_does_not_depend_on_how_it_travels() {
    for (ranks, by) in [2, 3].into_iter().flat_map(|ranks| LINKS.map(|by| (ranks, by))) {
        let found = on_ranks(by, ranks, |cuda| {
            let weight = cuda.vector(vec![1.25; 300]).expect("weight");
            let of = |cuda: &Cuda, whole| {
                cuda.group.whole_sum.set(whole);
                let mut x = cuda.to_device(5, 300, part(9, 5, 300));
                let y = cuda.to_device(5, 300, part(cuda.rank(), 5, 300));
                let norm = cuda.sum_norm(&mut x, y, 0.5, &weight, 1e-5).expect("a norm");
                (bits(&cuda.to_host(&x)), bits(&cuda.to_host(&norm)))
            };
            let found = [of(cuda, usize::MAX), of(cuda, 0)];
            assert!(found[0] == found[1], "whole and split");
            found
        });
        assert!(found.iter().all(|norms| *norms == found[0]), "all ranks have the same bits");
    }
}

/// A rank that leaves, or an abort, ends what the others wait for on the device. Then their backends, with their
/// weights, work in the next group.
#[test]
#[ignore = "needs a CUDA driver and NCCL: tests/py/test_cuda_ranks.py"]
fn the_end_of_a_group_ends_what_its_devices_wait_for() {
    for (leaves, by) in [false, true].into_iter().flat_map(|leaves| LINKS.map(|by| (leaves, by))) {
        let devices = open_devices(by, 3);
        let mut links = threads::group(3);
        let next: Vec<_> = threads::group(2).into_iter().collect();
        let all_connected = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            let (devices, all_connected) = (&devices, &all_connected);
            let last = links.pop().expect("three");
            let waiting: Vec<_> = links
                .into_iter()
                .zip(next)
                .enumerate()
                .map(|(rank, (link, next))| {
                    scope.spawn(move || {
                        let mut cuda = connected(devices, by, rank, 3, link);
                        all_connected.wait();
                        let mut x = cuda.to_device(2, 8, vec![1.0; 16]);
                        cuda.all_reduce(&mut x).expect("launched");
                        cuda.to_host(&x);
                        let why = cuda.group.check().expect_err("the group has ended").to_string();
                        drop(x);
                        cuda.relink(Box::new(next));
                        cuda.connect(if by == By::Nccl { 1 } else { 2 }).expect("connected again");
                        let mut x = cuda.to_device(2, 8, vec![1.5; 16]);
                        cuda.all_reduce(&mut x).expect("launched");
                        assert_eq!(cuda.to_host(&x), [3.0; 16], "{by:?}");
                        cuda.group.meet_on_hosts().expect("both are alive");
                        why
                    })
                })
                .collect();
            let cuda = connected(devices, by, 2, 3, last);
            all_connected.wait();
            let began = std::time::Instant::now();
            if leaves {
                drop(cuda);
            } else {
                cuda.control().abort("test over");
                // A second abort changes nothing.
                cuda.control().abort("twice");
            }
            for waiting in waiting {
                let why = waiting.join().expect("no panic");
                let want = if leaves { "rank 2 left the group" } else { "test over" };
                assert_eq!(why, format!("collective aborted: {want}"), "{by:?}");
            }
            assert!(began.elapsed() < std::time::Duration::from_secs(5), "{by:?}: {:?}", began.elapsed());
        });
    }
}

#[test]
#[ignore = "needs a CUDA driver and NCCL: tests/py/test_cuda_ranks.py"]
fn a_device_that_waits_in_vain_ends_its_group() {
    let limit = std::time::Duration::from_millis(300);
    for by in LINKS {
        let devices = open_devices(by, 2);
        let mut links = threads::group(2);
        let (second, first) = (links.pop().expect("two"), links.pop().expect("one"));
        let (over, is_over) = std::sync::mpsc::sync_channel::<()>(1);
        std::thread::scope(|scope| {
            let devices = &devices;
            let absent = scope.spawn(move || {
                let cuda = connected_within(devices, by, 1, 2, second, limit);
                // It does not come to the exchange, and does not leave either.
                is_over.recv().expect("told");
                cuda.group.check().expect_err("it has ended").to_string()
            });
            let cuda = connected_within(devices, by, 0, 2, first, limit);
            let mut x = cuda.to_device(2, 8, vec![1.0; 16]);
            cuda.all_reduce(&mut x).expect("launched");
            cuda.to_host(&x);
            over.send(()).expect("it waits");
            let why = "collective aborted: rank 0: its device has passed no exchange between ranks for 300ms";
            assert_eq!(cuda.group.check().expect_err("it has ended").to_string(), why, "{by:?}");
            assert_eq!(absent.join().expect("no panic"), why, "{by:?}");
        });
    }
}

#[test]
#[ignore = "needs a CUDA driver and NCCL: tests/py/test_cuda_ranks.py"]
fn two_ranks_on_one_gpu_are_an_error_that_names_both() {
    let devices = CudaDevices::open(&[0, 0]).expect("devices");
    let connect = |rank, link: threads::Threads| {
        let mut cuda = devices.open(rank, 2, Box::new(link)).expect("a backend");
        let error = cuda.connect(1).expect_err("one GPU").to_string();
        // No rank leaves before both know.
        cuda.group.meet_on_hosts().expect("both are alive");
        error
    };
    let errors: Vec<String> = std::thread::scope(|scope| {
        let connect = &connect;
        let links = threads::group(2).into_iter().enumerate();
        let threads: Vec<_> = links.map(|(rank, link)| scope.spawn(move || connect(rank, link))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    for error in errors {
        assert!(error.starts_with("collective aborted: ranks 0 and 1 are on the same GPU ("), "{error}");
    }
}

fn over_tcp(size: usize) -> Vec<tcp::Tcp> {
    let listeners: Vec<_> =
        (0..size).map(|_| tcp::RankListener::bind("127.0.0.1:0", tcp::plain()).expect("loopback")).collect();
    let addresses: Vec<String> = listeners.iter().map(|listener| listener.address().to_string()).collect();
    let join = |rank: usize, listener: &tcp::RankListener| {
        let addresses = addresses.clone();
        let member = tcp::JoinRequest { group: "g".into(), epoch: 1, rank, protocol: 1, addresses };
        listener.join(&member, std::time::Duration::from_secs(20)).expect("all come")
    };
    std::thread::scope(|scope| {
        let join = &join;
        let joins: Vec<_> =
            listeners.iter().enumerate().map(|(rank, listener)| scope.spawn(move || join(rank, listener))).collect();
        joins.into_iter().map(|join| join.join().expect("no panic")).collect()
    })
}

/// What a rank of NCCL 2.28.9 on a GPU of its own says before it joins.
fn facts() -> Vec<u8> {
    22809u32.to_le_bytes().into_iter().chain([0xee; 16]).collect()
}

/// A rank that hangs in NCCL's initialization: the other one names it.
#[test]
#[ignore = "needs a CUDA driver and NCCL: tests/py/test_cuda_ranks.py"]
fn a_rank_that_never_joins_is_named() {
    let devices = CudaDevices::open(&[0]).expect("devices");
    let mut links = over_tcp(2);
    let hangs = links.pop().expect("two");
    let (told, done) = std::sync::mpsc::sync_channel::<()>(1);
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            hangs.gather_bytes(&facts()).expect("alive");
            hangs.share(0, &mut Vec::new()).expect("alive");
            // Until the other rank has given up.
            done.recv().expect("told");
        });
        let mut cuda = devices.open(0, 1, Box::new(links.pop().expect("one"))).expect("a backend");
        cuda.group.join_time = std::time::Duration::from_millis(300);
        let error = cuda.connect(1).expect_err("rank 1 is missing").to_string();
        assert_eq!(error, "collective aborted: NCCL has made no communicator within 300ms: rank 1 does not answer");
        told.send(()).expect("it waits");
        other.join().expect("no panic");
    });
}

/// The id of a communicator that has ended is refused, and ends the group rather than the device.
#[test]
#[ignore = "needs a CUDA driver and NCCL: tests/py/test_cuda_ranks.py"]
fn an_id_of_another_epoch_ends_the_group() {
    let devices = CudaDevices::open(&[0]).expect("devices");
    let mut links = threads::group(2);
    let (second, first) = (links.pop().expect("two"), links.pop().expect("two"));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            first.gather_bytes(&facts()).expect("alive");
            let mut id = b"rein-fake-nccl-0-0-0".to_vec();
            id.resize(128, 0);
            first.share(0, &mut id).expect("alive");
            // Fails when the other rank has left.
            let _ = first.gather_bytes(&[]);
        });
        let mut cuda = devices.open(0, 1, Box::new(second)).expect("a backend");
        let error = cuda.connect(1).expect_err("an old id").to_string();
        assert_eq!(error, "collective aborted: ncclCommInitRankConfig failed: unhandled system error");
    });
}

#[test]
#[ignore = "needs a CUDA driver and NCCL: tests/py/test_cuda_ranks.py"]
fn a_group_must_be_connected_and_reach_its_devices() {
    let devices = devices();
    let link = threads::group(2).remove(0);
    let mut cuda = devices.open(0, 2, Box::new(link)).expect("a backend");
    let error = cuda.begin(StepInputs::default()).err().expect("not connected").to_string();
    assert_eq!(error, "begin: the ranks of a group must be connected before their first step");
    let mut x = cuda.to_device(1, 8, vec![1.0; 8]);
    cuda.all_reduce(&mut x).expect("ops keep their errors");
    let error = cuda.ops.check().expect_err("not connected").to_string();
    assert_eq!(error, "exchange: the ranks of a group must be connected before they exchange numbers");
    let error = devices.open_beside(1).err().expect("one device").to_string();
    assert_eq!(error, "rank 1 needs a device of its own, got 1 devices");
}
