//! Compares the index with a simple one, checks the guarantees of the choice, and runs both with random engines.

mod follow;

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rein_proto::internal::{EngineEvents, EngineLoad};

use super::*;

const SIZE: u32 = 4;
const NOW: Duration = Duration::ZERO;

fn events(reset: bool, stored: &[u64], removed: &[u64]) -> EngineEvents {
    EngineEvents {
        hash_version: block_hash::VERSION,
        block_size: SIZE,
        reset,
        complete: true,
        stored: stored.to_vec(),
        removed: removed.to_vec(),
        load: Some(EngineLoad::default()),
        ..EngineEvents::default()
    }
}

fn index() -> Arc<BlockIndex> {
    Arc::new(BlockIndex::new(1 << 20))
}

fn chain(salt: &str, tokens: &[u32]) -> Vec<u64> {
    block_hash::chain(salt, tokens, SIZE as usize).collect()
}

/// The slot of an engine that has these tokens cached.
fn slot_with(index: &Arc<BlockIndex>, tokens: &[u32]) -> EngineSlot {
    let slot = index.add_engine();
    assert!(slot.apply(&events(true, &chain("", tokens), &[]), 0));
    slot
}

fn matched<const N: usize>(index: &BlockIndex, index_slots: [&EngineSlot; N], tokens: &[u32]) -> [u32; N] {
    let matches = index.matches(&PromptHashes::new(index, "", tokens), NOW);
    index_slots.map(|slot| matches.cached_tokens(slot))
}

fn tokens(count: u32) -> Vec<u32> {
    (0..count).collect()
}

#[test]
fn a_match_is_the_longest_prefix_of_whole_blocks_with_the_same_salt() {
    let index = index();
    let (long, short) = (slot_with(&index, &tokens(20)), slot_with(&index, &tokens(8)));
    let other = slot_with(&index, &[7; 20]);
    assert_eq!(matched(&index, [&long, &short, &other], &tokens(30)), [20, 8, 0]);
    assert_eq!(matched(&index, [&long, &short, &other], &tokens(20)), [16, 8, 0], "the last token is always computed");
    assert_eq!(matched(&index, [&long, &short, &other], &[&tokens(12)[..], &[99; 9]].concat()), [12, 8, 0]);
    let salted = index.matches(&PromptHashes::new(&index, "tenant", &tokens(30)), NOW);
    assert_eq!(salted.cached_tokens(&long), 0);
    assert_eq!(matched(&index, [&long], &[]), [0]);
    // A missing block ends the match.
    assert!(long.apply(&events(false, &[], &chain("", &tokens(8))[1..]), 0));
    assert_eq!(matched(&index, [&long, &short], &tokens(30)), [4, 8]);
}

#[test]
fn engines_with_other_block_sizes_match_and_other_hash_versions_do_not() {
    let index = index();
    let four = slot_with(&index, &tokens(20));
    let eight = index.add_engine();
    let stored = block_hash::chain("", &tokens(20), 8).collect();
    assert!(eight.apply(&EngineEvents { block_size: 8, stored, ..events(true, &[], &[]) }, 0));
    assert_eq!(matched(&index, [&four, &eight], &tokens(30)), [20, 16]);
    for wrong in [
        EngineEvents { hash_version: 2, ..events(true, &[], &[]) },
        EngineEvents { block_size: 0, ..events(true, &[], &[]) },
    ] {
        let stored = chain("", &tokens(20));
        let wrong = EngineEvents { stored, load: Some(EngineLoad { running: 3, ..EngineLoad::default() }), ..wrong };
        assert!(!four.apply(&wrong, 0));
        assert_eq!((matched(&index, [&four, &eight], &tokens(30)), four.load(0)), ([0, 16], 3));
    }
    drop(four);
    assert_eq!(index.block_sizes(), [8]);
    let prompt = PromptHashes::new(&index, "", &tokens(30));
    index.anticipate(&eight, &prompt, NOW);
    assert_eq!(index.matches(&prompt, NOW).cached_tokens(&eight), 24);
}

#[test]
fn what_is_in_the_host_tier_counts_less_than_what_is_cached() {
    let index = index();
    let (cached, half, host) = (slot_with(&index, &tokens(80)), slot_with(&index, &tokens(40)), index.add_engine());
    let all = chain("", &tokens(80));
    let told = |host_stored: &[u64], host_removed: &[u64]| EngineEvents {
        host_stored: host_stored.to_vec(),
        host_removed: host_removed.to_vec(),
        ..events(false, &[], &[])
    };
    assert!(half.apply(&told(&all[10..], &[]), 0));
    assert!(host.apply(&told(&all, &[]), 0));
    assert_eq!(matched(&index, [&cached, &half, &host], &tokens(90)), [80, 75, 70]);
    // It left the cache, and is in the host tier.
    assert!(half.apply(&EngineEvents { removed: all[8..10].to_vec(), ..told(&all[8..10], &[]) }, 0));
    assert_eq!(matched(&index, [&half], &tokens(90)), [74]);
    // A gap ends both.
    assert!(host.apply(&told(&[], &all[4..5]), 0));
    assert_eq!(matched(&index, [&host], &tokens(90)), [14]);
    drop(host);
    assert_eq!(matched(&index, [&cached, &half], &tokens(90)), [80, 74]);
}

#[test]
fn a_prompt_counts_as_cached_for_a_while_where_it_was_sent() {
    let index = index();
    let (there, elsewhere) = (slot_with(&index, &[]), slot_with(&index, &[]));
    let prompt = PromptHashes::new(&index, "", &tokens(21));
    index.anticipate(&there, &prompt, NOW);
    let at = |now| [&there, &elsewhere].map(|slot| index.matches(&prompt, now).cached_tokens(slot));
    assert_eq!(at(NOW), [20, 0]);
    assert_eq!(at(limits::ROUTE_UNCONFIRMED_TIME), [20, 0]);
    assert_eq!(at(limits::ROUTE_UNCONFIRMED_TIME * 2), [0, 0], "the engine never confirmed it");
    // Reported blocks stay, and evicted ones are removed at once.
    let now = limits::ROUTE_UNCONFIRMED_TIME * 2;
    index.anticipate(&there, &prompt, now);
    let hashes = chain("", &tokens(20));
    assert!(there.apply(&events(false, &hashes[..3], &hashes[4..]), 0));
    assert_eq!(at(now), [16, 0]);
    assert_eq!(at(now * 9), [12, 0]);
}

#[test]
fn slots_of_engines_that_leave_or_reset_are_cleared_and_reused() {
    let index = index();
    let stays = slot_with(&index, &tokens(20));
    for _ in 0..50 {
        let goes = slot_with(&index, &tokens(20));
        assert_eq!(matched(&index, [&stays, &goes], &tokens(30)), [20, 20]);
        goes.forget();
        assert_eq!(matched(&index, [&stays, &goes], &tokens(30)), [20, 0]);
        assert!(goes.apply(&events(true, &chain("", &tokens(8)), &[]), 0));
        assert_eq!(matched(&index, [&stays, &goes], &tokens(30)), [20, 8]);
        assert!(goes.apply(&events(true, &[], &[]), 0));
        assert_eq!(matched(&index, [&stays, &goes], &tokens(30)), [20, 0]);
    }
    let fresh: Vec<EngineSlot> = (0..100).map(|_| index.add_engine()).collect();
    assert!(fresh.iter().all(|slot| matched(&index, [slot], &tokens(30)) == [0]), "a slot with another's entries");
    drop(fresh);
    drop(stays);
    (0..limits::ROUTE_SWEEP * 2).for_each(|_| drop(slot_with(&index, &[])));
    assert_eq!(index.size(), (0, 0));
}

#[test]
fn the_index_is_bounded_and_keeps_blocks_that_are_looked_up() {
    let bytes = 1 << 20;
    let index = Arc::new(BlockIndex::new(bytes));
    let asked = slot_with(&index, &tokens(40));
    let mut rng = StdRng::seed_from_u64(1);
    let mut most = 0;
    for round in 0..300 {
        let other = if round % 2 == 0 { &asked } else { &index.add_engine() };
        let stored: Vec<u64> = (0..500).map(|_| rng.random()).collect();
        assert!(other.apply(&events(false, &stored, &[]), 0));
        assert_eq!(matched(&index, [&asked], &tokens(50)), [40]);
        most = most.max(index.size().1);
    }
    assert!(most > bytes / 3 && most <= bytes, "{most} of {bytes} bytes");
    // Blocks that are not looked up are dropped.
    let stored: Vec<u64> = (0..100_000).map(|_| rng.random()).collect();
    assert!(asked.apply(&events(false, &stored, &[]), 0));
    assert_eq!(matched(&index, [&asked], &tokens(50)), [0]);
}

/// Compares the index with one set of hashes per engine.
#[test]
fn the_index_equals_a_simple_one_for_random_engines() {
    for seed in 0..60 {
        let mut rng = StdRng::seed_from_u64(seed);
        let index = index();
        let mut engines: Vec<(EngineSlot, BTreeSet<u64>)> = Vec::new();
        let mut now = NOW;
        let prompts: Vec<Vec<u32>> = (0..6)
            .map(|_| (0..rng.random_range(1..60)).map(|at| if at < 20 { at } else { rng.random_range(0..3) }).collect())
            .collect();
        for _ in 0..400 {
            now += Duration::from_millis(1);
            let prompt = &prompts[rng.random_range(0..prompts.len())];
            let hashes = chain("", prompt);
            let which = rng.random_range(0..engines.len().max(1));
            match rng.random_range(0..10) {
                0 if engines.len() < 70 => engines.push((index.add_engine(), BTreeSet::new())),
                1 if rng.random_bool(0.2) && !engines.is_empty() => drop(engines.swap_remove(which)),
                2..5 => {
                    let Some((slot, known)) = engines.get_mut(which) else { continue };
                    let reset = rng.random_bool(0.1) || known.is_empty();
                    if reset {
                        known.clear();
                    }
                    let split = rng.random_range(0..=hashes.len());
                    let (stored, removed) = hashes.split_at(split);
                    known.extend(stored);
                    known.retain(|hash| !removed.contains(hash));
                    assert!(slot.apply(&events(reset, stored, removed), 0));
                }
                _ => {
                    let matches = index.matches(&PromptHashes::new(&index, "", prompt), now);
                    for (slot, known) in &engines {
                        let whole = (prompt.len() - 1) / SIZE as usize;
                        let want = hashes[..whole].iter().take_while(|hash| known.contains(hash)).count() as u32 * SIZE;
                        assert_eq!(matches.cached_tokens(slot), want, "seed {seed}");
                    }
                }
            }
        }
    }
}

fn candidate(engine: u64, open: u32, matched: u32) -> ScoredEngine {
    ScoredEngine { key: mix(engine), open, max_sequences: 64, full: false, matched }
}

fn mix(engine: u64) -> u64 {
    key(&format!("worker-{engine}"))
}

fn pick(candidates: &[ScoredEngine], session: Option<u64>, turn: u64) -> usize {
    choose(RoutePolicy::CacheAware, candidates, 1000, session, turn).expect("one")
}

#[test]
fn the_longest_match_wins_unless_its_engine_is_too_busy() {
    let with = |open, other| {
        [candidate(0, other, 0), candidate(1, open, 900), candidate(2, other, 500), candidate(3, other, 0)]
    };
    for turn in 0..50 {
        assert_eq!(pick(&with(0, 0), None, turn), 1);
        assert_eq!(pick(&with(20, 20), None, turn), 1);
        assert_eq!(pick(&with(24, 20), None, turn), 1);
        assert_eq!(pick(&with(30, 20), None, turn), 2, "over 1.25 of an even share, so the second best");
        assert_eq!(pick(&with(3, 0), None, turn), 1, "nobody is busy");
        let full = [ScoredEngine { full: true, ..candidate(0, 5, 900) }, candidate(1, 5, 0)];
        assert_eq!(pick(&full, None, turn), 1);
        let all_full = full.map(|candidate| ScoredEngine { full: true, ..candidate });
        assert_eq!(pick(&all_full, None, turn), 0);
    }
    // A larger engine gets more sequences.
    let sizes = [ScoredEngine { max_sequences: 256, ..candidate(0, 60, 900) }, candidate(1, 20, 0)];
    assert_eq!(pick(&sizes, None, 0), 0);
}

#[test]
fn equal_matches_go_to_the_less_loaded_engine_and_small_ones_are_ignored() {
    for turn in 0..50 {
        assert_eq!(pick(&[candidate(0, 20, 900), candidate(1, 18, 900), candidate(2, 21, 0)], None, turn), 1);
        let chosen = pick(&[candidate(0, 20, 60), candidate(1, 12, 0)], None, turn);
        assert_eq!(chosen, 1, "60 of 1000 tokens do not matter");
    }
    let turns: BTreeSet<usize> = (0..50)
        .map(|turn| pick(&[candidate(0, 9, 900), candidate(1, 9, 900), candidate(2, 9, 0)], None, turn))
        .collect();
    assert_eq!(turns, BTreeSet::from([0, 1]), "equals take turns");
}

#[test]
fn sessions_keep_their_engine_and_few_move_when_engines_join_or_leave() {
    let engines = |range: std::ops::Range<u64>| range.map(|engine| candidate(engine, 5, 0)).collect::<Vec<_>>();
    let homes = |candidates: &[ScoredEngine]| -> Vec<u64> {
        (0..10_000).map(|session| candidates[pick(candidates, Some(key(&session.to_string())), session)].key).collect()
    };
    let before = homes(&engines(0..10));
    let mut counts = BTreeMap::new();
    before.iter().for_each(|engine| *counts.entry(engine).or_insert(0) += 1);
    assert!(counts.len() == 10 && counts.values().all(|&count| (800..1200).contains(&count)), "{counts:?}");
    let more = homes(&engines(0..11));
    let moved = |after: &[u64]| before.iter().zip(after).filter(|(before, after)| before != after).count();
    assert!((750..1100).contains(&moved(&more)), "{} moved to the eleventh", moved(&more));
    assert!(before.iter().zip(&more).all(|(before, after)| before == after || *after == mix(10)));
    let fewer = homes(&engines(1..10));
    assert!(before.iter().zip(&fewer).all(|(before, after)| before == after || *before == mix(0)));
    // The order of the list does not matter; load does.
    let mut reversed = engines(0..10);
    reversed.reverse();
    assert_eq!(before, homes(&reversed));
    let mut busy = engines(0..10);
    let home = pick(&busy, Some(77), 0);
    busy[home].open = 30;
    assert_ne!(pick(&busy, Some(77), 0), home);
}

#[test]
fn no_choice_exceeds_an_engines_load_bound() {
    for seed in 0..2000 {
        let mut rng = StdRng::seed_from_u64(seed);
        let count = rng.random_range(1..12);
        let mut candidates: Vec<ScoredEngine> = (0..count)
            .map(|engine| ScoredEngine {
                open: rng.random_range(0..100),
                max_sequences: [1, 8, 64, 256][rng.random_range(0..4)],
                full: rng.random_bool(0.1),
                matched: rng.random_range(0..1000),
                ..candidate(engine, 0, 0)
            })
            .collect();
        let turn = rng.random();
        for policy in RoutePolicy::ALL {
            let session = rng.random_bool(0.5).then(|| rng.random());
            let chosen = choose(policy, &candidates, rng.random_range(0..1000), session, turn);
            assert!(chosen.is_some_and(|chosen| chosen < candidates.len()), "{policy:?}");
        }
        candidates.iter_mut().for_each(|candidate| candidate.full = false);
        let chosen = candidates[pick(&candidates, None, turn)];
        let open: u32 = candidates.iter().map(|candidate| candidate.open).sum();
        let slots: u32 = candidates.iter().map(|candidate| candidate.max_sequences).sum();
        let share = f64::from(open + 1) * f64::from(chosen.max_sequences) / f64::from(slots);
        let bound = (1.25 * share).max(f64::from(chosen.max_sequences) / 16.0);
        assert!(f64::from(chosen.open) < bound.ceil(), "seed {seed}: {chosen:?}, an even share is {share}");
    }
    assert_eq!(choose(RoutePolicy::CacheAware, &[], 1, None, 0), None);
}

#[test]
fn each_policy_chooses_as_documented() {
    let candidates = [candidate(0, 9, 900), candidate(1, 2, 0), candidate(2, 2, 0), candidate(3, 8, 0)];
    let choices =
        |policy| -> Vec<usize> { (0..400).filter_map(|turn| choose(policy, &candidates, 1000, None, turn)).collect() };
    let shares = |choices: &[usize]| [0, 1, 2, 3].map(|i| choices.iter().filter(|&&choice| choice == i).count());
    assert_eq!(choices(RoutePolicy::RoundRobin)[..5], [0, 1, 2, 3, 0]);
    assert!(shares(&choices(RoutePolicy::LeastLoad))[1..3].iter().all(|&share| share > 90));
    assert_eq!(shares(&choices(RoutePolicy::LeastLoad))[0], 0);
    assert!(shares(&choices(RoutePolicy::Random)).iter().all(|share| (70..130).contains(share)));
    let two = shares(&choices(RoutePolicy::PowerOfTwo));
    assert!(two[0] == 0 && (20..110).contains(&two[3]) && two[1] > 100 && two[2] > 100, "{two:?}");
    for policy in RoutePolicy::ALL {
        assert_eq!(policy.name().parse(), Ok(policy));
    }
    let error = "fastest".parse::<RoutePolicy>().expect_err("no policy");
    assert!(
        error.starts_with("expected one of cache-aware, least-load") && error.ends_with("got 'fastest'"),
        "{error}"
    );
}

#[test]
fn load_is_the_reported_load_of_others_plus_our_own() {
    let index = index();
    let slot = index.add_engine();
    assert_eq!((slot.load(7), slot.is_full()), (7, false), "the engine has not reported yet");
    let load = EngineLoad { running: 10, waiting: 2, used_blocks: 95, total_blocks: 100 };
    slot.apply(&EngineEvents { load: Some(load), ..events(true, &[], &[]) }, 5);
    assert_eq!((slot.load(5), slot.load(9), slot.load(0), slot.is_full()), (12, 16, 7, true));
    // The report does not include our newest sequences.
    slot.apply(&EngineEvents { load: Some(EngineLoad { waiting: 0, ..load }), ..events(false, &[], &[]) }, 20);
    assert_eq!((slot.load(20), slot.is_full()), (20, false));
}

#[test]
fn a_conversation_stays_on_its_engine_and_others_are_spread() {
    let routing = Routing::new(RoutePolicy::CacheAware, limits::ROUTE_INDEX_BYTES);
    let index_slots: Vec<EngineSlot> = (0..4).map(|_| slot_with(routing.index(), &[])).collect();
    let target = |open: [u32; 4]| -> Vec<EngineState<'_>> {
        (0..4)
            .map(|i| EngineState { key: mix(i as u64), index_slot: &index_slots[i], open: open[i], max_sequences: 64 })
            .collect()
    };
    let mut conversation = tokens(100);
    let pick = |tokens: &[u32], open| {
        let prompt = routing.prompt("", tokens);
        routing.pick(&target(open), || &prompt, None, NOW).expect("one")
    };
    let home = pick(&conversation, [0; 4]);
    for turn in 0..20 {
        conversation.extend([turn; 50]);
        assert_eq!(
            pick(&conversation, [turn % 4; 4]),
            home,
            "expected there, although the engine has not reported yet"
        );
    }
    let mut open = [0; 4];
    for other in 0..40 {
        open[pick(&[1000 + other; 100], open)] += 1;
    }
    assert!(open.iter().all(|open| (7..=13).contains(open)), "{open:?}");
    let plain = Routing::new(RoutePolicy::RoundRobin, limits::ROUTE_INDEX_BYTES);
    let prompt = plain.prompt("", &conversation);
    let round = |turn: u32| plain.pick(&target([turn; 4]), || &prompt, None, NOW);
    assert_eq!([0, 1, 2].map(round), [Some(0), Some(1), Some(2)]);
    // Without a choice, the prompt is not hashed.
    let unused = || -> &PromptHashes { panic!("the prompt is not needed") };
    assert_eq!(plain.pick(&[], unused, None, NOW), None);
    assert_eq!(plain.pick(&target([0; 4])[..1], unused, None, NOW), Some(0));
}
