//! A checkpoint directory to a group of ranks, with a progress bar while it loads.

use std::error::Error;
use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rein_worker::rank::{Dtype, Group, ModelOptions, Quantize};

use crate::args::{DtypeArg, ModelArgs, QuantizeArg};

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
        kv_memory: args.kv_memory.map(|mib| (mib as usize) << 20),
        block_size: args.block_size.into(),
        max_context: args.max_context.map(|n| n as usize),
        ..ModelOptions::default()
    }
}

pub fn group(args: &ModelArgs, options: &ModelOptions) -> Result<Group, Box<dyn Error>> {
    let bar = bar();
    let group = Group::load(&args.model, options, &mut |loaded, total| {
        bar.set_length(total);
        bar.set_position(loaded);
    })?;
    bar.finish_and_clear();
    Ok(group)
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
