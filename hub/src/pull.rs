//! A model into the cache: the list of its files, those that are wanted, several at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use futures::{StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use tokio_rustls::rustls::ClientConfig;

use crate::cache::{Cached, is_commit, is_inside};
use crate::client::{HubClient, HubFailure, backoff};
use crate::download::{Download, free};
use crate::limits::{MAX_ATTEMPTS, MAX_CONCURRENT_FILES, MAX_INDEX_BYTES};
use crate::listing::{Blob, Listing, RepoFile};
use crate::{HubError, HubSettings, ModelId};

/// The files of a layout that are known by name.
#[derive(Debug, Clone, Copy)]
struct Layout {
    config: &'static str,
    weights: &'static str,
    index: &'static str,
}

/// transformers' layout first, then Mistral's own.
const LAYOUTS: [Layout; 2] = [
    Layout { config: "config.json", weights: "model.safetensors", index: "model.safetensors.index.json" },
    Layout { config: "params.json", weights: "consolidated.safetensors", index: "consolidated.safetensors.index.json" },
];

impl Layout {
    /// That of a model with these files: the first one whose weights are there.
    fn of(has: impl Fn(&str) -> bool) -> Layout {
        let whole = |layout: &&Layout| has(layout.config) && (has(layout.weights) || has(layout.index));
        let begun = |layout: &&Layout| has(layout.config);
        *LAYOUTS.iter().find(whole).or(LAYOUTS.iter().find(begun)).unwrap_or(&LAYOUTS[0])
    }
}
/// Extensions of weights, to say what a repository has instead.
const OTHER_WEIGHTS: [&str; 6] = ["safetensors", "gguf", "bin", "pth", "pt", "onnx"];

/// Which files of a model are wanted.
#[derive(Clone, Copy)]
pub struct Wanted {
    /// Whether a file beside the weights is wanted, by its path. config.json always is.
    pub text: fn(&str) -> bool,
    pub weights: bool,
}

/// Whether the server is asked first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Its answer is needed.
    Newest,
    /// What is whole in the cache serves if the server gives no answer. A commit in the cache is not asked for.
    Cached,
}

/// Shows a download.
pub trait DownloadProgress: Send + Sync {
    /// The files, with their sizes; called twice for weights in several files.
    fn plan(&self, files: &[(&str, u64)]);
    /// This many bytes of a file are there.
    fn at(&self, file: &str, bytes: u64);
}

#[derive(Debug)]
pub struct Hub {
    settings: HubSettings,
    client: HubClient,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Hub {
    pub fn new(settings: HubSettings, tls: &ClientConfig) -> Self {
        let client = HubClient::new(tls, settings.authorization.clone());
        Hub { settings, client }
    }

    /// The directory of a model whose wanted files are whole there.
    pub async fn directory(
        &self,
        id: &ModelId,
        wanted: Wanted,
        freshness: Freshness,
        progress: &dyn DownloadProgress,
    ) -> Result<PathBuf, HubError> {
        let cached = Cached::new(&self.settings.cache, id);
        let known = cached.known(id.revision()).filter(|dir| is_whole(dir, wanted));
        self.up_to_date(id, known, freshness, |attempts| self.pull(&cached, id, wanted, attempts, progress)).await
    }

    /// The directory in which a file of a repository is whole; of a split GGUF model all its files.
    pub async fn file_directory(
        &self,
        id: &ModelId,
        file: &str,
        freshness: Freshness,
        progress: &dyn DownloadProgress,
    ) -> Result<PathBuf, HubError> {
        let cached = Cached::new(&self.settings.cache, id);
        let (cached, files) = (&cached, &split_files(file));
        let is_whole = |dir: &PathBuf| files.iter().all(|file| dir.join(file).is_file());
        let known = cached.known(id.revision()).filter(is_whole);
        let pull = |attempts| async move {
            let listing = self.listing(id, attempts).await?;
            let found = |path: &String| {
                let file = listing.files.iter().find(|file| file.path == *path).cloned();
                file.ok_or_else(|| no_file(id, path, others(&listing)))
            };
            let files = files.iter().map(found).collect::<Result<Vec<_>, _>>()?;
            self.fetch(cached, id, &listing.commit, files, progress).await?;
            cached.set_ref(id.revision(), &listing.commit)?;
            Ok(cached.snapshot(&listing.commit))
        };
        self.up_to_date(id, known, freshness, pull).await
    }

    /// What is `known` in the cache, or what `pull` brings in so many attempts.
    async fn up_to_date<F>(
        &self,
        id: &ModelId,
        known: Option<PathBuf>,
        freshness: Freshness,
        pull: impl Fn(u32) -> F,
    ) -> Result<PathBuf, HubError>
    where
        F: Future<Output = Result<PathBuf, HubError>>,
    {
        if self.settings.offline {
            let missing = || HubError::Offline { id: id.to_string(), cache: self.settings.cache.clone() };
            return known.ok_or_else(missing);
        }
        match known {
            Some(dir) if freshness == Freshness::Cached => {
                if is_commit(id.revision()) {
                    return Ok(dir);
                }
                pull(1).await.or_else(|error| {
                    tracing::warn!(model = %id, dir = %dir.display(), %error, "the cached files are used");
                    Ok(dir)
                })
            }
            _ => pull(MAX_ATTEMPTS).await,
        }
    }

    async fn pull(
        &self,
        cached: &Cached,
        id: &ModelId,
        wanted: Wanted,
        attempts: u32,
        progress: &dyn DownloadProgress,
    ) -> Result<PathBuf, HubError> {
        let listing = self.listing(id, attempts).await?;
        let commit = &listing.commit;
        let has = |path: &str| listing.files.iter().find(|file| file.path == path);
        let none = |missing: &str, others| no_file(id, missing, others);
        let layout = Layout::of(|path| has(path).is_some());
        let config = has(layout.config).ok_or_else(|| none(layout.config, others(&listing)))?;
        let index = has(layout.index).filter(|_| wanted.weights);
        let is_text = |file: &&RepoFile| file.path != layout.config && (wanted.text)(&file.path);
        let mut first: Vec<RepoFile> = listing.files.iter().filter(is_text).chain(index).cloned().collect();
        if wanted.weights && index.is_none() {
            first.push(has(layout.weights).ok_or_else(|| none(layout.weights, others(&listing)))?.clone());
        }
        // The last of them: where it is, the others are.
        first.push(config.clone());
        self.fetch(cached, id, commit, first, progress).await?;
        if index.is_some() {
            let shards = shards(&cached.snapshot(commit), layout)
                .map_err(|what| HubError::Answer { url: self.file_url(id, commit, layout.index), what })?;
            let listed = format!("that {} lists", layout.index);
            let file = |path: &String| has(path).cloned().ok_or_else(|| none(&listed, vec![path.clone()]));
            let shards = shards.iter().map(file).collect::<Result<Vec<_>, _>>()?;
            self.fetch(cached, id, commit, shards, progress).await?;
        }
        cached.set_ref(id.revision(), commit)?;
        Ok(cached.snapshot(commit))
    }

    async fn fetch(
        &self,
        cached: &Cached,
        id: &ModelId,
        commit: &str,
        files: Vec<RepoFile>,
        progress: &dyn DownloadProgress,
    ) -> Result<(), HubError> {
        let described = stream::iter(files).map(|file| async {
            let url = self.file_url(id, commit, &file.path);
            let blob = match file.blob {
                Some(blob) => blob,
                None => {
                    let headers = self.retried(id, &url, MAX_ATTEMPTS, || self.client.head(&url)).await?;
                    Blob::of_headers(&headers).map_err(|what| HubError::Answer { url: url.clone(), what })?
                }
            };
            Ok((file.path, url, blob))
        });
        let files: Vec<(String, String, Blob)> = described.buffered(MAX_CONCURRENT_FILES).try_collect().await?;
        let sizes: Vec<(&str, u64)> = files.iter().map(|(path, _, blob)| (path.as_str(), blob.size)).collect();
        progress.plan(&sizes);
        self.check_room(cached, &files)?;
        let downloads = stream::iter(&files).map(|(path, url, blob)| async move {
            let download =
                Download { client: &self.client, cached, id: &id.name, path, url: url.clone(), blob, progress };
            download.run().await
        });
        downloads.buffer_unordered(MAX_CONCURRENT_FILES).try_collect::<()>().await?;
        files.iter().try_for_each(|(path, _, blob)| cached.link(commit, path, &blob.hash))
    }

    fn check_room(&self, cached: &Cached, files: &[(String, String, Blob)]) -> Result<(), HubError> {
        let missing = |blob: &Blob| {
            let path = cached.blob(&blob.hash);
            let length = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
            let draft = path.with_file_name(format!("{}.incomplete", blob.hash));
            blob.size.saturating_sub(length(&path).max(length(&draft)))
        };
        let (needed, free) = (files.iter().map(|(_, _, blob)| missing(blob)).sum(), free(&self.settings.cache));
        match needed > free {
            true => Err(HubError::Full { path: self.settings.cache.clone(), needed, free }),
            false => Ok(()),
        }
    }

    async fn listing(&self, id: &ModelId, attempts: u32) -> Result<Listing, HubError> {
        let revision = encoded(id.revision());
        let url = format!("{}/api/models/{}/revision/{revision}?blobs=true", self.settings.endpoint, id.name);
        let body = self.retried(id, &url, attempts, || self.client.get(&url)).await?;
        Listing::parse(&body).map_err(|what| HubError::Answer { url, what })
    }

    fn file_url(&self, id: &ModelId, commit: &str, path: &str) -> String {
        let path: Vec<String> = path.split('/').map(encoded).collect();
        format!("{}/{}/resolve/{commit}/{}", self.settings.endpoint, id.name, path.join("/"))
    }

    async fn retried<T, F>(
        &self,
        id: &ModelId,
        url: &str,
        attempts: u32,
        attempt: impl Fn() -> F,
    ) -> Result<T, HubError>
    where
        F: Future<Output = Result<T, HubFailure>>,
    {
        let mut failed = 0;
        loop {
            match attempt().await {
                Ok(done) => return Ok(done),
                Err(HubFailure::Refused { status, message }) => {
                    return Err(HubError::Refused { id: id.to_string(), status, message });
                }
                Err(HubFailure::Answer(what)) => return Err(HubError::Answer { url: url.to_owned(), what }),
                Err(HubFailure::Passing { what, wait, .. }) => {
                    failed += 1;
                    if failed >= attempts {
                        return Err(HubError::Unreachable { url: url.to_owned(), what });
                    }
                    let wait = backoff(failed, wait);
                    tracing::warn!(url, what, ?wait, "the hub is asked again");
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }
}

fn no_file(id: &ModelId, missing: &str, others: Vec<String>) -> HubError {
    HubError::NoFile { id: id.to_string(), missing: missing.to_owned(), others }
}

/// The files of a split GGUF model of which this is the first (NAME-00001-of-00003.gguf), or this file.
fn split_files(file: &str) -> Vec<String> {
    let split = || {
        let (stem, count) = file.strip_suffix(".gguf")?.rsplit_once("-00001-of-")?;
        let number = count.parse::<u32>().ok().filter(|&number| number > 0 && count.len() == 5)?;
        Some((1..=number).map(|i| format!("{stem}-{i:05}-of-{count}.gguf")).collect())
    };
    split().unwrap_or_else(|| vec![file.to_owned()])
}

fn others(listing: &Listing) -> Vec<String> {
    let is_weights = |file: &&RepoFile| {
        let extension = Path::new(&file.path).extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| OTHER_WEIGHTS.contains(&extension))
    };
    listing.files.iter().filter(is_weights).take(4).map(|file| file.path.clone()).collect()
}

/// The files that the index of a checkpoint lists. Err: why it is none.
fn shards(dir: &Path, Layout { index, .. }: Layout) -> Result<BTreeSet<String>, String> {
    let path = dir.join(index);
    let size = fs::metadata(&path).map_err(|error| error.to_string())?.len();
    if size > MAX_INDEX_BYTES {
        return Err(format!("{index} has {size} bytes; at most {MAX_INDEX_BYTES} are read"));
    }
    let text = fs::read(&path).map_err(|error| error.to_string())?;
    let read: Index = serde_json::from_slice(&text).map_err(|error| format!("{index}: {error}"))?;
    let files: BTreeSet<String> = read.weight_map.into_values().collect();
    match files.iter().find(|file| !is_inside(file)) {
        Some(file) => Err(format!("{index} lists {file:?}, which is outside of the repository")),
        None => Ok(files),
    }
}

/// Whether a snapshot has what is wanted. Of the text files, the tokenizer and the configuration are known to be
/// needed.
fn is_whole(dir: &Path, wanted: Wanted) -> bool {
    let has = |file: &str| dir.join(file).is_file();
    let layout = Layout::of(has);
    let tokenizers = ["tokenizer.json", "tiktoken.model", "tekken.json"];
    let tokenizer = tokenizers.iter().any(|file| !(wanted.text)(file) || has(file));
    let weights = || match has(layout.index) {
        true => shards(dir, layout).is_ok_and(|files| files.iter().all(|file| has(file))),
        false => has(layout.weights),
    };
    has(layout.config) && tokenizer && (!wanted.weights || weights())
}

/// A part of a URL's path.
fn encoded(part: &str) -> String {
    part.bytes().fold(String::new(), |mut text, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => text.push(byte.into()),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
        text
    })
}
