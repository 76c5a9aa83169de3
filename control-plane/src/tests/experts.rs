//! Expert placement at the size of Kimi K2: 384 experts per layer, 64 ranks.

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::traffic::{Drifting, Traffic};
use crate::experts::{ExpertLayout, compute_layout, imbalance, moved, rank_loads};
use crate::rebalance::{relayout, worst};
use crate::{ModelShape, limits, place};

const EXPERTS: usize = 384;
const RANKS: usize = 64;

fn check(layout: &ExpertLayout, experts: usize, room: &[usize]) {
    let mut copies = vec![0; experts];
    for (experts, &room) in layout.iter().zip(room) {
        assert!(experts.len() <= room);
        assert!(experts.is_sorted_by(|a, b| a < b), "an expert twice on a rank");
        experts.iter().for_each(|&expert| copies[expert as usize] += 1);
    }
    assert!(copies.iter().all(|&copies| copies > 0), "an expert nowhere");
}

#[test]
fn every_expert_is_placed_for_any_load_and_room() {
    let mut rng = StdRng::seed_from_u64(1);
    for case in 0..2000 {
        let (experts, ranks) = (rng.random_range(1..30), rng.random_range(1..9));
        let mut before = None;
        for _ in 0..3 {
            let load: Vec<f64> = (0..experts)
                .map(|_| if rng.random_bool(0.2) { 0.0 } else { rng.random_range(0.0..1.0f64).powi(4) })
                .collect();
            let room: Vec<usize> = (0..ranks).map(|_| rng.random_range(0..2 + 2 * experts / ranks)).collect();
            let fits = room.iter().map(|&room| room.min(experts)).sum::<usize>() >= experts;
            let layout = compute_layout(&load, &room, before.as_ref());
            assert_eq!(layout.is_some(), fits, "case {case}");
            if let Some(layout) = layout {
                check(&layout, experts, &room);
                assert_eq!(
                    compute_layout(&load, &room, before.as_ref()),
                    Some(layout.clone()),
                    "a function of its arguments"
                );
                before = Some(layout);
            }
        }
    }
}

#[test]
fn even_loads_need_no_moves_and_hot_experts_get_copies() {
    let room = vec![2; 4];
    let even = compute_layout(&[1.0; 8], &room, None).expect("fits");
    assert_eq!(imbalance(&[1.0; 8], &even), 1.0);
    let noisy: Vec<f64> = (0..8).map(|e| 1.0 + 0.02 * f64::from(e % 3)).collect();
    assert_eq!(moved(&even, &compute_layout(&noisy, &room, Some(&even)).expect("fits")), [0; 4]);
    // Half of all tokens go to one expert: with a copy on every rank, all ranks have the same load.
    let hot = [6.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
    let layout = compute_layout(&hot, &[3; 4], None).expect("fits");
    assert!(layout.iter().all(|experts| experts.contains(&0)), "{layout:?}");
    assert!(imbalance(&hot, &layout) < 1.2, "{:?}", rank_loads(&hot, &layout));
}

#[test]
fn a_skewed_and_drifting_load_stays_balanced() {
    let room = vec![8; RANKS];
    for seed in 0..5 {
        let mut traffic = Traffic::new(seed, EXPERTS);
        let even: ExpertLayout = (0..RANKS).map(|rank| (rank as u32 * 6..rank as u32 * 6 + 6).collect()).collect();
        assert!(imbalance(&traffic.counted(50_000), &even) > 5.0);
        let mut layout = even;
        for window in 0..10 {
            let counted = traffic.counted(50_000);
            let next = compute_layout(&counted, &room, Some(&layout)).expect("fits");
            check(&next, EXPERTS, &room);
            let all: usize = moved(&layout, &next).into_iter().sum();
            layout = next;
            // Measured on later traffic, not on the traffic that the layout was made for.
            let after = imbalance(&traffic.counted(50_000), &layout);
            assert!(after < 1.15, "seed {seed}, window {window}: {after}");
            assert!(window == 0 || all < RANKS * 8 / 2, "seed {seed}, window {window}: {all} copies moved");
            traffic.drift(3);
        }
    }
}

#[test]
fn layouts_follow_a_drifting_load_within_the_limit_of_moves() {
    const LAYERS: usize = 8;
    let shape = ModelShape { attention_heads: 64, kv_heads: 64, experts: [vec![0], vec![EXPERTS; LAYERS]].concat() };
    let mut placement = place(&shape, RANKS, 1).expect("fits");
    let mut load = Drifting::new((0..LAYERS).map(|layer| Traffic::new(layer as u64, EXPERTS)).collect(), 3);
    let with_dense = |rows: Vec<Vec<u32>>| [vec![Vec::new()], rows].concat();
    for number in 1..6 {
        let rows = with_dense(load.window(200_000));
        let before = worst(&placement, &rows);
        let change = relayout(&placement, &rows, 2, 1.1, number).expect("it is uneven");
        assert_eq!((change.before, change.placement.layout), (before, number));
        let mut copies = 0;
        for (known, next) in placement.ranks.iter().zip(&change.placement.ranks) {
            let new: usize = moved(&known.experts, &next.experts).into_iter().sum();
            assert!(new <= limits::EXPERT_MOVES, "{new} at once");
            copies += new;
        }
        assert_eq!(copies, change.copies);
        placement = change.placement;
        for layer in 1..=LAYERS {
            check(&placement.ranks.iter().map(|r| r.experts[layer].clone()).collect(), EXPERTS, &[8; RANKS]);
        }
        let after = worst(&placement, &with_dense(load.now(200_000)));
        assert!(after < 1.15, "layout {number}: {before} -> {after}");
        load.drift();
    }
    // Too few counts, counts of another model, or balanced counts: nothing changes.
    assert_eq!(relayout(&placement, &with_dense(load.now(1000)), 2, 1.1, 9), None);
    assert_eq!(relayout(&placement, &with_dense(vec![vec![1000; EXPERTS / 2]; LAYERS]), 2, 1.1, 9), None);
    assert_eq!(
        relayout(&place(&shape, RANKS, 1).expect("fits"), &with_dense(vec![vec![1000; EXPERTS]; LAYERS]), 2, 1.1, 9),
        None
    );
}

/// All layers of Kimi K2, two copies per rank: balanced after a few layouts, and again after a drift.
#[test]
fn the_worst_of_61_layers_is_balanced_after_a_few_layouts() {
    const LAYERS: usize = 61;
    const DRAWS: usize = 200_000;
    let shape = ModelShape { attention_heads: 64, kv_heads: 64, experts: vec![EXPERTS; LAYERS] };
    let mut placement = place(&shape, RANKS, 1).expect("fits");
    let mut load = Drifting::new((0..LAYERS).map(|layer| Traffic::new(layer as u64, EXPERTS)).collect(), 3);
    let mut number = 0;
    for most in [5, 1] {
        let rows = load.window(DRAWS);
        let before = worst(&placement, &rows);
        let mut more = true;
        let began = number;
        while more {
            number += 1;
            let change = relayout(&placement, &rows, 2, 1.1, number).expect("it is uneven");
            (placement, more) = (change.placement, change.more);
        }
        let after = worst(&placement, &load.now(DRAWS));
        assert!(before > 5.0 && after < 1.15, "{before} -> {after}");
        assert!(number - began <= most, "{} layouts", number - began);
        load.drift();
    }
}

#[test]
fn a_single_layer_may_exceed_the_limit_of_moves() {
    let experts = 4 * limits::EXPERT_MOVES;
    let shape = ModelShape { attention_heads: 2, kv_heads: 2, experts: vec![experts; 2] };
    let placement = place(&shape, 2, 1).expect("fits");
    let rows: Vec<u32> =
        (0..experts as u32).map(|expert| if expert < experts as u32 / 2 { 1000 } else { 10 }).collect();
    let change = relayout(&placement, &[rows.clone(), rows], experts / 2, 1.1, 1).expect("it is uneven");
    assert!(change.layers == 1 && change.more && change.copies > limits::EXPERT_MOVES, "{change:?}");
}

#[test]
fn the_records_of_the_largest_models_fit_in_the_store() {
    // etcd's limit is 1.5 MiB per request.
    const MOST: usize = 1 << 20;
    let shape = ModelShape { attention_heads: 64, kv_heads: 64, experts: vec![EXPERTS; 61] };
    let mut placement = place(&shape, RANKS, 1 << 41).expect("fits");
    for rank in &mut placement.ranks {
        // Four more copies per layer.
        rank.experts.iter_mut().for_each(|layer| layer.extend(EXPERTS as u32 - 4..EXPERTS as u32));
    }
    let load = crate::records::ExpertLoad {
        epoch: crate::epoch::new(1 << 41, 1),
        layout: crate::epoch::new(1 << 41, 1),
        rows: vec![vec![u32::MAX; EXPERTS]; 61],
    };
    let sizes = (crate::records::encode(&placement).len(), crate::records::encode(&load).len());
    assert!(sizes.0 < MOST && sizes.1 < MOST, "{sizes:?}");
}
