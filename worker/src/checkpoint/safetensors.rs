//! The safetensors container (github.com/huggingface/safetensors): the header's length in eight bytes, a JSON header
//! with dtype, shape and byte range of each tensor, then the data. Several files with an index form one checkpoint. It
//! does not know what tensors mean.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rein_gguf::{Change, RowOrder};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::error::LoadError;
use super::gguf;
use super::native;
use super::reads::Reads;
use super::source::{CheckpointFile, read_file};
use super::stored::{StoredDtype, TensorEntry};
use crate::limits::FULL_HASH_BYTES;

/// Bytes of the header's length field.
const LENGTH: usize = 8;
const MAX_HEADER_BYTES: u64 = 100_000_000;
const MAX_INDEX_BYTES: u64 = 256 << 20;

/// All tensors of a checkpoint by name.
pub struct Shards {
    files: Vec<CheckpointFile>,
    tensors: BTreeMap<String, TensorEntry>,
    reads: Arc<Reads>,
    /// There were reads since the last check that all files are unchanged.
    unverified: AtomicBool,
}

impl Shards {
    pub fn open(dir: &Path, reads: &Arc<Reads>) -> Result<Self, LoadError> {
        let [single, index] = ["model.safetensors", "model.safetensors.index.json"].map(|name| dir.join(name));
        let native = ["consolidated.safetensors", "consolidated.safetensors.index.json"].map(|name| dir.join(name));
        let unverified = AtomicBool::new(true);
        let mut shards = Self { files: Vec::new(), tensors: BTreeMap::new(), reads: reads.clone(), unverified };
        // A dangling link counts as present; it is reported when it is opened.
        let is_there = |path: &Path| reads.during(path, || path.symlink_metadata().is_ok());
        if is_there(&single) {
            shards.add(&single)?;
        } else if is_there(&index) {
            shards.open_indexed(dir, &index, is_there)?;
        } else if native.iter().any(|path| is_there(path)) {
            let [single, index] = native;
            match is_there(&index) {
                true => shards.open_indexed(dir, &index, is_there)?,
                false => shards.add(&single)?,
            }
            shards.tensors = shards.tensors.into_iter().map(|(name, entry)| (native::name_of(&name), entry)).collect();
        } else if let Some(first) = reads.during(dir, || first_gguf(dir)) {
            let (files, entries) = gguf::open(&first, reads)?;
            for (name, entry) in entries {
                if shards.tensors.insert(name.clone(), entry).is_some() {
                    let what = format!("two tensors are {name}");
                    return Err(LoadError::File { path: first, what });
                }
            }
            shards.files = files;
        } else {
            let what = "has neither model.safetensors nor model.safetensors.index.json (a GGUF file is given as such; \
                        other containers, such as pytorch_model.bin, are not read)";
            return Err(LoadError::File { path: dir.to_owned(), what: what.into() });
        }
        Ok(shards)
    }

    pub fn of_file(path: &Path, reads: &Arc<Reads>) -> Result<Self, LoadError> {
        let unverified = AtomicBool::new(true);
        let mut shards = Self { files: Vec::new(), tensors: BTreeMap::new(), reads: reads.clone(), unverified };
        shards.add(path)?;
        Ok(shards)
    }

    fn open_indexed(&mut self, dir: &Path, index: &Path, is_there: impl Fn(&Path) -> bool) -> Result<(), LoadError> {
        let listed = index.file_name().unwrap_or_default().display();
        let map = read_index(index, &self.reads)?;
        let bad = |what: String| LoadError::File { path: index.to_owned(), what };
        let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (tensor, file) in &map {
            let file = file.as_str().ok_or_else(|| bad(format!("weight_map.{tensor} must be a file name")))?;
            if file.is_empty() || file.contains(['/', '\\']) || file.starts_with('.') {
                return Err(bad(format!("weight_map.{tensor}: {file:?} is not a file name in this directory")));
            }
            files.entry(file).or_default().push(tensor);
        }
        for (name, tensors) in &files {
            let path = dir.join(name);
            if !is_there(&path) {
                let what = format!("is missing, but {listed} lists it for {}", tensors[0]);
                return Err(LoadError::File { path, what });
            }
            self.add(&path)?;
            let here = |tensor: &&&str| self.tensors.get(**tensor).is_some_and(|e| e.file + 1 == self.files.len());
            if let Some(missing) = tensors.iter().find(|tensor| !here(tensor)) {
                let what = format!("lacks tensor {missing}, which {listed} lists for it");
                return Err(LoadError::File { path, what });
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &Path) -> Result<(), LoadError> {
        let source = CheckpointFile::open(path, &self.reads)?;
        let bad = |what: String| LoadError::File { path: path.to_owned(), what };
        let file = self.files.len();
        let entries = parse_header(&read_header(&source)?, source.len()).map_err(bad)?;
        for (name, dtype, shape, range) in entries {
            if let Some(known) = self.tensors.get(&name) {
                let other = self.files.get(known.file).map(|other| other.path().display().to_string());
                let what = format!("tensor {name} is also in {}; it must be in one file", other.unwrap_or_default());
                return Err(bad(what));
            }
            self.tensors.insert(
                name,
                TensorEntry { dtype, shape, file, range, rows: RowOrder::Stored, cols: None, change: Change::Nothing },
            );
        }
        self.files.push(source);
        Ok(())
    }

    /// From now on, the names of all tensors begin with `prefix`.
    pub fn nest(&mut self, prefix: &str) {
        let tensors = std::mem::take(&mut self.tensors);
        self.tensors = tensors.into_iter().map(|(name, entry)| (format!("{prefix}{name}"), entry)).collect();
    }

    /// From now on, names of tensors that begin with `from` begin with `to`.
    pub fn rename(&mut self, from: &str, to: &str) {
        let renamed = |name: String| name.strip_prefix(from).map(|rest| format!("{to}{rest}")).unwrap_or(name);
        let tensors = std::mem::take(&mut self.tensors);
        self.tensors = tensors.into_iter().map(|(name, entry)| (renamed(name), entry)).collect();
    }

    /// From now on, the matrices of a layer's experts in one tensor, [experts, 2 * inter, hidden] with gates above ups
    /// and [experts, hidden, inter], are tensors of their own, unless they are a module.
    pub fn unstack(&mut self, is_module: impl Fn(&str) -> bool) {
        for (suffix, names) in [("gate_up_proj", &["gate_proj", "up_proj"][..]), ("down_proj", &["down_proj"])] {
            let stacked = |name: &&String| name.ends_with(&format!(".experts.{suffix}")) && !is_module(name);
            let found: Vec<String> = self.tensors.keys().filter(stacked).cloned().collect();
            for name in found {
                let Some((_, entry)) = self.tensors.remove_entry(&name) else { continue };
                let &[experts, rows, cols] = &entry.shape[..] else {
                    self.tensors.insert(name, entry);
                    continue;
                };
                let (parts, of_module) = (experts * names.len(), name.trim_end_matches(suffix));
                let bytes = entry.range.len() / parts.max(1);
                for part in 0..parts {
                    let first = entry.range.start + part * bytes;
                    let (expert, which) = (part / names.len(), names[part % names.len()]);
                    let (shape, range) = (vec![rows / names.len(), cols], first..first + bytes);
                    let entry = TensorEntry { shape, range, ..entry.clone() };
                    self.tensors.insert(format!("{of_module}{expert}.{which}.weight"), entry);
                }
            }
        }
    }

    pub fn get(&self, name: &str) -> Option<&TensorEntry> {
        self.tensors.get(name)
    }

    pub fn has_blocks(&self) -> bool {
        self.tensors.values().any(|entry| matches!(entry.dtype, StoredDtype::Blocks(_) | StoredDtype::Mxfp4))
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.tensors.keys()
    }

    /// Reads the bytes of `within`, a range inside the tensor, into `out`.
    pub fn read(&self, entry: &TensorEntry, within: Range<usize>, out: &mut Vec<u8>) -> Result<(), LoadError> {
        out.resize(within.len(), 0);
        self.read_to(entry, within.start, out)
    }

    /// Fills `out` with the tensor's bytes from `from` on.
    pub fn read_to(&self, entry: &TensorEntry, from: usize, out: &mut [u8]) -> Result<(), LoadError> {
        let within = from..from + out.len();
        self.unverified.store(true, Ordering::SeqCst);
        let file = &self.files[entry.file];
        let rows = entry.shape.first().copied().unwrap_or(1);
        let row = (entry.len() / rows.max(1)).max(1);
        let head = match entry.rows {
            RowOrder::Stored => return file.read((entry.range.start + within.start) as u64, out),
            RowOrder::InTurn(order) => {
                let mut at = within.start;
                while at < within.end {
                    let (i, inside) = (at / row, at % row);
                    let len = (order.run(i) * row - inside).min(within.end - at);
                    let first = entry.range.start + order.stored(i, rows) * row + inside;
                    file.read(first as u64, &mut out[at - within.start..][..len])?;
                    at += len;
                }
                return Ok(());
            }
            RowOrder::RotaryPairs { head_dim } => head_dim,
        };
        // Whole heads.
        let (first, last) = (within.start / (head * row), within.end.div_ceil(head * row));
        let mut stored = vec![0; (last - first) * head * row];
        file.read((entry.range.start + first * head * row) as u64, &mut stored)?;
        // Callers read whole rows, but parts of one are no reason to be wrong.
        let (mut at, mut skip) = (0, within.start % row);
        let halves = |i: usize| i % head % (head / 2) * 2 + i % head / (head / 2);
        for i in within.start / row..within.end.div_ceil(row) {
            let stored = &stored[((i / head - first) * head + halves(i)) * row..][..row][skip..];
            let part = stored.len().min(out.len() - at);
            out[at..at + part].copy_from_slice(&stored[..part]);
            (at, skip) = (at + part, 0);
        }
        Ok(())
    }

    /// The name of each file and a hash of its contents: of parts, unless all files are small.
    pub fn hashes(&self) -> Result<Vec<(PathBuf, u64)>, LoadError> {
        let whole = self.files.iter().map(CheckpointFile::len).sum::<u64>() <= FULL_HASH_BYTES;
        let of =
            |source: &CheckpointFile| Ok((source.path().file_name().unwrap_or_default().into(), source.sample(whole)?));
        self.files.iter().map(of).collect()
    }

    /// Checks that size and time of all files are unchanged.
    pub fn check_unmodified(&self) -> Result<(), LoadError> {
        self.files.iter().try_for_each(CheckpointFile::check_unmodified)
    }

    /// Checks that everything read so far came from files that were not written to since they were opened: size and
    /// time of each file, and the samples that identify it.
    pub fn verify_reads(&self) -> Result<(), LoadError> {
        if self.unverified.swap(false, Ordering::SeqCst) {
            let verified = self.files.iter().try_for_each(|source| source.sample(false).map(drop));
            verified.inspect_err(|_| self.unverified.store(true, Ordering::SeqCst))?;
        }
        Ok(())
    }
}

/// The first file of the GGUF model in a directory.
fn first_gguf(dir: &Path) -> Option<PathBuf> {
    let names = dir.read_dir().ok()?.flatten().map(|entry| entry.path());
    let is_first = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name == "model.gguf" || (name.starts_with("model-00001-of-") && name.ends_with(".gguf"))
    };
    names.into_iter().find(is_first)
}

/// A JSON object without duplicate keys: JSON readers keep one of two equal keys, and not all the same one.
struct Unique(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Unique;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique, A::Error> {
                let (mut entries, mut seen) = (Vec::new(), HashSet::new());
                while let Some((key, value)) = map.next_entry::<String, Value>()? {
                    if !seen.insert(key.clone()) {
                        return Err(A::Error::custom(format!("{key} occurs twice")));
                    }
                    entries.push((key, value));
                }
                Ok(Unique(entries))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

fn read_index(path: &Path, reads: &Reads) -> Result<Vec<(String, Value)>, LoadError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: Unique,
    }
    let text = read_file(path, MAX_INDEX_BYTES, reads)?;
    let index = serde_json::from_slice::<Index>(&text);
    let index = index
        .map_err(|e| LoadError::File { path: path.to_owned(), what: format!("is not a safetensors index: {e}") })?;
    Ok(index.weight_map.0)
}

type Parsed = (String, StoredDtype, Vec<usize>, Range<usize>);

/// Reads the JSON header of a file.
fn read_header(source: &CheckpointFile) -> Result<Vec<u8>, LoadError> {
    let bad = |what: String| LoadError::File { path: source.path().to_owned(), what };
    let mut length = [0; LENGTH];
    if source.len() < length.len() as u64 {
        return Err(bad(format!("has {} bytes, fewer than a safetensors header", source.len())));
    }
    source.read(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(bad(format!(
            "header of {length} bytes is longer than {MAX_HEADER_BYTES}; not a safetensors file?"
        )));
    }
    if length > source.len() - LENGTH as u64 {
        let found = source.len();
        return Err(bad(format!("is truncated within its header of {length} bytes: the file has {found} bytes")));
    }
    let mut header = vec![0; length as usize];
    source.read(LENGTH as u64, &mut header)?;
    Ok(header)
}

/// The tensors in the header of a file of `len` bytes.
fn parse_header(header: &[u8], len: u64) -> Result<Vec<Parsed>, String> {
    let Unique(entries) = serde_json::from_slice(header).map_err(|e| format!("has an invalid header: {e}"))?;
    let data = LENGTH + header.len();
    let mut tensors: Vec<Parsed> = Vec::with_capacity(entries.len());
    for (name, value) in entries {
        if name == "__metadata__" {
            continue;
        }
        let bad = |what: &str| format!("header entry {name}: {what}");
        let dtype = value.get("dtype").and_then(Value::as_str).ok_or_else(|| bad("has no dtype"))?;
        let Some(dtype) = StoredDtype::parse(dtype) else {
            return Err(bad(&format!("dtype {dtype} is not supported")));
        };
        let sizes = |key: &str| -> Option<Vec<usize>> {
            value.get(key)?.as_array()?.iter().map(|v| v.as_u64().map(|n| n as usize)).collect()
        };
        let shape = sizes("shape").ok_or_else(|| bad("has no shape"))?;
        let offsets = sizes("data_offsets").ok_or_else(|| bad("has no data_offsets"))?;
        let [begin, end] = offsets[..] else { return Err(bad("data_offsets must be two numbers")) };
        let bytes = shape.iter().try_fold(dtype.size(), |n, &d| n.checked_mul(d));
        if begin > end || bytes != Some(end - begin) {
            return Err(bad(&format!("data_offsets [{begin}, {end}] do not fit shape {shape:?}")));
        }
        match data.checked_add(end) {
            Some(last) if last as u64 <= len => tensors.push((name, dtype, shape, data + begin..last)),
            _ => {
                let wanted = data.saturating_add(end);
                return Err(format!(
                    "is truncated: tensor {name} ends at byte {wanted}, the file has {len}; download it again"
                ));
            }
        }
    }
    no_overlap(&tensors, data)?;
    Ok(tensors)
}

/// Every byte belongs to at most one tensor.
fn no_overlap(tensors: &[Parsed], data: usize) -> Result<(), String> {
    let mut ranges: Vec<(&Range<usize>, &String)> = tensors.iter().map(|(name, _, _, range)| (range, name)).collect();
    ranges.retain(|(range, _)| !range.is_empty());
    ranges.sort_by_key(|(range, _)| range.start);
    for pair in ranges.windows(2) {
        let [(before, a), (after, b)] = pair else { continue };
        if before.end > after.start {
            let of = |range: &Range<usize>| format!("[{}, {}]", range.start - data, range.end - data);
            return Err(format!("tensors {a} at {} and {b} at {} overlap", of(before), of(after)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
