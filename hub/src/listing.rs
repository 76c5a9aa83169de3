//! The list of a repository's files, with their sizes and hashes.

use http::HeaderMap;
use serde::Deserialize;

use crate::cache::{is_commit, is_inside};

/// A file of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoFile {
    /// Relative to the repository.
    pub path: String,
    /// Of the contents, as the Hub names blobs. None: the server did not list it.
    pub blob: Option<Blob>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// SHA-256 of large files, SHA-1 of git's object of small ones; a mirror may have names of its own.
    pub hash: String,
    pub size: u64,
}

#[derive(Debug)]
pub struct Listing {
    pub commit: String,
    pub files: Vec<RepoFile>,
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Listing {
    /// From the answer of `/api/models/ORG/NAME/revision/REVISION?blobs=true`.
    pub fn parse(body: &[u8]) -> Result<Self, String> {
        let revision: Revision = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        if !is_commit(&revision.sha) {
            return Err(format!("`sha` must be a commit, got {:?}", revision.sha));
        }
        let files = revision.siblings.into_iter().map(|sibling| {
            if !is_inside(&sibling.rfilename) {
                return Err(format!("a file outside of the repository: {:?}", sibling.rfilename));
            }
            let blob = match (sibling.lfs, sibling.blob_id, sibling.size) {
                (Some(lfs), _, _) => Some(Blob { hash: lfs.sha256, size: lfs.size }),
                (None, Some(hash), Some(size)) => Some(Blob { hash, size }),
                _ => None,
            };
            if blob.as_ref().is_some_and(|blob| !is_name(&blob.hash)) {
                return Err(format!("{}: the hash is not one", sibling.rfilename));
            }
            Ok(RepoFile { path: sibling.rfilename, blob })
        });
        Ok(Listing { commit: revision.sha, files: files.collect::<Result<_, String>>()? })
    }
}

impl Blob {
    /// From the headers that a hub sends for a file.
    pub fn of_headers(headers: &HeaderMap) -> Result<Self, String> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let size = text("x-linked-size").or_else(|| text("content-length")).and_then(|size| size.parse().ok());
        let tag = text("x-linked-etag").or_else(|| text("etag")).ok_or("no ETag")?;
        let hash = tag.trim_start_matches("W/").trim_matches('"').to_owned();
        if !is_name(&hash) {
            return Err(format!("the ETag {tag:?} is no hash"));
        }
        Ok(Blob { hash, size: size.ok_or("no Content-Length")? })
    }
}

/// Whether a hash can be the name of a file.
fn is_name(hash: &str) -> bool {
    !hash.is_empty() && hash.len() <= 128 && hash.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}
