//! Benchmark of routing: hit rate of the prefix caches and evenness of load per policy (in simulated time, so the
//! figures are the same on every machine), and the cost of a choice among 1,000 engines.
//!
//!     cargo bench --bench routing [-- chat|agent|single|choice]

use std::hint::black_box;
use std::time::{Duration, Instant};

use fleet::{AGENT, CHAT, Load, SINGLE};
use rein_proto::block_hash;
use rein_proto::internal::{EngineEvents, EngineLoad};
use rein_router::fleet::route::index::EngineSlot;
use rein_router::fleet::route::{EngineState, RoutePolicy, Routing, key};

#[path = "routing/fleet.rs"]
mod fleet;

const SEEDS: std::ops::Range<u64> = 1..4;

fn main() {
    // Cargo adds its own option.
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let wanted = |name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
    println!("{} groups; each line the mean of {} seeds (max/mean: the worst)", fleet::GROUPS, SEEDS.count());
    for load in [&CHAT, &AGENT, &SINGLE].into_iter().filter(|load| wanted(load.name)) {
        for policy in RoutePolicy::ALL {
            print(policy, load, "");
        }
        print(RoutePolicy::CacheAware, &Load { names_session: true, ..load.clone() }, ", sessions named");
        print(RoutePolicy::CacheAware, &Load { routers: 4, ..load.clone() }, ", 4 routers");
    }
    if wanted("choice") {
        choices();
    }
}

fn print(policy: RoutePolicy, load: &Load, more: &str) {
    let mut runs: Vec<fleet::Outcome> = SEEDS.map(|seed| fleet::run(policy, load, seed)).collect();
    let count = runs.len() as f64;
    let hit_rate = runs.iter().map(fleet::Outcome::hit_rate).sum::<f64>() / count;
    let open = runs.iter().map(fleet::Outcome::open_peak).fold(0.0, f64::max);
    let busy = runs.iter().map(fleet::Outcome::busy_peak).fold(0.0, f64::max);
    let window = runs.iter().map(|run| run.worst_window).fold(0.0, f64::max);
    let mut first =
        |quantile| runs.iter_mut().map(|run| run.first_token_ms(quantile)).sum::<u64>() / SEEDS.count() as u64;
    let (half, most) = (first(0.5), first(0.95));
    println!(
        "{:7} {:30} hit rate {:5.1} %; max/mean open {open:.2} (10 s: {window:.2}), busy {busy:.2}; first token p50 {half:4} ms, p95 {most:5} ms",
        load.name,
        format!("{}{more}", policy.name()),
        hit_rate * 100.0,
    );
}

const ENGINES: usize = 1000;
const CACHED: u32 = 2_000;
const BLOCK_SIZE: u32 = 16;
const CHOICES: u32 = 2_000;

/// All engines have a system prompt of 20 blocks cached, and each has the conversations of its own sessions, of 100
/// blocks.
fn choices() {
    let routing = Routing::new(RoutePolicy::CacheAware, 512 << 20);
    let slots: Vec<EngineSlot> = (0..ENGINES).map(|_| routing.index().add_engine()).collect();
    let conversation = |engine: usize, session: u32| -> Vec<u32> {
        let own = (0..80 * BLOCK_SIZE).map(|at| (engine as u32 * 100 + session) ^ at << 8);
        (0..20 * BLOCK_SIZE).chain(own).collect()
    };
    let begun = Instant::now();
    for (engine, slot) in slots.iter().enumerate() {
        let stored = (0..CACHED / 80)
            .flat_map(|session| {
                block_hash::chain("", &conversation(engine, session), BLOCK_SIZE as usize).collect::<Vec<_>>()
            })
            .collect();
        slot.apply(&events(true, stored), 0);
    }
    let (entries, bytes) = routing.index().size();
    println!(
        "{ENGINES} engines with {CACHED} published blocks each in {:.0?}: {entries} contents, {} MiB",
        begun.elapsed(),
        bytes >> 20
    );

    let begun = Instant::now();
    for turn in 0..CHOICES {
        slots[turn as usize % ENGINES].apply(&events(false, (0..64).map(|at| u64::from(turn) << 32 | at).collect()), 0);
    }
    println!("a message of 64 stored blocks: {:.1?}", begun.elapsed() / CHOICES);

    let keys: Vec<u64> = (0..ENGINES).map(|engine| key(&format!("worker-{engine}"))).collect();
    for (name, known) in [
        ("a conversation of 1,600 tokens, cached on one", true),
        ("nothing but the system prompt cached, on all", false),
    ] {
        let prompts: Vec<Vec<u32>> = (0..CHOICES)
            .map(|turn| match known {
                true => conversation(turn as usize % ENGINES, turn % (CACHED / 80)),
                false => conversation(ENGINES + turn as usize, 7),
            })
            .collect();
        let (mut hashing, mut picking) = (Duration::ZERO, Duration::ZERO);
        for (turn, tokens) in prompts.iter().enumerate() {
            let begun = Instant::now();
            let prompt = routing.prompt("", tokens);
            hashing += begun.elapsed();
            let begun = Instant::now();
            let targets: Vec<EngineState<'_>> = (0..ENGINES)
                .map(|i| EngineState {
                    key: keys[i],
                    index_slot: &slots[i],
                    open: 10 + (turn * 7 + i) as u32 % 3,
                    max_sequences: 64,
                })
                .collect();
            black_box(routing.pick(&targets, || &prompt, None, Duration::from_secs(1)));
            picking += begun.elapsed();
        }
        println!("{name}: hashing {:.1?}, choice {:.1?}", hashing / CHOICES, picking / CHOICES);
    }
}

fn events(reset: bool, stored: Vec<u64>) -> EngineEvents {
    EngineEvents {
        hash_version: block_hash::VERSION,
        block_size: BLOCK_SIZE,
        reset,
        complete: true,
        stored,
        removed: Vec::new(),
        load: Some(EngineLoad { running: 10, waiting: 0, used_blocks: 100, total_blocks: CACHED }),
        ..EngineEvents::default()
    }
}
