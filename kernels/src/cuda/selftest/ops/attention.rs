//! Attention over the paged cache: sequences whose lengths lie at the edges of pages, in chunks, then token by token.

use super::{Pair, Random, Row};
use crate::backend::*;
use crate::error::Result;

/// Of the sequences at the end. Pages have 64 or 16 positions, or an odd number. In the last step each has one row, and
/// a power of two of them is a bucket that a device need not fill up.
const LENGTHS: [usize; 8] = [1, 2, 16, 63, 64, 65, 128, 130];
const SHORT: [usize; 4] = [1, 2, 17, 66];

/// The blocks of each sequence, in no order, and how many there are.
fn tables(lengths: &[usize], block_size: usize) -> (usize, Vec<Vec<u32>>) {
    let total: usize = lengths.iter().map(|length| length.div_ceil(block_size)).sum();
    let (mut random, mut free) = (Random::new(2), Vec::from_iter(0..total as u32 + 2));
    let mut table = |length: &usize| -> Vec<u32> {
        (0..length.div_ceil(block_size)).map(|_| free.swap_remove(random.below(free.len()))).collect()
    };
    (total + 2, lengths.iter().map(&mut table).collect())
}

/// The spans of a step in which each sequence goes from one length to another.
fn spans<'a>(from: &[usize], to: &[usize], tables: &'a [Vec<u32>]) -> (usize, Vec<Span<'a>>) {
    let (mut row, mut spans) = (0, Vec::new());
    for ((&start, &end), blocks) in from.iter().zip(to).zip(tables) {
        if end > start {
            spans.push(Span { row, len: end - start, start, blocks });
            row += end - start;
        }
    }
    (row, spans)
}

impl<B: Backend> Pair<B> {
    fn lengths(&self) -> &'static [usize] {
        if self.small { &SHORT } else { &LENGTHS }
    }

    /// Calls `attend` with the rows and the spans of each step: a chunk, the rest but one, and the last token.
    fn steps(
        &mut self,
        block_size: usize,
        mut attend: impl FnMut(&mut Self, usize, StepInputs) -> Result<()>,
    ) -> Result<()> {
        let lengths = self.lengths();
        let (_, tables) = tables(lengths, block_size);
        let stages: [Vec<usize>; 4] = [
            vec![0; lengths.len()],
            lengths.iter().map(|length| (length / 2).min(length - 1)).collect(),
            lengths.iter().map(|length| length - 1).collect(),
            lengths.to_vec(),
        ];
        for stage in stages.windows(2) {
            let (rows, spans) = spans(&stage[0], &stage[1], &tables);
            attend(self, rows, StepInputs { ids: vec![0; rows], spans, ..StepInputs::default() })?;
        }
        Ok(())
    }

    pub(super) fn gqa(&mut self) -> Result<Row> {
        let mut check = self.differences();
        for (heads, kv_heads, head_dim, window, block_size) in [
            (4, 2, 64, None, 64),
            (3, 3, 24, None, 16),
            (8, 1, 16, Some(37), 5),
            (2, 2, 80, Some(1), 16),
            (6, 2, 7, Some(64), 64),
            (2, 1, 128, None, 1),
        ] {
            let spec = GqaSpec { heads, kv_heads, head_dim, scale: (head_dim as f32).powf(-0.5), window };
            let (wide, width) = (heads * head_dim, kv_heads * head_dim);
            for form in [CacheForm::of(self.precision), CacheForm::Fp8 { sharing: [head_dim; 2] }] {
                let (blocks, _) = tables(self.lengths(), block_size);
                let mut cache = self.device.cache(blocks, block_size, [width; 2], form)?;
                let mut cache_cpu = self.cpu.cache(blocks, block_size, [width; 2], form)?;
                self.steps(block_size, |pair, rows, step| {
                    let (q, q_cpu) = pair.activation(rows, wide)?;
                    let (k, k_cpu) = pair.activation(rows, width)?;
                    let (v, v_cpu) = pair.activation(rows, width)?;
                    let batch = pair.device.begin(step.clone())?;
                    let got = pair.device.gqa_attention(&batch, &q, &k, &v, None, &mut cache, &spec);
                    let batch = pair.cpu.begin(step)?;
                    let want = pair.cpu.gqa_attention(&batch, &q_cpu, &k_cpu, &v_cpu, None, &mut cache_cpu, &spec);
                    let case =
                        format!("{heads} / {kv_heads} heads of {head_dim}, window {window:?}, {rows} rows, {form:?}");
                    check.compare(case, &pair.device.to_host(&got), want.data());
                    Ok(())
                })?;
            }
        }
        Ok(check.row())
    }

    pub(super) fn latent(&mut self) -> Result<Row> {
        // The device stores queries and values in the latent space as bf16.
        let mut check = self.differences_within();
        for (heads, nope_dim, rope_dim, v_dim, kv_rank, block_size) in
            [(8, 32, 16, 24, 64, 64), (3, 20, 6, 33, 50, 5), (2, 128, 64, 128, 512, 16)]
        {
            let scale = ((nope_dim + rope_dim) as f32).powf(-0.5);
            let spec = MlaSpec { heads, nope_dim, rope_dim, v_dim, kv_rank, scale };
            let kv_b = self.random.weight(heads * (nope_dim + v_dim), kv_rank);
            let weight = self.device.mla_weight(kv_b.clone(), &spec, self.precision)?;
            let weight_cpu = self.cpu.mla_weight(kv_b, &spec, self.precision)?;
            let sharing = if kv_rank % 128 == 0 { 128 } else { kv_rank };
            for form in [CacheForm::of(self.precision), CacheForm::Fp8 { sharing: [sharing, 0] }] {
                let (blocks, _) = tables(self.lengths(), block_size);
                let mut cache = self.device.cache(blocks, block_size, [kv_rank, rope_dim], form)?;
                let mut cache_cpu = self.cpu.cache(blocks, block_size, [kv_rank, rope_dim], form)?;
                self.steps(block_size, |pair, rows, step| {
                    let (q, q_cpu) = pair.activation(rows, heads * (nope_dim + rope_dim))?;
                    let (latent, latent_cpu) = pair.activation(rows, kv_rank)?;
                    let (rope, rope_cpu) = pair.activation(rows, rope_dim)?;
                    let batch = pair.device.begin(step.clone())?;
                    let got =
                        pair.device.mla_attention(&batch, &q, &latent, &rope, &weight, None, &mut cache, &spec)?;
                    let batch = pair.cpu.begin(step)?;
                    let (cpu, cache) = (&pair.cpu, &mut cache_cpu);
                    let want =
                        cpu.mla_attention(&batch, &q_cpu, &latent_cpu, &rope_cpu, &weight_cpu, None, cache, &spec)?;
                    let case = format!("{heads} heads, latent of {kv_rank}, {rows} rows, {form:?}");
                    check.compare(case, &pair.device.to_host(&got), want.data());
                    Ok(())
                })?;
            }
        }
        Ok(check.row())
    }
}
