//! Models by name: where a command takes a model directory, `ORG/NAME[@REVISION]` is a model of the Hub, whose files
//! are downloaded first. This module decides which files; `rein_hub` has them.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rein_hub::{DownloadProgress, Freshness, Hub, HubSettings, ModelId, Wanted};
use rein_worker::bytes::ByteCount;
use rein_worker::node::is_text_file;

use crate::args::{CheckArgs, Command, EngineKind, PullArgs, RenderArgs};
use crate::{gguf, native, terminal};

const LOG_INTERVAL: Duration = Duration::from_secs(10);
const BAR: &str = "{wide_msg} {bar:30} {bytes:>10}/{total_bytes:10} {bytes_per_sec:>12} {eta:>5}";

/// Which files of a model a command reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// config.json.
    Config,
    Text,
    Weights,
}

/// A model of a command line. The name is the option that it is the value of.
struct NamedModel<'a> {
    option: &'static str,
    dir: &'a mut PathBuf,
    /// The option with the model's name in the API, which the directory does not tell.
    served_name: Option<&'a mut Vec<String>>,
    need: Need,
}

impl<'a> NamedModel<'a> {
    fn new(option: &'static str, dir: &'a mut PathBuf, need: Need) -> Self {
        NamedModel { option, dir, served_name: None, need }
    }
}

/// A model of the Hub, or a GGUF file in its repository (`ORG/NAME/FILE.gguf`, `ORG/NAME/FOLDER/FILE.gguf@REVISION`).
struct NamedFiles {
    id: ModelId,
    file: Option<String>,
}

impl NamedFiles {
    fn parse(text: &str) -> Option<Self> {
        let (path, revision) = text.split_once('@').map_or((text, None), |(path, revision)| (path, Some(revision)));
        let parts = path.splitn(3, '/').collect::<Vec<_>>();
        let (name, file) = match parts[..] {
            [organization, model, file] if file.ends_with(".gguf") && file.split('/').all(is_plain) => {
                (format!("{organization}/{model}"), Some(file.to_owned()))
            }
            _ => (path.to_owned(), None),
        };
        let id = revision.map_or(name.clone(), |revision| format!("{name}@{revision}")).parse().ok()?;
        Some(NamedFiles { id, file })
    }
}

/// Whether a part of a path names a file or a folder.
fn is_plain(part: &str) -> bool {
    !matches!(part, "" | "." | "..")
}

/// Puts the directory of its files in the place of each model that a command names.
pub fn resolve(command: &mut Command) -> Result<(), Box<dyn Error>> {
    for asked in models(command) {
        let named = asked.dir.to_str().and_then(NamedFiles::parse).filter(|_| !asked.dir.exists());
        if let Some(named) = named {
            let shown = asked.dir.display();
            *asked.dir = fetch(&named, asked.need, Freshness::Cached).map_err(|error| {
                format!("{}: {shown} is no directory, so a model of the Hub: {error}", asked.option)
            })?;
        }
        if gguf::is_file(asked.dir) {
            *asked.dir = gguf::directory(asked.dir).map_err(|error| format!("{}: {error}", asked.option))?;
        } else if native::is_native(asked.dir) {
            *asked.dir = native::directory(asked.dir).map_err(|error| format!("{}: {error}", asked.option))?;
        }
        // Also for the directory of the cache itself, which is named after a commit.
        if let Some(names) = asked.served_name.filter(|names| names.is_empty()) {
            names.extend(rein_hub::name_of(asked.dir));
        }
    }
    Ok(())
}

/// The models that the command takes.
fn models(command: &mut Command) -> Vec<NamedModel<'_>> {
    const MODEL: &str = "--model";
    const TOKENIZER: &str = "--tokenizer";
    let all: [Option<NamedModel>; 2] = match command {
        Command::Serve(args) => {
            let need = needed_by(args.engine.on.engine);
            let served_name = Some(&mut args.engine.served_name);
            [Some(NamedModel { served_name, ..NamedModel::new(MODEL, &mut args.model.weights.model, need) }), None]
        }
        Command::Worker(args) => {
            let need = needed_by(args.engine.on.engine);
            let served_name = Some(&mut args.engine.served_name);
            [Some(NamedModel { served_name, ..NamedModel::new(MODEL, &mut args.weights.model, need) }), None]
        }
        Command::Adapter(args) => [Some(NamedModel::new(MODEL, &mut args.fronted.model, Need::Text)), None],
        Command::Router(args) => {
            return args.model.iter_mut().map(|dir| NamedModel::new(MODEL, dir, Need::Text)).collect();
        }
        Command::Score(args) => [Some(NamedModel::new(MODEL, &mut args.model.weights.model, Need::Weights)), None],
        Command::Capacity(args) => [Some(NamedModel::new("MODEL", &mut args.model, Need::Config)), None],
        Command::Check(CheckArgs { model, tokenizer, .. }) | Command::Render(RenderArgs { model, tokenizer, .. }) => [
            model.as_mut().map(|dir| NamedModel::new(MODEL, dir, Need::Text)),
            tokenizer.as_mut().map(|dir| NamedModel::new(TOKENIZER, dir, Need::Text)),
        ],
        Command::Parse(args) => [args.tokenizer.as_mut().map(|dir| NamedModel::new(TOKENIZER, dir, Need::Text)), None],
        Command::Accept(args) => [Some(NamedModel::new(TOKENIZER, &mut args.tokenizer, Need::Text)), None],
        _ => [None, None],
    };
    all.into_iter().flatten().collect()
}

pub fn pull(args: &PullArgs) -> Result<(), Box<dyn Error>> {
    let named = NamedFiles::parse(&args.model).ok_or_else(|| {
        let expected = "ORG/NAME, ORG/NAME@REVISION or ORG/NAME/FILE.gguf";
        format!("MODEL: expected {expected}, such as Qwen/Qwen3-0.6B, got {:?}", args.model)
    })?;
    let need = if args.text_only { Need::Text } else { Need::Weights };
    terminal::out(fetch(&named, need, Freshness::Newest)?.display());
    Ok(())
}

/// The directory of the model, or the path of the file.
fn fetch(named: &NamedFiles, need: Need, freshness: Freshness) -> Result<PathBuf, Box<dyn Error>> {
    let id = &named.id;
    let ca_file = std::env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty());
    let tls =
        rein_adapter::client_config(ca_file.as_deref().map(Path::new)).map_err(|e| format!("SSL_CERT_FILE: {e}"))?;
    let hub = Hub::new(HubSettings::from_env(|name| std::env::var_os(name))?, &tls);
    let wanted = Wanted {
        text: match need {
            Need::Config => |_| false,
            Need::Text | Need::Weights => is_text,
        },
        weights: need == Need::Weights,
    };
    let progress: Box<dyn DownloadProgress> = match std::io::stderr().is_terminal() {
        true => Box::new(Bars::default()),
        false => Box::new(Lines::new(id)),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    Ok(match &named.file {
        Some(file) => runtime.block_on(hub.file_directory(id, file, freshness, &*progress))?.join(file),
        None => runtime.block_on(hub.directory(id, wanted, freshness, &*progress))?,
    })
}

/// The files beside the weights, with those that tell how embeddings are pooled.
fn is_text(path: &str) -> bool {
    let in_directory = path.split_once('/').is_some_and(|(_, file)| file == "config.json");
    is_text_file(path) || path == "modules.json" || in_directory
}

/// The files that a command needs of the model that its engine serves.
fn needed_by(engine: EngineKind) -> Need {
    match engine {
        EngineKind::Cpu | EngineKind::Cuda => Need::Weights,
        EngineKind::Sim => Need::Text,
    }
}

/// A bar for each file that is not there yet, on a terminal.
struct Bars {
    all: MultiProgress,
    bars: Mutex<BTreeMap<String, ProgressBar>>,
}

impl Default for Bars {
    fn default() -> Self {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(4));
        Bars { all, bars: Mutex::default() }
    }
}

impl DownloadProgress for Bars {
    fn plan(&self, files: &[(&str, u64)]) {
        let mut bars = self.bars.lock().unwrap_or_else(PoisonError::into_inner);
        for (file, size) in files {
            let bar = ProgressBar::hidden();
            bar.set_length(*size);
            bar.set_message((*file).to_owned());
            if let Ok(style) = ProgressStyle::with_template(BAR) {
                bar.set_style(style);
            }
            bars.insert((*file).to_owned(), bar);
        }
    }

    fn at(&self, file: &str, bytes: u64) {
        let bars = self.bars.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(bar) = bars.get(file) else { return };
        match bar.length() {
            Some(length) if length == bytes => bar.finish_and_clear(),
            _ => {
                if bar.is_hidden() {
                    self.all.add(bar.clone());
                    // What an earlier attempt left is not this one's speed.
                    bar.reset_eta();
                }
                bar.set_position(bytes);
            }
        }
    }
}

/// A line every few seconds, in logs.
struct Lines {
    model: String,
    state: Mutex<Downloaded>,
}

struct Downloaded {
    total: u64,
    files: BTreeMap<String, u64>,
    started: Instant,
    logged: Instant,
    /// Bytes that were there before.
    before: Option<u64>,
}

impl Lines {
    fn new(id: &ModelId) -> Self {
        let now = Instant::now();
        let state = Downloaded { total: 0, files: BTreeMap::new(), started: now, logged: now, before: None };
        Lines { model: id.to_string(), state: Mutex::new(state) }
    }
}

impl DownloadProgress for Lines {
    fn plan(&self, files: &[(&str, u64)]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.total += files.iter().map(|(_, size)| size).sum::<u64>();
    }

    fn at(&self, file: &str, bytes: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.files.insert(file.to_owned(), bytes);
        let done: u64 = state.files.values().sum();
        let before = *state.before.get_or_insert(done);
        let now = Instant::now();
        if now - state.logged < LOG_INTERVAL {
            return;
        }
        state.logged = now;
        let rate = ByteCount((done.saturating_sub(before) as f64 / (now - state.started).as_secs_f64()) as u64);
        let (done, total) = (ByteCount(done), ByteCount(state.total));
        tracing::info!(model = self.model, %done, %total, per_second = %rate, "downloading a model");
    }
}

#[cfg(test)]
mod tests;
