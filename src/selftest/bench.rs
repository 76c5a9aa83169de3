//! Section `bench`: times of loading, prefill and decoding, and what enforced tool calls cost. Times on an emulated
//! device say nothing.

use std::error::Error;
use std::time::Instant;

use bytes::Bytes;
use rein_proto::internal::{Limits, Row, Sampling, Start};
use rein_proto::splitmix::mix;
use rein_worker::EngineOptions;
use rein_worker::executor::Executor;
use rein_worker::rank::{DeviceChoice, ModelOptions};

use super::check::{CheckResult, ReportSink, SectionCheck};
use super::fixtures::{self, SmallModel, Steps, drawing};
use super::play::{Act, Action, Script, play};
use super::report::ReportRow;
use super::weights::{self, BenchShape};

/// The small model whose steps are timed.
pub const TINY: &str = "qwen3";

/// Sequences that decode at once.
const BATCHES: &[usize] = &[1, 2, 4, 8, 16, 32, 64];
const BATCHES_REDUCED: &[usize] = &[1, 4];

/// The same for the small model.
const BATCHES_OF_TINY: &[usize] = &[1, 64, 256];
const REDUCED_OF_TINY: &[usize] = &[1, 64];
const RUNS_OF_TINY: usize = 10;
/// A sequence that reads the blocks of another begins with a later one: this many blocks later than the one before.
const ROTATION: usize = 23;
/// Tokens of a short prompt, and of each sequence before the small model decodes.
const SHORT: usize = 16;
const TINY_CONTEXT: usize = 4;

/// How much is run.
#[derive(Clone, Copy)]
struct Load {
    batches: &'static [usize],
    /// Tokens of each sequence before it decodes.
    context: usize,
    /// Tokens of one prefill.
    prefill: usize,
    /// A figure is the median of this many steps, after one to warm up.
    runs: usize,
    /// Tokens of each sequence in the comparison of plain and enforced output.
    tokens: usize,
}

const FULL: Load = Load { batches: BATCHES, context: 512, prefill: 8192, runs: 20, tokens: 48 };
const REDUCED: Load = Load { batches: BATCHES_REDUCED, context: 16, prefill: 64, runs: 2, tokens: 4 };

pub fn checks(models: Vec<SmallModel>, devices: &DeviceChoice, reduced: bool) -> Vec<SectionCheck<'static>> {
    let (shape, load) = if reduced { (weights::REDUCED, REDUCED) } else { (weights::FULL, FULL) };
    let (tiny, devices) = (models.into_iter().find(|model| model.name == TINY), devices.clone());
    let of_tiny = tiny.map(|tiny| {
        let devices = devices.clone();
        let batches = if reduced { REDUCED_OF_TINY } else { BATCHES_OF_TINY };
        SectionCheck::new("step", move |rows| tiny_steps(&tiny, devices, batches, rows))
    });
    let of_model = SectionCheck::new("model", move |rows| model_steps(&shape, devices, &load, rows));
    of_tiny.into_iter().chain([of_model]).collect()
}

/// The products of a tiny model take no time, so a step is what the host and the launches take.
fn tiny_steps(tiny: &SmallModel, devices: DeviceChoice, batches: &[usize], rows: &mut ReportSink) -> CheckResult {
    let options = ModelOptions { devices, kv_blocks: Some(512), ..fixtures::options() };
    let mut steps = tiny.load_with(&options)?;
    let vocab = steps.group.shape().vocab_size;
    for &batch in batches {
        let time = DecodeSteps::new(&mut steps, TINY_CONTEXT, vocab, RUNS_OF_TINY).step(batch)?;
        rows(figure(format!("step of {} ({batch} rows)", tiny.name), format!("{:.0} us", time * 1e6)));
    }
    Ok(())
}

fn model_steps(shape: &BenchShape, devices: DeviceChoice, load: &Load, rows: &mut ReportSink) -> CheckResult {
    let begin = Instant::now();
    let model = shape.checkpoint().write()?;
    let value = format!("{} MiB written in {:.1} s", model.bytes >> 20, begin.elapsed().as_secs_f64());
    rows(figure("random weights", value));
    let most = load.batches.iter().copied().max().unwrap_or(1);
    let block_size = devices.defaults().block_size;
    let of_one = (load.context + load.runs + load.tokens + 2).div_ceil(block_size) + 1;
    let blocks = (most * of_one).max(load.prefill.div_ceil(block_size));
    let max_sequences = most + 1;
    let options =
        ModelOptions { devices, kv_blocks: Some(blocks), block_size, max_sequences, ..ModelOptions::default() };
    let begin = Instant::now();
    let bench =
        SmallModel { name: "bench".into(), dir: model.dir.clone(), tokens: Vec::new(), quantized: None, embeds: false };
    let mut steps = bench.load_with(&options)?;
    let seconds = begin.elapsed().as_secs_f64();
    let rate = model.bytes as f64 / seconds / 1e9;
    rows(figure("load", format!("{} MiB of bf16 in {seconds:.2} s, {rate:.2} GB/s", model.bytes >> 20)));

    let prompt: Vec<u32> = random_tokens(0, load.prefill, shape.vocab);
    let row = vec![plain(drawing(1, &prompt, 0, &steps.blocks(0, prompt.len())))];
    let time = median(load.runs.div_ceil(4), || {
        steps.run(row.clone())?;
        Ok(())
    })?;
    let rate = prompt.len() as f64 / time;
    rows(figure(format!("prefill of {} tokens", prompt.len()), format!("{:.1} ms, {rate:.0} tokens/s", time * 1e3)));
    let mut decoding = DecodeSteps::new(&mut steps, load.context, shape.vocab, load.runs);
    for &batch in load.batches {
        let time = decoding.step(batch)?;
        let value = format!("{:.3} ms per step, {:.0} tokens/s", time * 1e3, batch as f64 / time);
        rows(figure(format!("decode, {batch} rows after {} tokens", load.context), value));
    }
    enforced(&mut steps, most, load, shape.vocab)?.into_iter().for_each(rows);
    Ok(())
}

pub(super) fn figure(name: impl Into<String>, value: String) -> ReportRow {
    ReportRow::new(name, value, true)
}

pub(super) fn random_tokens(seed: u64, count: usize, vocab: usize) -> Vec<u32> {
    (0..count as u64).map(|i| (mix(seed << 32 | i) % vocab as u64) as u32).collect()
}

/// Without logprobs.
pub(super) fn plain(mut row: Row) -> Row {
    row.draws.iter_mut().for_each(|draw| draw.logprobs = -1);
    row
}

/// Seconds of one run: the median, after one to warm up.
pub(super) fn median(runs: usize, mut run: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let mut times = Vec::new();
    for i in 0..=runs {
        let begin = Instant::now();
        run()?;
        if i > 0 {
            times.push(begin.elapsed().as_secs_f64());
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Sequences that have prompts of `context` tokens in the cache and draw a token in each step.
pub(super) struct DecodeSteps<'a> {
    steps: &'a mut Steps,
    context: usize,
    vocab: usize,
    /// A figure is the median of this many steps, after one to warm up.
    runs: usize,
    /// The number of sequences that compute a prompt of their own. Every further sequence reads the cached blocks of
    /// one of them, in another order. Prompts that end within a block cannot be shared: then every sequence has its
    /// own.
    prompts: usize,
    /// The blocks of each sequence.
    tables: Vec<Vec<u32>>,
    /// The token that each sequence drew last.
    drawn: Vec<u32>,
}

impl<'a> DecodeSteps<'a> {
    pub fn new(steps: &'a mut Steps, context: usize, vocab: usize, runs: usize) -> Self {
        Self::with_prompts(steps, context, vocab, runs, usize::MAX)
    }

    pub fn with_prompts(steps: &'a mut Steps, context: usize, vocab: usize, runs: usize, prompts: usize) -> Self {
        let whole = context.is_multiple_of(steps.block_size());
        let prompts = if whole { prompts.max(1) } else { usize::MAX };
        DecodeSteps { steps, context, vocab, runs, prompts, tables: Vec::new(), drawn: Vec::new() }
    }

    /// Blocks that each sequence takes.
    pub fn blocks_of_one(context: usize, runs: usize, block_size: usize) -> usize {
        (context + runs + 1).div_ceil(block_size)
    }

    /// The blocks after those of the prompt belong to this sequence alone.
    fn blocks(&self, sequence: usize) -> Vec<u32> {
        let block_size = self.steps.block_size();
        let of_one = Self::blocks_of_one(self.context, self.runs, block_size);
        let all = |sequence: usize| self.steps.blocks(sequence * of_one, of_one * block_size);
        let (mut blocks, shared) = (all(sequence), self.context / block_size);
        if sequence >= self.prompts {
            let (owner, turn) = (sequence % self.prompts, sequence / self.prompts);
            blocks[..shared].copy_from_slice(&all(owner)[..shared]);
            blocks[..shared].rotate_left(turn * ROTATION % shared.max(1));
        }
        blocks
    }

    /// Seconds of a step of the first `batch` sequences. Prompts that are not in the cache are prefilled before.
    pub fn step(&mut self, batch: usize) -> Result<f64, Box<dyn Error>> {
        for i in self.drawn.len()..batch {
            self.tables.push(self.blocks(i));
            if i >= self.prompts {
                self.drawn.push(self.drawn[i % self.prompts]);
                continue;
            }
            let prompt = random_tokens(i as u64, self.context, self.vocab);
            let results = self.steps.run(vec![plain(drawing(i as u32, &prompt, 0, &self.tables[i]))])?;
            self.drawn.push(results.first().and_then(|result| result.token()).ok_or("a step drew no token")?);
        }
        let mut at = self.context;
        median(self.runs, || {
            let row = |i: usize| plain(drawing(i as u32, &[self.drawn[i]], at, &self.tables[i]));
            let rows = (0..batch).map(row).collect();
            let tokens: Vec<u32> = self.steps.run(rows)?.iter().filter_map(|result| result.token()).collect();
            if tokens.len() < batch {
                return Err("a step drew no token".into());
            }
            self.drawn[..batch].copy_from_slice(&tokens);
            at += 1;
            Ok(())
        })
    }
}

/// Tokens per second of `count` sequences after short prompts: plain, with every token masked while the engine goes on,
/// and with every token held for its mask.
fn enforced(steps: &mut Steps, count: usize, load: &Load, vocab: usize) -> Result<Vec<ReportRow>, Box<dyn Error>> {
    let half: Bytes = (0..vocab.div_ceil(8) as u64).map(|i| mix(i) as u8 | 1).collect();
    let mut time = |masked: bool, held: bool| -> Result<f64, Box<dyn Error>> {
        let script = |i: usize| {
            let start = Start {
                prompt: random_tokens(i as u64, SHORT, vocab),
                sampling: Some(Sampling {
                    temperature: 0.8,
                    top_p: 1.0,
                    repetition_penalty: 1.0,
                    seed: i as u64,
                    ..Sampling::default()
                }),
                limits: Some(Limits { max_tokens: load.tokens as u32, ignore_eos: true, ..Limits::default() }),
                hold: held,
                logprobs: -1,
                prompt_logprobs: -1,
                ..Start::default()
            };
            let act = |after: usize| Act {
                after,
                delay: usize::from(held),
                action: Action::Steer { rewind: 0, append: Vec::new(), mask: Some(half.clone()), hold: held },
            };
            let acts = if masked { (0..load.tokens).map(act).collect() } else { Vec::new() };
            Script { start, acts }
        };
        let scripts: Vec<Script> = (0..count).map(script).collect();
        let options = EngineOptions { max_sequences: count, token_budget: load.prefill, ..EngineOptions::default() };
        let begin = Instant::now();
        let (streams, _) = play(&mut steps.group, &options, &scripts)?;
        match streams.iter().all(|stream| stream.drawn.len() == load.tokens && stream.beyond_mask == 0) {
            true => Ok(begin.elapsed().as_secs_f64()),
            false => Err("a sequence did not get its tokens".into()),
        }
    };
    // The first one fills the prefix cache of no other: each run has its own scheduler.
    time(false, false)?;
    let (plain, masked, held) = (time(false, false)?, time(true, false)?, time(true, true)?);
    let tokens = (count * load.tokens) as f64;
    let row = |name: &str, time: f64| {
        let cost = (time / plain - 1.0) * 100.0;
        figure(format!("{count} sequences, {name}"), format!("{:.0} tokens/s, {cost:+.1} % time", tokens / time))
    };
    Ok(vec![row("plain", plain), row("every token masked", masked), row("every token held for its mask", held)])
}
