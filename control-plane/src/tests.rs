//! Tests of the control plane. They use its public interface and the pure controller.

mod cluster;
mod contract;
mod epoch;
mod etcd;
mod experts;
mod faulty_store;
mod fencing;
mod intercepted_store;
mod session;
mod shared_store;
mod traffic;

use std::collections::BTreeMap;

use crate::Snapshot;

fn values(snapshot: &Snapshot) -> BTreeMap<String, String> {
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    snapshot.entries.iter().map(|(key, entry)| (key.clone(), text(&entry.value))).collect()
}

/// Runs many seeds, or the one in `REIN_SEED`; `REIN_SEEDS` sets their number.
fn seeds(many: u64, run: impl Fn(u64)) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let all = number("REIN_SEED").map_or(0..number("REIN_SEEDS").unwrap_or(many), |seed| seed..seed + 1);
    for seed in all {
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed))) {
            eprintln!("REIN_SEED={seed} replays this");
            std::panic::resume_unwind(panic);
        }
    }
}
