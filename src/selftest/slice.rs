//! Section `slice`: times of one rank of Kimi K2 over eight GPUs, beside the bytes that its steps must read. The other
//! ranks' exchanges are not part of it.

use rein_worker::rank::{DeviceChoice, ModelOptions};

use super::bench::{decode, figure, median, plain, random_tokens};
use super::check::{CheckResult, ReportSink, SectionCheck};
use super::fixtures::{SmallModel, drawing};
use super::weights::{self, BenchForm, K2Slice};

/// What the bytes of a step are divided by: bytes per second that a copy on an H200 reads and writes.
const COPY_RATE: f64 = 4.3e12;

/// How much is run.
#[derive(Clone, Copy)]
struct Load {
    slice: K2Slice,
    batches: &'static [usize],
    /// Tokens of each sequence before it decodes.
    context: usize,
    /// Tokens of one prefill.
    prefill: usize,
    /// A figure is the median of this many steps, after one to warm up.
    runs: usize,
}

const FULL: Load = Load { slice: weights::K2, batches: &[1, 64, 256], context: 4096, prefill: 8192, runs: 20 };
const REDUCED: Load = Load { slice: weights::K2_REDUCED, batches: &[1, 3], context: 20, prefill: 24, runs: 1 };

pub fn checks(devices: &DeviceChoice, reduced: bool) -> Vec<SectionCheck<'static>> {
    let forms = [("FP8", BenchForm::Fp8), ("int4", BenchForm::Int4)];
    let check = |(name, form): (&'static str, BenchForm)| {
        let (load, devices) = (if reduced { REDUCED } else { FULL }, devices.clone());
        let load = Load { slice: K2Slice { form, ..load.slice }, ..load };
        SectionCheck::new(name, move |rows| steps_of(name, &load, devices, rows))
    };
    forms.map(check).into()
}

fn steps_of(name: &str, load: &Load, devices: DeviceChoice, rows: &mut ReportSink) -> CheckResult {
    let Load { slice, batches, context, prefill, runs } = *load;
    let model = slice.checkpoint().write()?;
    rows(figure(format!("{name}: random weights"), format!("{} MiB", model.bytes >> 20)));
    let block_size = devices.defaults().block_size;
    let most = batches.iter().copied().max().unwrap_or(1);
    let blocks = (most * (context + runs + 1).div_ceil(block_size)).max(prefill.div_ceil(block_size));
    let options = ModelOptions { devices, kv_blocks: Some(blocks), block_size, ..ModelOptions::default() };
    let files = SmallModel { name: name.into(), dir: model.dir.clone(), tokens: Vec::new(), quantized: None };
    let mut steps = files.load_with(&options)?;
    let prompt = random_tokens(0, prefill, slice.vocab);
    let row = vec![plain(drawing(1, &prompt, 0, &steps.blocks(0, prompt.len())))];
    let time = median(runs.div_ceil(4), || {
        steps.run(row.clone())?;
        Ok(())
    })?;
    let value = format!("{:.1} ms, {:.0} us per layer", time * 1e3, time * 1e6 / slice.layers as f64);
    rows(figure(format!("{name}: prefill of {prefill} tokens"), value));
    for &batch in batches {
        let time = decode(&mut steps, batch, context, slice.vocab, runs)?;
        let of_layer = time * 1e6 / slice.layers as f64;
        let least = slice.layer_bytes(batch, context + runs / 2) / COPY_RATE * 1e6;
        let value = format!(
            "{:.3} ms per step, {of_layer:.0} us per layer, {:.2} of the {least:.0} us in which its bytes are read",
            time * 1e3,
            of_layer / least
        );
        rows(figure(format!("{name}: decode, {batch} rows after {context} tokens"), value));
    }
    Ok(())
}
