//! `rein serve`: router, engine and ranks in one process. The router calls the worker's gRPC service as a tower service
//! without a socket, so that a request takes the same path as in a cluster.

use std::error::Error;
use std::time::Duration;

use rein_proto::internal::LoadLoraRequest;
use rein_proto::internal::loras_server::LorasServer;
use rein_router::{ModelEntry, ModelPolicy, ResponsesStoreMode, Router, RouterConfig};
use rein_text::model_text::{ModelOverrides, ModelText};
use rein_worker::bytes::ByteCount;
use rein_worker::executor::Executor;
use rein_worker::rank::DeviceChoice;
use rein_worker::sim::{Sim, SimOptions};
use rein_worker::{EngineOptions, EngineService};
use tonic::service::Routes;

use crate::api_server::{self, Listeners};
use crate::args::{EngineArgs, EngineKind, EngineTask, ServeArgs};
use crate::banner::Banner;
use crate::ending::{self, EXIT_TIME};
use crate::listen::CLOSE_TIME;
use crate::live::{self, Asked};
use crate::{fingerprint, load, terminal};

/// How often it is checked whether the engine still computes.
const ENGINE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

pub fn run(args: ServeArgs) -> Result<(), Box<dyn Error>> {
    if args.until_stdin_ends {
        ending::with_stdin();
    }
    let weights = &args.model.weights;
    if args.engine.on.engine == EngineKind::Sim && (args.model.tp != 1 || !weights.is_default()) {
        let why = "--engine sim loads no weights and cannot be combined with --tp, --dtype, --quantize or --threads";
        return Err(why.into());
    }
    let loras = &args.engine.loras;
    loras.check(args.api.lora_api)?;
    args.engine.host.check(args.engine.on.engine)?;
    if args.engine.on.engine == EngineKind::Sim && loras.slots(args.api.lora_api) > 0 {
        return Err("--engine sim loads no weights, and no LoRA adapters".into());
    }
    let devices = load::devices(&args.engine.on, args.model.tp)?;
    let policy = api_server::policy(&args.api.tool_calls)?;
    let files = load::text_files(weights, args.engine.task)?;
    let overrides = ModelOverrides {
        name: args.engine.served_name.first().cloned(),
        template: args.api.tool_calls.chat_template.clone(),
        max_context: args.engine.max_context.map(|n| n as usize),
        ..ModelOverrides::from_env()?
    };
    let mut text = ModelText::load(&weights.model, &overrides)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listeners = Listeners::bind(&args.api).await?;
        let mut config = api_server::config(&args.api, ResponsesStoreMode::Memory)?;
        config.aliases.extend(args.engine.served_name.iter().skip(1).map(|alias| (alias.clone(), text.name.clone())));
        let format = text.settle_format(policy.format).name;
        let banner = Banner::new(&format!("serves {}", text.name))
            .row("model", format_args!("{} ({})", weights.model.display(), text.architecture))
            .row("format", format);
        let banner = match args.engine.task {
            EngineTask::Generate => banner,
            EngineTask::Embed => banner.row("task", "embeddings"),
        };
        let model = match args.engine.on.engine {
            EngineKind::Cpu | EngineKind::Cuda => Some(load::model(&args, &devices)?),
            EngineKind::Sim => None,
        };
        let fingerprint = fingerprint::of(
            weights,
            &args.engine,
            &devices,
            load::ranks(args.model.tp, &devices),
            model.as_ref(),
            &files,
        )?;
        // Memory of this machine that is taken, but perhaps not touched yet.
        let mut kv_bytes = 0;
        let (executor, banner): (Box<dyn Executor>, _) = match model {
            Some(model) => {
                let group = load::group(&model)?;
                let (weights, kv, tp) = (group.weights(), group.plan(), load::ranks(args.model.tp, &devices));
                if matches!(devices, DeviceChoice::Cpu) {
                    kv_bytes = kv.bytes();
                }
                let ranks = if tp == 1 { "1 rank".to_owned() } else { format!("{tp} ranks") };
                let banner = banner.row("weights", format_args!("{weights}, {ranks} on {}", devices.name(0)));
                let banner = match devices.kernels() {
                    Some(kernels) => banner.row("kernels", kernels),
                    None => banner,
                };
                let banner = banner
                    .row("KV cache", format_args!("{} for {} tokens", ByteCount(kv.bytes() as u64), kv.tokens()))
                    .row("context", format_args!("{} tokens", kv.max_context));
                (Box::new(group), banner)
            }
            None => {
                let sim = sim(&args.engine, &devices, &text);
                let context = sim.shape().max_context;
                let banner =
                    banner.row("weights", "none (sim engine)").row("context", format_args!("{context} tokens"));
                (Box::new(sim), banner)
            }
        };
        let engine = rein_worker::start(executor, engine_options(&args.engine, &devices));
        let mut banner = banner;
        for (name, path) in &loras.lora {
            let request = LoadLoraRequest { name: name.clone(), path: path.clone(), replace: false };
            let lora = engine.load_lora(request).await.map_err(|error| format!("--lora: {name}: {error}"))?;
            banner = banner.row("LoRA", format_args!("{name} ({path}, rank {})", lora.rank));
        }
        if args.check_live {
            check_live(ModelText::load(&weights.model, &overrides)?, policy, &engine).await?;
        }
        let process_metrics = api_server::process_metrics(listeners.certificate().into_iter().collect());
        let router = Router::new(
            RouterConfig { process_metrics, memory: api_server::memory(&args.api.admission, kv_bytes), ..config },
            vec![ModelEntry {
                text,
                engine: rein_router::transport(in_process(&engine)),
                kind: fingerprint.whole,
                loras: engine.loras(),
                policy,
            }],
        )?;
        // The engine drains after the router, because open requests may still start sequences.
        let leaving = async {
            router.drain().await;
            engine.drain().await;
        };
        let cut = async {
            // Returns after the current step.
            if tokio::time::timeout(CLOSE_TIME, engine.abort()).await.is_err() {
                tracing::warn!("the engine is still in a step");
            }
        };
        let deadline = Duration::from_secs_f64(args.engine.step_deadline);
        let drain = Duration::from_secs(args.api.network.drain_seconds);
        let served = listeners.serve(&router, banner, drain, leaving, cut, lost(&engine, deadline)).await;
        ending::kill_after(EXIT_TIME);
        served
    })
}

/// The services of an engine that the router calls without a socket.
fn in_process(engine: &EngineService) -> Routes {
    Routes::new(engine.clone().into_server()).add_service(LorasServer::new(engine.clone())).prepare()
}

/// Asks the loaded model tool questions and prints the findings. They end nothing, nor does a model that cannot be
/// asked: operators read them.
async fn check_live(text: ModelText, policy: ModelPolicy, engine: &EngineService) -> Result<(), Box<dyn Error>> {
    // The rest of a short context is for the questions.
    let tokens = text.max_context.map_or(live::TOKENS, |context| live::TOKENS.min((context / 4).max(1) as u32));
    let engine = rein_router::transport(engine.clone().into_server());
    let entry = ModelEntry { text, engine, kind: String::new(), loras: Vec::new(), policy };
    // Without keys, and with metrics of its own.
    let router = Router::new(RouterConfig::default(), vec![entry])?;
    match live::report(&Asked::Router(router.http()), policy.format, tokens).await {
        Ok(report) => {
            terminal::out(crate::tools::check::table(&report));
            report.warn();
        }
        Err(error) => tracing::warn!(error, "--check-live: the model cannot be asked"),
    }
    Ok(())
}

/// Why the engine can no longer compute. It is abandoned if its step does not end.
async fn lost(engine: &EngineService, deadline: Duration) -> String {
    let mut tick = tokio::time::interval(ENGINE_CHECK_INTERVAL);
    loop {
        tick.tick().await;
        if let Some(time) = engine.step_time().filter(|&time| time > deadline) {
            engine.give_up(&format!("a step is running for {time:.1?}, longer than --step-deadline"));
        }
        if let Some(why) = engine.ended() {
            engine.give_up(&why);
        }
        if let Some(why) = engine.lost() {
            return why.to_owned();
        }
    }
}

pub fn sim(args: &EngineArgs, devices: &DeviceChoice, text: &ModelText) -> Sim {
    Sim::new(SimOptions {
        model: text.name.clone(),
        vocab_size: text.vocab_size,
        max_context: text.max_context.unwrap_or(SimOptions::default().max_context),
        blocks: args.sim.sim_blocks as usize,
        block_size: load::block_size(args, devices),
        host_places: args.sim.sim_host_blocks as usize,
        step_base_us: args.sim.sim_step_us,
        per_prefill_token_us: args.sim.sim_prefill_us,
        per_decode_row_us: args.sim.sim_decode_us,
        seed: args.sim.sim_seed,
    })
}

pub fn engine_options(args: &EngineArgs, devices: &DeviceChoice) -> EngineOptions {
    let draft_tokens = if args.on.engine == EngineKind::Sim { 0 } else { devices.defaults().draft_tokens };
    EngineOptions {
        max_sequences: args.max_sequences as usize,
        max_queue: args.max_queue as usize,
        token_budget: load::token_budget(args, devices),
        prefix_cache: !args.no_prefix_cache,
        embeds: args.task == EngineTask::Embed,
        draft_tokens: args.draft_tokens.map_or(draft_tokens, usize::from),
        ..EngineOptions::default()
    }
}
