//! A model directory's text files, for routers that have none.

use std::path::{Path, PathBuf};
use std::pin::Pin;

use futures::Stream;
use rein_proto::internal::worker_server;
use rein_proto::internal::{TextFile, TextFilesRequest};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// All of them that there are.
const FILES: [&str; 8] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tiktoken.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];
const TEMPLATES: &str = "additional_chat_templates";
/// Bytes of a message.
const PART: usize = 1 << 20;
/// Messages on their way.
const PARTS: usize = 2;

#[derive(Debug, Clone)]
pub struct Files(PathBuf);

impl Files {
    pub fn of(dir: &Path) -> Self {
        Files(dir.to_owned())
    }

    /// Those that there are, from the directory on.
    pub fn paths(&self) -> Vec<PathBuf> {
        let more = std::fs::read_dir(self.0.join(TEMPLATES)).into_iter().flatten().flatten();
        let more = more.map(|entry| Path::new(TEMPLATES).join(entry.file_name()));
        FILES.iter().map(PathBuf::from).chain(more).filter(|path| self.0.join(path).is_file()).collect()
    }
}

#[tonic::async_trait]
impl worker_server::Worker for Files {
    type TextFilesStream = Pin<Box<dyn Stream<Item = Result<TextFile, Status>> + Send>>;

    async fn text_files(&self, _: Request<TextFilesRequest>) -> Result<Response<Self::TextFilesStream>, Status> {
        let (parts, stream) = mpsc::channel(PARTS);
        let files = self.clone();
        tokio::task::spawn_blocking(move || {
            for path in files.paths() {
                let name = path.to_string_lossy().into_owned();
                let read = std::fs::read(files.0.join(&path));
                let data = read.map_err(|error| Status::internal(format!("{name}: {error}")));
                let chunks = match data {
                    Ok(data) if data.is_empty() => vec![Ok(TextFile { path: name, data })],
                    Ok(data) => {
                        let part = |data: &[u8]| Ok(TextFile { path: name.clone(), data: data.to_vec() });
                        data.chunks(PART).map(part).collect()
                    }
                    Err(status) => vec![Err(status)],
                };
                for chunk in chunks {
                    // Whoever asked may have gone.
                    if parts.blocking_send(chunk).is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}
