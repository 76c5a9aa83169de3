//! Which bytes ranks send over NCCL, as our own NCCL counts them, which `tests/py/test_cuda_ranks.py` has.

use super::ranks::{By, on_ranks};
use super::steps::{decode, tables};
use super::*;
use crate::cuda::ranks::{HolderTable, LayerRoutes};

const RANKS: usize = 4;

/// A function of our own NCCL.
fn sent_of() -> unsafe extern "C" fn(*mut std::ffi::c_void) -> u64 {
    // SAFETY: as in `NcclLibrary::open`.
    let library = unsafe { libc::dlopen(c"libnccl.so.2".as_ptr(), libc::RTLD_NOW) };
    // SAFETY: the name ends with a zero byte; no library at all is searched for it too.
    let found = unsafe { libc::dlsym(library, c"rein_fake_sent".as_ptr()) };
    assert!(!found.is_null(), "libnccl.so.2 is not Rein's own");
    // SAFETY: nccl.cpp declares this type.
    unsafe { std::mem::transmute(found) }
}

/// The bytes that each rank sends to others over NCCL in `f`.
fn sent(by: By, f: impl Fn(&mut Cuda) + Sync) -> Vec<u64> {
    let sent = sent_of();
    // SAFETY: our own NCCL knows all handles.
    let of =
        |cuda: &Cuda| unsafe { sent(cuda.group.data.as_ref().and_then(|data| data.nccl()).expect("linked").handle()) };
    on_ranks(by, RANKS, |cuda| {
        let before = of(cuda);
        f(cuda);
        cuda.ops.check().expect("no error");
        of(cuda) - before
    })
}

fn sum(cuda: &Cuda, rows: usize, cols: usize, whole: usize) {
    cuda.group.whole_sum.set(whole);
    let mut x = cuda.to_device(rows, cols, vec![cuda.rank() as f32; rows * cols]);
    cuda.all_reduce(&mut x).expect("a sum");
    assert_eq!(cuda.to_host(&x), vec![6.0; rows * cols]);
}

#[test]
#[ignore = "needs a CUDA driver and NCCL: tests/py/test_cuda_ranks.py"]
fn sums_send_each_rank_what_it_adds_up() {
    let (rows, cols) = (8, 50);
    let bytes = (4 * rows * cols) as u64;
    let others = RANKS as u64 - 1;
    let whole = sent(By::Nccl, |cuda| sum(cuda, rows, cols, usize::MAX));
    assert_eq!(whole, [others * bytes; RANKS]);
    // Each rank's share of the rows, and the sums of its own: what a ring sends.
    let split = sent(By::Nccl, |cuda| sum(cuda, rows, cols, 0));
    assert_eq!(split, [2 * others * bytes / RANKS as u64; RANKS]);
}

/// Each of `RANKS` ranks reads 3 parts of 1600 bytes of the others.
#[test]
#[ignore = "needs a CUDA driver and NCCL: tests/py/test_cuda_ranks.py"]
fn sums_up_to_the_limit_are_read_by_peers_and_larger_ones_go_over_nccl() {
    let read = 3 * 1600;
    let f = |most| {
        move |cuda: &mut Cuda| {
            cuda.group.most_by_peers.set(most);
            sum(cuda, 8, 50, usize::MAX);
        }
    };
    let below = sent(By::Both(0), f(read));
    assert_eq!(below, [0; RANKS]);
    assert_eq!(sent(By::Both(0), f(read - 1)), [read as u64; RANKS]);
    // Split, the parts are small, and so is what is joined: each exchange chooses.
    let split = |most| {
        move |cuda: &mut Cuda| {
            cuda.group.most_by_peers.set(most);
            sum(cuda, 8, 50, 0);
        }
    };
    assert_eq!(sent(By::Both(0), split(1200)), [0; RANKS]);
    assert_eq!(sent(By::Both(0), split(1199)), [2 * 1200; RANKS]);
}

/// The parts of one layer's experts, added over ranks.
fn combine(cuda: &mut Cuda, rows: usize, n: usize, whole: usize) {
    cuda.group.whole_sum.set(whole);
    let tables = tables(rows);
    let batch = cuda.begin(decode(&tables, |row| row as u32, 0)).expect("begins");
    let holders = (0..EXPERTS).map(|expert| vec![(expert % RANKS) as u32]).collect();
    let holders = HolderTable::new(&cuda.ops.device, &ExpertTable { layer: 0, holders }, RANKS).expect("holders");
    let ids: Vec<u32> = (0..rows * TOP_K).map(|route| (route % EXPERTS) as u32).collect();
    let (ids, weights) =
        (cuda.ops.upload(&ids).expect("ids"), cuda.ops.upload(&vec![1f32; rows * TOP_K]).expect("weights"));
    let (ids, weights) = (ids.address(), weights.address());
    let routes = LayerRoutes { layer: 0, rows, top_k: TOP_K, ids, weights };
    let (over, batch) = (cuda.over_ranks(), cuda.steps.placed(&batch));
    let dispatched = over.dispatch(&batch, routes, &holders);
    let parts = cuda.to_device(rows * TOP_K, n, vec![1.5; rows * TOP_K * n]);
    let sums = over.combine_over_ranks(&batch, routes, &dispatched, &parts, None);
    assert_eq!(cuda.to_host(&sums), vec![1.5 * TOP_K as f32; rows * n]);
}

/// As docs/decisions/0010 counts them: over NCCL, a small step sends the places of all routes, a large one what is
/// needed; peers read what is needed and nothing else.
#[test]
#[ignore = "needs a CUDA driver and NCCL: tests/py/test_cuda_ranks.py"]
fn the_parts_of_experts_travel_as_documented() {
    let (rows, n) = (8, 50);
    let row = 4 * n as u64;
    let others = RANKS as u64 - 1;
    let whole = sent(By::Nccl, |cuda| combine(cuda, rows, n, usize::MAX));
    assert_eq!(whole, [others * (rows * TOP_K) as u64 * row; RANKS]);
    let split = sent(By::Nccl, |cuda| combine(cuda, rows, n, 0));
    let sums = others * rows as u64 * row / RANKS as u64;
    // Route i goes to rank i % EXPERTS % RANKS, its row is added up by rank i / TOP_K * RANKS / rows.
    let needed = |rank: usize| {
        let routes = (0..rows * TOP_K).filter(|i| i % EXPERTS % RANKS == rank && i / TOP_K * RANKS / rows != rank);
        routes.count() as u64 * row
    };
    let want: Vec<u64> = (0..RANKS).map(|rank| needed(rank) + sums).collect();
    assert!(want.iter().sum::<u64>() < RANKS as u64 * (sums + others * row * (rows * TOP_K / RANKS) as u64));
    assert_eq!(split, want);
    // Ranks of one process need no NCCL for parts, however large they are; the sums of a split one are whole again.
    assert_eq!(sent(By::Both(0), |cuda| combine(cuda, rows, n, usize::MAX)), [0; RANKS]);
    assert_eq!(sent(By::Both(0), |cuda| combine(cuda, rows, n, 0)), [sums; RANKS]);
}
