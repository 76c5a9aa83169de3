//! Section `engine`: the scheduler's work on the device. Sequences that are steered, rewound, held, masked, preempted
//! and aborted at the same time get the tokens that they get alone, and continue on another group with the same tokens.

use std::error::Error;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rein_proto::internal::{EngineStats, Limits, Sampling, Start};
use rein_worker::EngineOptions;
use rein_worker::executor::Executor;
use rein_worker::rank::{DeviceChoice, Dtype, ModelOptions};

use super::check::SectionCheck;
use super::fixtures::{self, SmallModel};
use super::play::{Act, Action, PlayedStream, Script, play};
use super::report::ReportRow;

pub const REDUCED: &[&str] = &["mistral", "kimi_k2_int4"];

const SEQUENCES: usize = 24;
const SEQUENCES_REDUCED: usize = 8;
const MAX_TOKENS: usize = 24;
/// So few blocks that sequences are preempted.
const BLOCKS: usize = 14;

pub fn checks(models: Vec<SmallModel>, devices: &DeviceChoice, reduced: bool) -> Vec<SectionCheck<'static>> {
    let count = if reduced { SEQUENCES_REDUCED } else { SEQUENCES };
    let check = |model: SmallModel| {
        let devices = devices.clone();
        SectionCheck::new(model.name.clone(), move |rows| {
            let options = ModelOptions { devices, dtype: Dtype::Auto, kv_blocks: Some(BLOCKS), ..fixtures::options() };
            let mut group = model.load_with(&options)?.group;
            let scripts = scripts(&model, group.shape().vocab_size, count);
            let (alone, crowd, stats) = both(&mut group, &scripts)?;
            rows(together(&model.name, &alone, &crowd, &stats));
            let mut second = model.load_with(&options)?.group;
            rows(resumed(&model.name, &mut second, &scripts, &alone)?);
            Ok(())
        })
    };
    models.into_iter().map(check).collect()
}

/// Sequences with common prefixes. The first two are not steered.
fn scripts(model: &SmallModel, vocab: usize, count: usize) -> Vec<Script> {
    let mut rng = StdRng::seed_from_u64(23);
    let mut one = |i: usize| {
        let prompt = model.tokens[..rng.random_range(6..model.tokens.len())].to_vec();
        let steered = i > 1;
        let start = Start {
            prompt,
            sampling: Some(Sampling {
                temperature: if i.is_multiple_of(3) { 0.0 } else { 0.9 },
                top_p: if i.is_multiple_of(2) { 1.0 } else { 0.95 },
                repetition_penalty: if i.is_multiple_of(4) { 1.1 } else { 1.0 },
                seed: i as u64,
                ..Sampling::default()
            }),
            limits: Some(Limits { max_tokens: MAX_TOKENS as u32, ignore_eos: true, ..Limits::default() }),
            hold: steered && i.is_multiple_of(2),
            logprobs: 1,
            prompt_logprobs: -1,
            ..Start::default()
        };
        let acts = if steered { acts(&mut rng, vocab, start.hold, i.is_multiple_of(7)) } else { Vec::new() };
        Script { start, acts }
    };
    (0..count).map(&mut one).collect()
}

/// Steers, each after one to four tokens. A held sequence is answered after the one token that it may draw.
fn acts(rng: &mut StdRng, vocab: usize, mut held: bool, cancelled: bool) -> Vec<Act> {
    let (mut acts, mut after) = (Vec::new(), 0);
    for _ in 0..5 {
        after += match (held, acts.is_empty()) {
            (true, true) => 0,
            (true, false) => 1,
            (false, _) => rng.random_range(1..5),
        };
        let delay = if held { rng.random_range(0..4) } else { 0 };
        held = rng.random_bool(0.5);
        let mask = rng.random_bool(0.5).then(|| {
            // About one of eight tokens, and always one.
            let mut mask: Vec<u8> =
                (0..vocab.div_ceil(8)).map(|_| rng.random::<u8>() & rng.random::<u8>() & rng.random::<u8>()).collect();
            mask[rng.random_range(0..vocab / 8)] |= 1;
            if let Some(last) = mask.last_mut().filter(|_| !vocab.is_multiple_of(8)) {
                *last &= (1 << (vocab % 8)) - 1;
            }
            Bytes::from(mask)
        });
        let append = (0..rng.random_range(0..3)).map(|_| rng.random_range(0..vocab as u32)).collect();
        acts.push(Act {
            after,
            delay,
            action: Action::Steer { rewind: rng.random_range(0..4), append, mask, hold: held },
        });
    }
    if held {
        let action = Action::Steer { rewind: 0, append: Vec::new(), mask: None, hold: false };
        acts.push(Act { after: after + 1, delay: 2, action });
    }
    if cancelled {
        acts.push(Act { after: after + 2, delay: 0, action: Action::Cancel });
    }
    acts
}

type PlayedStreams = Vec<PlayedStream>;

/// The streams of each script alone, and of all at once.
fn both(
    executor: &mut dyn Executor,
    scripts: &[Script],
) -> Result<(PlayedStreams, PlayedStreams, EngineStats), Box<dyn Error>> {
    let alone_options = EngineOptions { max_sequences: 1, prefix_cache: false, ..EngineOptions::default() };
    let mut alone = Vec::new();
    for script in scripts {
        alone.extend(play(executor, &alone_options, std::slice::from_ref(script))?.0);
    }
    // Prompts are cut into chunks.
    let crowd_options =
        EngineOptions { max_sequences: 8, token_budget: 16, draft_tokens: 6, ..EngineOptions::default() };
    let (crowd, stats) = play(executor, &crowd_options, scripts)?;
    Ok((alone, crowd, stats))
}

fn together(name: &str, alone: &[PlayedStream], crowd: &[PlayedStream], stats: &EngineStats) -> ReportRow {
    let name = format!("{name}, {} sequences at once", alone.len());
    let tokens: usize = alone.iter().map(|stream| stream.drawn.len()).sum();
    let differ = alone.iter().zip(crowd).filter(|(alone, crowd)| alone != crowd).count();
    let beyond: usize = alone.iter().chain(crowd).map(|stream| stream.beyond_mask).sum();
    let EngineStats {
        steers,
        rewound_tokens,
        held_steps,
        preemptions,
        cached_tokens,
        cancelled,
        draft_tokens,
        accepted_tokens,
        ..
    } = stats;
    let reached = [steers, rewound_tokens, held_steps, preemptions, cached_tokens, cancelled];
    let what = format!(
        "{steers} steers, {rewound_tokens} tokens rewound, {held_steps} held steps, {preemptions} preemptions, \
         {cached_tokens} cached tokens, {cancelled} aborted, {accepted_tokens} of {draft_tokens} draft tokens accepted"
    );
    let (value, passed) = match () {
        () if differ > 0 => (format!("{differ} sequences get other tokens than alone; {what}"), false),
        () if beyond > 0 => (format!("{beyond} tokens are outside of their masks; {what}"), false),
        () if reached.contains(&&0) => (format!("does not reach every case: {what}"), false),
        () => (format!("{tokens} tokens and logprobs equal in every bit; {what}"), true),
    };
    ReportRow::new(name, value, passed)
}

/// The sequences that are not steered continue from half their tokens on another group.
fn resumed(
    name: &str,
    second: &mut dyn Executor,
    scripts: &[Script],
    alone: &[PlayedStream],
) -> Result<ReportRow, Box<dyn Error>> {
    let unsteered: Vec<(&Script, &PlayedStream)> =
        scripts.iter().zip(alone).filter(|(script, _)| script.acts.is_empty()).collect();
    let resume = |(script, stream): &(&Script, &PlayedStream)| {
        let accepted = stream.drawn[..stream.drawn.len() / 2].iter().map(|(id, _)| *id).collect();
        Script { start: Start { resume: accepted, ..script.start.clone() }, acts: Vec::new() }
    };
    let resumed: Vec<Script> = unsteered.iter().map(resume).collect();
    let (streams, _) = play(second, &EngineOptions::default(), &resumed)?;
    let continues = |((script, whole), rest): (&(&Script, &PlayedStream), &PlayedStream)| {
        whole.drawn.len() == script.start.limits.as_ref().map_or(0, |limits| limits.max_tokens as usize)
            && whole.drawn[whole.drawn.len() / 2..] == rest.drawn
    };
    let equal = unsteered.iter().zip(&streams).filter(|pair| continues(*pair)).count();
    let value = format!("{equal} of {} sequences continue with the same tokens and logprobs", unsteered.len());
    Ok(ReportRow::new(format!("{name}, resumed on another group"), value, equal == unsteered.len() && equal > 0))
}
