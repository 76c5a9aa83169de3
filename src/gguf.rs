//! Model directories of GGUF files: the text files that their metadata says, and links to the files. This module does
//! not know metadata.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use rein_gguf::{FACTOR_TENSORS, Gguf, RopeFactors, hf_files, join_headers, split_files};

use crate::made_dir::MadeDirectory;

const BUFFER: usize = 1 << 20;
/// A head has at most this many rotated pairs.
const MAX_FACTORS: u64 = 1 << 12;
/// ggml's number of this type.
const F32: u32 = 0;

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
    let texts = hf_files(&gguf, &factors).map_err(|error| failed(error.to_string()))?;

    let paths = paths.iter().map(fs::canonicalize).collect::<io::Result<Vec<_>>>();
    let paths = paths.map_err(|error| failed(error.to_string()))?;
    let count = paths.len();
    let link = |i: usize| match count {
        1 => "model.gguf".to_owned(),
        _ => format!("model-{:05}-of-{count:05}.gguf", i + 1),
    };
    let made = MadeDirectory { texts, links: (0..count).map(link).zip(paths).collect() };
    made.in_cache("gguf", &stem(file)).map_err(failed)
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

/// The factors of rotary frequencies that are stored as tensors.
fn rope_factors(gguf: &Gguf, paths: &[PathBuf]) -> io::Result<RopeFactors> {
    let present = FACTOR_TENSORS.iter().filter(|name| gguf.tensor(name).is_some());
    present.map(|&name| Ok((name.to_owned(), numbers(gguf, paths, name)?))).collect()
}

fn numbers(gguf: &Gguf, paths: &[PathBuf], name: &str) -> io::Result<Vec<f32>> {
    let bad = |what: String| io::Error::other(format!("tensor {name}: {what}"));
    let tensor = gguf.tensor(name).ok_or_else(|| bad("is missing".into()))?;
    let numbers = tensor.dims.iter().try_fold(1, |n: u64, &dim| n.checked_mul(dim)).filter(|&n| n <= MAX_FACTORS);
    let numbers = numbers.filter(|_| tensor.kind == F32).ok_or_else(|| {
        bad(format!("must be at most {MAX_FACTORS} numbers of type F32, got {:?} of type {}", tensor.dims, tensor.kind))
    })?;
    let path = paths.get(tensor.file).ok_or_else(|| bad("is in no file".into()))?;
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(tensor.offset))?;
    let mut bytes = vec![0; numbers as usize * size_of::<f32>()];
    file.read_exact(&mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

#[cfg(test)]
mod tests;
