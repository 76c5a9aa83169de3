//! Section `slice`: times of one rank of Kimi K2 over eight GPUs, beside the bytes that its steps must read. The other
//! ranks' exchanges are not part of it.

use rein_kernels::cuda::CudaError;
use rein_worker::rank::{DeviceChoice, ModelOptions};

use super::bench::{DecodeSteps, figure, median, plain, random_tokens};
use super::check::{CheckResult, ReportSink, SectionCheck};
use super::fixtures::{SmallModel, drawing};
use super::weights::{self, BenchForm, K2Slice};

/// How much is run.
#[derive(Clone, Copy)]
struct Load {
    slice: K2Slice,
    /// Tokens of each sequence before it decodes, and how many decode at once, in ascending order.
    decodes: &'static [(usize, &'static [usize])],
    /// Tokens of one prefill.
    prefill: usize,
    /// So many tokens of different prompts are in the cache when sequences decode, more than fit into the device's
    /// cache of 50 MB. Others have their blocks in another order: a million tokens would take minutes.
    prompts: usize,
    /// A figure is the median of this many steps, after one to warm up.
    runs: usize,
}

const FULL: Load = Load {
    slice: weights::K2,
    decodes: &[(4096, &[1, 8, 64, 256]), (1024, &[1, 8, 64, 256]), (16_384, &[1, 8, 64])],
    prefill: 8192,
    prompts: 65_536,
    runs: 20,
};
const REDUCED: Load =
    Load { slice: weights::K2_REDUCED, decodes: &[(64, &[1, 3]), (8, &[2])], prefill: 24, prompts: 128, runs: 1 };

/// `copy_rate` measures how many bytes per second a copy on the device reads and writes.
pub fn checks<'a>(
    devices: &DeviceChoice,
    copy_rate: impl Fn() -> Result<f64, CudaError> + Copy + 'a,
    reduced: bool,
) -> Vec<SectionCheck<'a>> {
    let forms = [("FP8", BenchForm::Fp8), ("int4", BenchForm::Int4)];
    let check = |(name, form): (&'static str, BenchForm)| {
        let (load, devices) = (if reduced { REDUCED } else { FULL }, devices.clone());
        let load = Load { slice: K2Slice { form, ..load.slice }, ..load };
        SectionCheck::new(name, move |rows| steps_of(name, &load, devices, copy_rate()?, rows))
    };
    forms.map(check).into()
}

fn steps_of(name: &str, load: &Load, devices: DeviceChoice, copy_rate: f64, rows: &mut ReportSink) -> CheckResult {
    let Load { slice, decodes, prefill, prompts, runs } = *load;
    let model = slice.checkpoint().write()?;
    rows(figure(format!("{name}: random weights"), format!("{} MiB", model.bytes >> 20)));
    let block_size = devices.defaults().block_size;
    let of_decode = |(context, batches): &(usize, &[usize])| {
        batches.iter().max().unwrap_or(&1) * DecodeSteps::blocks_of_one(*context, runs, block_size)
    };
    let blocks = decodes.iter().map(of_decode).max().unwrap_or(0).max(prefill.div_ceil(block_size));
    let max_sequences = decodes.iter().flat_map(|(_, batches)| *batches).max().unwrap_or(&1) + 1;
    let options =
        ModelOptions { devices, kv_blocks: Some(blocks), block_size, max_sequences, ..ModelOptions::default() };
    let files =
        SmallModel { name: name.into(), dir: model.dir.clone(), tokens: Vec::new(), quantized: None, embeds: false };
    let mut steps = files.load_with(&options)?;
    let prompt = random_tokens(0, prefill, slice.vocab);
    let row = vec![plain(drawing(1, &prompt, 0, &steps.blocks(0, prompt.len())))];
    let time = median(runs.div_ceil(4), || {
        steps.run(row.clone())?;
        Ok(())
    })?;
    let (of_layer, operations) = (time / slice.layers as f64, slice.layer_operations(prefill));
    let value = format!(
        "{:.1} ms, {:.0} us per layer, {:.1} TFLOP/s",
        time * 1e3,
        of_layer * 1e6,
        operations / of_layer / 1e12
    );
    let numbers = [("rows", prefill as f64), ("layer_us", of_layer * 1e6), ("layer_operations", operations)];
    rows(figure(format!("{name}: prefill of {prefill} tokens"), value).with(numbers));
    for &(context, batches) in decodes {
        let mut decoding = DecodeSteps::with_prompts(&mut steps, context, slice.vocab, runs, prompts / context);
        for &batch in batches {
            let time = decoding.step(batch)?;
            let (of_layer, bytes) = (time * 1e6 / slice.layers as f64, slice.layer_bytes(batch, context + runs / 2));
            let least = bytes / copy_rate * 1e6;
            let value = format!(
                "{:.3} ms per step, {of_layer:.0} us per layer, {:.2} of the {least:.0} us in which its bytes are read",
                time * 1e3,
                of_layer / least
            );
            let numbers =
                [("rows", batch as f64), ("context", context as f64), ("layer_us", of_layer), ("layer_bytes", bytes)];
            rows(figure(format!("{name}: decode, {batch} rows after {context} tokens"), value).with(numbers));
        }
    }
    Ok(())
}
