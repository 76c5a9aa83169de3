//! A checkpoint directory to a group of ranks, with a progress bar while it loads.

use std::error::Error;
use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rein_worker::rank::{Dtype, Group, ModelOptions, Quantize};

use crate::args::{DtypeArg, ModelArgs, QuantizeArg, ServeArgs};

pub fn options(args: &ModelArgs) -> ModelOptions {
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
        tp: args.tp.into(),
        threads: args.threads.map(Into::into),
        ..ModelOptions::default()
    }
}

pub fn group(args: &ServeArgs) -> Result<Group, Box<dyn Error>> {
    let options = ModelOptions {
        kv_memory: args.kv_memory.map(|mib| (mib as usize) << 20),
        block_size: args.block_size.into(),
        max_context: args.max_context.map(|n| n as usize),
        max_sequences: args.max_sequences as usize,
        ..options(&args.model)
    };
    let group = with_bar(|progress| Group::load(&args.model.model, &options, progress))?;
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
