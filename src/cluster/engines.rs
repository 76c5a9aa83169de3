//! Engines that are already there: joins them, and keeps each one's record in the store while its adapter runs. It does
//! not know requests.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::MetricType;
use rein_adapter::metrics::EngineCounters;
use rein_adapter::{AdapterOptions, AdapterService, Deployment, EngineHttp, EngineJoinError, Joined, join};
use rein_control_plane::records::{EngineRecord, encode};
use rein_control_plane::{Session, epoch};
use rein_router::metrics::Samples;
use rein_text::model_text::{ModelOverrides, ModelText, TextError};
use rein_text::tokenize::Encode;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::args::{EngineAddress, EngineClientArgs};
use crate::model_dir;

/// Time between two attempts to join an engine.
const RETRY: Duration = Duration::from_secs(2);

/// Texts whose ids an engine must give: languages, digits, whitespace, code, characters of several bytes. All are in
/// NFC: many tokenizers compose characters first and llama-server does not, but Rein sends ids.
const PROBES: [&str; 10] = [
    "Hello, world!",
    " The quick brown fox jumps over the lazy dog.\n\n",
    "naïve café — “quotes” … 'it''s'",
    "日本語のテキスト 和漢字, 한국어, العربية, עברית, हिन्दी, Ελληνικά, русский",
    "\u{1F600}\u{1F468}\u{200D}\u{1F469}\u{200D}\u{1F467} \u{E9} \u{FEFF} \u{10FFFF}",
    "1234567890 3.14159 -1e-9 0x1F 2026-01-31",
    "   leading,\ttabs\r\n\r\nand trailing   ",
    "fn main() { let x: Vec<u8> = vec![0; 10]; println!(\"{:?}\", x); }",
    "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Köln\", \"days\": [1, 2, 3]}}",
    "[INST] ### ``` \\u0000 &amp; <b>bold</b> <|x|>",
];

/// Added tokens of a model that are compared; some models have thousands.
const MOST_ADDED: usize = 256;

/// The model that engines must serve.
pub struct FrontedModel {
    pub text: ModelText,
    pub deployment: Deployment,
}

impl FrontedModel {
    /// Loads the text files of a model directory. `name`: None for the engine's own.
    pub fn load(
        dir: &Path,
        name: Option<String>,
        context: Option<u32>,
        overrides: ModelOverrides,
    ) -> Result<Self, Box<dyn Error>> {
        model_dir::check(dir)?;
        let served_name = name.clone();
        let text = ModelText::load(dir, &ModelOverrides { name, ..overrides })?;
        let encode = |probe: &str| text.tokenizer.encode(probe, Encode::TEMPLATED).map_err(TextError::from);
        let mut probes = Vec::new();
        for probe in PROBES {
            probes.push((probe.to_owned(), encode(probe)?));
        }
        // Every added token, so that markers of calls and turns are the same.
        let mut added: Vec<(u32, &str)> = text.tokenizer.added_tokens().collect();
        added.sort_unstable();
        let added: String = added.iter().take(MOST_ADDED).map(|(_, text)| *text).collect();
        let all = [&PROBES.concat(), &*added].concat();
        probes.push((added.clone(), encode(&added)?));
        probes.push((all.clone(), encode(&all)?));
        let least_context = context.map(|context| context as usize);
        let deployment = Deployment {
            served_name,
            vocab_size: text.vocab_size,
            context: least_context.or(text.max_context),
            least_context,
            probes,
        };
        Ok(FrontedModel { text, deployment })
    }
}

/// How the adapter of an engine treats it.
pub fn adapter_options(address: &EngineAddress, args: &EngineClientArgs) -> AdapterOptions {
    let token_deadline = Duration::from_secs_f64(args.token_deadline);
    AdapterOptions { events: address.events.clone(), token_deadline }
}

/// The client of an engine, with the API key of the environment.
pub fn client(address: &EngineAddress, args: &EngineClientArgs) -> Result<EngineHttp, Box<dyn Error>> {
    let key = std::env::var("REIN_ENGINE_KEY").ok().filter(|key| !key.is_empty());
    let tls =
        rein_adapter::client_config(args.engine_ca.as_deref()).map_err(|error| format!("--engine-ca: {error}"))?;
    Ok(EngineHttp::new(address.url.clone(), key.as_deref(), tls).map_err(|error| format!("--engine: {error}"))?)
}

/// Waits until the engine answers. Err: it does not fit.
pub async fn wait_for_engine(
    http: &EngineHttp,
    address: &EngineAddress,
    deployment: &Deployment,
) -> Result<Joined, EngineJoinError> {
    let mut logged = false;
    loop {
        match join(http, address.dialect, deployment).await {
            Err(EngineJoinError::Unanswered(error)) => {
                if !std::mem::replace(&mut logged, true) {
                    tracing::warn!(
                        engine = address.url.as_str(),
                        error,
                        "the engine does not answer yet; waiting for it"
                    );
                }
            }
            joined => return joined,
        }
        sleep(RETRY).await;
    }
}

/// Why an engine that does not keep a prefix cache is slow behind a router that refuses tokens.
pub fn warn_without_cache(joined: &Joined, url: &str) {
    if joined.lacks_cache {
        let advice = "enable its prefix cache: without one, each refused token computes the whole prompt again";
        tracing::warn!(engine = url, "{advice}");
    }
}

/// What identifies an adapter's engine to routers.
#[derive(Clone)]
pub struct EngineIdentity {
    /// The store's key.
    pub key: String,
    /// `host:port` of the adapter's gRPC services, or a name within this process.
    pub address: String,
    /// Hash of the text files.
    pub text: String,
    pub revision: Option<String>,
}

/// Keeps the engine's record current: it says whether the engine answers, and that the adapter drains. Never returns.
pub async fn publish(
    service: AdapterService,
    session: Arc<Session>,
    identity: EngineIdentity,
    mut draining: watch::Receiver<bool>,
) {
    let mut lost = service.lost();
    let mut joins = 1;
    let mut incarnation = new_incarnation(joins);
    loop {
        let why = lost.borrow_and_update().clone().map(|why| why.to_string());
        let drains = *draining.borrow_and_update();
        session.put(identity.key.clone(), encode(&record(&service, &identity, incarnation, drains, why.clone())));
        tokio::select! {
            // Both senders live as long as this task.
            _ = lost.changed() => {
                if why.is_some() && lost.borrow().is_none() {
                    joins += 1;
                    incarnation = new_incarnation(joins);
                }
            }
            _ = draining.changed() => {}
        }
    }
}

fn new_incarnation(joins: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    epoch::new(now.as_millis() as u64, joins)
}

fn record(
    service: &AdapterService,
    identity: &EngineIdentity,
    incarnation: u64,
    draining: bool,
    lost: Option<String>,
) -> EngineRecord {
    let joined = service.joined();
    EngineRecord {
        model: joined.served_name.clone(),
        kind: joined.kind(service.dialect()),
        engine: service.dialect().name().to_owned(),
        url: service.url().to_owned(),
        text: identity.text.clone(),
        revision: identity.revision.clone(),
        address: identity.address.clone(),
        context: joined.context,
        slots: joined.slots,
        prefix_cache: !joined.lacks_cache,
        incarnation,
        draining,
        lost,
        release: super::release(),
    }
}

/// What a router or an adapter measures of an engine that is already there.
pub struct ObservedEngine {
    pub service: AdapterService,
    pub name: String,
}

/// Writes the metrics of these engines.
pub fn write_metrics(samples: &mut Samples<'_>, engines: &[ObservedEngine]) -> std::fmt::Result {
    let labels = |engine: &ObservedEngine| {
        [("model", engine.service.joined().served_name.clone()), ("engine", engine.name.clone())]
    };
    let kind = |engine: &ObservedEngine| {
        let joined = engine.service.joined();
        let dialect = engine.service.dialect();
        let [model, name] = labels(engine);
        let kind = ("kind", dialect.name().to_owned());
        ([model, name, kind, ("version", joined.version.clone()), ("served", joined.model.clone())], 1)
    };
    let help = "Always 1; `kind`, `version` and `served` say what the engine behind the adapter is. Only engines that are \
        equal in all three resume each other's sequences with the same tokens";
    samples.gauge("rein_engine_kind", help, engines.iter().map(kind))?;
    let lost = |engine: &ObservedEngine| (labels(engine), u32::from(engine.service.lost().borrow().is_some()));
    let help = "1: the engine behind the adapter does not answer, or another one answers in its place";
    samples.gauge("rein_engine_lost", help, engines.iter().map(lost))?;
    let lacks = |engine: &ObservedEngine| (labels(engine), u32::from(!engine.service.joined().lacks_cache));
    let help =
        "0: the engine behind the adapter keeps no prefix cache, so each refused token computes the prompt again";
    samples.gauge("rein_engine_prefix_cache", help, engines.iter().map(lacks))?;
    let reports = |engine: &ObservedEngine| Some((labels(engine), u32::from(engine.service.reports_blocks()?)));
    let help = "1: the engine behind the adapter reports the blocks of its prefix cache. 0: it was asked to \
        (`#events=PORT`) and is silent, so routers guess its cache";
    samples.gauge("rein_engine_block_events", help, engines.iter().filter_map(reports))?;
    let requests = engines.iter().flat_map(|engine| {
        let [model, name] = labels(engine);
        let of = move |(why, count): (rein_adapter::draw::DrawReason, u64)| {
            ([model.clone(), name.clone(), ("why", why.name().to_owned())], count)
        };
        engine.service.counters().requests().map(of).collect::<Vec<_>>()
    });
    let help = "Requests to the engine behind the adapter. `why`: `start`, `masked` (one token after a refused one), \
        `free` (what follows it), `held` (one token of a sequence that waits after each), `resume` (a sequence that \
        another engine began)";
    samples.counter("rein_engine_requests", help, requests)?;
    type Read = fn(&EngineCounters) -> &std::sync::atomic::AtomicU64;
    let counters: [(&str, &str, Read); 3] = [
        (
            "rein_engine_recomputed_tokens",
            "Prompt tokens of requests after a sequence's first that the engine behind the adapter had not cached, where \
             it says so",
            |counters| &counters.recomputed_tokens,
        ),
        (
            "rein_engine_aborts",
            "Requests to the engine behind the adapter that were closed before their end, because their tokens were \
             refused or their client left",
            |counters| &counters.aborts,
        ),
        (
            "rein_engine_redraws",
            "Masked draws of the engine behind the adapter that were repeated: the mask did not fit into one request, or \
             the engine ignored it",
            |counters| &counters.redraws,
        ),
    ];
    for (name, help, read) in counters {
        let value = |engine: &ObservedEngine| {
            (labels(engine), read(engine.service.counters()).load(std::sync::atomic::Ordering::Relaxed))
        };
        samples.counter(name, help, engines.iter().map(value))?;
    }
    let seconds = engines.iter().map(|engine| (labels(engine), engine.service.counters().refusal_seconds.clone()));
    let help = "From a refused token to the one drawn in its place by the engine behind the adapter";
    samples.metric("rein_engine_refusal_seconds", help, MetricType::Histogram, seconds)?;
    let widths = engines.iter().map(|engine| (labels(engine), engine.service.counters().mask_widths.clone()));
    let help = "Number of tokens that each mask of a request to the engine behind the adapter allowed";
    samples.metric("rein_engine_mask_width", help, MetricType::Histogram, widths)
}

#[cfg(test)]
mod tests;
