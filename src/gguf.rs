//! Model directories of GGUF files: the text files that their metadata says, and links to the files. This module does
//! not know metadata.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use rein_gguf::{Gguf, ROPE_FACTORS_TENSOR, hf_files, join_headers, split_files};
use rein_worker::checkpoint::content_hash;

const BUFFER: usize = 1 << 20;
/// A head has at most this many rotated pairs.
const MAX_FACTORS: u64 = 1 << 12;

/// Whether a path is a GGUF file.
pub fn is_file(path: &Path) -> bool {
    let named = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    path.is_file() && (named || begins_as_gguf(path))
}

fn begins_as_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *b"GGUF"
}

/// The model directory of the model whose first or only file is `file`. It is made in the cache, under a name that
/// tells its contents.
pub fn directory(file: &Path) -> Result<PathBuf, String> {
    let shown = file.display();
    let failed = |error: String| format!("{shown}: {error}");
    let first = header(file)?;
    let paths = split_files(file, &first).map_err(|error| failed(error.to_string()))?;
    let part = |(i, path): (usize, &PathBuf)| {
        header(path).map_err(|error| format!("{error}; it is part {} of the {} of {shown}", i + 1, paths.len()))
    };
    let more = paths.iter().enumerate().skip(1).map(part);
    let headers = [Ok(first)].into_iter().chain(more).collect::<Result<Vec<_>, _>>()?;
    let gguf = join_headers(headers).map_err(|error| failed(error.to_string()))?;
    let factors = rope_factors(&gguf, &paths).map_err(|error| failed(error.to_string()))?;
    let texts = hf_files(&gguf, factors.as_deref()).map_err(|error| failed(error.to_string()))?;

    let paths = paths.iter().map(fs::canonicalize).collect::<io::Result<Vec<_>>>();
    let paths = paths.map_err(|error| failed(error.to_string()))?;
    let count = paths.len();
    let link = |i: usize| match count {
        1 => "model.gguf".to_owned(),
        _ => format!("model-{:05}-of-{count:05}.gguf", i + 1),
    };
    let mut identity: Vec<u8> =
        texts.iter().flat_map(|(name, text)| [name.as_bytes(), text.as_bytes()].concat()).collect();
    paths.iter().for_each(|path| identity.extend(path.as_os_str().as_encoded_bytes()));
    let name = stem(file);
    let mut last = None;
    for cache in caches() {
        let parent = cache.join(format!("{:016x}", content_hash(&identity)));
        let target = parent.join(&name);
        if target.join("config.json").exists() {
            return Ok(target);
        }
        let made = parent.join(format!(".{}", std::process::id()));
        let fill = || -> io::Result<()> {
            fs::create_dir_all(&made)?;
            for (name, text) in &texts {
                let path = made.join(name);
                path.parent().map_or(Ok(()), fs::create_dir_all)?;
                fs::write(path, text)?;
            }
            for (i, path) in paths.iter().enumerate() {
                std::os::unix::fs::symlink(path, made.join(link(i)))?;
            }
            fs::rename(&made, &target)
        };
        match fill() {
            Ok(()) => return Ok(target),
            // Another process was faster.
            Err(_) if target.join("config.json").exists() => {
                // What is left behind does no harm.
                let _ = fs::remove_dir_all(&made);
                return Ok(target);
            }
            Err(error) => last = Some(format!("cannot write {}: {error}", made.display())),
        }
    }
    Err(failed(last.unwrap_or_default()))
}

/// Directories for what is made of files, best first.
fn caches() -> Vec<PathBuf> {
    let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    home.into_iter().chain([std::env::temp_dir()]).map(|dir| dir.join("rein").join("gguf")).collect()
}

/// The file's name without its ending and without the number of a part.
fn stem(file: &Path) -> String {
    let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let part = name.rsplit_once("-of-").and_then(|(before, _)| before.rsplit_once('-'));
    match part {
        Some((stem, number)) if number.len() == 5 && number.bytes().all(|b| b.is_ascii_digit()) => stem.to_owned(),
        _ => name,
    }
}

fn header(path: &Path) -> Result<Gguf, String> {
    let failed = |error: String| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    Gguf::read(BufReader::with_capacity(BUFFER, file)).map_err(|error| failed(error.to_string()))
}

/// The factors of rotary frequencies that Llama 3.1 and later store as a tensor.
fn rope_factors(gguf: &Gguf, paths: &[PathBuf]) -> io::Result<Option<Vec<f32>>> {
    let Some(tensor) = gguf.tensor(ROPE_FACTORS_TENSOR) else { return Ok(None) };
    let numbers = tensor.dims.iter().product::<u64>().min(MAX_FACTORS);
    let path = paths.get(tensor.file).ok_or_else(|| io::Error::other("a tensor is in no file"))?;
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(tensor.offset))?;
    let mut bytes = vec![0; numbers as usize * size_of::<f32>()];
    file.read_exact(&mut bytes)?;
    Ok(Some(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
}

#[cfg(test)]
mod tests;
