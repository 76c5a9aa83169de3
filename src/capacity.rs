//! `rein capacity`: what a model needs on GPUs, as text and JSON. It reads config.json only.

use std::error::Error;
use std::fmt::Write;
use std::path::Path;

use rein_worker::checkpoint::{LoadError, parse_config};
use rein_worker::rank::capacity::{Capacity, CapacityOptions, GpuLimits, GpuMemory, capacity};
use serde_json::{Map, Value};

use crate::args::{CapacityArgs, GpuKind, KvDtypeArg};
use crate::terminal;

mod shapes;

const GIB: f64 = (1u64 << 30) as f64;

/// By the data sheets: the driver reports somewhat more memory. Rates are without sparsity. An A100 has no FP8
/// products; its FP8 weights are multiplied as bf16.
fn limits(kind: GpuKind) -> GpuLimits {
    let of = |gigabytes: f64, terabytes: f64, bf16: f64, fp8: f64| GpuLimits {
        memory: gigabytes * 1e9,
        bandwidth: terabytes * 1e12,
        bf16: bf16 * 1e12,
        fp8: fp8 * 1e12,
    };
    match kind {
        GpuKind::A100 => of(80.0, 2.039, 312.0, 312.0),
        GpuKind::H100 => of(80.0, 3.35, 989.0, 1979.0),
        GpuKind::H200 => of(141.0, 4.8, 989.0, 1979.0),
        GpuKind::B200 => of(180.0, 8.0, 2250.0, 4500.0),
    }
}

pub fn run(args: &CapacityArgs) -> Result<(), Box<dyn Error>> {
    let capacity = find(args)?;
    if args.json {
        terminal::out(serde_json::to_string_pretty(&capacity)?);
    } else {
        let name = rein_hub::name_of(&args.model).unwrap_or_else(|| args.model.display().to_string());
        terminal::out(text(&name, &capacity).trim_end());
    }
    Ok(())
}

fn find(args: &CapacityArgs) -> Result<Capacity, Box<dyn Error>> {
    let config = config(&args.model)?;
    let mut gpu = limits(args.gpu);
    if let Some(gib) = args.gpu_memory {
        gpu.memory = f64::from(gib) * GIB;
    }
    let options = CapacityOptions {
        gpus: args.gpus.into(),
        gpu,
        context: args.context.map(|tokens| tokens as usize),
        sequences: args.sequences.iter().map(|&n| n as usize).collect(),
        fp8_cache: args.kv_dtype == KvDtypeArg::Fp8,
        kv_parallel: args.kv_parallel,
    };
    let flagged = |error| match error {
        LoadError::Option { option, what } => format!("--{}: {what}", option.replace('_', "-")),
        LoadError::Placement(error) => format!("--gpus: {error}"),
        error => error.to_string(),
    };
    Ok(capacity(&config, &options).map_err(flagged)?)
}

/// The config.json of a directory, or of a well-known model.
fn config(dir: &Path) -> Result<Map<String, Value>, Box<dyn Error>> {
    if let Some(known) = dir.to_str().and_then(shapes::config).filter(|_| !dir.exists()) {
        return Ok(parse_config(dir, known.as_bytes())?);
    }
    let read = std::fs::read(dir.join("config.json"));
    let text = read.map_err(|error| {
        let names = shapes::names().collect::<Vec<_>>().join(", ");
        let shown = dir.display();
        format!(
            "{shown}: cannot read its config.json ({error}); expected a model directory, a GGUF file, ORG/NAME or one of {names}"
        )
    })?;
    Ok(parse_config(dir, &text)?)
}

fn gib(bytes: f64) -> String {
    format!("{:.2}", bytes / GIB)
}

fn text(model: &str, capacity: &Capacity) -> String {
    let Capacity { architecture, layers, stored, gpus, gpu, context, memory, least_gpus, steps } = capacity;
    let GpuLimits { bandwidth, bf16, fp8, .. } = gpu;
    let mut out = format!(
        "{model}: {architecture}, {layers} layers, stored as {stored}\n\
         {} of {:.1} GiB, {:.2} TB/s, {:.0} TFLOPS in bf16, {:.0} in FP8\n\n",
        if *gpus == 1 { "1 GPU".to_owned() } else { format!("{gpus} GPUs") },
        gpu.memory / GIB,
        bandwidth / 1e12,
        bf16 / 1e12,
        fp8 / 1e12,
    );
    out += &memory_text(memory, gpu.memory);
    let _ = match (memory.kv_tokens, least_gpus) {
        (0, None) => writeln!(out, "\nThe weights do not fit, on any number of such GPUs."),
        (0, Some(least)) => writeln!(out, "\nThe weights do not fit. {least} such GPUs hold a sequence."),
        (tokens, _) => {
            writeln!(out, "\nThe KV cache holds {} sequences of {context} tokens.", tokens / context)
        }
    };
    let _ = writeln!(out, "\nLeast milliseconds of a decode step, each sequence at {context} tokens:\n");
    let names = steps.first().into_iter().flat_map(|step| &step.ops).map(|op| op.op.to_owned());
    let mut rows = vec![Vec::from_iter(["sequences".to_owned()].into_iter().chain(names))];
    rows[0].extend(["step".to_owned(), "tokens/s".to_owned()]);
    for step in steps {
        let ops =
            step.ops.iter().map(|op| format!("{:.3}{}", op.seconds * 1e3, if op.by_products { "p" } else { " " }));
        let mut row = vec![format!("{}{}", step.sequences, if step.fits { " " } else { "*" })];
        row.extend(ops);
        row.push(format!("{:.3}", step.seconds * 1e3));
        row.push(format!("{:.0}", step.sequences as f64 / step.seconds));
        rows.push(row);
    }
    out += &aligned(&rows);
    out += "\np: limited by the rate of products, all others by memory bandwidth\n";
    if steps.iter().any(|step| !step.fits) {
        out += "*: the KV entries of so many sequences do not fit\n";
    }
    out
}

fn memory_text(memory: &GpuMemory, of: f64) -> String {
    let parts = &memory.weights;
    let (weights, kv) = (parts.total(), memory.kv_tokens * memory.kv_bytes_per_token);
    let rest = of - (weights + memory.moves + kv) as f64;
    let rows = [
        ("embedding", parts.embedding),
        ("attention", parts.attention),
        ("dense and shared MLP", parts.mlp),
        ("routers", parts.router),
        ("experts", parts.experts),
        ("head", parts.head),
        ("all weights", weights),
        ("room to move experts", memory.moves),
        ("KV cache", kv),
    ];
    let cells = |(name, bytes): (&str, usize)| vec![name.to_owned(), gib(bytes as f64)];
    let mut rows: Vec<Vec<String>> = rows.into_iter().map(cells).collect();
    rows.insert(0, vec!["of one GPU".into(), "GiB".into()]);
    if kv > 0 {
        rows.push(vec!["left for activations".into(), gib(rest)]);
    }
    let table = aligned(&rows);
    let tokens = format!("{} tokens of {} bytes", memory.kv_tokens, memory.kv_bytes_per_token);
    table
        .lines()
        .map(|line| if line.starts_with("KV cache") { format!("{line}   {tokens}\n") } else { format!("{line}\n") })
        .collect()
}

/// Columns under each other; the first one begins at the left, the others end at the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cell = |(column, (cell, &width)): (usize, (&String, &usize))| match column {
            0 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        };
        row.iter().zip(&widths).enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests;
