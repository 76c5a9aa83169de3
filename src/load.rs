//! A checkpoint directory to a group of ranks, with a progress bar while it loads.

use std::error::Error;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rein_worker::checkpoint::LoadError;
use rein_worker::node::TextFiles;
use rein_worker::rank::{Dtype, ModelLoader, ModelOptions, Quantize, RankGroup};

use crate::args::{DtypeArg, EngineArgs, ModelArgs, QuantizeArg, ServeArgs, WeightArgs};

pub fn options(args: &ModelArgs) -> ModelOptions {
    ModelOptions { tp: args.tp.into(), ..weights(&args.weights) }
}

fn weights(args: &WeightArgs) -> ModelOptions {
    ModelOptions {
        dtype: match args.dtype {
            DtypeArg::Auto => Dtype::Auto,
            DtypeArg::F32 => Dtype::F32,
            DtypeArg::Bf16 => Dtype::Bf16,
        },
        quantize: match args.quantize {
            QuantizeArg::None => Quantize::None,
            QuantizeArg::Int8 => Quantize::Int8,
        },
        threads: args.threads.map(Into::into),
        read_timeout: Duration::from_secs_f64(args.read_timeout),
        ..ModelOptions::default()
    }
}

/// As the engine of a process has them.
pub fn engine_options(args: &WeightArgs, engine: &EngineArgs) -> ModelOptions {
    ModelOptions {
        kv_memory: engine.kv_memory.map(|mib| (mib as usize) << 20),
        block_size: engine.block_size.into(),
        max_context: engine.max_context.map(|n| n as usize),
        max_sequences: engine.max_sequences as usize,
        ..weights(args)
    }
}

/// What is wrong with a checkpoint or an option, by its flag.
pub fn flagged(error: LoadError, ranks: &str) -> String {
    match error {
        LoadError::Option { option, what } => format!("--{}: {what}", option.replace('_', "-")),
        LoadError::Placement(error) => format!("{ranks}: {error}"),
        LoadError::Kernel(_) | LoadError::Rank { .. } => error.to_string(),
        error => format!("--model: {error}"),
    }
}

/// Reads the text files, so that whoever reads them next neither waits for a FIFO nor for a file system that hangs.
pub fn text_files(args: &WeightArgs) -> Result<TextFiles, String> {
    let timeout = Duration::from_secs_f64(args.read_timeout);
    TextFiles::read(&args.model, timeout).map_err(|error| format!("--model: {error}"))
}

/// Opens the checkpoint, without its weights.
pub fn model(args: &ServeArgs) -> Result<ModelLoader, String> {
    let weights = &args.model.weights;
    let options = ModelOptions { tp: args.model.tp.into(), ..engine_options(weights, &args.engine) };
    ModelLoader::open(&weights.model, &options).map_err(|error| flagged(error, "--tp"))
}

pub fn group(model: &ModelLoader) -> Result<RankGroup, Box<dyn Error>> {
    let group = with_bar(|progress| RankGroup::of(model, progress)).map_err(|error| flagged(error, "--tp"))?;
    tracing::info!("{}", group.plan());
    Ok(group)
}

/// Shows what `load` tells of its progress: (bytes read, bytes to read).
pub fn with_bar<T>(load: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T) -> T {
    let bar = bar();
    let loaded = load(&mut |loaded, total| {
        bar.set_length(total);
        bar.set_position(loaded);
    });
    bar.finish_and_clear();
    loaded
}

/// Hidden where nobody looks at a terminal.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("loading {bar:40} {bytes}/{total_bytes} {bytes_per_sec}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
