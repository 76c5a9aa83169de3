//! Expert placement under a drifting load at the size of Kimi K2: balance of the ranks, number of moves, duration of a
//! decision.
//!
//!     cargo bench -p rein-control-plane --bench placement

use std::time::Instant;

use rein_control_plane::rebalance::{relayout, worst};
use rein_control_plane::{ModelShape, place};
use traffic::{Drifting, Traffic};

#[path = "../src/tests/traffic.rs"]
mod traffic;

const LAYERS: usize = 61;
const EXPERTS: usize = 384;
const RANKS: usize = 64;
/// 25,000 tokens between two decisions, 8 experts each.
const DRAWS: usize = 200_000;
const ABOVE: f64 = 1.1;
const DECISIONS: u64 = 16;

fn main() {
    println!(
        "{LAYERS} layers, {EXPERTS} experts, {RANKS} ranks, Zipf 1.1, {DRAWS} draws a layer between two decisions"
    );
    println!(
        "worst layer's busiest rank over the mean, on what follows the decision; 3 hot experts of each layer change each time"
    );
    for redundant in [1, 2, 4] {
        let shape = ModelShape { attention_heads: 64, kv_heads: 64, experts: vec![EXPERTS; LAYERS] };
        let mut placement = place(&shape, RANKS, 1).expect("64 heads on 64 ranks");
        let mut load = Drifting::new((0..LAYERS).map(|layer| Traffic::new(layer as u64, EXPERTS)).collect(), 3);
        for decision in 1..=DECISIONS {
            let rows = load.window(DRAWS);
            let before = worst(&placement, &rows);
            let began = Instant::now();
            let change = relayout(&placement, &rows, redundant, ABOVE, decision);
            let time = began.elapsed();
            let (layers, copies) = change.as_ref().map_or((0, 0), |change| (change.layers, change.copies));
            if let Some(change) = change {
                placement = change.placement;
            }
            println!(
                "redundant {redundant}, decision {decision:2}: {before:6.2} -> {:.2}; {layers:2} layers, {copies:4} copies ({:.1} a rank); {time:.0?}",
                worst(&placement, &load.now(DRAWS)),
                copies as f64 / RANKS as f64,
            );
            load.drift();
        }
    }
}
