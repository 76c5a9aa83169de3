//! Loads a model directory into a group of ranks of this process. Progress is shown as a bar on a terminal, as log
//! lines otherwise.

use std::error::Error;
use std::io::IsTerminal;
use std::time::Duration;

use rein_worker::LoadLog;
use rein_worker::checkpoint::LoadError;
use rein_worker::model::HostLimits;
use rein_worker::node::TextFiles;
use rein_worker::rank::{
    DeviceChoice, Dtype, GpuKernels, Gpus, KvDtype, LoraLimits, ModelLoader, ModelOptions, Quantize, RankGroup,
};

use crate::args::{
    Device, DeviceArgs, DtypeArg, EngineArgs, EngineKind, EngineTask, GpuKernelsArg, KvDtypeArg, ModelArgs,
    QuantizeArg, ServeArgs, WeightArgs,
};
use rein_measure::progress;

use crate::{model_dir, pooling};

const BAR: &str = "loading weights {bar:40} {bytes}/{total_bytes} {bytes_per_sec}";

impl From<GpuKernelsArg> for GpuKernels {
    fn from(kernels: GpuKernelsArg) -> GpuKernels {
        match kernels {
            GpuKernelsArg::Plain => GpuKernels::Plain,
            GpuKernelsArg::Fast => GpuKernels::Fast,
        }
    }
}

/// Ranks of a process that has the whole group.
pub fn ranks(tp: u16, devices: &DeviceChoice) -> usize {
    match devices {
        DeviceChoice::Cpu => tp.into(),
        DeviceChoice::Cuda(gpus) => gpus.indices.len(),
    }
}

/// The devices of this process's ranks. `tp`: of --tp; 1 leaves their number to --devices.
pub fn devices(args: &DeviceArgs, tp: u16) -> Result<DeviceChoice, String> {
    let (given, ranks) = (args.devices.len(), usize::from(tp));
    if given > 0 && ranks > 1 && given != ranks {
        return Err(format!("--devices: must name one device for each of the {ranks} ranks of --tp, got {given}"));
    }
    let gpus: Vec<usize> = args.devices.iter().filter_map(Device::gpu).collect();
    let kernels = args.gpu_kernels.map_or(GpuKernels::Fast, GpuKernels::from);
    if args.gpu_kernels.is_some() && args.engine != EngineKind::Cuda {
        return Err("--gpu-kernels: add --engine cuda".into());
    }
    let cuda = |indices| Ok(DeviceChoice::Cuda(Gpus { indices, kernels }));
    match args.engine {
        EngineKind::Cuda if given == 0 => cuda((0..ranks).collect()),
        EngineKind::Cuda if gpus.len() < given => {
            Err("--devices: with --engine cuda, must be indices of GPUs such as 0,1, got cpu".into())
        }
        EngineKind::Cuda => match gpus.iter().enumerate().find(|(i, gpu)| gpus[..*i].contains(gpu)) {
            Some((_, twice)) => Err(format!("--devices: names device {twice} twice; a device has one rank")),
            None => cuda(gpus),
        },
        EngineKind::Cpu | EngineKind::Sim => match gpus.first() {
            Some(gpu) => Err(format!("--devices: device {gpu} is a GPU: add --engine cuda")),
            None => Ok(DeviceChoice::Cpu),
        },
    }
}

pub fn options(args: &ModelArgs, devices: DeviceChoice) -> ModelOptions {
    let block_size = devices.defaults().block_size;
    ModelOptions { tp: ranks(args.tp, &devices), block_size, ..weights(&args.weights, devices) }
}

fn weights(args: &WeightArgs, devices: DeviceChoice) -> ModelOptions {
    ModelOptions {
        devices,
        dtype: match args.dtype {
            DtypeArg::Auto => Dtype::Auto,
            DtypeArg::F32 => Dtype::F32,
            DtypeArg::Bf16 => Dtype::Bf16,
        },
        quantize: match args.quantize {
            QuantizeArg::None => Quantize::None,
            QuantizeArg::Int8 => Quantize::Int8,
        },
        kv_dtype: match args.kv_dtype {
            KvDtypeArg::Auto => KvDtype::Auto,
            KvDtypeArg::Fp8 => KvDtype::Fp8,
        },
        threads: args.threads.map(Into::into),
        read_timeout: Duration::from_secs_f64(args.read_timeout),
        ..ModelOptions::default()
    }
}

/// The options of a process that serves.
/// `lora_api`: LoRA adapters may come over the API.
pub fn engine_options(args: &WeightArgs, engine: &EngineArgs, devices: DeviceChoice, lora_api: bool) -> ModelOptions {
    let loras = &engine.loras;
    ModelOptions {
        kv_memory: engine.kv_memory.map(|mib| (mib as usize) << 20),
        block_size: block_size(engine, &devices),
        max_context: engine.max_context.map(|n| n as usize),
        max_sequences: engine.max_sequences as usize,
        token_budget: (!engine.no_prepare).then(|| token_budget(engine, &devices)),
        embeds: engine.task == EngineTask::Embed,
        step_deadline: Some(Duration::from_secs_f64(engine.step_deadline)),
        loras: LoraLimits {
            slots: loras.slots(lora_api),
            room: loras.lora_memory.map(|mib| (mib as usize) << 20),
            rank: loras.max_lora_rank.into(),
        },
        kv_parallel: engine.kv_parallel,
        host: HostLimits {
            bytes: engine.host.host_kv.map_or(0, |gib| (gib * (1u64 << 30) as f64) as usize),
            file: engine.host.kv_file.clone(),
        },
        ..weights(args, devices)
    }
}

pub fn token_budget(engine: &EngineArgs, devices: &DeviceChoice) -> usize {
    engine.token_budget.map_or(devices.defaults().token_budget, |n| n as usize)
}

pub fn block_size(engine: &EngineArgs, devices: &DeviceChoice) -> usize {
    engine.block_size.map_or(devices.defaults().block_size, usize::from)
}

/// Prefixes the error message with the flag that it is about. `ranks` is the flag that sets the number of ranks.
pub fn flagged(error: LoadError, ranks: &str) -> String {
    match error {
        LoadError::Option { option, what } => format!("--{}: {what}", option.replace('_', "-")),
        LoadError::Device(what) => format!("--engine cuda: {what}"),
        LoadError::Placement(error) => format!("{ranks}: {error}"),
        LoadError::Kernel(_) | LoadError::Rank { .. } => error.to_string(),
        error => format!("--model: {error}"),
    }
}

/// Reads the text files of a model directory with a timeout, so that later reads do not wait for a FIFO or a file
/// system that hangs.
pub fn text_files(args: &WeightArgs, task: EngineTask) -> Result<TextFiles, String> {
    let timeout = Duration::from_secs_f64(args.read_timeout);
    let files = TextFiles::read(&args.model, timeout).map_err(|error| format!("--model: {error}"))?;
    model_dir::check(&args.model)?;
    if task == EngineTask::Embed {
        pooling::check(&args.model)?;
    }
    Ok(files)
}

/// Opens the checkpoint, without its weights.
pub fn model(args: &ServeArgs, devices: &DeviceChoice) -> Result<ModelLoader, String> {
    let weights = &args.model.weights;
    let options = ModelOptions {
        tp: ranks(args.model.tp, devices),
        ..engine_options(weights, &args.engine, devices.clone(), args.api.lora_api)
    };
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
