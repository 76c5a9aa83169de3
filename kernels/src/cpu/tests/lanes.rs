//! Attention over caches that are split over ranks: the bits of any number of ranks, in any steps.

use std::collections::BTreeMap;
use std::ops::Range;

use super::*;

const LENGTHS: [usize; 3] = [700, 70, 513];
const BLOCK: usize = 16;
const HEADS: usize = 8;

/// Rows of sequences that are computed together.
type Rows = [(usize, Range<usize>)];

/// The sequences in parts, mixed: prompts, then one row of each.
const MIXED: [&Rows; 3] =
    [&[(0, 0..300), (1, 0..69)], &[(0, 300..699), (2, 0..512)], &[(0, 699..700), (1, 69..70), (2, 512..513)]];
/// One after the other.
const WHOLE: [&Rows; 3] = [&[(2, 0..513)], &[(1, 0..70)], &[(0, 0..700)]];

/// A rank's results by sequence and position.
type Results = BTreeMap<(usize, usize), Vec<f32>>;

/// Numbers of `width` for each position of each sequence.
struct Inputs {
    width: usize,
    numbers: Vec<f32>,
}

impl Inputs {
    fn new(rng: &mut Random, width: usize) -> Inputs {
        Inputs { width, numbers: rng.numbers(LENGTHS.iter().sum::<usize>() * width, 1.0) }
    }

    /// Columns `of` of these rows.
    fn tensor(&self, step: &Rows, of: Range<usize>) -> Tensor {
        let row = |(s, position): (usize, usize)| {
            let at = (LENGTHS[..s].iter().sum::<usize>() + position) * self.width;
            &self.numbers[at + of.start..at + of.end]
        };
        let numbers: Vec<f32> = positions(step).flat_map(row).copied().collect();
        tensor(numbers.len() / of.len(), of.len(), numbers)
    }
}

fn positions(step: &Rows) -> impl Iterator<Item = (usize, usize)> {
    step.iter().flat_map(|(s, at)| at.clone().map(|position| (*s, position)))
}

fn at(rank: usize, width: usize) -> Range<usize> {
    rank * width..(rank + 1) * width
}

/// One rank: `sharing` ranks share its positions, or its cache is whole. `attend` computes a step.
fn on_rank(
    link: crate::collective::Threads,
    sharing: Option<usize>,
    steps: &[&Rows],
    (widths, form): ([usize; 2], CacheForm),
    attend: impl Fn(&mut Cpu, &Rows, Vec<Span>, &mut KvCache) -> Tensor,
) -> Results {
    let rank = link.rank();
    let mut cpu = Cpu::new(1 + rank % 2, Box::new(link));
    // Tables have blocks of each rank in turn, each after a tile.
    let classes = sharing.unwrap_or(1);
    let mut next = vec![0u32; classes];
    let mut block = |place: usize| {
        let class = place / (64 / BLOCK) % classes;
        next[class] += 1;
        (next[class] - 1) * classes as u32 + class as u32
    };
    let tables = LENGTHS.map(|length| (0..length.div_ceil(BLOCK)).map(&mut block).collect::<Vec<u32>>());
    let mut cache = cpu.cache(next.into_iter().max().unwrap() as usize, BLOCK, widths, form).unwrap();
    if let Some(ranks) = sharing {
        cpu.split_cache(&mut cache, KvSplit { rank: rank % ranks, ranks }).unwrap();
    }
    let mut results = Results::new();
    for step in steps {
        let mut row = 0;
        let span = |(s, at): &(usize, Range<usize>)| {
            row += at.len();
            Span { row: row - at.len(), len: at.len(), start: at.start, blocks: &tables[*s] }
        };
        let spans = step.iter().map(span).collect();
        let out = attend(&mut cpu, step, spans, &mut cache);
        let rows = out.data.chunks(out.cols).map(<[f32]>::to_vec);
        results.extend(positions(step).zip(rows));
    }
    results
}

/// Rows with the heads of all ranks.
fn on_ranks(ranks: usize, run: impl Fn(crate::collective::Threads) -> Results + Sync) -> Results {
    let run = &run;
    let parts: Vec<Results> = std::thread::scope(|scope| {
        let links = crate::collective::threads::group(ranks);
        let ranks: Vec<_> = links.into_iter().map(|link| scope.spawn(move || run(link))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let row = |at: &(usize, usize)| parts.iter().flat_map(|part| part[at].clone()).collect();
    parts[0].keys().map(|at| (*at, row(at))).collect()
}

fn assert_near(got: &Results, want: &Results) {
    for (at, want) in want {
        assert_close(&got[at], want, 1e-5, &format!("{at:?}"));
    }
}

fn assert_same_bits(got: &Results, want: &Results, what: &str) {
    for (at, want) in want {
        assert!(got[at].iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits()), "{what}: {at:?}");
    }
    assert_eq!(got.len(), want.len());
}

#[test]
fn latent_attention_has_the_same_bits_on_any_number_of_ranks() {
    let spec = MlaSpec { heads: HEADS, nope_dim: 16, rope_dim: 8, v_dim: 12, kv_rank: 64, scale: 0.2 };
    let MlaSpec { nope_dim, rope_dim, v_dim, kv_rank, .. } = spec;
    let (mut rng, q_dim) = (Random::new(17), nope_dim + rope_dim);
    let [q, latent, rope] = [HEADS * q_dim, kv_rank, rope_dim].map(|width| Inputs::new(&mut rng, width));
    let kv_b = f32s(&rng.matrix(HEADS * (nope_dim + v_dim), kv_rank, 0.1));
    let run = |ranks: usize, split: bool, form: CacheForm, steps: &[&Rows]| {
        let heads = HEADS / ranks;
        let spec = MlaSpec { heads, ..spec };
        on_ranks(ranks, |link| {
            let rank = link.rank();
            let data = HostData::F32(kv_b[at(rank, heads * (nope_dim + v_dim) * kv_rank)].to_vec());
            let matrix = HostMatrix { rows: heads * (nope_dim + v_dim), cols: kv_rank, data };
            on_rank(link, split.then_some(ranks), steps, ([kv_rank, rope_dim], form), |cpu, step, spans, cache| {
                let weight = cpu.mla_weight(matrix.clone(), &spec, Precision::F32).unwrap();
                let (q, latent) = (q.tensor(step, at(rank, heads * q_dim)), latent.tensor(step, 0..kv_rank));
                let (rope, batch) = (rope.tensor(step, 0..rope_dim), batch(cpu, spans.into_iter()));
                cpu.mla_attention(&batch, &q, &latent, &rope, &weight, None, cache, &spec).unwrap()
            })
        })
    };
    for form in [CacheForm::F32, CacheForm::Fp8 { sharing: [64, 0] }] {
        let one = run(1, true, form, &MIXED);
        assert_near(&one, &run(1, false, form, &MIXED));
        for ranks in [2, 4, 8] {
            assert_same_bits(&run(ranks, true, form, &MIXED), &one, &format!("{ranks} ranks, {form:?}"));
        }
        assert_same_bits(&run(4, true, form, &WHOLE), &one, "other steps");
    }
}

/// Ranks that have the same KV head share its positions.
#[test]
fn grouped_attention_has_the_same_bits_on_any_number_of_ranks() {
    const DIM: usize = 24;
    for (kv_heads, window, has_sinks) in [(1, None, false), (2, None, true), (2, Some(100), true), (4, Some(64), false)]
    {
        let mut rng = Random::new(23);
        let [q, k, v] = [HEADS * DIM, kv_heads * DIM, kv_heads * DIM].map(|width| Inputs::new(&mut rng, width));
        let sinks = rng.numbers(HEADS, 2.0);
        let run = |ranks: usize, split: bool, form: CacheForm, steps: &[&Rows]| {
            let (heads, held) = (HEADS / ranks, kv_heads.div_ceil(ranks));
            let sharing = ranks / kv_heads.min(ranks);
            let spec = GqaSpec { heads, kv_heads: held, head_dim: DIM, scale: 0.3, window };
            on_ranks(ranks, |link| {
                let rank = link.rank();
                let sinks = has_sinks.then(|| sinks[at(rank, heads)].to_vec());
                on_rank(link, split.then_some(sharing), steps, ([held * DIM; 2], form), |cpu, step, spans, cache| {
                    let batch = batch(cpu, spans.into_iter());
                    let of_kv = at(rank / sharing, held * DIM);
                    let (q, k) = (q.tensor(step, at(rank, heads * DIM)), k.tensor(step, of_kv.clone()));
                    let (v, sinks) = (v.tensor(step, of_kv), sinks.as_ref());
                    match split {
                        true => cpu.split_gqa_attention(&batch, &q, &k, &v, sinks, cache, &spec).unwrap(),
                        false => cpu.gqa_attention(&batch, &q, &k, &v, sinks, cache, &spec),
                    }
                })
            })
        };
        for form in [CacheForm::F32, CacheForm::Fp8 { sharing: [DIM; 2] }] {
            let one = run(1, true, form, &MIXED);
            assert_near(&one, &run(1, false, form, &MIXED));
            for ranks in [2, 4, 8] {
                let what = format!("{kv_heads} KV heads on {ranks} ranks, {form:?}, window {window:?}");
                assert_same_bits(&run(ranks, true, form, &MIXED), &one, &what);
            }
            assert_same_bits(&run(8, true, form, &WHOLE), &one, "other steps");
        }
    }
}
