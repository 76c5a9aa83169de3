//! Section `invariance`: a row's bits do not depend on its batch, its bucket, its chunk or the prefix cache. Everything
//! runs on one device; nothing is compared with another.

use std::error::Error;

use rein_proto::internal::{Row, RowResult};
use rein_proto::splitmix::mix;
use rein_worker::executor::Executor;
use rein_worker::rank::{DeviceChoice, Dtype};

use super::check::SectionCheck;
use super::fixtures::{SmallModel, Steps, scoring};

/// Attention of each kind, experts, and weights of each form.
pub const REDUCED: &[&str] = &["mistral", "qwen3_moe", "deepseek_v3_fp8", "kimi_k2_int4"];

const TOP: i32 = 5;
/// Sequences beside the one that is looked at: around the sizes at which steps are padded.
const NEIGHBOURS: &[usize] = &[0, 1, 2, 3, 7, 8, 15, 16, 31, 63];
const NEIGHBOURS_REDUCED: &[usize] = &[0, 1, 3];
/// First of the neighbours' blocks.
const THEIR_BLOCKS: usize = 32;

/// The bits of the logprobs of a sequence's tokens, with their alternatives.
type Bits = Vec<u32>;

pub fn checks(models: Vec<SmallModel>, devices: &DeviceChoice, reduced: bool) -> Vec<SectionCheck<'static>> {
    let neighbours = if reduced { NEIGHBOURS_REDUCED } else { NEIGHBOURS };
    let mut checks = Vec::new();
    for model in models {
        for dtype in if model.quantized.is_some() || reduced { &[Dtype::Auto][..] } else { &[Dtype::F32, Dtype::Bf16] }
        {
            let name = format!("{}, {}", model.name, format!("{dtype:?}").to_lowercase());
            let (model, devices) = (model.clone(), devices.clone());
            checks.push(SectionCheck::of_row(name, move || {
                look(model.load(&devices, *dtype)?, &model.tokens, neighbours)
            }));
        }
    }
    checks
}

fn look(mut steps: Steps, tokens: &[u32], neighbours: &[usize]) -> Result<(String, bool), Box<dyn Error>> {
    let len = tokens.len();
    let own = steps.blocks(0, len);
    let whole = bits(&steps.run(vec![scoring(1, tokens, 0..len, &own, TOP)])?, 1);
    if whole.is_empty() {
        return Err("the step gave no logprobs".into());
    }
    let mut wrong = Vec::new();
    let mut note = |what: String, got: &[u32], want: &[u32]| {
        if got != want {
            let differ = got.iter().zip(want).filter(|(got, want)| got != want).count();
            wrong.push(format!("{what}: {differ} of {} numbers differ", want.len()));
        }
    };

    // The prompt in chunks, each beside other prompts, in other blocks.
    let size = steps.block_size();
    let mut scattered: Vec<u32> = steps.blocks(16, len);
    scattered.reverse();
    for cuts in [&[1, 2, len / 2][..], &[size - 1, size, size + 1], &[len - 1]] {
        let (mut got, mut from) = (Bits::new(), 0);
        for (i, to) in cuts.iter().copied().chain([len]).enumerate() {
            let mut rows = vec![scoring(1, tokens, from..to, &scattered, TOP)];
            rows.insert(i % 2, neighbour(&steps, tokens, i, i + 2));
            got.extend(bits(&steps.run(rows)?, 1));
            from = to;
        }
        note(format!("chunks that end at {cuts:?}"), &got, &whole);
    }

    // A prefix that another sequence computed.
    let shared = len / 2 / size * size;
    steps.run(vec![scoring(7, tokens, 0..shared, &own, -1)])?;
    let mut mixed = own[..shared / size].to_vec();
    mixed.extend(steps.blocks(24, len - shared));
    let state = steps.group.shape().states.map(|states| states.recent(7));
    let rest = Row { state, ..scoring(8, tokens, shared..len, &mixed, TOP) };
    let got = bits(&steps.run(vec![rest])?, 8);
    note(format!("a cached prefix of {shared} tokens"), &got, &whole[whole.len() - got.len()..]);

    // Token by token, beside a growing number of sequences that decode too.
    for &count in neighbours {
        let mut got = Bits::new();
        for (i, &id) in (0..count).zip(tokens.iter().cycle()) {
            steps.run(vec![one(&steps, i, id, 0)])?;
        }
        for at in 0..len {
            // In the middle of the step.
            let mut rows: Vec<Row> = (0..count).map(|i| one(&steps, i, tokens[at], 1 + at % 4)).collect();
            rows.insert(count / 2, scoring(1, tokens, at..at + 1, &own, TOP));
            got.extend(bits(&steps.run(rows)?, 1));
        }
        note(format!("decoded beside {count} sequences"), &got, &whole);
    }
    let equal = format!("{} logprobs equal in every bit over chunks, cached prefix and batches", whole.len());
    Ok(if wrong.is_empty() { (equal, true) } else { (wrong.join("; "), false) })
}

/// A prompt of `len` other tokens.
fn neighbour(steps: &Steps, tokens: &[u32], which: usize, len: usize) -> Row {
    let other: Vec<u32> = (0..len as u64).map(|i| tokens[mix(i + which as u64) as usize % tokens.len()]).collect();
    scoring(10 + which as u32, &other, 0..len, &steps.blocks(THEIR_BLOCKS + which, len), 0)
}

/// One token of a neighbour, in its own block.
fn one(steps: &Steps, which: usize, token: u32, at: usize) -> Row {
    let blocks = steps.blocks(THEIR_BLOCKS + 8 + which, 1);
    Row { start: at as u32, ..scoring(20 + which as u32, &[token], 0..1, &blocks, -1) }
}

fn bits(results: &[RowResult], slot: u32) -> Bits {
    let scores = results.iter().filter(|row| row.slot == slot).flat_map(|row| &row.scores);
    let numbers = scores.flat_map(|score| score.logprob.into_iter().chain(score.top.iter().map(|top| top.logprob)));
    numbers.map(f32::to_bits).collect()
}
