//! Loads a model directory into a group of ranks of this process. Progress is shown as a bar on a terminal, as log
//! lines otherwise.

use std::error::Error;
use std::io::IsTerminal;
use std::time::Duration;

use rein_worker::LoadLog;
use rein_worker::checkpoint::LoadError;
use rein_worker::node::TextFiles;
use rein_worker::rank::{Dtype, ModelLoader, ModelOptions, Quantize, RankGroup};

use crate::args::{DtypeArg, EngineArgs, ModelArgs, QuantizeArg, ServeArgs, WeightArgs};
use crate::{model_dir, progress};

const BAR: &str = "loading weights {bar:40} {bytes}/{total_bytes} {bytes_per_sec}";

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

/// The options of a process that serves.
pub fn engine_options(args: &WeightArgs, engine: &EngineArgs) -> ModelOptions {
    ModelOptions {
        kv_memory: engine.kv_memory.map(|mib| (mib as usize) << 20),
        block_size: engine.block_size.into(),
        max_context: engine.max_context.map(|n| n as usize),
        max_sequences: engine.max_sequences as usize,
        ..weights(args)
    }
}

/// Prefixes the error message with the flag that it is about. `ranks` is the flag that sets the number of ranks.
pub fn flagged(error: LoadError, ranks: &str) -> String {
    match error {
        LoadError::Option { option, what } => format!("--{}: {what}", option.replace('_', "-")),
        LoadError::Placement(error) => format!("{ranks}: {error}"),
        LoadError::Kernel(_) | LoadError::Rank { .. } => error.to_string(),
        error => format!("--model: {error}"),
    }
}

/// Reads the text files of a model directory with a timeout, so that later reads do not wait for a FIFO or a file
/// system that hangs.
pub fn text_files(args: &WeightArgs) -> Result<TextFiles, String> {
    let timeout = Duration::from_secs_f64(args.read_timeout);
    let files = TextFiles::read(&args.model, timeout).map_err(|error| format!("--model: {error}"))?;
    model_dir::check(&args.model)?;
    Ok(files)
}

/// Opens the checkpoint, without its weights.
pub fn model(args: &ServeArgs) -> Result<ModelLoader, String> {
    let weights = &args.model.weights;
    let options = ModelOptions { tp: args.model.tp.into(), ..engine_options(weights, &args.engine) };
    ModelLoader::open(&weights.model, &options).map_err(|error| flagged(error, "--tp"))
}

pub fn group(model: &ModelLoader) -> Result<RankGroup, Box<dyn Error>> {
    let group = with_progress(|progress| RankGroup::of(model, progress)).map_err(|error| flagged(error, "--tp"))?;
    tracing::info!("weights: {}; {}", group.weights(), group.plan());
    Ok(group)
}

/// Runs `load` and shows the progress that it reports: bytes read and total bytes.
pub fn with_progress<T>(load: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T) -> T {
    if !std::io::stderr().is_terminal() {
        let mut log = LoadLog::start();
        return load(&mut |done, total| log.report(done, total));
    }
    let bar = progress::bar(Some(0), BAR);
    let loaded = load(&mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    loaded
}
