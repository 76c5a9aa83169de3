//! Why a model cannot be downloaded.

use std::io;
use std::path::{Path, PathBuf};

use http::StatusCode;
use thiserror::Error;

/// Why a model cannot be downloaded. The messages name what helps.
#[derive(Debug, Error)]
pub enum HubError {
    #[error("{}", refusal(.id, *.status, .message))]
    Refused { id: String, status: StatusCode, message: String },
    #[error("{url}: {what}")]
    Unreachable { url: String, what: String },
    #[error("{url}: not an answer of a model hub: {what}")]
    Answer { url: String, what: String },
    #[error("{id} is not whole in {} and HF_HUB_OFFLINE is set", .cache.display())]
    Offline { id: String, cache: PathBuf },
    #[error("{id} has no file {missing}{}", found(.others))]
    NoFile { id: String, missing: String, others: Vec<String> },
    #[error("{}: the download needs {needed} more bytes and {free} are free: free some space, or set HF_HOME to a directory on a larger disk; what is downloaded is kept", .path.display())]
    Full { path: PathBuf, needed: u64, free: u64 },
    #[error(
        "{file}: {algorithm} is {actual}, but the Hub says {expected}; the download was deleted: try again, and look for a proxy that changes files"
    )]
    Hash { file: String, algorithm: &'static str, expected: String, actual: String },
    #[error("{}: {source}", .path.display())]
    Disk { path: PathBuf, source: io::Error },
    #[error("no home directory: set HF_HOME to the directory of the Hub's cache")]
    Home,
    #[error("{variable}: {what}")]
    Variable { variable: &'static str, what: String },
}

impl HubError {
    pub(crate) fn disk(path: &Path) -> impl FnOnce(io::Error) -> HubError {
        let path = path.to_owned();
        |source| HubError::Disk { path, source }
    }
}

fn refusal(id: &str, status: StatusCode, message: &str) -> String {
    let said = if message.is_empty() { String::new() } else { format!(" ({message})") };
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => format!(
            "{id}: the Hub answers {status}{said}: there is no such model, or it is private or gated; set HF_TOKEN to a \
             token of an account that may read it"
        ),
        StatusCode::NOT_FOUND => format!("{id}: the Hub has no such model or revision{said}"),
        StatusCode::TOO_MANY_REQUESTS => {
            format!(
                "{id}: the Hub answers {status}{said}: too many requests; wait, or set HF_TOKEN, which has higher limits"
            )
        }
        status => format!("{id}: the Hub answers {status}{said}"),
    }
}

fn found(others: &[String]) -> String {
    match others {
        [] => String::new(),
        others => format!(", but {}; Rein reads safetensors and, as ORG/NAME/FILE.gguf, GGUF files", others.join(", ")),
    }
}
