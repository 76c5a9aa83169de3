//! Section `ranks`: models over several ranks on one device, against one rank. It does not know how ranks exchange.

use std::error::Error;

use rein_kernels::cuda::selftest;
use rein_worker::rank::{DeviceChoice, Dtype, GpuKernels, Gpus};

use super::check::SectionCheck;
use super::fixtures::{SmallModel, scoring};
use super::models::{decode, distance};

/// Models that show each kind of layer and weight.
pub const REDUCED: &[&str] = &["mistral", "qwen3_moe", "deepseek_v3_fp8", "kimi_k2_int4"];

/// Numbers of ranks, beside one.
const RANKS: [usize; 2] = [2, 4];
/// Most that a logprob may differ from that of one rank, relative to its size if that is above 1: sums of parts round
/// otherwise than one sum.
const F32: f32 = 1e-4;
/// The same in bf16 and with quantized weights: each rank rounds its part of a product to bf16.
const ROUNDED: f32 = 6e-2;
const TOP: i32 = 5;
/// Tokens that are decoded, which takes steps that are recorded and repeated, and the length of their prompt.
const DECODED: usize = 16;
const PROMPT: usize = 10;

/// On device `device`, where all ranks are.
pub fn checks(models: Vec<SmallModel>, device: usize, kernels: GpuKernels) -> Vec<SectionCheck<'static>> {
    let mut checks: Vec<SectionCheck> =
        selftest::ranks(device, kernels == GpuKernels::Fast).into_iter().map(Into::into).collect();
    for model in models {
        let cases = match model.quantized {
            Some(form) => vec![(form, Dtype::Auto)],
            None => vec![("f32", Dtype::F32), ("bf16", Dtype::Bf16)],
        };
        for ((form, dtype), ranks) in cases.into_iter().flat_map(|case| RANKS.map(|ranks| (case, ranks))) {
            let (name, model) = (format!("{}, {form}, {ranks} ranks", model.name), model.clone());
            checks.push(SectionCheck::of_row(name, move || compare(&model, device, kernels, (dtype, ranks))));
        }
    }
    checks
}

fn compare(
    model: &SmallModel,
    device: usize,
    kernels: GpuKernels,
    (dtype, ranks): (Dtype, usize),
) -> Result<(String, bool), Box<dyn Error>> {
    let gpus = |ranks| Gpus { indices: vec![device; ranks], kernels };
    let load = |ranks: usize| model.load_over(&DeviceChoice::Cuda(gpus(ranks)), dtype, ranks);
    let (mut one, mut several) = (load(1)?, load(ranks)?);
    let tokens = &model.tokens;
    let blocks = one.blocks(0, tokens.len());
    let score = || vec![scoring(1, tokens, 0..tokens.len(), &blocks, TOP)];
    let far = distance(&several.run(score())?, &one.run(score())?)?;
    let tolerance = if dtype == Dtype::F32 { F32 } else { ROUNDED };
    let prompt = &tokens[..PROMPT.min(tokens.len())];
    let (want, got) = (decode(&mut one, prompt, DECODED)?, decode(&mut several, prompt, DECODED)?);
    // As in `models`: after a close decision the two may continue differently.
    let clear = want.iter().take_while(|(_, gap)| *gap > 2.0 * tolerance).count();
    let equal = want.iter().zip(&got).take_while(|(want, got)| want.0 == got.0).count();
    // The same steps again are the same to the bit.
    let again = decode(&mut several, prompt, DECODED)? == got;
    let value = format!(
        "logprobs within {far:.1e} of those of one rank (at most {tolerance:.0e}), {equal} of {DECODED} tokens equal{}{}",
        if equal < clear { ", no close decision" } else { "" },
        if again { "" } else { ", other bits when repeated" }
    );
    Ok((value, far <= tolerance && equal >= clear && again))
}
