//! Every op against the f64 reference, and batch invariance to the bit, on every instruction set of the machine.

mod attention;
mod lanes;

use half::bf16;

use super::*;
use crate::collective::threads::group;
use crate::diff::difference;
use crate::random::Random;
use crate::reference;

const PRECISIONS: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::Int8];

fn cpu(isa: Isa, threads: usize) -> Cpu {
    Cpu::with_isa(threads, Box::new(group(1).remove(0)), isa)
}

fn f32s(matrix: &HostMatrix) -> Vec<f32> {
    match &matrix.data {
        HostData::F32(v) => v.clone(),
        HostData::Bf16(v) => v.iter().map(|x| x.to_f32()).collect(),
        quantized => panic!("{quantized:?}"),
    }
}

fn rounded(x: &[f32], precision: Precision) -> Vec<f32> {
    if precision == Precision::F32 { x.to_vec() } else { x.iter().map(|&x| bf16::from_f32(x).to_f32()).collect() }
}

fn assert_close(got: &[f32], want: &[f32], tolerance: f64, what: &str) {
    let d = difference(got, want);
    assert!(d.within(tolerance), "{what}: {d}");
}

fn tolerance(precision: Precision) -> f64 {
    match precision {
        Precision::F32 => 1e-5,
        Precision::Bf16 => 3e-2,
        Precision::Int8 => 5e-2,
    }
}

/// A step of these sequences.
fn batch<'a>(cpu: &mut Cpu, spans: impl Iterator<Item = Span<'a>>) -> Batch<'a> {
    let spans: Vec<Span> = spans.collect();
    let ids = vec![0; spans.iter().map(|span| span.len).sum()];
    cpu.begin(StepInputs { ids, spans, ..StepInputs::default() }).unwrap()
}

#[test]
fn linear_matches_the_reference_and_is_batch_invariant() {
    for isa in Isa::available() {
        let mut rng = Random::new(3);
        let (rows, ins, outs) = (37, 520, 77);
        let weight = rng.matrix(outs, ins, 1.0);
        let bias = rng.numbers(outs, 1.0);
        let x = rng.numbers(rows * ins, 1.0);
        for precision in PRECISIONS {
            let cpu = cpu(isa, 2);
            let w = cpu.linear_weight(weight.clone(), precision).unwrap();
            let b = cpu.vector(bias.clone()).unwrap();
            let all = cpu.to_host(&cpu.linear(&cpu.to_device(rows, ins, x.clone()), &w, Some(&b)));
            let want = reference::linear(&x, &f32s(&weight), ins, Some(&bias));
            assert_close(&all, &want, tolerance(precision), &format!("{isa:?} {precision:?}"));
            // From bf16, the packed weights are the same as from f32 numbers rounded to bf16.
            if precision == Precision::Bf16 {
                let half = weight_bf16(&weight);
                let w = cpu.linear_weight(half, precision).unwrap();
                assert_eq!(cpu.to_host(&cpu.linear(&cpu.to_device(rows, ins, x.clone()), &w, Some(&b))), all);
            }
            for _ in 0..12 {
                let picked: Vec<usize> = (0..1 + rng.below(rows)).map(|_| rng.below(rows)).collect();
                let some = cpu.gather_rows(&cpu.to_device(rows, ins, x.clone()), &picked);
                let got = cpu.to_host(&cpu.linear(&some, &w, Some(&b)));
                for (i, &r) in picked.iter().enumerate() {
                    assert_eq!(got[i * outs..][..outs], all[r * outs..][..outs], "{isa:?} {precision:?}");
                }
            }
        }
    }
}

fn weight_bf16(weight: &HostMatrix) -> HostMatrix {
    let data = f32s(weight).iter().map(|&x| bf16::from_f32(x)).collect();
    HostMatrix { rows: weight.rows, cols: weight.cols, data: HostData::Bf16(data) }
}

#[test]
fn experts_match_the_reference_and_are_batch_invariant() {
    for isa in Isa::available() {
        for (hidden, inter, experts, top_k, rows) in [(64, 32, 4, 2, 9), (70, 45, 7, 3, 40), (96, 40, 3, 3, 60)] {
            let mut rng = Random::new(5);
            // Local experts have ids 2, 3, ...; the others belong to other ranks.
            let matrices: Vec<[HostMatrix; 3]> = (0..experts)
                .map(|_| {
                    [rng.matrix(inter, hidden, 1.0), rng.matrix(inter, hidden, 1.0), rng.matrix(hidden, inter, 1.0)]
                })
                .collect();
            let x = rng.numbers(rows * hidden, 1.0);
            let mut routes = Routes { top_k, experts: Vec::new(), weights: rng.numbers(rows * top_k, 1.0) };
            for _ in 0..rows {
                let mut ids: Vec<u32> = (0..experts as u32 + 3).collect();
                routes.experts.extend((0..top_k).map(|_| ids.swap_remove(rng.below(ids.len()))));
            }
            for precision in PRECISIONS {
                let cpu = cpu(isa, 2);
                let mut weights = matrices.iter().enumerate().map(|(i, [gate, up, down])| {
                    let (gate, up, down) = (gate.clone(), up.clone(), down.clone());
                    Ok(ExpertWeights { id: i as u32 + 2, gate, up, down })
                });
                let local = cpu.experts(ExpertTable::default(), &mut weights, precision).unwrap();
                let all = cpu.to_host(&cpu.moe_experts(&cpu.to_device(rows, hidden, x.clone()), &routes, &local, None));
                let mut want = vec![0.0f32; rows * hidden];
                for (slot, (&id, &weight)) in routes.experts.iter().zip(&routes.weights).enumerate() {
                    let Some(m) = (id as usize).checked_sub(2).and_then(|i| matrices.get(i)) else { continue };
                    let row = slot / top_k;
                    let part = reference::expert(
                        &x[row * hidden..][..hidden],
                        &f32s(&m[0]),
                        &f32s(&m[1]),
                        &f32s(&m[2]),
                        hidden,
                    );
                    want[row * hidden..][..hidden].iter_mut().zip(part).for_each(|(w, p)| *w += weight * p);
                }
                // Two products in a row, the second with unbounded values: twice the tolerance of one.
                assert_close(&all, &want, 2.0 * tolerance(precision), &format!("{isa:?} {precision:?} {hidden}"));
                for _ in 0..8 {
                    let picked: Vec<usize> = (0..1 + rng.below(rows)).map(|_| rng.below(rows)).collect();
                    let some = cpu.gather_rows(&cpu.to_device(rows, hidden, x.clone()), &picked);
                    let pick = |r: &usize| r * top_k..(r + 1) * top_k;
                    let some_routes = Routes {
                        top_k,
                        experts: picked.iter().flat_map(|r| routes.experts[pick(r)].to_vec()).collect(),
                        weights: picked.iter().flat_map(|r| routes.weights[pick(r)].to_vec()).collect(),
                    };
                    let got = cpu.to_host(&cpu.moe_experts(&some, &some_routes, &local, None));
                    for (i, &r) in picked.iter().enumerate() {
                        let same = got[i * hidden..][..hidden] == all[r * hidden..][..hidden];
                        assert!(same, "{isa:?} {precision:?} {hidden}: row {r} among {picked:?}");
                    }
                }
            }
        }
    }
}

/// Whichever rank holds and computes what, the sum has the bits of a single rank's sum.
#[test]
fn combined_experts_do_not_depend_on_placement() {
    // Small results go to every rank, large ones are split by columns.
    for rows in [7, 300] {
        combine_is_the_same(rows);
    }
}

fn combine_is_the_same(rows: usize) {
    let (hidden, inter, experts, top_k) = (40, 24, 6u32, 3);
    let mut rng = Random::new(11);
    let matrices: Vec<[HostMatrix; 3]> = (0..experts)
        .map(|_| [rng.matrix(inter, hidden, 1.0), rng.matrix(inter, hidden, 1.0), rng.matrix(hidden, inter, 1.0)])
        .collect();
    let x = rng.numbers(rows * hidden, 1.0);
    let mut routes = Routes { top_k, experts: Vec::new(), weights: rng.numbers(rows * top_k, 1.0) };
    for _ in 0..rows {
        let mut ids: Vec<u32> = (0..experts).collect();
        routes.experts.extend((0..top_k).map(|_| ids.swap_remove(rng.below(ids.len()))));
    }
    let load = |cpu: &Cpu, ids: &[u32]| {
        let mut weights = ids.iter().map(|&id| {
            let [gate, up, down] = matrices[id as usize].clone();
            Ok(ExpertWeights { id, gate, up, down })
        });
        cpu.experts(ExpertTable::default(), &mut weights, Precision::F32).unwrap()
    };
    let alone = cpu(Isa::detect(), 1);
    let all: Vec<u32> = (0..experts).collect();
    let whole = load(&alone, &all);
    let want = alone.to_host(&alone.moe_experts(&alone.to_device(rows, hidden, x.clone()), &routes, &whole, None));
    for ranks in [2usize, 3, 5] {
        for _ in 0..4 {
            let dispatch: Vec<u32> = (0..rows * top_k).map(|_| rng.below(ranks) as u32).collect();
            let partial: Vec<Vec<f32>> = (0..ranks).map(|_| rng.numbers(rows * hidden, 1.0)).collect();
            let outs: Vec<[Vec<f32>; 2]> = std::thread::scope(|scope| {
                let on_rank = |link: crate::collective::Threads| {
                    let rank = crate::collective::ControlLink::rank(&link);
                    let (dispatch, routes, x, load, all, partial) = (&dispatch, &routes, &x, &load, &all, &partial);
                    scope.spawn(move || {
                        let cpu = Cpu::new(1, Box::new(link));
                        // Some experts are held from the start, the rest as if another backend had loaded them later.
                        let (first, later) = all.split_at(2);
                        let held = cpu.regroup(&load(&cpu, first), &load(&cpu, later), all).unwrap();
                        let picks: Vec<u32> =
                            (0..dispatch.len() as u32).filter(|&i| dispatch[i as usize] == rank as u32).collect();
                        let parts = cpu.moe_parts(&cpu.to_device(rows, hidden, x.clone()), routes, &picks, &held, None);
                        let shared = cpu.to_device(rows, hidden, partial[rank].clone());
                        [None, Some(&shared)]
                            .map(|shared| cpu.to_host(&cpu.moe_combine(&parts, routes, dispatch, shared).unwrap()))
                    })
                };
                let ranks: Vec<_> = group(ranks).into_iter().map(on_rank).collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            let mut with_shared = partial[0].clone();
            for part in &partial[1..] {
                with_shared.iter_mut().zip(part).for_each(|(s, p)| *s += p);
            }
            with_shared.iter_mut().zip(&want).for_each(|(s, w)| *s += w);
            for [plain, shared] in &outs {
                assert_eq!(plain, &want, "{ranks} ranks");
                assert_eq!(shared, &with_shared, "{ranks} ranks");
            }
        }
    }
}

#[test]
fn small_ops_agree_with_the_reference() {
    for isa in Isa::available() {
        for threads in [1, 3] {
            let cpu = cpu(isa, threads);
            let mut rng = Random::new(8);
            // Enough rows to be split over threads, and an uneven width.
            for (rows, cols) in [(1, 5), (3, 96), (700, 72)] {
                let (a, b) = (rng.numbers(rows * cols, 1.0), rng.numbers(rows * cols, 1.0));
                let (ta, tb) = (cpu.to_device(rows, cols, a.clone()), cpu.to_device(rows, cols, b.clone()));
                let silu = cpu.to_host(&cpu.silu_mul(&ta, &tb));
                assert_close(&silu, &reference::silu_mul(&a, &b), 1e-6, "silu_mul");
                let gelu = cpu.to_host(&cpu.gelu_mul(&ta, &tb));
                assert_close(&gelu, &reference::gelu_mul(&a, &b), 1e-6, "gelu_mul");
                for (form, gelu) in [(Gelu::Erf, reference::gelu_erf as fn(f64) -> f64), (Gelu::Tanh, reference::gelu)]
                {
                    let want: Vec<f32> = a.iter().map(|x| gelu(f64::from(*x)) as f32).collect();
                    assert_close(&cpu.to_host(&cpu.gelu(&ta, form)), &want, 1e-6, "gelu");
                }
                let (scales, bias) = (rng.numbers(cols, 1.0), rng.numbers(cols, 1.0));
                // A mean far from zero.
                let far: Vec<f32> = a.iter().map(|x| x + 5.0).collect();
                let normed = cpu.layer_norm(&cpu.to_device(rows, cols, far.clone()), &scales, &bias, 1e-5);
                let want = reference::layer_norm(&far, &scales, &bias, 1e-5);
                assert_close(&cpu.to_host(&normed), &want, 5e-6, "layer_norm");
                let weight = rng.numbers(if cols == 5 { 5 } else { 24 }, 1.0);
                let norm = cpu.to_host(&cpu.rms_norm(&ta, &weight, 1e-6));
                assert_close(&norm, &reference::rms_norm(&a, &weight, 1e-6), 1e-6, "rms_norm");
                // The second half as a part of whole rows.
                let (from, weight_of_row) = (cols / 2, Random::new(9).numbers(cols, 1.0));
                let whole = reference::rms_norm(&a, &weight_of_row, 1e-6);
                let sums = cpu.square_sums(&cpu.slice_cols(&tb, 0, 0), &ta, 0..cols);
                let of = WholeRow { column: 1, width: cols, eps: 1e-6 };
                let part = cpu.slice_cols(&ta, from, cols - from);
                let part = cpu.norm_of_part(&part, &weight_of_row[from..].to_vec(), &sums, of);
                let halves: Vec<f32> = whole.chunks(cols).flat_map(|row| &row[from..]).copied().collect();
                assert_close(&cpu.to_host(&part), &halves, 1e-6, "norm_of_part");
                assert!(cpu.to_host(&sums).chunks(2).all(|sums| sums[0] == 0.0));
                let mut sum = ta.clone();
                let normed = cpu.add_norm(&mut sum, &tb, 0.5, &weight, 1e-6);
                let fused = sum.clone();
                sum = ta.clone();
                cpu.add_scaled(&mut sum, &tb, 0.5);
                assert_eq!(cpu.to_host(&fused), cpu.to_host(&sum));
                assert_eq!(cpu.to_host(&normed), cpu.to_host(&cpu.rms_norm(&sum, &weight, 1e-6)));
                cpu.scale(&mut sum, 2.0);
                let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| (a + 0.5 * b) * 2.0).collect();
                assert_eq!(cpu.to_host(&sum), want);
                let slice = cpu.slice_cols(&ta, 1, 3);
                assert_eq!((cpu.rows(&slice), cpu.cols(&slice)), (rows, 3));
                assert_eq!(cpu.to_host(&slice)[..3], a[1..4]);
            }
        }
    }
}

#[test]
fn rope_agrees_with_the_reference() {
    let mut cpu = cpu(Isa::detect(), 2);
    let mut rng = Random::new(13);
    let kinds = [(64, 0, 64, false), (48, 32, 16, true), (24, 4, 10, false)];
    let rotations = kinds.into_iter().map(|(head_dim, offset, dims, interleaved)| {
        let inv_freq: Vec<f64> = (0..dims / 2).map(|i| 10000f64.powf(-2.0 * i as f64 / dims as f64)).collect();
        RopeSpec { head_dim, offset, dims, interleaved, inv_freq, magnitude: 1.25, growth: None }
    });
    for spec in rotations.chain([RopeSpec::growing(Growth { length: 10, beta: 0.3 })]) {
        let (rows, cols) = (300, 3 * spec.head_dim);
        let x = rng.numbers(rows * cols, 1.0);
        let positions: Vec<u32> = (0..rows as u32).map(|r| r % 97).collect();
        let mut got = cpu.to_device(rows, cols, x.clone());
        let spans = (0..rows).step_by(97).map(|row| Span { row, len: 97.min(rows - row), start: 0, blocks: &[] });
        let whole = batch(&mut cpu, spans);
        cpu.rope(&whole, &mut got, &spec);
        let mut want = x.clone();
        reference::rope(&mut want, cols, &spec, &positions);
        assert_close(&cpu.to_host(&got), &want, 2e-5, &format!("{spec:?}"));
        let table = rng.numbers(97 * cols, 1.0);
        let mut got = cpu.to_device(rows, cols, x.clone());
        cpu.add_positions(&whole, &mut got, &table);
        let add = positions.iter().flat_map(|&position| &table[position as usize * cols..][..cols]);
        let want: Vec<f32> = x.iter().zip(add).map(|(x, add)| x + add).collect();
        assert_eq!(cpu.to_host(&got), want, "positions");
        // Another batch has its own table.
        let mut other = cpu.to_device(1, cols, x[..cols].to_vec());
        let single = batch(&mut cpu, std::iter::once(Span { row: 0, len: 1, start: 5, blocks: &[] }));
        cpu.rope(&single, &mut other, &spec);
        let mut want = x[..cols].to_vec();
        reference::rope(&mut want, cols, &spec, &[5]);
        assert_close(&cpu.to_host(&other), &want, 2e-5, "another position");
    }
}

#[test]
fn embedding_looks_up_rows_and_checks_shapes() {
    let mut cpu = cpu(Isa::detect(), 1);
    let mut rng = Random::new(17);
    let table = rng.matrix(9, 10, 1.0);
    for precision in PRECISIONS {
        let embedding = cpu.embedding(table.clone(), 0, precision).unwrap();
        let batch = cpu.begin(StepInputs { ids: vec![8, 0, 8], ..StepInputs::default() }).unwrap();
        let got = cpu.to_host(&cpu.embed(&embedding, &batch));
        assert_eq!(got[10..20], rounded(&f32s(&table)[..10], precision));
        assert_eq!(got[..10], got[20..]);
        // The parts of several ranks add up to the same bits, those of -0 too.
        let signed: Vec<f32> =
            f32s(&table).iter().enumerate().map(|(i, x)| if i % 3 == 0 { -0.0 } else { *x }).collect();
        let of = |cpu: &Cpu, rows: std::ops::Range<usize>| {
            let data = HostData::F32(signed[rows.start * 10..rows.end * 10].to_vec());
            let part = cpu.embedding(HostMatrix { rows: rows.len(), cols: 10, data }, rows.start, precision).unwrap();
            cpu.to_host(&cpu.embed(&part, &batch))
        };
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let sum: Vec<f32> = of(&cpu, 0..4).iter().zip(of(&cpu, 4..9)).map(|(a, b)| a + b).collect();
        assert_eq!(bits(&sum), bits(&of(&cpu, 0..9)));
    }
    let short = HostMatrix { rows: 4, cols: 4, data: HostData::F32(vec![0.0; 15]) };
    let error = cpu.linear_weight(short.clone(), Precision::Bf16).unwrap_err();
    assert_eq!(error.to_string(), "weight: [4, 4] needs 16 numbers, got 15");
    assert!(cpu.embedding(short, 0, Precision::F32).is_err());
    let codes = HostData::Fp8 { codes: vec![0; 3].into(), scales: vec![1.0], block: [2, 2] };
    let error = cpu.linear_weight(HostMatrix { rows: 2, cols: 2, data: codes }, Precision::Bf16).unwrap_err();
    assert_eq!(error.to_string(), "fp8_block_dequant: weight must have 4 entries, got 3");
    let spec = MlaSpec { heads: 2, nope_dim: 4, rope_dim: 2, v_dim: 4, kv_rank: 8, scale: 1.0 };
    assert!(cpu.mla_weight(rng.matrix(15, 8, 1.0), &spec, Precision::F32).is_err());
    let uneven =
        ExpertWeights { id: 0, gate: rng.matrix(8, 4, 1.0), up: rng.matrix(8, 4, 1.0), down: rng.matrix(8, 4, 1.0) };
    assert!(cpu.experts(ExpertTable::default(), &mut std::iter::once(Ok(uneven)), Precision::F32).is_err());
    assert!(cpu.cache(4, 0, [8, 8], CacheForm::F32).is_err());
}

#[test]
fn collective_ops_sum_and_gather_over_ranks() {
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = group(3)
            .into_iter()
            .map(|rank| {
                scope.spawn(move || {
                    let cpu = Cpu::new(1, Box::new(rank));
                    let r = cpu.rank() as f32;
                    let mut x = cpu.to_device(2, 2, vec![r, 1.0, 2.0, 3.0]);
                    cpu.all_reduce(&mut x).unwrap();
                    let y = cpu.to_device(2, 1 + cpu.rank(), vec![r; 2 * (1 + cpu.rank())]);
                    let gathered = cpu.gather_cols(y).unwrap();
                    // The first to finish leaves while others may still be waking up.
                    cpu.all_reduce(&mut x).unwrap();
                    (cpu.to_host(&x), gathered.map(|gathered| cpu.to_host(&gathered)))
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for (rank, (sum, gathered)) in results.into_iter().enumerate() {
        assert_eq!(sum, [9.0, 9.0, 18.0, 27.0]);
        assert_eq!(gathered, (rank == 0).then(|| [0.0, 1.0, 1.0, 2.0, 2.0, 2.0].repeat(2)));
    }
}
