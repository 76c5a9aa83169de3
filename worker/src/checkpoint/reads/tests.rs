use super::*;

#[test]
fn a_stalled_read_is_reported_and_abandoned() {
    let reads = Reads::new(Duration::from_millis(50));
    let (open, gate) = bounded::<()>(1);
    let hangs = reads.clone();
    let error = reads.watch(move || {
        hangs.during(Path::new("ok"), || ());
        hangs.during(Path::new("m/model.safetensors"), || gate.recv().is_err());
        Ok(())
    });
    let error = error.expect_err("stalled").to_string();
    assert!(error.contains("m/model.safetensors") && error.contains("0.05"), "{error}");
    drop(open);
    assert_eq!(reads.watch(|| Ok(7)).expect("nothing hangs"), 7);
}
