//! `rein serve`: router, engine and ranks in one process. The router calls the worker's gRPC service as a tower service,
//! without a socket, so that the wire path is the only path.

use std::error::Error;
use std::time::Duration;

use rein_router::{ModelEntry, Router, RouterConfig};
use rein_text::model_text::{Overrides, TextModel};
use rein_worker::EngineOptions;
use rein_worker::executor::Executor;
use rein_worker::sim::{Sim, SimOptions};

use crate::api_server::{self, Listeners};
use crate::args::{EngineArgs, EngineKind, ServeArgs};
use crate::listen::CLOSE_TIME;
use crate::{fingerprint, load};

pub fn run(args: ServeArgs) -> Result<(), Box<dyn Error>> {
    let weights = &args.model.weights;
    if args.engine.engine == EngineKind::Sim && (args.model.tp != 1 || !weights.is_default()) {
        return Err("--engine sim loads no weights: --tp, --dtype, --quantize and --threads do not go with it".into());
    }
    let policy = api_server::policy(&args.api)?;
    let files = load::text_files(weights)?;
    let text = TextModel::load(
        &weights.model,
        &Overrides {
            name: args.engine.served_name.clone(),
            template: args.api.chat_template.clone(),
            max_context: args.engine.max_context.map(|n| n as usize),
            ..Overrides::from_env()?
        },
    )?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listeners = Listeners::bind(&args.api).await?;
        let model = match args.engine.engine {
            EngineKind::Cpu => Some(load::model(&args)?),
            EngineKind::Sim => None,
        };
        let fingerprint = fingerprint::of(weights, &args.engine, args.model.tp.into(), model.as_ref(), &files)?;
        let executor: Box<dyn Executor> = match model {
            Some(model) => Box::new(load::group(&model)?),
            None => Box::new(sim(&args.engine, &text)),
        };
        let engine = rein_worker::start(executor, engine_options(&args.engine));
        let process_metrics = api_server::certificates(listeners.certificate().into_iter().collect());
        let router = Router::new(
            RouterConfig { process_metrics, ..api_server::config(&args.api)? },
            vec![ModelEntry {
                text,
                engine: rein_router::transport(engine.clone().into_server()),
                kind: fingerprint.whole,
                policy,
            }],
        )?;
        // The engine's end after the router's: what is being answered may still have sequences to begin.
        let leaving = async {
            router.drain().await;
            engine.drain().await;
        };
        let cut = async {
            // It answers after the step that is running.
            if tokio::time::timeout(CLOSE_TIME, engine.abort()).await.is_err() {
                tracing::warn!("the engine is still in a step");
            }
        };
        listeners.serve(&router, Duration::from_secs(args.api.drain_seconds), leaving, cut).await
    })
}

pub fn sim(args: &EngineArgs, text: &TextModel) -> Sim {
    Sim::new(SimOptions {
        model: text.name.clone(),
        vocab_size: text.vocab_size,
        max_context: text.max_context.unwrap_or(SimOptions::default().max_context),
        blocks: args.sim.sim_blocks as usize,
        block_size: args.block_size.into(),
        step_base_us: args.sim.sim_step_us,
        per_prefill_token_us: args.sim.sim_prefill_us,
        per_decode_row_us: args.sim.sim_decode_us,
        seed: args.sim.sim_seed,
    })
}

pub fn engine_options(args: &EngineArgs) -> EngineOptions {
    EngineOptions {
        max_sequences: args.max_sequences as usize,
        max_queue: args.max_queue as usize,
        step_tokens: args.token_budget as usize,
        prefix_cache: !args.no_prefix_cache,
        ..EngineOptions::default()
    }
}
