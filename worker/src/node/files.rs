//! Serves a model directory's text files to routers that do not have them. It does not know what the files mean.

use std::collections::BTreeMap;
use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use rein_proto::internal::worker_server;
use rein_proto::internal::{TextFile, TextFilesRequest};
use tonic::{Request, Response, Status};

use crate::checkpoint::{LoadError, Reads, read_file};
use crate::limits::TEXT_BYTES;

/// The text files that a model directory may have.
const FILES: [&str; 9] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tiktoken.model",
    "tekken.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];
const TEMPLATES: &str = "additional_chat_templates";
/// Bytes per message.
const PART: usize = 1 << 20;

/// Whether a path, relative to a model directory, is that of a text file.
pub fn is_text_file(path: &str) -> bool {
    let template = || path.strip_prefix(TEMPLATES)?.strip_prefix('/')?.strip_suffix(".jinja");
    FILES.contains(&path) || template().is_some_and(|name| !name.contains('/'))
}

/// The files as they were when the worker started: routers must get the files of its fingerprint, whatever the
/// directory holds later.
#[derive(Debug, Clone)]
pub struct TextFiles(Arc<BTreeMap<String, Bytes>>);

impl TextFiles {
    /// Reads the files of a model directory. A read that returns nothing for `timeout` is an error.
    pub fn read(dir: &Path, timeout: Duration) -> Result<Self, LoadError> {
        let reads = Reads::new(timeout);
        reads.watch({
            let (dir, reads) = (dir.to_owned(), reads.clone());
            move || Self::read_all(&dir, &reads)
        })
    }

    fn read_all(dir: &Path, reads: &Reads) -> Result<Self, LoadError> {
        let more =
            reads.during(dir, || std::fs::read_dir(dir.join(TEMPLATES)).into_iter().flatten().flatten().collect());
        let more: Vec<DirEntry> = more;
        let more = more.iter().map(|entry| Path::new(TEMPLATES).join(entry.file_name()));
        let more = more.filter(|path| path.extension().is_some_and(|extension| extension == "jinja"));
        let (mut files, mut room) = (BTreeMap::new(), TEXT_BYTES);
        for name in FILES.iter().map(PathBuf::from).chain(more) {
            let path = dir.join(&name);
            if !reads.during(&path, || path.symlink_metadata().is_ok()) {
                continue;
            }
            let bytes = read_file(&path, room, reads)?;
            room -= bytes.len() as u64;
            files.insert(name.to_string_lossy().into_owned(), bytes.into());
        }
        Ok(TextFiles(Arc::new(files)))
    }

    /// Pairs of path, relative to the directory, and contents, ordered by path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(path, bytes)| (path.as_str(), &bytes[..]))
    }

    pub fn get(&self, path: &str) -> Option<&[u8]> {
        self.0.get(path).map(|bytes| &bytes[..])
    }
}

#[tonic::async_trait]
impl worker_server::Worker for TextFiles {
    type TextFilesStream = Pin<Box<dyn Stream<Item = Result<TextFile, Status>> + Send>>;

    async fn text_files(&self, _: Request<TextFilesRequest>) -> Result<Response<Self::TextFilesStream>, Status> {
        let files = self.0.clone();
        let parts = |bytes: &Bytes| bytes.len().div_ceil(PART).max(1);
        let of: Vec<(String, usize)> =
            files.iter().flat_map(|(path, bytes)| (0..parts(bytes)).map(|part| (path.clone(), part))).collect();
        let part = move |(path, part): (String, usize)| {
            let bytes = files.get(&path).cloned().unwrap_or_default();
            let data = bytes.slice((part * PART).min(bytes.len())..((part + 1) * PART).min(bytes.len()));
            Ok(TextFile { path, data: data.to_vec() })
        };
        Ok(Response::new(Box::pin(stream::iter(of).map(part))))
    }
}
