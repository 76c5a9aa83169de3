//! The layout of the Hub's cache: `models--ORG--NAME/{blobs,refs,snapshots}`. A snapshot is a directory of links into
//! `blobs`, named after a commit; a ref is a file that names the commit of a branch or tag.

use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::{HubError, ModelId};

const COMMIT_DIGITS: usize = 40;
const PREFIX: &str = "models--";

/// The directory of one model in the cache.
#[derive(Debug, Clone)]
pub struct Cached {
    cache: PathBuf,
    folder: String,
}

impl Cached {
    pub fn new(cache: &Path, id: &ModelId) -> Self {
        Cached { cache: cache.to_owned(), folder: format!("{PREFIX}{}", id.name.replace('/', "--")) }
    }

    fn dir(&self) -> PathBuf {
        self.cache.join(&self.folder)
    }

    pub fn blob(&self, hash: &str) -> PathBuf {
        self.dir().join("blobs").join(hash)
    }

    /// The directory of a commit's files.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.dir().join("snapshots").join(commit)
    }

    /// The snapshot that a revision was when it was last asked for.
    pub fn known(&self, revision: &str) -> Option<PathBuf> {
        let commit = match fs::read_to_string(self.dir().join("refs").join(revision)) {
            Ok(commit) => commit.trim().to_owned(),
            Err(_) => revision.to_owned(),
        };
        is_commit(&commit).then(|| self.snapshot(&commit)).filter(|dir| dir.is_dir())
    }

    pub fn set_ref(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if revision == commit {
            return Ok(());
        }
        let path = self.dir().join("refs").join(revision);
        write_whole(&path, commit.as_bytes()).map_err(HubError::disk(&path))
    }

    /// Links a file of a snapshot to its blob. `path` is relative.
    pub fn link(&self, commit: &str, path: &str, hash: &str) -> Result<(), HubError> {
        let link = self.snapshot(commit).join(path);
        let up = "../".repeat(2 + Path::new(path).components().count() - 1);
        let target = PathBuf::from(format!("{up}blobs/{hash}"));
        if fs::read_link(&link).is_ok_and(|current| current == target) {
            return Ok(());
        }
        let done = create_parent(&link).and_then(|()| {
            match fs::remove_file(&link) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            match std::os::unix::fs::symlink(&target, &link) {
                // Another process links the same file.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                done => done,
            }
        });
        done.map_err(HubError::disk(&link))
    }

    /// The lock of a blob's download, which all processes on this file system share; the Hub's own tools take the same.
    pub fn lock_file(&self, hash: &str) -> Result<(PathBuf, File), HubError> {
        let path = self.cache.join(".locks").join(&self.folder).join(format!("{hash}.lock"));
        let open = || create_parent(&path).and_then(|()| File::options().create(true).append(true).open(&path));
        open().map(|file| (path.clone(), file)).map_err(HubError::disk(&path))
    }
}

pub fn is_commit(text: &str) -> bool {
    text.len() == COMMIT_DIGITS && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// The model of a snapshot's directory, `models--ORG--NAME/snapshots/COMMIT`, in the form ORG/NAME.
pub fn name_of(dir: &Path) -> Option<String> {
    let snapshots = dir.parent().filter(|parent| parent.file_name().is_some_and(|name| name == "snapshots"))?;
    let folder = snapshots.parent()?.file_name()?.to_str()?;
    Some(folder.strip_prefix(PREFIX)?.replacen("--", "/", 1))
}

/// Whether a path of a repository stays in its directory.
pub fn is_inside(path: &str) -> bool {
    !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

pub fn create_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Readers see the old contents or the new ones.
fn write_whole(path: &Path, contents: &[u8]) -> io::Result<()> {
    create_parent(path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let draft = path.with_file_name(name);
    fs::write(&draft, contents)?;
    fs::rename(draft, path)
}
