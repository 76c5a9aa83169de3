use serde_json::{Value, json};

use super::*;

#[test]
fn records_of_releases_without_a_revision_are_read_and_written_as_before() {
    let old = json!({
        "model": "m", "fingerprint": "f", "text": "t", "address": "a:1", "mesh": "a:2", "device": "cpu",
        "shape": {"attention_heads": 1, "kv_heads": 1, "experts": []}, "ranks": 1, "most_ranks": 1, "group_size": 1,
        "redundant_experts": 0, "incarnation": 1, "state": "ready", "seat": {"group": null, "epoch": 0},
        "protocol": 1, "version": "0.1.0",
    });
    let record: WorkerRecord = decode(old.to_string().as_bytes()).expect("a record");
    assert_eq!(record.revision, None);
    let mut again: Value = decode(&encode(&record)).expect("JSON");
    // Older releases skip this field. A record without it began at no known time.
    assert_eq!(again.as_object_mut().expect("an object").remove("started"), Some(0.into()));
    assert_eq!(again, old);
    let new = WorkerRecord { revision: Some("c0ffee".into()), ..record };
    let written: Value = decode(&encode(&new)).expect("JSON");
    assert_eq!(written["revision"], "c0ffee");
    // A release that does not know a field skips it.
    let mut later = written;
    later["field_of_a_later_release"] = 1.into();
    assert_eq!(decode::<WorkerRecord>(later.to_string().as_bytes()).expect("a record"), new);
}
