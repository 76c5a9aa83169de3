//! Ranks of one group in separate processes, simulated with TCP links.

use std::time::Duration;

use prost::Message;
use rein_kernels::collective::{AbortHandle, ControlLink, tcp};
use rein_kernels::cpu::Cpu;

use super::*;

/// Each rank's link over TCP, and a handle to end the group.
fn links(ranks: usize) -> (Vec<Box<dyn Collective>>, AbortHandle) {
    let listeners: Vec<_> =
        (0..ranks).map(|_| tcp::RankListener::bind("127.0.0.1:0", tcp::plain()).expect("loopback")).collect();
    let addresses: Vec<String> = listeners.iter().map(|listener| listener.address().to_string()).collect();
    let links: Vec<_> = std::thread::scope(|scope| {
        let joins = listeners.iter().enumerate().map(|(rank, listener)| {
            let member =
                tcp::JoinRequest { group: "g".into(), epoch: 1, rank, protocol: 1, addresses: addresses.clone() };
            scope.spawn(move || listener.join(&member, Duration::from_secs(20)).expect("all come"))
        });
        let joins: Vec<_> = joins.collect();
        joins.into_iter().map(|join| join.join().expect("no panic")).collect()
    });
    let abort = links[0].abort_handle();
    (links.into_iter().map(|link| Box::new(link) as Box<dyn Collective>).collect(), abort)
}

/// Loads each rank separately; the weights that they return go into `resident_weights`, by rank.
fn seat_apart(
    model: &ModelLoader,
    links: Vec<Box<dyn Collective>>,
    resident_weights: Vec<Vec<ResidentWeights>>,
    return_weights: &Sender<ResidentWeights>,
) -> Vec<Result<Seated, LoadError>> {
    let placement = Arc::new(place(&model.shape(), links.len(), 1).expect("a placement"));
    std::thread::scope(|scope| {
        let seats = links.into_iter().zip(resident_weights).map(|(link, resident_weights)| {
            let (placement, return_weights) = (&placement, return_weights.clone());
            scope.spawn(move || {
                model.seat(placement, vec![link], resident_weights, Some(return_weights), &mut |_, _| ())
            })
        });
        let seats: Vec<_> = seats.collect();
        seats.into_iter().map(|seat| seat.join().expect("no panic")).collect()
    })
}

fn lead(seats: Vec<Result<Seated, LoadError>>) -> (RankGroup, Vec<Seated>) {
    let mut seats = seats.into_iter().map(|seat| seat.expect("seated"));
    let leader = seats.next().expect("rank 0").executor().expect("it leads");
    (leader, seats.collect())
}

fn steps(group: &mut RankGroup) -> Vec<RowResult> {
    let mut results = Vec::new();
    // Where two ranks share positions, the second has those from 64 on, and the odd blocks.
    let blocks: Vec<u32> = (0..15).map(|place| place % 8 * 2 + place / 8).collect();
    for i in 0..4 {
        let tokens: Vec<u32> = (0..30).map(|j| 5 + i + j).collect();
        let rows = vec![row(1, &tokens, 30 * i as usize, &blocks[..(30 * i as usize + 30).div_ceil(8)], After::Draw)];
        let step = Step { epoch: 1, id: u64::from(i), rows, ..Step::default() };
        results.extend(group.execute(step).expect("executes").rows);
    }
    results
}

#[test]
fn separate_ranks_give_the_same_results_as_threads_and_keep_their_weights() {
    same_apart("deepseek_v3", &ModelOptions { tp: 2, ..f32_options() });
    // Pairs of ranks share a KV head's positions.
    same_apart("gpt_oss", &ModelOptions { tp: 4, kv_parallel: true, ..f32_options() });
}

fn same_apart(name: &str, options: &ModelOptions) {
    let (fixture, tp) = (fixture(name), options.tp);
    let none = || (0..tp).map(|_| Vec::new()).collect();
    let together = steps(&mut load(&fixture.dir, options));
    let model = ModelLoader::open(&fixture.dir, options).expect("opens");
    let (return_weights, returned) = bounded(8);
    let (first, abort) = links(tp);
    let (mut group, followers) = lead(seat_apart(&model, first, none(), &return_weights));
    assert_eq!(steps(&mut group), together);
    abort.abort("another epoch");
    // The leader's rank ends with its group, the other one with the links.
    drop(followers);
    drop(group);
    let mut back: Vec<_> = returned.try_iter().filter_map(ResidentWeights::on::<Cpu>).collect();
    let rank = |resident: &DeviceWeights<Cpu>| resident.network.rank().rank;
    back.sort_by_key(rank);
    assert!(back.iter().map(rank).eq(0..tp));
    // Loaded again, nothing is read.
    let (second, _) = links(tp);
    let placement = Arc::new(place(&model.shape(), tp, 1).expect("a placement"));
    let again = std::thread::scope(|scope| {
        let seats: Vec<_> = second
            .into_iter()
            .zip(back.into_iter().map(ResidentWeights::new))
            .map(|(link, resident)| {
                let (model, placement) = (&model, &placement);
                scope.spawn(move || {
                    let mut read = 0;
                    let seated = model.seat(placement, vec![link], vec![resident], None, &mut |_, total| read += total);
                    assert_eq!(read, 0, "bytes were read");
                    seated
                })
            })
            .collect();
        seats.into_iter().map(|seat| seat.join().expect("no panic")).collect()
    });
    let (mut group, _followers) = lead(again);
    assert_eq!(steps(&mut group), together);
    drop(group);
}

#[test]
fn a_lost_rank_ends_the_group_and_no_rank_hangs() {
    let fixture = fixture("llama3");
    let model = ModelLoader::open(&fixture.dir, &ModelOptions { tp: 2, ..f32_options() }).expect("opens");
    let (return_weights, _returned) = bounded(8);
    let (links, abort) = links(2);
    let (mut group, followers) = lead(seat_apart(&model, links, vec![Vec::new(), Vec::new()], &return_weights));
    steps(&mut group);
    abort.abort("rank 1: out of memory");
    let step = Step { epoch: 1, id: 9, rows: vec![row(1, &[5], 0, &[0], After::Draw)], ..Step::default() };
    for _ in 0..2 {
        match group.execute(step.clone()) {
            Err(ExecutorError::Lost(why)) => assert!(why.contains("rank 1: out of memory"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    drop(followers);
    drop(group);
}

#[test]
fn all_ranks_use_the_smallest_number_of_kv_blocks() {
    let fixture = fixture("llama3");
    let open = |blocks| {
        let options = ModelOptions { tp: 2, kv_blocks: Some(blocks), ..f32_options() };
        ModelLoader::open(&fixture.dir, &options).expect("opens")
    };
    let models = [open(9), open(5)];
    let placement = Arc::new(place(&models[0].shape(), 2, 1).expect("a placement"));
    let (links, _) = links(2);
    let seats: Vec<Seated> = std::thread::scope(|scope| {
        let seats = links.into_iter().zip(&models).map(|(link, model)| {
            let placement = &placement;
            scope.spawn(move || model.seat(placement, vec![link], Vec::new(), None, &mut |_, _| ()).expect("seated"))
        });
        let seats: Vec<_> = seats.collect();
        seats.into_iter().map(|seat| seat.join().expect("no panic")).collect()
    });
    assert_eq!(seats.iter().map(|seat| (seat.plan.blocks, seat.leads())).collect::<Vec<_>>(), [(5, true), (5, false)]);
    let mut seats = seats.into_iter();
    let group = seats.next().and_then(Seated::executor).expect("the leader");
    assert_eq!((group.shape().blocks, group.shape().max_context), (5, 40));
    drop(group);
}

#[test]
fn ranks_without_room_for_the_context_fail_to_load() {
    let fixture = fixture("llama3");
    let open = |blocks, max_context| {
        let options = ModelOptions { tp: 2, kv_blocks: Some(blocks), max_context, ..f32_options() };
        ModelLoader::open(&fixture.dir, &options).expect("opens")
    };
    let models = [open(9, Some(72)), open(5, None)];
    let placement = Arc::new(place(&models[0].shape(), 2, 1).expect("a placement"));
    let (links, _) = links(2);
    let errors: Vec<Option<String>> = std::thread::scope(|scope| {
        let seats = links.into_iter().zip(&models).map(|(link, model)| {
            let placement = &placement;
            scope.spawn(move || {
                model.seat(placement, vec![link], Vec::new(), None, &mut |_, _| ()).err().map(|e| e.to_string())
            })
        });
        let seats: Vec<_> = seats.collect();
        seats.into_iter().map(|seat| seat.join().expect("no panic")).collect()
    });
    assert!(errors[0].as_ref().is_some_and(|error| error.contains("72 tokens exceed the KV cache")), "{errors:?}");
}

/// The test is the leader.
#[test]
fn a_follower_rejects_steps_of_another_epoch() {
    let fixture = fixture("llama3");
    let model = ModelLoader::open(&fixture.dir, &ModelOptions { tp: 2, ..f32_options() }).expect("opens");
    let placement = Arc::new(place(&model.shape(), 2, 1).expect("a placement"));
    for epoch in [0, 2] {
        let (mut links, _) = links(2);
        let follows = links.pop().expect("rank 1");
        let leader = links.pop().expect("rank 0");
        let follower = std::thread::scope(|scope| {
            let seat = scope.spawn(|| model.seat(&placement, vec![follows], Vec::new(), None, &mut |_, _| ()));
            leader.gather_bytes(&16u64.to_le_bytes()).expect("both have KV blocks");
            leader.gather_bytes(&0u64.to_le_bytes()).expect("neither has a host tier");
            seat.join().expect("no panic").expect("seated")
        });
        let rows = vec![row(1, &[5], 0, &[0], After::Draw)];
        let step = Step { epoch, rows, ..Step::default() };
        leader.share(0, &mut step.encode_to_vec()).expect("it follows");
        // It takes no part in the collectives of the step.
        let (done, refused) = bounded(1);
        let leader = std::thread::spawn(move || {
            // The receiver is gone if the test has failed.
            let _ = done.send(leader.all_reduce(&mut [0.0; 3]));
        });
        let refused = refused.recv_timeout(Duration::from_secs(5)).expect("the group ends").expect_err("refused");
        assert!(refused.to_string().contains(&format!("step of epoch {epoch}, placement of epoch 1")), "{refused}");
        leader.join().expect("no panic");
        drop(follower);
    }
}
