//! Expert placement at Kimi K2's size under a drifting load: how even, how much moves, how long it takes.
//!
//!     cargo bench -p rein-control-plane --bench placement

use std::time::Instant;

use rein_control_plane::experts::{Layout, imbalance, moved, spread};
use traffic::Traffic;

#[path = "../src/tests/traffic.rs"]
mod traffic;

const LAYERS: usize = 61;
const EXPERTS: usize = 384;
const RANKS: usize = 64;
/// 25,000 tokens a window, 8 experts each.
const DRAWS: usize = 200_000;

fn main() {
    println!(
        "{LAYERS} layers, {EXPERTS} experts, {RANKS} ranks, Zipf 1.1, {DRAWS} draws a window; max/mean load of a rank"
    );
    for room in [7, 8, 10] {
        let mut layers: Vec<Traffic> = (0..LAYERS).map(|layer| Traffic::new(layer as u64, EXPERTS)).collect();
        let even: Layout = (0..RANKS as u32).map(|rank| (rank * 6..rank * 6 + 6).collect()).collect();
        let mut layouts = vec![even; LAYERS];
        for window in 0..6 {
            let loads: Vec<Vec<f64>> = layers.iter_mut().map(|layer| layer.counted(DRAWS)).collect();
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
            let follow: Vec<Vec<f64>> = layers.iter_mut().map(|layer| layer.counted(DRAWS)).collect();
            println!(
                "room {room:2}, window {window}: worst layer {before:6.2} -> {:.2}; {:.1} of {} copies moved a layer; {time:.0?}",
                worst(&layouts, &follow),
                moves as f64 / LAYERS as f64,
                room * RANKS,
            );
            layers.iter_mut().for_each(|layer| layer.drift(3));
        }
    }
}
