use half::bf16;

use super::*;
use crate::backend::{GroupScales, HostData, HostForm, HostMatrix, Precision};
use crate::cpu::memory::Arena;
use crate::cpu::weights::PackSource;
use crate::quant::BlockForm;
use crate::random::Random;

fn numbers(n: usize, seed: u64) -> Vec<f32> {
    Random::new(seed).numbers(n, 1.0)
}

fn product(isa: Isa, threads: usize, x: &[f32], rows: usize, w: &HostMatrix, precision: Precision) -> Vec<f32> {
    let (pool, arena) = (ThreadPool::new(threads), Arena::default());
    let panels = Panels::pack(&pool, isa, &arena, &PackSource::whole(w).unwrap(), precision).unwrap();
    let (tiles, groups) = cut_groups(tile_rows(isa, panels.takes()), [rows].into_iter());
    let packed = Packed::pack(&pool, isa, tiles, x, w.cols, panels.takes(), &|i| i * w.cols);
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

/// Blocks of random codes with ordinary factors.
fn blocks(form: BlockForm, outs: usize, ins: usize, seed: u64) -> HostMatrix {
    let mut random = Random::new(seed);
    let mut bytes = Vec::new();
    for _ in 0..outs * ins / form.numbers() {
        let mut block: Vec<u8> = (0..form.bytes()).map(|_| random.below(256) as u8).collect();
        let halves: &[usize] = match form {
            BlockForm::Q6K => &[208],
            BlockForm::Q4_0 | BlockForm::Q5_0 | BlockForm::Q8_0 => &[0],
            _ => &[0, 2],
        };
        for &at in halves {
            let factor = half::f16::from_f32(0.001 + 0.01 * random.numbers(1, 1.0)[0].abs());
            block[at..at + 2].copy_from_slice(&factor.to_le_bytes());
        }
        bytes.extend(block);
    }
    HostMatrix { rows: outs, cols: ins, data: HostData::Blocks { form, bytes } }
}

fn int4(outs: usize, ins: usize, group: usize, scales: GroupScales) -> HostMatrix {
    let mut random = Random::new(9);
    let packed = (0..outs * ins.div_ceil(8) * 4).map(|_| random.below(256) as u8).collect();
    HostMatrix { rows: outs, cols: ins, data: HostData::Int4 { packed, scales, group } }
}

fn coded(outs: usize, ins: usize) -> Vec<HostMatrix> {
    use BlockForm::*;
    let forms = [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4K, Q5K, Q6K];
    let mut all: Vec<HostMatrix> = forms.into_iter().map(|form| blocks(form, outs, ins, 5)).collect();
    let scales = numbers(outs * ins.div_ceil(64), 6);
    let halves = scales.iter().map(|&scale| half::f16::from_f32(scale).to_f32()).collect();
    all.push(int4(outs, ins, 64, GroupScales::F32(halves)));
    let zeros = (0..outs * ins.div_ceil(128)).map(|i| (i % 16) as u8).collect();
    let scales_of_128 = numbers(outs * ins.div_ceil(128), 8);
    let scales_of_128 = scales_of_128.iter().map(|&scale| half::f16::from_f32(scale).to_f32()).collect();
    let HostData::Int4 { packed, .. } = int4(outs, ins, 128, GroupScales::F32(Vec::new())).data else { panic!("int4") };
    let scales_of_128 = GroupScales::F32(scales_of_128);
    let data = HostData::Int4Zeros { packed: packed.to_vec(), scales: scales_of_128, zeros, group: 128 };
    all.push(HostMatrix { rows: outs, cols: ins, data });
    let powers = (0..outs * ins.div_ceil(32)).map(|i| 120 + (i % 9) as u8).collect();
    all.push(HostMatrix { rows: outs, cols: ins, data: HostData::Mxfp4 { packed: packed.into_vec(), scales: powers } });
    all.push(int4(outs, ins, 64, GroupScales::Bf16(scales.iter().map(|&scale| bf16::from_f32(scale)).collect())));
    all
}

fn fp8(outs: usize, ins: usize, block: [usize; 2]) -> HostMatrix {
    let mut random = Random::new(11);
    let codes = (0..outs * ins).map(|_| random.below(256) as u8).map(|code| if code & 127 == 127 { 1 } else { code });
    let codes = codes.collect();
    let scales = numbers(outs.div_ceil(block[0]) * ins.div_ceil(block[1]), 12);
    HostMatrix { rows: outs, cols: ins, data: HostData::Fp8 { codes, scales, block } }
}

#[test]
fn fp8_is_multiplied_as_it_is_stored() {
    for (outs, ins, block) in [(70, 640, [128, 128]), (40, 1100, [1, 1100]), (33, 96, [33, 96]), (64, 2048, [16, 64])] {
        let (w, x) = (fp8(outs, ins, block), numbers(40 * ins, 7));
        let HostData::F32(wide) = w.clone().into_form(HostForm::F32).unwrap().data else { panic!("f32") };
        for isa in Isa::available().into_iter().filter(|isa| isa.multiplies_pairs()) {
            let all = product(isa, 2, &x, 40, &w, Precision::Bf16);
            for r in 0..40 {
                for o in 0..outs {
                    let round = |v: f32| f64::from(bf16::from_f32(v).to_f32());
                    let terms = (0..ins).map(|k| round(x[r * ins + k]) * f64::from(wide[o * ins + k]));
                    let (want, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term * term));
                    let error = (f64::from(all[r * outs + o]) - want).abs() / size.sqrt();
                    assert!(error < 2e-5, "{isa:?} {block:?}: {error}");
                }
            }
            for (from, rows) in [(0, 1), (3, 2), (11, 13), (15, 25)] {
                let some = product(isa, 1, &x[from * ins..][..rows * ins], rows, &w, Precision::Bf16);
                assert_eq!(some, all[from * outs..][..rows * outs], "{isa:?} {block:?}");
            }
        }
        let panels = {
            let (pool, arena) = (ThreadPool::new(1), Arena::default());
            Panels::pack(&pool, Isa::detect(), &arena, &PackSource::whole(&w).unwrap(), Precision::Bf16).unwrap()
        };
        for out in 0..outs {
            let mut row = vec![0.0; ins];
            panels.output(out, &mut row);
            assert_eq!(row, wide[out * ins..][..ins], "{block:?} {out}");
        }
    }
}

#[test]
fn fp8_with_a_code_that_is_no_number_is_refused() {
    let mut w = fp8(4, 64, [4, 64]);
    let HostData::Fp8 { codes, .. } = &mut w.data else { panic!("fp8") };
    codes[100] = 0xff;
    assert!(PackSource::whole(&w).is_err());
    assert!(PackSource::whole(&fp8(4, 64, [4, 48])).is_err());
}

#[test]
fn codes_are_multiplied_as_they_are_stored() {
    let (ins, outs) = (768, 70);
    let x = numbers(40 * ins, 7);
    for w in coded(outs, ins) {
        let HostData::F32(wide) = w.clone().into_form(HostForm::F32).unwrap().data else { panic!("f32") };
        for isa in Isa::available() {
            let all = product(isa, 2, &x, 40, &w, Precision::Bf16);
            for r in 0..40 {
                for o in 0..outs {
                    let terms = (0..ins).map(|k| f64::from(x[r * ins + k]) * f64::from(wide[o * ins + k]));
                    let (want, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term * term));
                    let error = (f64::from(all[r * outs + o]) - want).abs() / size.sqrt();
                    assert!(error < 4e-2, "{isa:?} {:?}: {error}", w.stored_form());
                }
            }
            for (from, rows) in [(0, 1), (3, 2), (11, 13), (15, 25)] {
                let some = product(isa, 1, &x[from * ins..][..rows * ins], rows, &w, Precision::Bf16);
                assert_eq!(some, all[from * outs..][..rows * outs], "{isa:?} {:?}", w.stored_form());
            }
        }
    }
}

#[test]
fn an_output_is_read_back_as_it_was_packed() {
    let (pool, arena) = (ThreadPool::new(1), Arena::default());
    for w in coded(40, 512) {
        let HostData::F32(wide) = w.clone().into_form(HostForm::F32).unwrap().data else { panic!("f32") };
        let source = PackSource::whole(&w).unwrap();
        let panels = Panels::pack(&pool, Isa::detect(), &arena, &source, Precision::Bf16).unwrap();
        for out in 0..40 {
            let mut row = vec![0.0; 512];
            panels.output(out, &mut row);
            assert_eq!(row, wide[out * 512..][..512], "{:?} {out}", w.stored_form());
        }
    }
}

#[test]
fn blocks_that_do_not_fill_rows_are_refused() {
    let mut w = blocks(BlockForm::Q4K, 4, 256, 1);
    w.cols = 224;
    assert!(PackSource::whole(&w).is_err());
    let odd = int4(2, 64, 48, GroupScales::F32(vec![1.0; 4]));
    assert!(PackSource::whole(&odd).is_err());
    let wide = int4(2, 64, 64, GroupScales::F32(vec![1.0, 1.0 + f32::EPSILON]));
    assert!(PackSource::whole(&wide).is_err());
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn tile_registers_multiply_as_the_manual_says() {
    if Isa::available().contains(&Isa::Amx) {
        // SAFETY: the processor has the registers, or they are emulated.
        assert!(unsafe { amx::multiply_right() });
    }
}

/// Sums of integers are exact, so that a machine may compute many rows in registers and few without.
#[test]
fn integers_have_the_same_bits_in_tile_registers() {
    let (ins, outs) = (768, 70);
    let x = numbers(40 * ins, 13);
    let ints = HostMatrix { rows: outs, cols: ins, data: HostData::F32(numbers(outs * ins, 14)) };
    let all = coded(outs, ins).into_iter().map(|w| (w, Precision::Bf16)).chain([(ints, Precision::Int8)]);
    for (w, precision) in all {
        let [registers, vectors] = [Isa::Amx, Isa::Avx512].map(|isa| {
            let there = Isa::available().contains(&isa);
            there.then(|| product(isa, 2, &x, 40, &w, precision))
        });
        assert_eq!(registers, registers.as_ref().and(vectors), "{:?}", w.stored_form());
    }
}
