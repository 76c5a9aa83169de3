//! Limits for the figures of cache-aware routing in docs/understand/routing.md, from fixed seeds, with the worker's own
//! scheduler.

use rein_router::fleet::route::RoutePolicy;

use fleet::{CHAT, Load};

#[path = "../../benches/routing/fleet.rs"]
mod fleet;

/// Minimum hit rate relative to round robin's.
const GAIN: f64 = 1.8;
/// Maximum load of a group relative to the mean.
const PEAK: f64 = 1.3;

fn compare(load: &Load, seed: u64) {
    let aware = fleet::run(RoutePolicy::CacheAware, load, seed);
    let round_robin = fleet::run(RoutePolicy::RoundRobin, load, seed);
    let gain = aware.hit_rate() / round_robin.hit_rate();
    let case = format!("{load:?}, seed {seed}: {:.3} and {:.3}", aware.hit_rate(), round_robin.hit_rate());
    assert!(gain >= GAIN, "{case}: {gain:.2} times the hit rate");
    for (what, peak) in [("open sequences", aware.open_peak()), ("time in steps", aware.busy_peak())] {
        assert!(peak <= PEAK, "{case}: a group has {peak:.2} times the mean of {what}");
    }
}

#[test]
fn routing_by_cache_gives_1_8_times_the_hit_rate_of_round_robin_and_even_load() {
    for seed in 1..3 {
        compare(&CHAT, seed);
    }
    compare(&Load { routers: 3, ..CHAT }, 3);
}

#[test]
fn a_seed_gives_the_same_figures() {
    let load = Load { turns: 400, ..CHAT };
    let run = || {
        let outcome = fleet::run(RoutePolicy::CacheAware, &load, 5);
        (outcome.cached_tokens, outcome.prompt_tokens, outcome.open, outcome.busy, outcome.first_token)
    };
    assert_eq!(run(), run());
}
