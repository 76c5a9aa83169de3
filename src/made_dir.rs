//! Model directories that are made of files in other layouts: text files, and links to weights.

use std::path::{Path, PathBuf};
use std::{fs, io};

use rein_worker::checkpoint::content_hash;

/// What such a directory consists of, by name.
pub struct MadeDirectory {
    pub texts: Vec<(String, String)>,
    pub links: Vec<(String, PathBuf)>,
}

impl MadeDirectory {
    /// The directory under this name in the best cache for this kind that takes it. What is above it tells its
    /// contents.
    pub fn in_cache(&self, kind: &str, name: &str) -> Result<PathBuf, String> {
        let mut last = None;
        for cache in caches(kind) {
            match self.within(&cache, name) {
                Ok(target) => return Ok(target),
                Err(error) => last = Some(format!("cannot write below {}: {error}", cache.display())),
            }
        }
        Err(last.unwrap_or_default())
    }

    /// The directory of these files in a cache, made if it is not there.
    fn within(&self, cache: &Path, name: &str) -> io::Result<PathBuf> {
        let mut identity: Vec<u8> =
            self.texts.iter().flat_map(|(name, text)| [name.as_bytes(), text.as_bytes()].concat()).collect();
        self.links.iter().for_each(|(_, path)| identity.extend(path.as_os_str().as_encoded_bytes()));
        let parent = cache.join(format!("{:016x}", content_hash(&identity)));
        let (target, draft) = (parent.join(name), parent.join(format!(".{}", std::process::id())));
        if self.are_in(&target) {
            return Ok(target);
        }
        // What an earlier process with this number left, and what is not as it was made.
        for stale in [&draft, &target] {
            match fs::remove_dir_all(stale) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let filled = self.fill(&draft).and_then(|()| fs::rename(&draft, &target));
        match filled {
            Ok(()) => Ok(target),
            Err(error) => {
                // The first error tells more than one of cleaning up.
                let _ = fs::remove_dir_all(&draft);
                // Another process may have been faster.
                if self.are_in(&target) { Ok(target) } else { Err(error) }
            }
        }
    }

    fn fill(&self, draft: &Path) -> io::Result<()> {
        fs::create_dir_all(draft)?;
        for (name, text) in &self.texts {
            let path = draft.join(name);
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(path, text)?;
        }
        self.links.iter().try_for_each(|(name, path)| std::os::unix::fs::symlink(path, draft.join(name)))
    }

    /// Whether a directory has exactly these contents: one for temporary files is open to others.
    fn are_in(&self, dir: &Path) -> bool {
        let same_text =
            |(name, text): &(String, String)| fs::read(dir.join(name)).is_ok_and(|is| is == text.as_bytes());
        let same_link = |(name, path): &(String, PathBuf)| fs::read_link(dir.join(name)).is_ok_and(|is| is == *path);
        self.texts.iter().all(same_text) && self.links.iter().all(same_link)
    }
}

/// Directories for what is made of files, best first.
fn caches(kind: &str) -> Vec<PathBuf> {
    let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    home.into_iter().chain([std::env::temp_dir()]).map(|dir| dir.join("rein").join(kind)).collect()
}

#[cfg(test)]
mod tests;
