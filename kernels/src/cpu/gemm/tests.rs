use super::*;
use crate::backend::{HostData, HostMatrix};
use crate::cpu::memory::Arena;
use crate::cpu::weights::PackSource;
use crate::random::Random;

fn numbers(n: usize, seed: u64) -> Vec<f32> {
    Random::new(seed).numbers(n, 1.0)
}

fn product(isa: Isa, threads: usize, x: &[f32], rows: usize, w: &HostMatrix, precision: Precision) -> Vec<f32> {
    let (pool, arena) = (ThreadPool::new(threads), Arena::default());
    let panels = Panels::pack(&pool, isa, &arena, &PackSource::whole(w).unwrap(), precision).unwrap();
    let (tiles, groups) = cut_groups(isa, [rows].into_iter());
    let packed = Packed::pack(&pool, isa, tiles, x, w.cols, precision, &|i| i * w.cols);
    let mut out = vec![f32::NAN; rows * w.rows];
    let job = GemmJob {
        weight: &panels,
        tiles: groups[0].clone(),
        out: SharedPtr(out.as_mut_ptr()),
        stride: w.rows,
        bias: None,
    };
    // SAFETY: out has rows * w.rows numbers, written by the one job.
    unsafe { multiply(&pool, isa, &packed, &[job]) };
    out
}

#[test]
fn uneven_sizes_match_a_naive_product() {
    for isa in Isa::available() {
        for (rows, ins, outs) in [(1, 1, 1), (1, 64, 32), (2, 33, 31), (13, 7, 65), (25, 600, 40), (3, 1030, 100)] {
            let x = numbers(rows * ins, 1);
            let data = numbers(outs * ins, 2);
            for precision in [Precision::F32, Precision::Bf16, Precision::Int8] {
                let w = HostMatrix { rows: outs, cols: ins, data: HostData::F32(data.clone()) };
                let got = product(isa, 2, &x, rows, &w, precision);
                let round = |v: f32| if precision == Precision::Bf16 { bf16::from_f32(v).to_f32() } else { v };
                for r in 0..rows {
                    for o in 0..outs {
                        let (mut want, mut size) = (0.0f64, 0.0f64);
                        for k in 0..ins {
                            let mut weight = data[o * ins + k];
                            if precision == Precision::Bf16 {
                                weight = round(weight);
                            }
                            let term = f64::from(round(x[r * ins + k])) * f64::from(weight);
                            want += term;
                            size += term * term;
                        }
                        let error = (f64::from(got[r * outs + o]) - want).abs() / size.sqrt().max(1e-3);
                        let limit = if precision == Precision::Int8 { 2e-2 } else { 2e-5 };
                        assert!(error < limit, "{isa:?} {precision:?} {rows}x{ins}x{outs}: {error}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_a_batch() {
    for isa in Isa::available() {
        for precision in [Precision::F32, Precision::Bf16, Precision::Int8] {
            let (ins, outs) = (1100, 70);
            let w = HostMatrix { rows: outs, cols: ins, data: HostData::F32(numbers(outs * ins, 3)) };
            let x = numbers(50 * ins, 4);
            let all = product(isa, 2, &x, 50, &w, precision);
            for rows in [1, 2, 5, 11, 12, 13, 29] {
                for from in [0, 7, 50 - rows] {
                    let some = product(isa, 1, &x[from * ins..][..rows * ins], rows, &w, precision);
                    assert_eq!(some, all[from * outs..][..rows * outs], "{isa:?} {precision:?} {rows}@{from}");
                }
            }
        }
    }
}
