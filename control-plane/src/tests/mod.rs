mod cluster;
mod contract;
mod etcd;
mod experts;
mod fan;
mod faulty;
mod fencing;
mod presence;
mod traffic;

use std::collections::BTreeMap;

use crate::Snapshot;

fn values(snapshot: &Snapshot) -> BTreeMap<String, String> {
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    snapshot.entries.iter().map(|(key, entry)| (key.clone(), text(&entry.value))).collect()
}

/// Many seeds, or the one of `REIN_SEED`; `REIN_SEEDS` makes it more of them.
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
