//! The sections with the CPU in place of the device.

use std::path::Path;

use super::weights::{BenchForm, K2Slice};
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
    // Four of six are not quantized. Each is compared from end to end and op by op; those with an FP8 KV cache, too.
    passes(models::checks(small(models::REDUCED), &cpu, &cpu, true), 2 * (4 * 2 + 2) + 4);
    passes(invariance::checks(small(models::REDUCED), &cpu, true), 6);
    passes(engine::checks(small(models::REDUCED), &cpu, true), 2 * 6);
    passes(bench::checks(small(&[bench::TINY]), &cpu, true), 2 + 3 + 2 + 3);
    passes(slice::checks(&cpu, || Ok(1e9), true), 2 * (2 + 3));
}

#[test]
fn the_slice_of_k2_reads_the_bytes_of_a_rank() {
    // A rank of eight has an eighth of the shared expert, which the slice has whole: 3 x 7168 x 2048 numbers.
    let shared = (3 * 7168 * 2048) as f64 * 7.0 / 8.0;
    let microseconds = |form, of_number, batch| {
        let slice = K2Slice { form, ..weights::K2 };
        (slice.layer_bytes(batch, 4096) - shared * of_number) / 4.3e12 * 1e6
    };
    for (batch, fp8, int4) in [(1, 21.0, 24.0), (64, 443.0, 291.0), (256, 780.0, 573.0)] {
        let found = [microseconds(BenchForm::Fp8, 1.0, batch), microseconds(BenchForm::Int4, 2.0, batch)];
        for (found, expected) in found.into_iter().zip([fp8, int4]) {
            assert!((found / expected - 1.0).abs() < 0.15, "{batch} rows: {found:.0} us, expected {expected}");
        }
    }
}
