//! Attention over caches in all forms, against the reference and to the bit.

use super::*;

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
                    cpu.to_host(&cpu.gqa_attention(&batch, &q, &k, &v, None, cache, &spec))
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
