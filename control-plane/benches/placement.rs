//! Expert placement at Kimi K2's size under a drifting load: how even, how much moves, how long it takes.
//!
//!     cargo bench -p rein-control-plane --bench placement

use std::time::Instant;

use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use rein_control_plane::experts::{Layout, imbalance, moved, spread};

const LAYERS: usize = 61;
const EXPERTS: usize = 384;
const RANKS: usize = 64;
/// 25,000 tokens a window, 8 experts each.
const DRAWS: usize = 200_000;

/// Counted draws of experts whose popularity is Zipf's with exponent 1.1.
fn counted(order: &[usize], rng: &mut StdRng) -> Vec<f64> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=EXPERTS)
        .map(|place| {
            sum += (place as f64).powf(-1.1);
            sum
        })
        .collect();
    let mut load = vec![0.0; EXPERTS];
    for _ in 0..DRAWS {
        let at = rng.random_range(0.0..sum);
        load[order[sums.partition_point(|&below| below < at).min(EXPERTS - 1)]] += 1.0;
    }
    load
}

fn main() {
    println!(
        "{LAYERS} layers, {EXPERTS} experts, {RANKS} ranks, Zipf 1.1, {DRAWS} draws a window; max/mean load of a rank"
    );
    for room in [7, 8, 10] {
        let mut rng = StdRng::seed_from_u64(1);
        let mut orders: Vec<Vec<usize>> = (0..LAYERS).map(|_| (0..EXPERTS).collect()).collect();
        orders.iter_mut().for_each(|order| order.shuffle(&mut rng));
        let even: Layout = (0..RANKS as u32).map(|rank| (rank * 6..rank * 6 + 6).collect()).collect();
        let mut layouts = vec![even; LAYERS];
        for window in 0..6 {
            let loads: Vec<Vec<f64>> = orders.iter().map(|order| counted(order, &mut rng)).collect();
            let worst = |layouts: &[Layout], loads: &[Vec<f64>]| {
                layouts.iter().zip(loads).map(|(layout, load)| imbalance(load, layout)).fold(0.0, f64::max)
            };
            let before = worst(&layouts, &loads);
            let began = Instant::now();
            let next: Vec<Layout> = layouts
                .iter()
                .zip(&loads)
                .filter_map(|(layout, load)| spread(load, &[room; RANKS], Some(layout)))
                .collect();
            let time = began.elapsed();
            let moves: usize = layouts.iter().zip(&next).map(|(before, after)| moved(before, after)).sum();
            layouts = next;
            // Judged on the window that follows, drawn from the same popularity.
            let follow: Vec<Vec<f64>> = orders.iter().map(|order| counted(order, &mut rng)).collect();
            println!(
                "room {room:2}, window {window}: worst layer {before:6.2} -> {:.2}; {:.1} of {} copies moved a layer; {time:.0?}",
                worst(&layouts, &follow),
                moves as f64 / LAYERS as f64,
                room * RANKS,
            );
            for order in &mut orders {
                for _ in 0..3 {
                    let (a, b) = (rng.random_range(0..EXPERTS / 8), rng.random_range(0..EXPERTS));
                    order.swap(a, b);
                }
            }
        }
    }
}
