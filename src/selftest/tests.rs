//! The sections with the CPU in place of the device.

use std::path::Path;

use super::*;

fn small(names: &[&str]) -> Vec<fixtures::SmallModel> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
    fixtures::models(&dir, Some(names)).expect("models")
}

#[track_caller]
fn passes(checks: Vec<SectionCheck>, rows: usize) {
    let mut found = Vec::new();
    for check in checks {
        (check.run)(&mut |row| found.push(row)).expect("runs");
    }
    assert_eq!(found.len(), rows);
    for row in found {
        println!("{}: {}", row.name, row.value);
        assert!(row.passed, "{}: {}", row.name, row.value);
    }
}

#[test]
fn the_cpu_passes_every_section() {
    let cpu = DeviceChoice::Cpu;
    // Four of six are not quantized. Each is compared from end to end and op by op.
    passes(models::checks(small(models::REDUCED), &cpu, &cpu, true), 2 * (4 * 2 + 2));
    passes(invariance::checks(small(models::REDUCED), &cpu, true), 6);
    passes(engine::checks(small(models::REDUCED), &cpu, true), 2 * 6);
    passes(bench::checks(small(&[bench::TINY]), &cpu, true), 2 + 3 + 2 + 3);
}
