//! Every op against the f64 reference, and batch invariance to the bit, on every instruction set of the machine.

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

/// Block tables for sequences of the given lengths, in shuffled blocks of one cache.
fn tables(rng: &mut Random, lengths: &[usize], block_size: usize) -> (usize, Vec<Vec<u32>>) {
    let total: usize = lengths.iter().map(|l| l.div_ceil(block_size)).sum();
    let mut free: Vec<u32> = (0..total as u32 + 3).collect();
    let tables = lengths
        .iter()
        .map(|l| (0..l.div_ceil(block_size)).map(|_| free.swap_remove(rng.below(free.len()))).collect())
        .collect();
    (total + 3, tables)
}

/// Splits every sequence into random chunks and mixes chunks of different sequences into steps.
fn random_steps<'a>(rng: &mut Random, lengths: &[usize], tables: &'a [Vec<u32>]) -> Vec<Vec<(usize, Span<'a>)>> {
    let mut done = vec![0; lengths.len()];
    let mut steps = Vec::new();
    while done.iter().zip(lengths).any(|(d, l)| d < l) {
        let (mut step, mut row) = (Vec::new(), 0);
        for (s, &length) in lengths.iter().enumerate() {
            if done[s] < length && rng.below(3) > 0 {
                let len = if rng.below(2) == 0 { 1 } else { 1 + rng.below(length - done[s]) };
                step.push((s, Span { row, len, start: done[s], blocks: &tables[s] }));
                done[s] += len;
                row += len;
            }
        }
        if !step.is_empty() {
            steps.push(step);
        }
    }
    steps
}

/// A step of these sequences.
fn batch<'a>(cpu: &mut Cpu, spans: impl Iterator<Item = Span<'a>>) -> Batch<'a> {
    let spans: Vec<Span> = spans.collect();
    let ids = vec![0; spans.iter().map(|span| span.len).sum()];
    cpu.begin(StepInputs { ids, spans, ..StepInputs::default() }).unwrap()
}

/// Rows of a step's sequences, side by side.
fn rows_of(step: &[(usize, Span)], data: &[Vec<f32>], width: usize) -> Vec<f32> {
    step.iter().flat_map(|(s, span)| &data[*s][span.start * width..][..span.len * width]).copied().collect()
}

/// What a cache keeps of keys (0) or values (1).
fn cached(x: &[f32], form: CacheForm, which: usize) -> Vec<f32> {
    match form {
        CacheForm::F32 => x.to_vec(),
        CacheForm::Bf16 => rounded(x, Precision::Bf16),
        CacheForm::Fp8 { sharing } => {
            let groups = x.chunks(if sharing[which] == 0 { 1 } else { sharing[which] });
            let kept = |group: &[f32]| {
                let largest = group.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
                let scale = if sharing[which] == 0 { 1.0 } else { crate::quant::e4m3_scale(largest) };
                group.iter().map(|x| crate::quant::e4m3(crate::quant::to_e4m3(x / scale)) * scale).collect::<Vec<_>>()
            };
            groups.flat_map(kept).collect()
        }
    }
}

type Attend<'a> = dyn Fn(&mut Cpu, &mut KvCache, &[&[Vec<f32>]], &[(usize, Span)]) -> Vec<f32> + 'a;

/// Runs sequences whole and alone, then split and mixed in several ways; results must agree bit for bit. Returns the
/// results of each sequence.
fn invariant(
    isa: Isa,
    form: CacheForm,
    widths: [usize; 2],
    out_width: usize,
    inputs: &[&[Vec<f32>]],
    lengths: &[usize],
    attend: &Attend,
) -> Vec<Vec<f32>> {
    let mut rng = Random::new(0x5eed);
    let whole: Vec<Vec<f32>> = (0..lengths.len())
        .map(|s| {
            let mut cpu = cpu(isa, 1);
            let mut cache = cpu.cache(1, lengths[s], widths, form).unwrap();
            let span = Span { row: 0, len: lengths[s], start: 0, blocks: &[0] };
            attend(&mut cpu, &mut cache, inputs, &[(s, span)])
        })
        .collect();
    for (threads, block_size) in [(1, 16), (2, 5), (3, 1), (2, 64)] {
        let mut cpu = cpu(isa, threads);
        let (blocks, tables) = tables(&mut rng, lengths, block_size);
        let mut cache = cpu.cache(blocks, block_size, widths, form).unwrap();
        for step in random_steps(&mut rng, lengths, &tables) {
            let got = attend(&mut cpu, &mut cache, inputs, &step);
            for (s, span) in &step {
                let got = &got[span.row * out_width..][..span.len * out_width];
                let want = &whole[*s][span.start * out_width..][..span.len * out_width];
                let same = got.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{isa:?} {form:?} blocks of {block_size}: sequence {s}, {span:?}");
            }
        }
    }
    whole
}

#[test]
fn gqa_matches_the_reference_and_is_batch_invariant() {
    for isa in Isa::available() {
        for (heads, kv_heads, head_dim, window) in
            [(4, 2, 64, None), (3, 3, 24, None), (8, 1, 16, Some(37)), (2, 2, 80, Some(1)), (6, 2, 7, Some(70))]
        {
            let spec = GqaSpec { heads, kv_heads, head_dim, scale: (head_dim as f32).powf(-0.5), window };
            let lengths = [1, 200, 70, 13, 64];
            let mut rng = Random::new(7);
            let (wide, width) = (heads * head_dim, kv_heads * head_dim);
            let q: Vec<_> = lengths.iter().map(|l| rng.numbers(l * wide, 1.0)).collect();
            let k: Vec<_> = lengths.iter().map(|l| rng.numbers(l * width, 1.0)).collect();
            let v: Vec<_> = lengths.iter().map(|l| rng.numbers(l * width, 1.0)).collect();
            for form in [CacheForm::F32, CacheForm::Bf16, CacheForm::Fp8 { sharing: [head_dim; 2] }] {
                let attend: &Attend = &|cpu, cache, inputs, step| {
                    let rows = step.iter().map(|(_, s)| s.len).sum();
                    let tensor = |i: usize, cols| tensor(rows, cols, rows_of(step, inputs[i], cols));
                    let (q, k, v) = (tensor(0, wide), tensor(1, width), tensor(2, width));
                    let batch = batch(cpu, step.iter().map(|(_, span)| *span));
                    cpu.to_host(&cpu.gqa_attention(&batch, &q, &k, &v, cache, &spec))
                };
                let got = invariant(isa, form, [width, width], wide, &[&q, &k, &v], &lengths, attend);
                for s in 0..lengths.len() {
                    let (k, v) = (cached(&k[s], form, 0), cached(&v[s], form, 1));
                    let want = reference::gqa_attention(&q[s], &k, &v, &spec);
                    assert_close(&got[s], &want, 1e-5, &format!("{isa:?} {form:?} {spec:?}"));
                }
            }
        }
    }
}

#[test]
fn mla_matches_the_reference_and_is_batch_invariant() {
    for isa in Isa::available() {
        for (heads, nope_dim, rope_dim, v_dim, kv_rank) in [(8, 32, 16, 24, 64), (3, 20, 6, 33, 50)] {
            let scale = ((nope_dim + rope_dim) as f32).powf(-0.5);
            let spec = MlaSpec { heads, nope_dim, rope_dim, v_dim, kv_rank, scale };
            let lengths = [1, 150, 70, 9];
            let mut rng = Random::new(11);
            let (wide, out) = (heads * (nope_dim + rope_dim), heads * v_dim);
            let q: Vec<_> = lengths.iter().map(|l| rng.numbers(l * wide, 1.0)).collect();
            let latent: Vec<_> = lengths.iter().map(|l| rng.numbers(l * kv_rank, 1.0)).collect();
            let k_rope: Vec<_> = lengths.iter().map(|l| rng.numbers(l * rope_dim, 1.0)).collect();
            let mut kv_b = rng.matrix(heads * (nope_dim + v_dim), kv_rank, 1.0);
            if let HostData::F32(w) = &mut kv_b.data {
                w.iter_mut().for_each(|w| *w /= (kv_rank as f32).sqrt());
            }
            let fp8 = (Precision::F32, CacheForm::Fp8 { sharing: [if kv_rank == 64 { 32 } else { kv_rank }, 0] });
            for (precision, form) in
                PRECISIONS.map(|precision| (precision, CacheForm::of(precision))).into_iter().chain([fp8])
            {
                let attend: &Attend = &|cpu, cache, inputs, step| {
                    let rows = step.iter().map(|(_, s)| s.len).sum();
                    let tensor = |i: usize, cols| tensor(rows, cols, rows_of(step, inputs[i], cols));
                    let batch = batch(cpu, step.iter().map(|(_, span)| *span));
                    let weight = cpu.mla_weight(kv_b.clone(), &spec, precision).unwrap();
                    let (q, latent, rope) = (tensor(0, wide), tensor(1, kv_rank), tensor(2, rope_dim));
                    cpu.to_host(&cpu.mla_attention(&batch, &q, &latent, &rope, &weight, None, cache, &spec).unwrap())
                };
                let inputs: [&[Vec<f32>]; 3] = [&q, &latent, &k_rope];
                let got = invariant(isa, form, [kv_rank, rope_dim], out, &inputs, &lengths, attend);
                for s in 0..lengths.len() {
                    let (latent, rope) = (cached(&latent[s], form, 0), cached(&k_rope[s], form, 1));
                    let want = reference::mla_attention(&q[s], &latent, &rope, &f32s(&kv_b), &spec);
                    let what = format!("{isa:?} {form:?} {spec:?}");
                    // Several roundings to bf16: weights, queries in, latents out.
                    assert_close(&got[s], &want, 2.0 * tolerance(precision), &what);
                }
            }
        }
    }
}

/// One rank after the other gets its part of the heads and of the positions; the bits are those of one rank with all.
#[test]
fn a_cache_that_is_split_over_ranks_gives_the_same_bits_for_any_number_of_ranks() {
    const HEADS: usize = 8;
    let spec = MlaSpec { heads: HEADS, nope_dim: 16, rope_dim: 8, v_dim: 12, kv_rank: 64, scale: 0.2 };
    let MlaSpec { nope_dim, rope_dim, v_dim, kv_rank, .. } = spec;
    let (lengths, block_size, q_dim) = ([700usize, 70, 513], 16usize, nope_dim + rope_dim);
    let mut rng = Random::new(17);
    let rows: usize = lengths.iter().sum();
    let q = rng.numbers(rows * HEADS * q_dim, 1.0);
    let (latent, rope) = (rng.numbers(rows * kv_rank, 1.0), rng.numbers(rows * rope_dim, 1.0));
    let kv_b = f32s(&rng.matrix(HEADS * (nope_dim + v_dim), kv_rank, 0.1));
    // The rows of a step, by sequence: prompts in two parts, then one row of each.
    let steps: [&[(usize, std::ops::Range<usize>)]; 3] =
        [&[(0, 0..300), (1, 0..69)], &[(0, 300..699), (2, 0..512)], &[(0, 699..700), (1, 69..70), (2, 512..513)]];
    let first_row = |sequence: usize| lengths[..sequence].iter().sum::<usize>();
    let rows_of = |x: &[f32], width: usize, step: &[(usize, std::ops::Range<usize>)]| -> Vec<f32> {
        let row = |(s, at): &(usize, std::ops::Range<usize>)| {
            (first_row(*s) + at.start) * width..(first_row(*s) + at.end) * width
        };
        step.iter().flat_map(|part| x[row(part)].to_vec()).collect()
    };
    let run = |ranks: usize, form: CacheForm, split: bool| -> Vec<Vec<f32>> {
        let heads = HEADS / ranks;
        let links = crate::collective::threads::group(ranks);
        let parts: Vec<Vec<Vec<f32>>> = std::thread::scope(|scope| {
            let ranks: Vec<_> = links
                .into_iter()
                .enumerate()
                .map(|(rank, link)| {
                    let (q, latent, rope, kv_b) = (&q, &latent, &rope, &kv_b);
                    scope.spawn(move || {
                        let mut cpu = Cpu::new(1 + rank % 2, Box::new(link));
                        let spec = MlaSpec { heads, ..spec };
                        let of_heads = heads * (nope_dim + v_dim) * kv_rank;
                        let data = HostData::F32(kv_b[rank * of_heads..(rank + 1) * of_heads].to_vec());
                        let matrix = HostMatrix { rows: heads * (nope_dim + v_dim), cols: kv_rank, data };
                        let weight = cpu.mla_weight(matrix, &spec, Precision::F32).unwrap();
                        // Tables have blocks of each rank in turn, each after a tile.
                        let run = 64 / block_size;
                        let mut next = vec![0u32; ranks];
                        let tables: Vec<Vec<u32>> = lengths
                            .iter()
                            .map(|length| {
                                let place = |place: usize| {
                                    let class = if split { place / run % ranks } else { 0 };
                                    let of = if split { ranks as u32 } else { 1 };
                                    next[class] += 1;
                                    (next[class] - 1) * of + class as u32
                                };
                                (0..length.div_ceil(block_size)).map(place).collect()
                            })
                            .collect();
                        let blocks = *next.iter().max().unwrap() as usize;
                        let mut cache = cpu.cache(blocks, block_size, [kv_rank, rope_dim], form).unwrap();
                        if split {
                            cpu.split_cache(&mut cache, KvSplit { rank, ranks }).unwrap();
                        }
                        let mut results = Vec::new();
                        for step in steps {
                            let mut row = 0;
                            let spans: Vec<Span> = step
                                .iter()
                                .map(|(s, at)| {
                                    row += at.len();
                                    Span { row: row - at.len(), len: at.len(), start: at.start, blocks: &tables[*s] }
                                })
                                .collect();
                            let mine = |x: Vec<f32>| -> Vec<f32> {
                                x.chunks(HEADS * q_dim)
                                    .flat_map(|x| x[rank * heads * q_dim..][..heads * q_dim].to_vec())
                                    .collect()
                            };
                            let q = tensor(row, heads * q_dim, mine(rows_of(q, HEADS * q_dim, step)));
                            let latent = tensor(row, kv_rank, rows_of(latent, kv_rank, step));
                            let rope = tensor(row, rope_dim, rows_of(rope, rope_dim, step));
                            let batch = batch(&mut cpu, spans.into_iter());
                            let out = cpu
                                .mla_attention(&batch, &q, &latent, &rope, &weight, None, &mut cache, &spec)
                                .unwrap();
                            results.push(cpu.to_host(&out));
                        }
                        results
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        // Rows with the heads of all ranks.
        (0..steps.len())
            .map(|step| {
                let rows = parts[0][step].len() / (heads * v_dim);
                let of_row =
                    |row: usize| parts.iter().flat_map(move |part| &part[step][row * heads * v_dim..][..heads * v_dim]);
                (0..rows).flat_map(of_row).copied().collect()
            })
            .collect()
    };
    for form in [CacheForm::F32, CacheForm::Fp8 { sharing: [64, 0] }] {
        let (whole, one) = (run(1, form, false), run(1, form, true));
        for (whole, one) in whole.iter().zip(&one) {
            assert_close(one, whole, 1e-5, "lanes");
        }
        for ranks in [2, 4, 8] {
            let many = run(ranks, form, true);
            assert!(
                many.iter().flatten().zip(one.iter().flatten()).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{ranks} ranks, {form:?}"
            );
        }
    }
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
                let weight = rng.numbers(if cols == 5 { 5 } else { 24 }, 1.0);
                let norm = cpu.to_host(&cpu.rms_norm(&ta, &weight, 1e-6));
                assert_close(&norm, &reference::rms_norm(&a, &weight, 1e-6), 1e-6, "rms_norm");
                // The second half as a part of whole rows.
                let (from, weight_of_row) = (cols / 2, Random::new(9).numbers(cols, 1.0));
                let whole = reference::rms_norm(&a, &weight_of_row, 1e-6);
                let sums = cpu.square_sums(&cpu.slice_cols(&tb, 0, 0), &ta, 0..cols);
                let of = RowSquares { sums: &sums, column: 1, width: cols, eps: 1e-6 };
                let part =
                    cpu.norm_of_part(&cpu.slice_cols(&ta, from, cols - from), &weight_of_row[from..].to_vec(), &of);
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
    for (head_dim, offset, dims, interleaved) in [(64, 0, 64, false), (48, 32, 16, true), (24, 4, 10, false)] {
        let inv_freq: Vec<f64> = (0..dims / 2).map(|i| 10000f64.powf(-2.0 * i as f64 / dims as f64)).collect();
        let spec = RopeSpec { head_dim, offset, dims, interleaved, inv_freq, magnitude: 1.25 };
        let (rows, cols) = (300, 3 * head_dim);
        let x = rng.numbers(rows * cols, 1.0);
        let positions: Vec<u32> = (0..rows as u32).map(|r| r % 97).collect();
        let mut got = cpu.to_device(rows, cols, x.clone());
        let spans = (0..rows).step_by(97).map(|row| Span { row, len: 97.min(rows - row), start: 0, blocks: &[] });
        let whole = batch(&mut cpu, spans);
        cpu.rope(&whole, &mut got, &spec);
        let mut want = x.clone();
        reference::rope(&mut want, cols, &spec, &positions);
        assert_close(&cpu.to_host(&got), &want, 2e-5, &format!("{spec:?}"));
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
    let codes = HostData::Fp8 { codes: vec![0; 3], scales: vec![1.0], block: [2, 2] };
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
