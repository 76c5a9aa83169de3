//! The sections with the CPU in place of the device.

use std::path::Path;

use super::*;

fn small(names: &[&str]) -> Vec<fixtures::SmallModel> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
    fixtures::models(&dir, Some(names)).expect("models")
}

#[track_caller]
fn passes(found: Result<Vec<ReportRow>, Box<dyn Error>>, rows: usize) {
    let found = found.expect("runs");
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
    passes(models::run(&small(models::REDUCED), &cpu, &cpu, true), 2 * (4 * 2 + 2));
    passes(invariance::run(&small(models::REDUCED), &cpu, true), 6);
    passes(engine::run(&small(models::REDUCED), &cpu, true), 2 * 6);
    passes(bench::run(&small(&[bench::TINY]), &cpu, true), 2 + 2 + 2 + 3);
}
