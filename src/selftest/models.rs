//! Section `models`: every small model on the device against the CPU, from end to end and op by op. It does not know
//! how either computes.

use std::error::Error;

use rein_kernels::diff::difference;
use rein_kernels::lockstep::{LockstepReport, OpDifference};
use rein_proto::internal::{RowResult, TokenLogprob};
use rein_worker::rank::{DeviceChoice, Dtype, KvDtype, ModelOptions};

use super::check::SectionCheck;
use super::fixtures::{SmallModel, Steps, drawing, embedding, options, scoring};

/// Models that show each kind of layer and weight.
pub const REDUCED: &[&str] = &["qwen3", "mistral", "qwen3_moe", "deepseek_v3", "deepseek_v3_fp8", "kimi_k2_int4"];

/// Most that a logprob may differ, relative to its size if that is above 1.
const F32: f32 = 1e-4;
/// The same in bf16 and with quantized weights, from the CPU that rounds activations as a device does: to bf16 between
/// products, and to FP8 before those with FP8 weights. The order of sums remains, which may send a value to the other
/// side of a rounding.
const ROUNDED: f32 = 2e-2;
/// Most that a result of an op may differ from the CPU's from the same inputs, relative to its size plus the root mean
/// square of the results. Both round alike: a result that is rounded the other way is off by a last bit of bf16, which
/// is below 8e-3.
const OP_F32: f64 = 1e-4;
const OP: f64 = 1e-2;
/// Tokens that are decoded op by op, after the scored ones.
const OP_TOKENS: usize = 4;
/// Tokens that are decoded greedily, and the length of their prompt.
const GREEDY: usize = 32;
const PROMPT: usize = 10;
const TOP: i32 = 5;

/// Two of each model and form: from end to end, and op by op.
pub fn checks(
    models: Vec<SmallModel>,
    devices: &DeviceChoice,
    oracle: &DeviceChoice,
    reduced: bool,
) -> Vec<SectionCheck<'static>> {
    let greedy = if reduced { GREEDY / 4 } else { GREEDY };
    let mut checks = Vec::new();
    for model in models {
        let cases = match model.quantized {
            Some(form) => vec![(form, Dtype::Auto)],
            None => vec![("f32", Dtype::F32), ("bf16", Dtype::Bf16)],
        };
        for (form, dtype) in cases {
            let name = format!("{}, {form}", model.name);
            let (whole, devices, oracle) = (model.clone(), devices.clone(), oracle.clone());
            let (by_op, devices_by_op) = (model.clone(), devices.clone());
            checks.push(SectionCheck::of_row(name.clone(), move || compare(&whole, dtype, &devices, &oracle, greedy)));
            checks.push(SectionCheck::of_row(format!("{name}, op by op"), move || {
                compare_ops(&by_op, &devices_by_op, dtype)
            }));
        }
        if model.quantized.is_none() {
            let (name, devices) = (format!("{}, FP8 KV cache", model.name), devices.clone());
            checks.push(SectionCheck::of_row(name, move || compare_codes(&model, &devices)));
        }
    }
    checks
}

/// One of each embedding model and form.
pub fn embeddings(models: Vec<SmallModel>, devices: &DeviceChoice) -> Vec<SectionCheck<'static>> {
    let forms = [("f32", Dtype::F32), ("bf16", Dtype::Bf16)];
    let check = |(model, (form, dtype)): (SmallModel, (&str, Dtype))| {
        let devices = devices.clone();
        SectionCheck::of_row(format!("{}, {form}", model.name), move || compare_states(&model, dtype, &devices))
    };
    models.into_iter().flat_map(|model| forms.map(|form| (model.clone(), form))).map(check).collect()
}

/// The hidden state of the last token against that of the CPU that rounds alike, relative to its root mean square.
fn compare_states(model: &SmallModel, dtype: Dtype, devices: &DeviceChoice) -> Result<(String, bool), Box<dyn Error>> {
    let (mut device, mut rounding) = (model.load(devices, dtype)?, model.load_rounding(dtype)?);
    let tokens = &*model.tokens;
    let blocks = device.blocks(0, tokens.len());
    let row = || vec![embedding(1, tokens, &blocks)];
    let (found, wanted) = (device.run(row())?, rounding.run(row())?);
    let [found, wanted] = [&found, &wanted].map(|rows| rows.first().map_or(&[][..], |row| &row.state));
    if wanted.is_empty() {
        return Err("the oracle gave no hidden state".into());
    }
    let far = difference(found, wanted).max;
    let allowed = f64::from(if dtype == Dtype::F32 { F32 } else { ROUNDED });
    let value = format!("{} numbers within {far:.1e} of their root mean square (at most {allowed:.0e})", wanted.len());
    Ok((value, far <= allowed))
}

/// Logprobs are compared with those of the CPU that rounds activations as a device does; in f32 it rounds none. How far
/// it is from the oracle itself shows what rounding changes in this model.
fn compare(
    model: &SmallModel,
    dtype: Dtype,
    devices: &DeviceChoice,
    oracle: &DeviceChoice,
    greedy: usize,
) -> Result<(String, bool), Box<dyn Error>> {
    let mut device = model.load(devices, dtype)?;
    let mut rounding = match devices {
        DeviceChoice::Cpu => model.load(devices, dtype)?,
        _ => model.load_rounding(dtype)?,
    };
    let mut oracle = model.load(oracle, dtype)?;
    let tolerance = if dtype == Dtype::F32 { F32 } else { ROUNDED };
    let tokens = &*model.tokens;
    let blocks = device.blocks(0, tokens.len());
    let score = || vec![scoring(1, tokens, 0..tokens.len(), &blocks, TOP)];
    let wanted = oracle.run(score())?;
    let (found, rounded) = (device.run(score())?, rounding.run(score())?);
    let far = distance(&found, &rounded)?;
    let (alone, unrounded) = (distance(&rounded, &wanted)?, distance(&found, &wanted)?);
    // In some models rounding alone sends a row to another expert. A device that adds in another order may do so too.
    let allowed = tolerance.max(alone);
    // Where activations are FP8, it sends many to another code, not the same ones on both: then a device that is as
    // near to the unrounded numbers is right, too.
    let off = if model.quantized == Some("fp8") { far.min(unrounded) } else { far };
    let prompt = &tokens[..PROMPT.min(tokens.len())];
    let want = decode(&mut oracle, prompt, greedy)?;
    let got = decode(&mut device, prompt, greedy)?;
    // After a token that the oracle chose by less than both may be off, the two may continue differently.
    let clear = want.iter().take_while(|(_, gap)| *gap > 2.0 * allowed).count();
    let equal = want.iter().zip(&got).take_while(|(want, got)| want.0 == got.0).count();
    let passed = off <= allowed && equal >= clear;
    let value = format!(
        "logprobs within {far:.1e} of their size (at most {allowed:.1e}), {unrounded:.1e} without rounding on the CPU \
         (rounding alone: {alone:.1e}), {equal} of {greedy} tokens equal"
    );
    Ok((value + if equal < clear { ", no close decision" } else { "" }, passed))
}

/// Logprobs over a KV cache of codes against those of the CPU over such a cache, and what the codes change. A number
/// that lies between two codes may get another one on the device.
fn compare_codes(model: &SmallModel, devices: &DeviceChoice) -> Result<(String, bool), Box<dyn Error>> {
    let load = |devices: &DeviceChoice, kv_dtype: KvDtype| {
        let devices = devices.clone();
        model.load_with(&ModelOptions { devices, dtype: Dtype::F32, kv_dtype, ..options() })
    };
    let tokens = &*model.tokens;
    let mut scores = Vec::new();
    for (devices, kv_dtype) in
        [(devices, KvDtype::Fp8), (&DeviceChoice::Cpu, KvDtype::Fp8), (&DeviceChoice::Cpu, KvDtype::Auto)]
    {
        let mut steps = match load(devices, kv_dtype) {
            Ok(steps) => steps,
            Err(error) if error.to_string().contains("option kv_dtype") => return Ok((error.to_string(), true)),
            Err(error) => return Err(error),
        };
        let blocks = steps.blocks(0, tokens.len());
        scores.push(steps.run(vec![scoring(1, tokens, 0..tokens.len(), &blocks, TOP)])?);
    }
    let (far, cost) = (distance(&scores[0], &scores[1])?, distance(&scores[1], &scores[2])?);
    let value = format!("logprobs within {far:.1e} of their size (at most {ROUNDED:.0e}); codes change {cost:.1e}");
    Ok((value, far <= ROUNDED))
}

/// The ops of one scoring step and of some decode steps, each against the CPU from the same inputs.
fn compare_ops(model: &SmallModel, devices: &DeviceChoice, dtype: Dtype) -> Result<(String, bool), Box<dyn Error>> {
    let allowed = if dtype == Dtype::F32 { OP_F32 } else { OP };
    let report = LockstepReport::default();
    let mut steps = model.load_in_lockstep(devices, dtype, &report)?;
    let tokens = &model.tokens;
    let blocks = steps.blocks(0, tokens.len());
    steps.run(vec![scoring(1, tokens, 0..tokens.len(), &blocks, TOP)])?;
    let decoded = decode(&mut steps, &tokens[..PROMPT.min(tokens.len())], OP_TOKENS);
    let (op, OpDifference { worst, .. }) = report.worst().ok_or("no op was compared")?;
    let (calls, largest) = (report.calls(), worst.apart);
    let mut value =
        format!("{calls} results within {largest:.1e} of their size (at most {allowed:.0e}), the worst of {op}");
    let mut wrong: Vec<_> = report.ops().into_iter().filter(|(_, found)| found.worst.apart > allowed).collect();
    wrong.sort_by_key(|(_, found)| found.before);
    for (op, OpDifference { worst, before }) in &wrong {
        value += &format!("; {op}, result {before}: {worst}");
    }
    if wrong.is_empty() {
        // A wrong op may be why there is no token; then it is what to report.
        decoded?;
    }
    Ok((value, wrong.is_empty()))
}

/// The largest difference between the logprobs of the same rows, and of their alternatives by rank: relative to the
/// oracle's `b`, if its size is above 1. Errors of logits grow with the logits.
pub fn distance(a: &[RowResult], b: &[RowResult]) -> Result<f32, Box<dyn Error>> {
    let numbers = |rows: &[RowResult]| -> Vec<f32> {
        let of = |score: &TokenLogprob| -> Vec<f32> {
            score.logprob.into_iter().chain(score.top.iter().map(|top| top.logprob)).collect()
        };
        rows.iter().flat_map(|row| &row.scores).flat_map(of).collect()
    };
    let (a, b) = (numbers(a), numbers(b));
    if a.is_empty() || a.len() != b.len() {
        return Err(format!("{} logprobs, the oracle has {}", a.len(), b.len()).into());
    }
    let far = a.iter().zip(&b).map(|(a, b)| (a - b).abs() / b.abs().max(1.0));
    // A NaN is far from everything.
    Ok(far.fold(0.0, |worst, d| if d <= worst { worst } else { d }))
}

/// Greedy tokens, each with the distance of its logprob to the second best, relative to the size of that one.
pub fn decode(steps: &mut Steps, prompt: &[u32], count: usize) -> Result<Vec<(u32, f32)>, Box<dyn Error>> {
    let blocks = steps.blocks(0, prompt.len() + count);
    let (mut next, mut start, mut drawn) = (prompt.to_vec(), 0, Vec::new());
    while drawn.len() < count {
        let results = steps.run(vec![drawing(2, &next, start, &blocks)])?;
        let result = results.first().ok_or("the step gave no result")?;
        let token = result.token().ok_or("the step drew no token")?;
        let top = result.logprob().map_or(&[][..], |logprob| &logprob.top);
        let [best, second] = top else { return Err("the step gave no two alternatives".into()) };
        drawn.push((token, (best.logprob - second.logprob) / second.logprob.abs().max(1.0)));
        start += next.len();
        next = vec![token];
    }
    Ok(drawn)
}
