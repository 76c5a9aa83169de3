mod contract;
mod etcd;
mod experts;
mod faulty;
mod presence;
mod traffic;

use std::collections::BTreeMap;

use crate::Snapshot;

fn values(snapshot: &Snapshot) -> BTreeMap<String, String> {
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    snapshot.entries.iter().map(|(key, entry)| (key.clone(), text(&entry.value))).collect()
}
